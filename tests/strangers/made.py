"""How tokens are made: numbers and ids that `forward` changes before they become states."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from strangers import anatomy as a
from strangers.draft import WITHOUT_ORACLE, Draft, Given, remove_tokens
from strangers.kinds import kind
from torch import Tensor, nn

NO_SLOPE_NOTE = "no slope|as codes|rounds them"
BY_NUMBERS = "lrp|gradient_x_input|saliency"  # methods that score the numbers as they were given

# --- images that are changed in forward ------------------------------------------------------------------------------


class Interpolate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, size=(a.SIDE, a.SIDE), mode="bilinear", align_corners=False)


class Normalise(nn.Module):
    def __init__(self, mean: Tensor, spread: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("spread", spread)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.spread


def draw_statistics(d: Draft) -> tuple[Tensor, Tensor]:
    return torch.rand(1, a.CHANNELS, 1, 1).double(), (0.5 + torch.rand(1, a.CHANNELS, 1, 1)).double()


def change_pixels(d: Draft, change: a.Function, undo: a.Function) -> None:
    """Pixels are changed in `forward`. A patch is removed by 0 before the change, or after it."""
    x = d.plain.given["x"]
    d.strange.make = a.Changed(change, d.plain.make)
    d.give_both(x, undo(x))
    gone = undo(torch.zeros_like(x[:1]))

    def remove(given: Given, patches: Sequence[int]) -> list[Given]:
        (removed,) = remove_tokens("image", given, "x", patches)
        kept = removed["x"] == given["x"]
        return [removed, {**given, "x": torch.where(kept, given["x"], gone)}]

    d.remove = remove


@kind("pixels normalised", "2 pixels", "made", ["image"])
def normalise_pixels(d: Draft) -> None:
    """By arithmetic in forward, or by a module before the patches."""
    mean, spread = draw_statistics(d)
    change_pixels(d, lambda x: (x - mean) / spread, lambda x: x * spread + mean)
    d.unknown = BY_NUMBERS  # a shift is part of the function of the pixels that were given
    if d.dice.random() < 0.5:
        d.strange.make = nn.Sequential(Normalise(mean, spread), d.plain.make)


@kind("pixels divided by 255", "2 pixels", "made", ["image"])
def divide_pixels(d: Draft) -> None:
    change_pixels(d, lambda x: x / 255, lambda x: x * 255)
    d.unknown = "saliency"  # a slope by pixels of 0 to 255


@kind("BatchNorm2d before the patches", "2 pixels", "made", ["image"])
def norm_of_batch_first(d: Draft) -> None:
    norm = nn.BatchNorm2d(a.CHANNELS)
    mean, spread = draw_statistics(d)
    norm.running_mean.copy_(mean.flatten())
    norm.running_var.copy_(spread.flatten() ** 2 - norm.eps)
    change_pixels(d, norm.forward, lambda x: x * spread + mean)
    d.unknown = BY_NUMBERS
    d.strange.make = nn.Sequential(norm, d.plain.make)


@kind("image resized", "2 pixels", "made", ["image"])
def resize_image(d: Draft) -> None:
    resize = Interpolate()
    small = d.plain.given["x"][:, :, ::2, ::2].contiguous() if d.dice.random() < 0.3 else d.plain.given["x"]
    d.strange.make = a.Changed(resize.forward, d.plain.make)
    d.give_both(resize(small), small)
    d.perturbed = small.shape == d.plain.given["x"].shape
    d.unknown = WITHOUT_ORACLE if d.perturbed else BY_NUMBERS


@kind("zero added to pixels", "2 pixels", "made", ["image"])
def add_nothing(d: Draft) -> None:
    change_pixels(d, d.dice.choice((lambda x: x + 0, lambda x: x * 1, lambda x: x.clone() - 0.0)), a.keep)


@kind("colours reversed", "2 pixels", "made", ["image"])
def swap_channels(d: Draft) -> None:
    change_pixels(d, d.dice.choice((lambda x: x[:, [2, 1, 0]], lambda x: x.flip(1))), lambda x: x.flip(1))


# --- values that do not react to a nudge -----------------------------------------------------------------------------

SATURATING = {
    "clipped": lambda x: x.clamp(-1, 1),
    "cut at 0": lambda x: x.relu(),
    "saturated": lambda x: F.hardtanh(x, -1.5, 1.5),
    "logarithm, cut at 0": lambda x: torch.log1p(x.clamp(min=0)),
    "rounded": lambda x: (4 * x).round() / 4,
}


def change_numbers(d: Draft, name: str) -> None:
    """Some steps or columns lie wholly where the change is flat."""
    d.names.append(NO_SLOPE_NOTE)
    change, x = SATURATING[name], d.plain.given["x"].clone()
    for row, place in enumerate(d.decides):
        flat = {place, d.dice.randrange(x.size(1))}
        for one in flat:
            x[row, one] = torch.where(x[row, one] == 0, 1, x[row, one].sign()) * (3 + x[row, one].abs())
    if name in ("cut at 0", "logarithm, cut at 0"):
        x[:, d.dice.randrange(x.size(1))] = -2.0
    d.strange.make = a.Changed(change, d.plain.make)
    d.give_both(change(x), x)
    d.unknown = BY_NUMBERS


for NAME in SATURATING:
    kind(f"numbers {NAME}", "3 no nudge", "made", ["series", "table"])(lambda d, name=NAME: change_numbers(d, name))


class Buckets(nn.Module):
    """Each number falls into a bucket, which has a state."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, a.WIDTH)
        self.register_buffer("edges", torch.linspace(-1.5, 2, 7).double())

    def forward(self, x: Tensor) -> Tensor:
        return self.table(torch.bucketize(x, self.edges))


