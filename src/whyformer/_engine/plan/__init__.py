"""Planned runs: a backward plan learnt once from the full engine, then the model's own forward and plain autograd."""
