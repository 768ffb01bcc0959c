"""Relevance (LRP): rules for operations, recipes that choose them, and the autograd node that applies them."""
