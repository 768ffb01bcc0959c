"""Alternatives to a refused method: which methods do work on this model and input, found by trying one of each family.

Each family needs something else of a model: relevance rules for its operations, the gradient of its attention, its
attention alone, the gradient of its input, or only that it runs. A candidate is tried on the first example, and only
after a method was refused. What was found for a model and a kind of input is kept, since users try several methods.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._engine import Probe, TargetLike, find_output, recall
from whyformer._explain.method_call import MethodCall, choose_method
from whyformer._explain.sharing import explain_by_call, raise_if_out_of_memory, record_for_methods
from whyformer._model import EncodedBatch, Model, pick_examples
from whyformer.errors import MethodError, ModelError

# One for each family, those that need most of a model first.
CANDIDATES = ("attnlrp", "generic_attention", "rollout", "gradient_x_input", "leave_one_out", "rise")
OTHER_CAUSES = ("E_OPTION", "E_DEVICE", "E_MODEL_WEIGHTS")  # not a matter of the method


@contextmanager
def name_alternatives(
    call: MethodCall | None, model: Model, encoded: EncodedBatch, target: TargetLike
) -> Iterator[None]:
    """Add to a refusal of this method (None: of the default) which methods work instead."""
    try:
        yield
    except (ModelError, MethodError) as error:
        is_ours = call is None or call.method.compute.__module__.startswith("whyformer.")
        if error.code not in OTHER_CAUSES and is_ours:
            refused = None if call is None else call.method.name
            error.args = (f"{error} {describe_alternatives(model, encoded, target, refused)}",)
        raise


def describe_alternatives(model: Model, encoded: EncodedBatch, target: TargetLike, refused: str | None) -> str:
    """Which methods work with this target or, if none does, with a function of the output as target."""
    if working := [name for name in find_working_methods(model, encoded, target) if name != refused]:
        return f"Methods that work here: {', '.join(working)}."
    if working := list(find_working_methods(model, encoded, partial(read_last_number, module=model.module))):
        return f"With a function of what the model returns as target, these methods work: {', '.join(working)}."
    return "No method works on this model."


def read_last_number(returned: Any, module: nn.Module) -> Tensor:
    """The last number that the model returns for each example, a target that fits every model."""
    return find_output(returned, module).flatten(1)[:, -1]


def find_working_methods(model: Model, encoded: EncodedBatch, target: TargetLike) -> tuple[str, ...]:
    """Which of the candidates work on the first example of this input."""
    known = recall(model.module, "methods that work")
    key = (encoded.main, *sorted((name, tensor.dim(), tensor.dtype) for name, tensor in encoded.inputs.items()))
    kind = (str(key), model.readout, type(target).__name__)
    if kind not in known:
        first = pick_examples(encoded, torch.zeros(1, dtype=torch.long))
        wanted = None if isinstance(target, list | tuple) else target
        known[kind] = tuple(name for name in CANDIDATES if works(choose_method(name, {}), model, first, wanted))
    return known[kind]


def works(call: MethodCall, model: Model, encoded: EncodedBatch, target: TargetLike) -> bool:
    """Whether the method gives scores; of a method that reruns the model, whether one variant runs."""
    try:
        capture = record_for_methods([call], model, encoded, target, None)
        if "probe" in call.needs:
            return run_one_variant(capture["probe"], needs_patches=call.method.name == "leave_one_out")
        return bool(explain_by_call(call, model, encoded, capture).scores.any())
    except Exception as error:  # whatever it is, the refusal that is being explained matters more
        raise_if_out_of_memory(error)
        return False


def run_one_variant(probe: Probe, *, needs_patches: bool) -> bool:
    """Remove what a perturbation method would remove: a unit, or all pixels where the patches are unknown."""
    is_without_patches = probe.is_image and probe.grid is None
    if is_without_patches and needs_patches:
        return False
    if is_without_patches:
        keep = torch.zeros(1, *probe.encoded.inputs[probe.encoded.main].shape[-2:], dtype=torch.bool)
    else:
        keep = torch.ones(1, probe.units, dtype=torch.bool)
        keep[0, int(probe.real[0].nonzero()[0]) if probe.real.any() else 0] = False
    probe.keep_only(keep, torch.zeros(1, dtype=torch.long))
    return True