class Rows(nn.Module):
    """States of given numbers of buckets."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids)


@kind("numbers in buckets", "3 no nudge", "made", ["table"])
def bucket_numbers(d: Draft) -> None:
    d.names.append(NO_SLOPE_NOTE)
    make, x = Buckets(), d.plain.given["x"]
    d.strange.make, d.plain.make = make, Rows(make.table)
    d.plain.given = {"input_ids": torch.bucketize(x, make.edges)}
    d.unknown = BY_NUMBERS
    d.true_refusals.append((BY_NUMBERS, "gradient"))


class Codes(nn.Module):
    """The first columns of a table are codes, with a table of states; the others are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(a.CODES * a.LEVELS, a.WIDTH)
        self.columns = a.Columns(a.NUMBERS)

    def forward(self, x: Tensor) -> Tensor:
        codes = x[:, : a.CODES].long() + a.LEVELS * torch.arange(a.CODES)
        return torch.cat([self.codes(codes), self.columns(x[:, a.CODES :])], 1)


class Whole(nn.Module):
    """The same, of states: what is given is already made."""

    def forward(self, h: Tensor) -> Tensor:
        return h


@kind("codes in a table of numbers", "3 no nudge", "made", ["table"])
def code_columns(d: Draft) -> None:
    d.names.append(NO_SLOPE_NOTE)
    make = Codes()
    with torch.no_grad():
        make.codes.weight.mul_(0.15)
        column = d.dice.randrange(a.CODES)
        make.codes.weight[a.LEVELS * column : a.LEVELS * (column + 1)] += 4 * d.plain.head.weight[d.target]
    x = torch.cat([torch.randint(1, a.LEVELS, (d.batch, a.CODES)), torch.randn(d.batch, a.NUMBERS)], 1).double()
    d.decides = [column] * d.batch
    d.strange.make, d.plain.make = make, Whole()
    d.give_both(make.double()(x).detach(), x)
    d.unknown = BY_NUMBERS
    d.true_refusals.append((BY_NUMBERS, "gradient"))


@kind("ids given as floats", "3 no nudge", "made", ["ids"], combines=False)
def float_ids(d: Draft) -> None:
    ids = d.plain.given["input_ids"]
    d.strange.make = a.Changed(lambda x: x.long(), d.plain.make)
    d.unknown = BY_NUMBERS
    d.names.append(NO_SLOPE_NOTE)
    d.strange.given = {"x": ids.double()}
    d.remove = remove_id


def remove_id(given: dict[str, Tensor], tokens: list[int]) -> list[dict[str, Tensor]]:
    (name, x), *_ = given.items()
    zero, mean = x.clone(), x.clone()
    zero[:, tokens], mean[:, tokens] = 0, x.mean()
    return [{name: zero}, {name: mean}]


class Missing(nn.Module):
    """A learned vector stands for a marked token."""

    def __init__(self, make: a.Words, vector: Tensor) -> None:
        super().__init__()
        self.make, self.vector = make, nn.Parameter(vector)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.make.table(ids)
        h = torch.where((ids == 7)[..., None], self.vector, h)
        return h if self.make.places is None else h + self.make.places[: ids.size(1)]


