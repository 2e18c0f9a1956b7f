"""Sample: one token per request, from random numbers that belong to that request alone."""
