"""Cluster: small models of what stands around an engine, and what two engines do together."""
