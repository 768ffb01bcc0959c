r"""The representation of a model without a head, as a score to be explained.

$$ s(x) = e(x) \cdot u, \qquad u = \frac{e(x_0) - e(\text{blank})}{\lVert e(x_0) - e(\text{blank}) \rVert} $$

e is what the model returns: one state, or the state at the token (or the mean of the tokens) where a representation is
usually read. u points from the representation of a blank input to that of the explained input $x_0$ and is held
constant, so the score says how far the input has moved the representation along its own direction. Half the squared
norm of e, the obvious choice, is nearly constant after a final norm layer; this is not. In the blank input every
token that is not special is replaced by the mask, unknown or padding token, and every pixel or other number by 0. If it
has the same representation as the input, u is the direction of e itself.

Methods that are not class-specific need no direction: their score is the norm of e.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whyformer._engine.layout.layout import Layout, axis_order_of, find_representation
from whyformer._engine.run.forward import Run, run_plain_returned
from whyformer._engine.run.returned import Returned, find_output
from whyformer._engine.run.shadow import make_shadow
from whyformer._engine.targets.target import REPRESENTATION
from whyformer._engine.tracing.provenance import trace_of
from whyformer._model import EncodedBatch, Model, find_fill_token


@dataclass(frozen=True)
class Projection:
    """e(x) . u for each example; a function of the output (function_target.py)."""

    model: Model
    is_turned: bool  # states [token batch channel]
    weights: Tensor | None  # [batch token]: where the representation is read; None if the output is one state
    directions: Tensor | None = None  # u [batch channel]
    label = REPRESENTATION

    def __call__(self, returned: Returned) -> Tensor:
        states = self.represent(returned)
        assert self.directions is not None
        return (states * self.directions.to(states)).sum(-1)

    def represent(self, returned: Returned) -> Tensor:
        """[batch channel]: e."""
        states = find_output(returned, self.model.module)
        if self.weights is None:
            return states
        states = states.transpose(0, 1) if self.is_turned else states
        return torch.einsum("bt,btc->bc", self.weights.to(states), states)

    def pick_examples(self, of: Tensor) -> "Projection":
        directions = None if self.directions is None else self.directions[of.to(self.directions.device)]
        weights = None if self.weights is None else self.weights[of.to(self.weights.device)]
        return replace(self, weights=weights, directions=directions)

    def follow_tokens(self, encoded: EncodedBatch) -> "Projection":
        """The same tokens in a variant from which others were removed; a mean is one over what is left."""
        if encoded.origin is None or self.weights is None:
            return self
        at = encoded.origin.to(self.weights.device)
        moved = self.weights.gather(1, at.clamp(min=0)) * (at >= 0)
        total = moved.sum(-1, keepdim=True)
        return replace(self, weights=moved / total.masked_fill(total == 0, 1))


def make_projection(model: Model, encoded: EncodedBatch, run: Run, layout: Layout) -> tuple[Projection, str]:
    """The score of the representation of these examples, and a note."""
    output, weights, is_turned, where = run.output, None, False, ""
    if output.dim() == 3:
        weights, where = find_representation(model, run, layout)
        weights, is_turned = weights.detach(), axis_order_of(output, trace_of(output)) == "turned"
    projection = Projection(model, is_turned, weights)
    with torch.no_grad():
        own = projection.represent(run.returned).detach()
        blank = projection.represent(run_plain_returned(make_shadow(model.module), make_blank(model, encoded)))
        moved = own - blank.to(own)
        length = moved.norm(dim=-1, keepdim=True)
        moved = torch.where(length > 1e-6 * own.norm(dim=-1, keepdim=True), moved, own)
    note = where or "The model has no head. The explanation is of its representation."
    note += " Score: its projection on the direction in which it differs from that of a blank input."
    return replace(projection, directions=torch.nn.functional.normalize(moved, dim=-1)), note


def make_blank(model: Model, encoded: EncodedBatch) -> EncodedBatch:
    """The batch without information: mask, unknown or padding tokens, or zeros."""
    main = encoded.inputs[encoded.main]
    if main.is_floating_point():
        return replace(encoded, inputs={**encoded.inputs, encoded.main: torch.zeros_like(main)})
    kinds = [kind for kind, name in (("mask", "mask_token_id"), ("unknown", "unk_token_id")) if has_id(model, name)]
    token = find_fill_token(model, (*kinds, "pad")[0])
    fixed = torch.zeros(main.shape, dtype=torch.bool)
    for mask, keeps in ((encoded.token_mask, False), (encoded.special_mask, True)):
        if mask is not None and mask.shape == main.shape:
            fixed |= mask == keeps
    ids = torch.where(fixed.to(main.device), main, token)
    return replace(encoded, inputs={**encoded.inputs, encoded.main: ids})


def has_id(model: Model, name: str) -> bool:
    return getattr(model.tokenizer, name, None) is not None
