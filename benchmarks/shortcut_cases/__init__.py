"""The parts of benchmarks/shortcuts.py: marks, worlds, cases, training, scores."""
