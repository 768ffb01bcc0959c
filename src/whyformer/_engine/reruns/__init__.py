"""Reruns: the rest of a model with other attention weights, and the recorded steps that it is made of."""
