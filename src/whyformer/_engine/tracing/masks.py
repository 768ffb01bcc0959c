r"""Attention masks: which scores a mask excludes, and what the scores are without it.

A mask is a constant that is added to scores, or put in their place, and is so low that the softmax gives 0. Where a
model applies one in separate operations, the scores without it are kept beside the masked ones: the same operations
are applied to both, and the mask only to one. A tensor without such a companion was never masked.
"""

from torch import Tensor

from whyformer._engine.tracing import operations
from whyformer._engine.tracing.operations import Argument, Operation
from whyformer._engine.tracing.provenance import trace_of
from whyformer._engine.tracing.softmax import step_of

MASK_THRESHOLD = -5e3  # lower scores come from a mask
MASKING_SUMS = operations.ADDITIONS | {"baddbmm"}


def lift_mask(mask: Tensor) -> Tensor:
    """An additive mask with 0 where it excludes. What remains is a bias, for example for positions."""
    return mask.masked_fill(mask.abs() >= -MASK_THRESHOLD, 0)


def unmasked_scores_of(scores: Tensor) -> Tensor:
    """The scores without the masks that were applied to them."""
    companion = getattr(scores, "_whyformer_unmasked", None)
    return scores if companion is None else companion


def has_companion(tensor: Tensor) -> bool:
    return hasattr(tensor, "_whyformer_unmasked")


def keep_before_masking(operation: Operation) -> None:
    """Before `scores.masked_fill_(...)`: keep what it is about to overwrite."""
    if operation.name == "masked_fill_" and excludes(operation.argument(2, "value")):
        scores = operation.args[0]
        scores._whyformer_unmasked = unmasked_scores_of(scores).clone()


def follow_masks(operation: Operation, result: Tensor) -> None:
    """Keep the unmasked companion of a result that is masked, or computed from something masked."""
    if result.dim() < 3 or operation.name in operations.SOFTMAXES:
        return
    is_masked_before = any(has_companion(tensor) for tensor in operation.given)
    adds_mask = operation.name in MASKING_SUMS and any(is_additive_mask(tensor) for tensor in operation.given)
    if operation.name == "masked_fill" and excludes(operation.argument(2, "value")):
        companion: Argument = unmasked_scores_of(operation.argument(0, "input"))
    elif operation.name == "where" and (chosen := find_unmasked_choice(operation)) is not None:
        companion = unmasked_scores_of(chosen)
    elif adds_mask or (is_masked_before and operation.name not in operations.PRODUCTS):
        companion = operation.map_arguments(take_unmasked).run()
    else:
        return
    if isinstance(companion, Tensor) and companion.shape == result.shape:
        result._whyformer_unmasked = companion  # type: ignore[attr-defined]


def keep_scores(operation: Operation, result: Tensor) -> None:
    """Keep the input of a softmax beside its result, and beside what is computed from that until its product."""
    if not trace_of(result).is_attention:
        return
    given, step = operation.given[0], step_of(result, "weights")
    if step is not None:
        kept = (step.scores, unmasked_scores_of(step.scores)) if step.is_plain else None
    else:
        is_softmax = operation.name in operations.SOFTMAXES
        kept = (given, unmasked_scores_of(given)) if is_softmax else getattr(given, "_whyformer_scores", None)
    result._whyformer_scores = kept  # type: ignore[attr-defined]


def read_scores(weights: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The scores of attention weights, with and without their mask, if they were kept."""
    return getattr(weights, "_whyformer_scores", None) or (None, None)


def take_unmasked(value: Argument) -> Argument:
    if not isinstance(value, Tensor):
        return value
    return lift_mask(value) if is_additive_mask(value) else unmasked_scores_of(value)


def is_additive_mask(tensor: Tensor) -> bool:
    """A constant with entries so low that they exclude; a state of the model is none, however large its entries."""
    is_constant = tensor.is_floating_point() and not trace_of(tensor).depends and not has_companion(tensor)
    return is_constant and tensor.numel() > 1 and bool((tensor.abs() >= -MASK_THRESHOLD).any())


def find_unmasked_choice(operation: Operation) -> Tensor | None:
    """Of `where(condition, a, b)` the one that is not the constant of a mask; None if neither is one."""
    first, second = operation.argument(1, "input"), operation.argument(2, "other")
    for scores, constant in ((first, second), (second, first)):
        if isinstance(scores, Tensor) and scores.is_floating_point() and excludes(constant):
            return scores
    return None


def excludes(constant: Argument) -> bool:
    """A number, or a tensor of one number, that is low enough to exclude."""
    if isinstance(constant, Tensor):
        return constant.numel() == 1 and constant.is_floating_point() and float(constant) <= MASK_THRESHOLD
    return isinstance(constant, int | float) and constant <= MASK_THRESHOLD
