"""Ground truth of the wrong kind is refused in a sentence."""

import numpy as np
import pytest
import torch
from test_every_metric import given, settings_of

from whyformer.errors import InputError
from whyformer.metrics._registry import METRICS, choose_metric, measure

ODD_MASKS = [None, 5, "mask", [None] * 3, ["x"] * 3, [{}] * 3, [torch.ones(4, 4, device="meta")] * 3,
             [np.full((16, 16), np.nan)] * 3, [torch.ones(16, 16, dtype=torch.complex64)] * 3,
             [np.array([["a", "b"]])] * 3, [torch.ones(0, 0)] * 3, [torch.ones(2)] * 3]  # fmt: skip
ODD_RATIONALES = [None, 5, [5] * 3, [object()] * 3, [{"a": 1}] * 3, ["x"] * 3, [[object(), None]] * 3]
ODD_LABELS = [None, "x", object(), [None] * 3, [0, 1], torch.ones(3, device="meta"), ["a", "b", "c"], 1 + 2j]


@pytest.mark.parametrize("name", sorted(name for name, one in METRICS.items() if one.needs_truth))
def test_truth_that_does_not_fit_is_refused(name):
    needs, kind = METRICS[name].needs_truth, "texts" if METRICS[name].only == "texts" else "images"
    for odd in {"mask": ODD_MASKS, "rationale": ODD_RATIONALES, "label": ODD_LABELS}[needs]:
        with pytest.raises(InputError, match=r"mask|rationale|marks|label"):
            measure(choose_metric(name, settings_of(name, kind)), {**given(kind), needs: odd})
