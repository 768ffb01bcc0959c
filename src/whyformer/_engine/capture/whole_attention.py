"""A note on attention that a model computes in separate operations: its matrices are whole, however long the input."""

import math

from whyformer._engine.run import Intercept
from whyformer._engine.tracing import tiles


def note_whole_attention(mode: Intercept) -> tuple[str, ...]:
    """A sentence if the model itself holds matrices so large that they would be computed in tiles."""
    made = [site.weights for site in mode.sites if site.weights is not None]
    largest = max(made, key=lambda weights: weights.numel(), default=None)
    if largest is None:
        return ()
    size = math.prod(largest.shape) * largest.element_size()
    if size <= tiles.TILED_FROM:
        return ()
    return (
        f"The model computes its attention in separate operations, so {len(made)} matrices of up to "
        f'{size / 2**30:.1f} GiB are whole. Load it with attn_implementation="sdpa" to compute them in tiles.',
    )
