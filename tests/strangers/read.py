"""How the answer is read: at several tokens, by a chain of modules, by shapes that depend on the batch."""

from strangers import anatomy as a
from strangers.draft import Draft
from strangers.kinds import kind
from torch import Tensor, nn


@kind("read at two tokens by a function", "9 readout", "returned", ["ids", "series"])
def read_two(d: Draft) -> None:
    length = d.plain.given[next(iter(d.plain.given))].size(1)
    one, two = sorted(d.dice.sample(range(min(length, 4)), 2))
    target = d.target
    d.strange.read = a.keep
    d.plain.read = lambda h: h[:, one] + h[:, two]
    d.plain.head = d.strange.head = nn.Linear(a.WIDTH, a.CLASSES, bias=False)
    d.target_passed = lambda out: out[:, one, target] + out[:, two, target]
    d.own_value = lambda out: out[:, one, target] + out[:, two, target]
    d.has_logits = False
    d.unknown = (
        f"{d.unknown}|^lrp$|transformer_attribution|partial_lrp"  # these start with slope x output of a function
    )


@kind("features and head in a Sequential", "12 false alarm", "read", one_input=True)
def in_a_row(d: Draft) -> None:
    d.wrap = lambda model: nn.Sequential(Features(model.make, model.mix), Answer(model.read, model.head, model.give))
    d.passes = lambda given: next(iter(given.values()))
    d.called = lambda module, given: module(*given.values())


class Features(nn.Module):
    def __init__(self, make: nn.Module, mix: nn.Module) -> None:
        super().__init__()
        self.make, self.mix = make, mix

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.make(x))


class Answer(nn.Module):
    def __init__(self, read: a.Function, head: nn.Module, give: a.Function) -> None:
        super().__init__()
        self.read, self.head, self.give = read, head, give

    def forward(self, h: Tensor) -> Tensor:
        return self.give(self.head(self.read(h)))


@kind("squeeze on a batch of one", "12 refused", "returned", batch=1)
def squeeze(d: Draft) -> None:
    target = d.target
    d.strange.give = lambda logits: logits.squeeze()
    d.own_value = lambda out: out[target]
