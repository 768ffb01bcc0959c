"""Capture: what a run and its backward passes leave behind."""
