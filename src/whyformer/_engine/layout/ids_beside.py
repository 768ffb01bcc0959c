"""Ids that a model reads beside the explained embeddings: a bag of words, a second table, a rule on ids.

Methods that read embeddings give no score to what comes in that way. One run shows it: with other ids, but with
the same explained embeddings, the answer must stay, and so must the part of the embeddings that is not of the words.
"""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from whyformer._engine.layout.order import describe_input_kind
from whyformer._engine.layout.order_probe import change_ids
from whyformer._engine.run.foreign_errors import FOREIGN_ERRORS
from whyformer._engine.run.forward import Run, choose_relevance_dtype, run_forward
from whyformer._engine.run.intercept import Intercept
from whyformer._engine.run.model_memory import recall
from whyformer._model import EncodedBatch, Model, unwrap
from whyformer._plain.failure import is_out_of_memory
from whyformer.errors import WhyformerError

NOTE = (
    "The model reads the token ids in another way too, beside the embedding that is explained (a second table, "
    "n-grams, a rule on ids). The scores leave that part out, or give it to the place where it enters; leave_one_out "
    "sees it."
)
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


class KeepsSum(Intercept):
    """A run that keeps the sum of embeddings which the explained one has replaced."""

    summed: Tensor | None = None

    def make_leaf(self, tensor: Tensor) -> Tensor:
        self.summed = tensor.detach() if self.leaf is None else self.summed
        return super().make_leaf(tensor)


def note_ids_beside(model: Model, encoded: EncodedBatch, run: Run) -> tuple[str, ...]:
    """Whether ids reach the answer by another path than the explained input, found once for a kind of input."""
    ids = encoded.inputs[encoded.main]
    if run.mode.leaf is None or ids.is_floating_point() or ids.dim() != 2 or run.is_library_code:
        return ()
    known, kind = recall(model.module, "reads ids"), describe_input_kind(encoded)
    if kind not in known:
        known[kind] = reads_ids_beside(model, encoded, run)
    return (NOTE,) if known[kind] else ()


def reads_ids_beside(model: Model, encoded: EncodedBatch, run: Run) -> bool:
    """Whether other ids change anything but the embeddings of the words. Runs are at least in float32."""
    ids = change_content(model, encoded, run.mode.vocabulary)
    changed = replace(encoded, inputs={**encoded.inputs, encoded.main: ids})
    start = partial(run_forward, model, asks_gradient=True, widens=True)
    try:
        with nullcontext(run) if choose_relevance_dtype(model) is None else start(encoded) as base:
            assert base.mode.leaf is not None
            leaf, words, answer = base.mode.leaf.detach(), base.mode.words, base.output.detach()
        with start(changed, starting_at=leaf, mode_class=KeepsSum) as other:
            assert isinstance(other.mode, KeepsSum)
            answer_of_others, has_rest = other.output.detach(), has_other_rest(other.mode, leaf, words)
        if not has_rest and not differs(answer_of_others, answer):
            return False
        controls = []  # the same ids twice: what differs then is random, or how weights are rounded
        for _ in range(2):
            with start(encoded, starting_at=leaf, mode_class=KeepsSum) as control:
                assert isinstance(control.mode, KeepsSum)
                controls.append(control.output.detach())
                has_rest &= not has_other_rest(control.mode, leaf, words)
        return has_rest or (differs(answer_of_others, controls[0]) and not differs(*controls))
    except (WhyformerError, *FOREIGN_ERRORS) as error:  # what a model raises on ids that it does not take
        if is_out_of_memory(error):
            raise
        return False


def change_content(model: Model, encoded: EncodedBatch, vocabulary: int) -> Tensor:
    """Other ids, where they can be no mark: padding, the last token and the largest id of a text stay."""
    ids = encoded.inputs[encoded.main]
    tables = [getattr(module, "padding_idx", None) for module in unwrap(model.module).modules()]
    marks = torch.tensor([0, *{row for row in tables if row is not None}], device=ids.device)
    ends = torch.cat([ids[:, -1:], ids.amax(1, keepdim=True)], 1)
    stays = torch.isin(ids, marks) | (ids[:, :, None] == ends[:, None]).any(-1)
    special = stays.cpu() if encoded.special_mask is None else encoded.special_mask | stays.cpu()
    smallest_end = int(ids.amax(1).min())
    return change_ids(ids, encoded.token_mask, special, min(vocabulary, smallest_end))


def has_other_rest(mode: KeepsSum, leaf: Tensor, words: Tensor | None) -> bool:
    """Whether other ids change what is added to the embeddings of the words: positions and the like."""
    if words is None or mode.words is None or mode.summed is None or mode.summed.shape != leaf.shape:
        return False
    return differs(mode.summed - mode.words, leaf - words, leaf)


def differs(new: Tensor, old: Tensor, scale: Tensor | None = None) -> bool:
    """Whether two tensors differ by more than rounding of the larger ones that they come from."""
    if new.shape != old.shape:
        return True
    largest = float((old if scale is None else scale).detach().abs().amax()) if old.numel() else 0.0
    return bool(((new.detach() - old.detach()).abs() > TOLERANCE.get(old.dtype, 5e-2) * largest).any())
