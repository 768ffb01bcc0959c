"""The metrics, one file for each idea. Importing this fills METRICS."""

from whyformer.metrics.localisation import mass_in_mask

__all__ = ["mass_in_mask"]
