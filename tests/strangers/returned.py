"""What is returned: probabilities, log-probabilities, holes, losses, other axes."""

from typing import Any

import torch
import torch.nn.functional as F
from strangers import anatomy as a
from strangers.draft import Draft
from strangers.kinds import kind
from torch import Tensor

SCALE_NOTE = "probabilit|softmax|sigmoid|logit"


def give(d: Draft, function: a.Function, share: a.Function | None = None) -> None:
    """`function` of the logits is returned; `share` [batch] is the probability of the target."""
    target = d.target
    d.strange.give = function
    d.own_value = lambda out: out[:, target]
    d.probability = share


@kind("softmax at the end", "4 scale", "returned")
def give_softmax(d: Draft) -> None:
    give(d, lambda z: z.softmax(-1))


@kind("log_softmax at the end", "4 scale", "returned")
def give_log_softmax(d: Draft) -> None:
    give(d, lambda z: F.log_softmax(z, -1))


@kind("sigmoid of every class at the end", "4 scale", "returned")
def give_sigmoid(d: Draft) -> None:
    give(d, torch.sigmoid, lambda z: z[:, d.target].sigmoid())


@kind("[1 - p, p] at the end", "4 scale", "returned")
def give_both_sides(d: Draft) -> None:
    """The logit of one class against no other; the target is the second."""
    picked, d.target = d.target, 1
    d.strange.give = lambda z: torch.stack([1 - z[:, picked].sigmoid(), z[:, picked].sigmoid()], 1)
    d.own_value = lambda out: out[:, 1]
    d.probability = lambda z: z[:, picked].sigmoid()
    d.logit = picked


@kind("softmax with a temperature", "4 scale", "returned")
def give_cooled(d: Draft) -> None:
    """The logits beneath are those after the division."""
    head = d.plain.head
    with torch.no_grad():
        cooled = torch.nn.Linear(a.WIDTH, a.CLASSES)
        cooled.weight.copy_(head.weight / 2)
        cooled.bias.copy_(torch.zeros(a.CLASSES) if head.bias is None else head.bias / 2)
    d.plain.head = d.strange.head = cooled
    give(d, lambda z: (z / 1.0).softmax(-1))


@kind("-inf for other classes", "4 scale", "returned")
def give_masked(d: Draft) -> None:
    other = (d.target + 1) % a.CLASSES
    hide = torch.arange(a.CLASSES) == other
    d.strange.give = lambda z: z.masked_fill(hide, float("-inf"))
    d.probability = lambda z: z.masked_fill(hide, float("-inf")).softmax(-1)[:, d.target]


@kind("NaN for other classes", "4 scale", "returned")
def give_nan(d: Draft) -> None:
    other = (d.target + 1) % a.CLASSES
    hide = torch.arange(a.CLASSES) == other
    d.strange.give = lambda z: torch.where(hide, float("nan"), z)
    d.probability = lambda z: z.masked_fill(hide, float("-inf")).softmax(-1)[:, d.target]


@kind("a dictionary with the logits", "11 passed", "returned")
def give_dictionary(d: Draft) -> None:
    d.strange.give = lambda z: {"logits": z}


# --- with a loss -----------------------------------------------------------------------------------------------------


class WithLoss(a.Anatomy):
    """Labels may be given; then the loss comes first."""

    def logits(self, first: Tensor, *others: Tensor) -> Tensor:
        return super().logits(first, *others[:-1])

    def answer(self, *given: Tensor) -> Any:
        logits = self.logits(*given)
        loss = F.cross_entropy(logits, given[-1])
        return loss, self.give(logits)


class WithLossOrNone(WithLoss):
    def answer(self, *given: Tensor) -> Any:
        loss, logits = super().answer(*given)
        return {"loss": loss, "logits": logits}


@kind("labels in the batch", "11 passed", "returned")
def give_labels(d: Draft) -> None:
    d.strange.anatomy = d.dice.choice((WithLoss, WithLossOrNone))
    d.strange.given = {**d.strange.given, "labels": torch.randint(0, a.CLASSES, (d.batch,))}
