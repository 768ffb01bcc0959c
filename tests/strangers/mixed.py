"""How tokens are mixed: rows that touch each other, chance, slopes that are not the function's, unusual loops."""

import torch
import torch.nn.functional as F
from strangers import anatomy as a
from strangers.draft import Draft
from strangers.kinds import kind
from torch import Tensor, nn

BATCH_NOTE = "batch|neighbour|other (rows|examples)|alone|one by one"
CHANCE_NOTE = "random|chance|not deterministic|two (equal )?(calls|runs|forwards)|differs? (from|between) (call|run)"
MIXES_FIRST = "moves, mixes or drops tokens before its first attention"
SLOPE_NOTE = "gradient|slope|derivative"
BY_SLOPES = "lrp|libragrad|(transformer|gamma)_attribution|cat$|generic|gradient|saliency|grad_cam|grads|legrad|tokentm"
BY_RULES = "lrp|libragrad|(transformer|gamma)_attribution|decompx"


class Then(nn.Module):
    """A part, and a function of what it gives."""

    def __init__(self, part: nn.Module, change: a.Function) -> None:
        super().__init__()
        self.part, self.change = part, change

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.change(self.part(x, *others))


# --- rows that touch each other --------------------------------------------------------------------------------------


@kind("standardised over the batch", "5 rows", "mixed", batch=1)
def standardise_over_batch(d: Draft) -> None:
    d.trusts_refusals = False
    d.true_refusals.append(("", MIXES_FIRST))
    d.strange.make = Then(d.strange.make, lambda h: (h - h.mean()) / h.std())
    d.plain.make = Then(d.plain.make, lambda h: (h - h.mean((1, 2), keepdim=True)) / h.std((1, 2), keepdim=True))


@kind("scaled by the largest value of the batch", "5 rows", "mixed", batch=1)
def scale_by_batch(d: Draft) -> None:
    d.trusts_refusals = False
    d.true_refusals.append(("", MIXES_FIRST))
    d.strange.make = Then(d.strange.make, lambda h: 2 * h / h.abs().max())
    d.plain.make = Then(d.plain.make, lambda h: 2 * h / h.abs().amax((1, 2), keepdim=True))


class NormOfBatch(nn.Module):
    def __init__(self, make: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.make, self.norm = make, norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.make(x).mT).mT


@kind("BatchNorm without running statistics", "5 rows", "mixed", batch=1)
def norm_of_batch(d: Draft) -> None:
    d.strange.make = NormOfBatch(d.strange.make, nn.BatchNorm1d(a.WIDTH, affine=False, track_running_stats=False))
    d.plain.make = NormOfBatch(d.plain.make, nn.InstanceNorm1d(a.WIDTH))
    d.true_refusals.append(("", MIXES_FIRST))
    # Rules for norms may differ; and an instance norm counts as a block that mixes tokens, whose states `cat` adds.
    d.unknown = f"{d.unknown}|{BY_RULES}|^cat$"


