"""Layout: how the tokens and blocks inside a model relate to its input."""
