"""The pages: figures, panels, pictures, exercises. Only notebooks and tests import from here."""
