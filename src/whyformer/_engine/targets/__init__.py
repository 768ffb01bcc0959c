"""Targets: from what a model returned to the score that is explained."""
