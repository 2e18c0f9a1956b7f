"""Process: append tokens, check stop conditions, turn tokens into text."""
