"""Bundled small models, and generated data sets in which the right explanation is known."""
