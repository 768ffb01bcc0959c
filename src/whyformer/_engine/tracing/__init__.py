"""Tracing: which operation computed each tensor of a run, and which example and token its entries belong to."""