@kind("a learned vector in the place of a token", "3 no nudge", "made", ["ids"])
def replace_token(d: Draft) -> None:
    """The note that the ids are also read by a rule is true here."""
    d.true_notes.append("in another way")
    d.names.append("in another way")
    make = d.plain.make
    vector = make.table.weight[7].detach().clone()
    own = a.Words(make.places is not None)
    own.load_state_dict(make.state_dict())
    with torch.no_grad():
        own.table.weight[7].normal_()
    d.strange.make = Missing(own, vector)


@kind("missing values by a learned vector", "3 no nudge", "made", ["series"])
def replace_steps(d: Draft) -> None:
    """A step whose first channel is 0 is missing; a vector stands for it."""
    make = MissingSteps(d.plain.make, 0.3 * torch.randn(a.WIDTH) + 2 * d.plain.head.weight[d.target].detach())
    x = d.plain.given["x"].clone()
    x[range(d.batch), d.decides] = 0
    d.strange.make, d.plain.make = make, Whole()
    d.give_both(make.double()(x).detach(), x)
    d.unknown = BY_NUMBERS
    d.perturbed = False  # a step that is removed by 0 is a missing one


class MissingSteps(nn.Module):
    def __init__(self, make: nn.Module, vector: Tensor) -> None:
        super().__init__()
        self.make, self.vector = make, nn.Parameter(vector)

    def forward(self, x: Tensor) -> Tensor:
        return torch.where((x[..., :1] == 0), self.vector, self.make(x))


# --- ids that are changed before they are embedded -------------------------------------------------------------------


@kind("ids clamped", "12 refused", "made", ["ids"])
def clamp_ids(d: Draft) -> None:
    change = d.dice.choice((lambda i: i.clamp(min=0), lambda i: i.clamp(0, a.VOCABULARY - 1), lambda i: i.relu()))
    d.strange.make = a.Changed(change, d.plain.make)


@kind("ids times a mask", "12 refused", "made", ["ids"])
def multiply_ids(d: Draft) -> None:
    d.strange.make = a.Changed(lambda i: i * (i > 0), d.plain.make)


@kind("ids modulo the vocabulary", "12 refused", "made", ["ids"])
def modulo_ids(d: Draft) -> None:
    d.strange.make = a.Changed(lambda i: i % a.VOCABULARY, d.plain.make)
    ids = d.plain.given["input_ids"]
    d.give_both(ids, ids + a.VOCABULARY * torch.randint(0, 4, ids.shape))


@kind("ids plus an offset", "12 refused", "made", ["ids"])
def offset_ids(d: Draft) -> None:
    d.strange.make = a.Changed(lambda i: i - 5 + 5, d.plain.make)


@kind("a start token by cat", "12 refused", "made", ["ids"])
def start_by_cat(d: Draft) -> None:
    ids = d.plain.given["input_ids"]
    d.strange.make = a.Changed(lambda i: torch.cat([torch.full_like(i[:, :1], 3), i], 1), d.plain.make)
    d.give_both(torch.cat([torch.full_like(ids[:, :1], 3), ids], 1), ids)
    d.own_tokens = slice(1, None)
    d.unknown = "grad_cam"  # its means leave out tokens that the model adds; the plain model is given this one


class OneHot(nn.Module):
    def __init__(self, make: a.Words) -> None:
        super().__init__()
        self.weight, self.places = nn.Parameter(make.table.weight.detach().clone()), make.places

    def forward(self, ids: Tensor) -> Tensor:
        h = F.one_hot(ids, a.VOCABULARY).to(self.weight.dtype) @ self.weight
        return h if self.places is None else h + self.places[: ids.size(1)]


@kind("one-hot times a matrix", "12 refused", "made", ["ids"])
def one_hot(d: Draft) -> None:
    d.strange.make = OneHot(d.plain.make)


@kind("an embedding with max_norm", "12 refused", "made", ["ids"])
def max_norm(d: Draft) -> None:
    make = a.Words(d.plain.make.places is not None)
    make.load_state_dict(d.plain.make.state_dict())
    make.table.max_norm = 1.0
    d.strange.make = make
    with torch.no_grad():
        weight = d.plain.make.table.weight
        length = weight.double().norm(dim=1, keepdim=True)
        weight.copy_(torch.where(length > 1, weight / (length + 1e-7), weight))
    d.strange.given, d.plain.given = dict(d.strange.given), dict(d.plain.given)
