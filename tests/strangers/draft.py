"""A model while it is drawn: what the stranger wrote, and beside it the same function written plainly.

`draw_draft` draws plain parts; a kind then changes the strange side, and where it can be said plainly the other too.
A token that decides is planted: its state points to the target, so that most of the answer is read from it.
"""

import copy
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from strangers import anatomy as a
from torch import Tensor, nn

Given = dict[str, Tensor]
NAMES = {"ids": "input_ids", "series": "x", "table": "x", "image": "x"}
WITHOUT_ORACLE = "a^"  # a pattern that nothing matches


@dataclass
class Parts:
    """One side of a draft: the parts of a model and what it is given."""

    make: nn.Module
    mix: nn.Module
    read: a.Function
    head: nn.Module
    give: a.Function
    given: Given
    anatomy: type[a.Anatomy] = a.Anatomy

    def build(self) -> a.Anatomy:
        made = a.with_inputs(self.anatomy, *self.given)(self.make, self.mix, self.read, self.head, self.give)
        return copy.deepcopy(made).double().eval()


@dataclass(kw_only=True)
class Rules:
    """What may be said about a model, as patterns: notes that have to be there, that name what is wrong, and so on."""

    must: list[tuple[str, str]] = field(default_factory=list)  # (methods, note)
    names: list[str] = field(default_factory=list)  # notes that name what is wrong where scores are
    false_notes: list[str] = field(default_factory=list)  # that are untrue here
    true_notes: list[str] = field(default_factory=list)  # that are untrue for others, and true here
    true_refusals: list[tuple[str, str]] = field(default_factory=list)  # (methods, reason)


@dataclass
class Draft(Rules):
    dice: random.Random
    modality: str
    target: int
    decides: list[int]
    strange: Parts
    plain: Parts
    kinds: list[str] = field(default_factory=list)
    has_twin: bool = True
    trusts_refusals: bool = True  # what the plain model is refused, the strange one may be
    is_random: bool = False
    remembers: bool = False  # a forward changes the model, so that by hand each begins with a copy
    reorder: Tensor | None = None  # the number of the plain model's token for each of the strange one
    spread: tuple[Tensor, int] | None = None  # where the plain model's tokens are, of how many; the others score 0
    rows: int | None = None  # where they are not on the first axis
    called: Callable[[nn.Module, Given], Any] = lambda module, given: module(**given)
    own_tokens: slice = field(
        default_factory=lambda: slice(None)
    )  # of the plain model's tokens, those of the strange one
    unknown: str = WITHOUT_ORACLE  # pattern of the methods whose right scores are not known
    perturbed: bool = True  # tokens can be removed by hand
    remove: Callable[[Given, Sequence[int]], list[Given]] | None = None
    probability: Callable[[Tensor], Tensor] | None = None  # of the target, from logits [batch class]
    own_value: Callable[[Any], Tensor] | None = None  # the number of the target, from what the model returns
    logit: int | None = None  # the class whose logit is the target's, if it is another
    has_logits: bool = True  # beneath what is returned
    wrap: Callable[[a.Anatomy], nn.Module] = a.keep  # the model as it is passed
    passes: Callable[[Given], Any] = dict  # what a person passes
    target_passed: Any = None

    @property
    def main(self) -> str:
        return next(iter(self.strange.given))

    @property
    def batch(self) -> int:
        return self.rows or len(self.strange.given[self.main])

    def read_is_order_free(self) -> None:
        """States have no positions, so that an order of tokens says nothing, but where one of them is read."""
        self.has_twin &= "read at two tokens by a function" not in self.kinds
        if isinstance(self.plain.make, a.Words):
            for part in (self.plain.make, *self.strange.make.modules()):
                if hasattr(part, "places"):
                    part.places = None

    @property
    def logit_of_target(self) -> int:
        return self.target if self.logit is None else self.logit

    def give_both(self, tensor: Tensor, own: Tensor | None = None) -> None:
        """Another explained input; `own` is what the strange model gets, if that is another."""
        self.plain.given = {next(iter(self.plain.given)): tensor, **dict(list(self.plain.given.items())[1:])}
        self.strange.given = {**self.strange.given, self.main: tensor if own is None else own}


