"""Lean runs: relevance of language models in memory that is linear in the tokens."""
