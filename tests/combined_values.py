"""The value of a data set by a metric, as its `combine` computes it from the parts."""

from torch import Tensor

from whyformer.metrics._registry import Metric


def combine_values(chosen: Metric, values: Tensor, parts: Tensor | None = None) -> float:
    """Combined from the parts if the metric says how, else the mean of the defined values."""
    if chosen.combine is not None and parts is not None:
        kept = parts[~parts.isnan().any(1)]
        return chosen.combine(kept) if len(kept) else float("nan")
    return float(values.nanmean())
