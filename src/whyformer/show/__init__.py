"""Showing scores: in the terminal, as a picture. Nothing here knows how the scores came about."""
