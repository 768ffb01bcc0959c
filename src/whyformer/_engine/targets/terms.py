r"""A score that is a weighted sum of numbers of the output: logits, log-probabilities or log-odds.

$$ s_i = \sum_k w_{ik} \; \text{output}_{i, a_{ik}} $$

A class, a token at a position, an entity, an answer span: all of them are such sums, so the explanation of a span by a
method that is linear in the score is the sum of the explanations of its tokens. Relevance recipes start with the slope,
also those that send relevance, as for a single class (target.py): 1 for every logit of the sum.

The slope of a log-probability is $1 - p$, which rounds to 0 for a certain answer. Log-odds have slope 1 at the logit of
the answer, however certain it is, and are computed from the logits of the others, not from $1 - p$:

$$ \log \frac{p_a}{1 - p_a} = z_a - \log \sum_{v \ne a} e^{z_v} $$

Where logits are sharp, this slope is that of the answer minus that of one other word, and relevance then tells what
sets the two apart, not what speaks for the answer. *Tempered* log-odds are the same number, with the slope of

$$ z_a - T \log \sum_{v \ne a} e^{z_v / T} , \qquad T = \max(1, 0.4 \, \sigma) $$

where $\sigma$ is the standard deviation of the logits. It is about 2.5 in demo/reader (other models were not
measured), so that T is about 1 there; once T is above 1, multiplying all logits changes no explanation. Ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from whyformer._engine.run.returned import Returned, find_output, get_field
from whyformer._model import EncodedBatch
from whyformer.errors import MethodError

Scale: TypeAlias = Literal["logit", "logp", "log_odds", "tempered"]  # what a term is: the number itself, or by softmax
SHARP = 0.4  # standard deviations of the logits: the temperature of the slope, if that is above 1


@dataclass(frozen=True)
class Term:
    """One number of the output of one example."""

    at: tuple[int, ...]  # its place in the output of the example: (class,), (token,) or (token, class)
    weight: float = 1.0
    field: str = ""  # the name of the output; "" for the logits
    scale: Scale = "logit"
    has_token: bool = False  # the first entry of `at` is a token

    def multiply(self, factor: float) -> "Term":
        return replace(self, weight=self.weight * factor)


@dataclass(frozen=True)
class TermSum:
    """The sum of the terms of each example; a function of the output (function_target.py)."""

    module: nn.Module  # which tensor the logits are
    terms: tuple[tuple[Term, ...], ...]  # of each example
    label: str = "a sum of outputs"
    starts_with_slope = True

    def __call__(self, returned: Returned) -> Tensor:
        total: Tensor | None = None
        for field, scale, rank in dict.fromkeys((t.field, t.scale, len(t.at)) for row in self.terms for t in row):
            chosen = [
                (i, term)
                for i, row in enumerate(self.terms)
                for term in row
                if (term.field, term.scale, len(term.at)) == (field, scale, rank)
            ]
            tensor = get_field(returned, field) if field else find_output(returned, self.module)
            assert tensor is not None
            part = self.sum_terms(tensor, chosen, scale)
            total = part if total is None else total + part
        assert total is not None
        return total

    def sum_terms(self, tensor: Tensor, chosen: Sequence[tuple[int, Term]], scale: Scale) -> Tensor:
        """[batch]: the weighted sum of these terms, which are read from one tensor."""
        rows = torch.tensor([i for i, _ in chosen], device=tensor.device)
        indices = torch.tensor([term.at for _, term in chosen], device=tensor.device).unbind(-1)
        tensor = tensor[:, None] if tensor.dim() == 1 else tensor
        if tensor.dim() > 1 + len(indices):  # [batch, 1, class]: only the last position was computed
            tensor = tensor[:, -1]
        if scale == "logit":
            picked = widen(tensor[rows, *indices])
        else:
            picked = CONVERSIONS[scale](widen(tensor[rows, *indices[:-1]]), indices[-1])
        weights = torch.tensor([term.weight for _, term in chosen], dtype=picked.dtype, device=picked.device)
        return picked.new_zeros(len(self.terms)).index_add(0, rows, picked * weights)

    def pick_examples(self, of: Tensor) -> "TermSum":
        return replace(self, terms=tuple(self.terms[i] for i in of.tolist()))

    def follow_tokens(self, encoded: EncodedBatch) -> "TermSum":
        """The same tokens in a variant from which others were removed."""
        if encoded.origin is None:
            return self
        return replace(
            self, terms=tuple(tuple(move_term(t, encoded.origin[i]) for t in row) for i, row in enumerate(self.terms))
        )


def compute_log_probability(logits: Tensor, index: Tensor) -> Tensor:
    """[n]: log-softmax of logits [n class] at index [n]."""
    return logits.log_softmax(-1).gather(-1, index[:, None])[:, 0]


def compute_log_odds(logits: Tensor, index: Tensor) -> Tensor:
    """[n]: the logit at index [n] minus the logarithm of the summed exponentials of all others, logits [n class]."""
    others = logits.scatter(-1, index[:, None], -torch.inf).logsumexp(-1)
    return logits.gather(-1, index[:, None])[:, 0] - others


def compute_tempered_log_odds(logits: Tensor, index: Tensor) -> Tensor:
    """[n]: the log-odds at index [n], logits [n class], with the slope of log-odds at a temperature of 1 or more."""
    known = logits.detach().isfinite()
    count = known.sum(-1, keepdim=True)
    centred = logits.detach().where(known, 0) - logits.detach().where(known, 0).sum(-1, keepdim=True) / count
    deviation = (centred.where(known, 0).square().sum(-1, keepdim=True) / count).sqrt()
    temperature = (SHARP * deviation).clamp(min=1)
    soft = temperature[:, 0] * compute_log_odds(logits / temperature, index)
    return soft + (compute_log_odds(logits, index) - soft).detach()


CONVERSIONS = {
    "logp": compute_log_probability, "log_odds": compute_log_odds, "tempered": compute_tempered_log_odds,
}  # fmt: skip


def widen(numbers: Tensor) -> Tensor:
    """In float32 if they have fewer digits: a sum over many tokens would lose what sets two prompts apart."""
    return numbers.float() if numbers.dtype in (torch.float16, torch.bfloat16) else numbers


def move_term(term: Term, origin: Tensor) -> Term:
    """The term with the place that its token has now; origin [token] is the place that each token had."""
    if not term.has_token:
        return term
    found = (origin == term.at[0]).nonzero()
    if not len(found):
        raise MethodError(
            f'The target is read at token {term.at[0]}, which fill="delete" removes. Use another fill, such as "mask" '
            'or "pad".',
            code="E_OPTION",
        )
    return replace(term, at=(int(found[0]), *term.at[1:]))
