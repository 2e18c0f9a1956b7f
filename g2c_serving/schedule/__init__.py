"""Schedule: which requests run, how many tokens each, where their cache blocks live."""
