"""Run a method in another floating-point precision than the model's own.

    explain(model, "cat.png", "lrp", precision="float64")

The weights are copied to that precision for the call; the model itself stays as it is. Literal relevance rules divide
by sums that may cancel, so that rounding in float32 can change their maps (`Explanation.conditioning`).
"""

from dataclasses import replace

import torch

from whyformer._engine import make_shadow
from whyformer._model import EncodedBatch, Model
from whyformer.errors import MethodError

PRECISIONS = {"float32": torch.float32, "float64": torch.float64}


def convert_precision(model: Model, encoded: EncodedBatch, precision: str | None) -> tuple[Model, EncodedBatch]:
    """The model and its inputs in that precision: copies, unless they have it already."""
    if precision is None:
        return model, encoded
    dtype = PRECISIONS[precision]
    if dtype == torch.float64 and model.device.type == "mps":
        raise MethodError(
            'precision="float64" is not available on the device mps. Open the model with device="cpu".', code="E_OPTION"
        )
    inputs = {name: given.to(dtype) if given.is_floating_point() else given for name, given in encoded.inputs.items()}
    encoded = replace(encoded, inputs=inputs)
    if all(weight.dtype == dtype for weight in model.module.parameters() if weight.is_floating_point()):
        return model, encoded
    return replace(model, module=make_shadow(model.module, dtype)), encoded