class Experts(nn.Module):
    """A switch layer whose experts take half of all tokens of the batch each."""

    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.mix, self.router = mix, nn.Linear(a.WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(a.WIDTH, a.WIDTH) for _ in range(2))

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        x = self.mix(x, *others)
        tokens = x.flatten(0, 1)
        share, expert = self.router(tokens).softmax(-1).max(-1)
        y = tokens
        for number, own in enumerate(self.experts):
            taken = (expert == number).nonzero()[:, 0][: len(tokens) // 2]
            y = y.index_add(0, taken, share[taken, None] * own(tokens[taken]))
        return y.view_as(x)


@kind("experts with a capacity", "5 rows", "mixed", batch=1)
def experts(d: Draft) -> None:
    d.strange.mix, d.has_twin = Experts(d.strange.mix), False
    d.true_refusals.append(("decompx", "index_add cannot be applied"))


# --- chance ----------------------------------------------------------------------------------------------------------


@kind("dropout that stays on", "6 chance", "mixed")
def stay_dropping(d: Draft) -> None:
    d.strange.mix = Then(d.strange.mix, lambda h: F.dropout(h, 0.05, training=True))
    meet_chance(d)


@kind("noise in forward", "6 chance", "mixed")
def noise(d: Draft) -> None:
    d.strange.make = Then(d.strange.make, lambda h: h + 0.05 * torch.randn_like(h))
    meet_chance(d)


def meet_chance(d: Draft) -> None:
    d.has_twin, d.is_random = False, True
    d.must.append(("", CHANCE_NOTE))


# --- slopes that are not the function's ------------------------------------------------------------------------------


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return -gradient


class Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def put_function(d: Draft, change: a.Function) -> None:
    place = d.dice.choice(("make", "mix"))
    setattr(d.strange, place, Then(getattr(d.strange, place), change))
    d.names.append(SLOPE_NOTE)
    d.true_refusals.append((f"default|{BY_RULES}", "torch.autograd.Function of its own"))


@kind("a gradient that is reversed", "7 slopes", "mixed")
def reverse(d: Draft) -> None:
    put_function(d, Reverse.apply)


@kind("a gradient that is scaled", "7 slopes", "mixed")
def scale_gradient(d: Draft) -> None:
    put_function(d, lambda h: Multiply.apply(h, 0.1))


@kind("a gradient that is scaled by detach", "7 slopes", "mixed")
def scale_by_detach(d: Draft) -> None:
    put_function(d, lambda h: 0.1 * h + (0.9 * h).detach())


@kind("a straight-through step", "7 slopes", "mixed")
def straight_through(d: Draft) -> None:
    """There is no slope: methods that take one are right with a note alone."""
    d.strange.mix = Then(d.strange.mix, lambda h: h + ((2 * h).round() / 2 - h).detach())
    d.unknown = f"{d.unknown}|{BY_SLOPES}|decompx"
    d.true_refusals.append((f"default|{BY_RULES}", "rule for round|round cannot be applied"))
    d.must.append((BY_SLOPES, SLOPE_NOTE))


# --- unusual loops ---------------------------------------------------------------------------------------------------


class OneByOne(nn.Module):
    """The mixing of one example, by vmap over the batch."""

    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.mix = mix

    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(self.mix)(x)


@kind("vmap over the batch", "12 refused", "mixed", takes_over=True)
def use_vmap(d: Draft) -> None:
    depth = d.dice.choice((1, 2))
    d.plain.mix = a.Blocks(depth)
    d.strange.mix = OneByOne(d.plain.mix)


class Documents(nn.Module):
    """A long text is cut into documents of the same length, which are read as a batch."""

    def __init__(self, mix: nn.Module, length: int) -> None:
        super().__init__()
        self.mix, self.length = mix, length

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x.reshape(-1, self.length, a.WIDTH)).reshape(len(x), -1, a.WIDTH)


class Apart(nn.Module):
    """The same with a mask."""

    def __init__(self, mix: nn.Module, length: int) -> None:
        super().__init__()
        self.mix, self.length = mix, length

    def forward(self, x: Tensor) -> Tensor:
        document = torch.arange(x.size(1)) // self.length
        bias = torch.zeros(x.size(1), x.size(1), dtype=x.dtype)
        return self.mix(x, bias.masked_fill(document[:, None] != document, float("-inf")))


@kind("documents cut into the batch", "12 refused", "mixed", ["ids"], takes_over=True)
def cut_documents(d: Draft) -> None:
    """The plain model has gradients at pairs of tokens that its mask keeps apart; here there are no such pairs."""
    d.unknown = f"{d.unknown}|grad_cam"
    d.true_refusals.append(
        ("", "cuts the text into parts, of which no token sees another|windows, parts of a text|have windows, or other")
    )
    ids = d.plain.given["input_ids"]
    d.give_both(torch.cat([ids, ids.flip(1)[:, : ids.size(1) - ids.size(1) % 2]], 1)[:, : 2 * (ids.size(1) // 2)])
    length, mix = ids.size(1) // 2, a.Blocks(2)
    d.decides = [int((row == 7).nonzero()[0]) if (row == 7).any() else 0 for row in d.plain.given["input_ids"]]
    d.strange.mix, d.plain.mix = Documents(mix, length), Apart(mix, length)


class FromTheStart(nn.Module):
    """Every layer also gets the states that the first one got."""

    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.mix = mix
        self.share = nn.Parameter(torch.full((3,), 0.2))

    def forward(self, x: Tensor) -> Tensor:
        start = x
        for share, block in zip(self.share, self.mix.blocks, strict=False):
            x = block((1 - share) * x + share * start)
        return x


@kind("skips from the first states", "12 false alarm", "mixed", takes_over=True)
def skip_from_start(d: Draft) -> None:
    d.strange.mix, d.has_twin = FromTheStart(a.Blocks(2)), False
    d.true_refusals.append(("", "not added to the input of the block|not followed by a second addition"))