def draw_draft(dice: random.Random, modality: str, batch: int | None = None) -> Draft:
    """A plain model of this modality, with its inputs and a planted token in each example."""
    torch.manual_seed(dice.randrange(2**31))
    target, batch = dice.randrange(a.CLASSES), batch or dice.choice((1, 1, 2, 3))
    head = nn.Linear(a.WIDTH, a.CLASSES, bias=dice.random() < 0.5)
    make, given, decides = MAKERS[modality](dice, batch, head.weight[target].detach())
    mix = dice.choice((a.Layers, a.Blocks))(dice.choice((1, 2, 2, 3)))
    reads = [a.read_mean, a.read_mean, a.read_sum]
    if modality == "image":
        reads = [a.read_first, a.read_mean] if make.first is not None else [a.read_mean]  # type: ignore[union-attr]
    read = dice.choice(reads)
    given = {NAMES[modality]: given}
    sides = [Parts(make, mix, read, head, a.keep, dict(given)) for _ in range(2)]
    return Draft(dice, modality, target, decides, *sides)


def draw_words(dice: random.Random, batch: int, towards: Tensor) -> tuple[nn.Module, Tensor, list[int]]:
    make = a.Words(places=dice.random() < 0.5)
    length = dice.choice((5, 6, 6, 7, 9))
    with torch.no_grad():
        make.table.weight.mul_(0.15)
        make.table.weight[7] += 4 * towards
    ids, decides = torch.randint(8, a.VOCABULARY, (batch, length)), [dice.randrange(length) for _ in range(batch)]
    ids[range(batch), decides] = 7
    return make, ids, decides


def draw_steps(dice: random.Random, batch: int, towards: Tensor) -> tuple[nn.Module, Tensor, list[int]]:
    make = a.Steps()
    length = dice.choice((5, 6, 8, 9))
    x, decides = 0.5 * torch.randn(batch, length, a.CHANNELS), [dice.randrange(length) for _ in range(batch)]
    with torch.no_grad():
        make.line.weight.mul_(0.15)
        make.line.weight[:, 0] += 2 * towards
    x[..., 0] *= 0.3
    x[range(batch), decides] = torch.tensor([2.5, 0.5, -0.5])
    return make, x.double(), decides


def draw_columns(dice: random.Random, batch: int, towards: Tensor) -> tuple[nn.Module, Tensor, list[int]]:
    make = a.Columns()
    column = dice.randrange(a.CODES + a.NUMBERS)
    x = torch.randn(batch, a.CODES + a.NUMBERS)
    with torch.no_grad():
        make.scale.mul_(0.15)
        make.shift.mul_(0.15)
        make.scale[column] += 2 * towards
    x[:, column] = 2 + 0.2 * torch.rand(batch)
    return make, x.double(), [column] * batch


def draw_patches(dice: random.Random, batch: int, towards: Tensor) -> tuple[nn.Module, Tensor, list[int]]:
    make = a.Patches(class_token=dice.random() < 0.5)
    x, decides = 0.5 * torch.randn(batch, a.CHANNELS, a.SIDE, a.SIDE), [dice.randrange(16) for _ in range(batch)]
    pattern = torch.einsum("dcij,d->cij", make.cut.weight.detach(), towards)
    pattern = 3 * pattern / pattern.std()
    for row, patch in enumerate(decides):
        i, j = (a.PATCH * n for n in divmod(patch, a.SIDE // a.PATCH))
        x[row, :, i : i + a.PATCH, j : j + a.PATCH] = pattern
    return make, x.double(), decides


MAKERS: Mapping[str, Callable[[random.Random, int, Tensor], tuple[nn.Module, Tensor, list[int]]]] = {
    "ids": draw_words,
    "series": draw_steps,
    "table": draw_columns,
    "image": draw_patches,
}


# --- removing by hand ------------------------------------------------------------------------------------------------


def remove_tokens(modality: str, given: Given, main: str, tokens: Sequence[int]) -> list[Given]:
    """The inputs of one row without these tokens, by every fill that is documented for them."""
    x = given[main]
    if modality == "image":
        y = x.clone()
        for token in tokens:
            i, j = (a.PATCH * n for n in divmod(token, a.SIDE // a.PATCH))
            y[:, :, i : i + a.PATCH, j : j + a.PATCH] = 0
        return [{**given, main: y}]
    gone = torch.zeros(x.size(1), dtype=torch.bool)
    gone[list(tokens)] = True
    shape = (1, -1, *[1] * (x.dim() - 2))
    zero = torch.where(gone.view(shape), torch.zeros((), dtype=x.dtype), x)
    if not x.is_floating_point():
        return [{**given, main: zero}]
    mean = torch.where(gone.view(shape), x.mean(1, keepdim=True), x)
    filled = [{**given, main: zero}, {**given, main: mean}]
    if modality == "series" and not bool(gone.all()):
        filled.append({**given, main: x[:, ~gone]})
    return filled


def matches(patterns: Sequence[str], text: str) -> bool:
    return any(re.search(pattern, text, re.IGNORECASE) for pattern in patterns)
