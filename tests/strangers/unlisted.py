"""Kinds that nobody had listed: found by drawing, and by writing models without a thought of this package."""

from typing import Any

import torch
import torch.nn.functional as F
from strangers import anatomy as a
from strangers.draft import Draft, remove_tokens
from strangers.kinds import kind
from strangers.made import BY_NUMBERS, change_pixels
from strangers.mixed import BATCH_NOTE, BY_RULES, CHANCE_NOTE, MIXES_FIRST
from torch import Tensor, nn

# --- images whose geometry changes in forward ------------------------------------------------------------------------


@kind("image flipped in forward", "unlisted", "made", ["image"])
def flip_image(d: Draft) -> None:
    axes = d.dice.choice(((2,), (3,), (2, 3)))
    change_pixels(d, lambda x: x.flip(axes), lambda x: x.flip(axes))
    side = a.SIDE // a.PATCH
    d.reorder = torch.arange(side * side).view(side, side).flip([axis - 2 for axis in axes]).flatten()
    d.decides = [int((d.reorder == place).nonzero()) for place in d.decides]


@kind("rows and columns of an image swapped", "unlisted", "made", ["image"])
def transpose_image(d: Draft) -> None:
    change_pixels(d, lambda x: x.transpose(2, 3), lambda x: x.transpose(2, 3))
    side = a.SIDE // a.PATCH
    d.reorder = torch.arange(side * side).view(side, side).mT.flatten()
    d.decides = [int((d.reorder == place).nonzero()) for place in d.decides]


@kind("channels last", "unlisted", "made", ["image"])
def channels_last(d: Draft) -> None:
    """Refused: what is removed, and where maps lie, is computed for channels first."""
    d.true_refusals.append(("", "channels last"))
    change_pixels(d, lambda x: x.permute(0, 3, 1, 2), lambda x: x.permute(0, 2, 3, 1))
    d.remove = lambda given, patches: [
        {"x": removed["x"].permute(0, 2, 3, 1)}
        for removed in remove_tokens("image", {"x": given["x"].permute(0, 3, 1, 2)}, "x", patches)
    ]


@kind("image cropped in forward", "unlisted", "made", ["image"])
def crop_image(d: Draft) -> None:
    """The patches cover the middle of what is given, not all of it."""
    d.names.append("crops, turns or frames|channel")
    edge = d.dice.choice((2, 3))
    crop = lambda x: x[:, :, edge:-edge, edge:-edge]  # noqa: E731
    x = d.plain.given["x"]
    d.strange.make = a.Changed(crop, d.plain.make)
    d.give_both(x, F.pad(x, (edge,) * 4) + F.pad(torch.zeros_like(x), (edge,) * 4, value=0.3))
    d.remove = lambda given, patches: [
        {"x": F.pad(removed["x"], (edge,) * 4, value=0.3)}
        for removed in remove_tokens("image", {"x": crop(given["x"])}, "x", patches)
    ]


@kind("answers to an image and its mirror image averaged", "unlisted", "made", ["image"], combines=False)
def average_over_mirror(d: Draft) -> None:
    d.strange.anatomy = Mirrored
    d.has_twin = False
    d.true_refusals.append(("", "in a batch of"))


class Mirrored(a.Anatomy):
    """Both go through the model as one batch."""

    def logits(self, first: Tensor, *others: Tensor) -> Tensor:
        return torch.stack(super().logits(torch.cat([first, first.flip(-1)])).chunk(2)).mean(0)


# --- series ----------------------------------------------------------------------------------------------------------


@kind("a series standardised by itself", "unlisted", "made", ["series"])
def standardise_series(d: Draft) -> None:
    """Each channel by its own mean and deviation over time, as RevIN does."""
    change = lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)  # noqa: E731
    x = d.plain.given["x"]
    d.strange.make = a.Changed(change, d.plain.make)
    d.give_both(change(x), x)
    d.unknown = BY_NUMBERS


@kind("differences of a series", "unlisted", "made", ["series"])
def differences(d: Draft) -> None:
    """Step by step, with 0 before the first."""
    x = d.plain.given["x"]
    d.strange.make = a.Changed(lambda x: x.diff(dim=1, prepend=torch.zeros_like(x[:, :1])), d.plain.make)
    d.give_both(x, x.cumsum(1))
    d.unknown = BY_NUMBERS


@kind("tokens sorted in forward", "unlisted", "mixed", ["ids", "series"])
def sort_tokens(d: Draft) -> None:
    """By a number of each state; without positions, the mean over tokens does not change."""
    d.strange.mix = Changing(d.strange.mix, lambda h: h.gather(1, h[..., :1].argsort(1).expand_as(h)))
    d.read_is_order_free()


@kind("tokens shuffled in forward", "unlisted", "mixed", ["ids", "series", "table"])
def shuffle_tokens(d: Draft) -> None:
    seed = d.dice.randrange(2**31)
    shuffle = lambda h: h[:, torch.randperm(h.size(1), generator=torch.Generator().manual_seed(seed))]  # noqa: E731
    d.strange.mix = Changing(d.strange.mix, shuffle)
    d.read_is_order_free()


@kind("even tokens before odd ones", "unlisted", "mixed", ["ids", "series", "table"])
def deinterleave(d: Draft) -> None:
    d.strange.mix = Changing(d.strange.mix, lambda h: torch.cat([h[:, ::2], h[:, 1::2]], 1))
    d.read_is_order_free()


class Changing(nn.Module):
    """States are changed before they are mixed."""

    def __init__(self, mix: nn.Module, change: a.Function) -> None:
        super().__init__()
        self.mix, self.change = mix, change

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.mix(self.change(x), *others)


TOKENS_CHANGE = f"{MIXES_FIRST}|models whose tokens change between layers"

# --- tokens that go or meet ------------------------------------------------------------------------------------------


@kind("weak tokens dropped before mixing", "unlisted", "mixed", ["ids", "series", "table"], one_input=True)
def drop_tokens(d: Draft) -> None:
    """The three strongest stay. Of the others the answer does not know, so they score 0."""
    d.strange.mix = Changing(d.strange.mix, keep_strongest)
    d.has_twin = False
    d.true_refusals.append(("", "target function failed .*out of bounds"))  # it reads a token that is not there
    d.true_refusals.append(("^(?!leave_one_out|kernel_shap)", f"the attention covers 3 tokens|{TOKENS_CHANGE}"))
    d.read_is_order_free()


def keep_strongest(h: Tensor) -> Tensor:
    kept = h.norm(dim=-1).topk(3, dim=1).indices.sort(1).values
    return h.gather(1, kept[..., None].expand(-1, -1, h.size(2)))


@kind("neighbours merged before mixing", "unlisted", "mixed", ["ids", "series"], one_input=True)
def merge_tokens(d: Draft) -> None:
    d.strange.mix = Changing(d.strange.mix, lambda h: (h[:, : h.size(1) // 2 * 2].unflatten(1, (-1, 2))).mean(2))
    d.has_twin = False
    d.true_refusals.append(("", TOKENS_CHANGE))
    d.read_is_order_free()


# --- loops -----------------------------------------------------------------------------------------------------------


class Leaving(nn.Module):
    """The loop ends when the states of the batch are strong enough."""

    def __init__(self, mix: nn.Module, enough: float) -> None:
        super().__init__()
        self.mix, self.enough = mix, enough

    def forward(self, x: Tensor) -> Tensor:
        for layer in getattr(self.mix, "blocks", None) or self.mix.layers:
            x = layer(x)
            if float(x.detach().abs().max()) > self.enough:
                break
        return x


@kind("an early exit that the whole batch takes", "unlisted", "mixed", ["ids", "series"], batch=1, takes_over=True)
def leave_early(d: Draft) -> None:
    """All variants leave when one of them would."""
    d.plain.mix = a.Blocks(3)
    x = next(iter(d.plain.given.values()))
    made, mix = d.plain.make.double(), d.plain.mix.double()
    with torch.no_grad():
        first = mix.blocks[0](made(x))
    enough = float(first.abs().max()) * d.dice.choice((0.97, 1.01))
    d.strange.mix = Leaving(mix, enough)
    d.has_twin = False
    d.names.append(BATCH_NOTE)


class Tied(nn.Module):
    def __init__(self, block: nn.Module, times: int) -> None:
        super().__init__()
        self.block, self.times = block, times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = self.block(x)
        return x


@kind("one block several times", "unlisted", "mixed", takes_over=True)
def tie_weights(d: Draft) -> None:
    mix = a.Blocks(1)
    d.strange.mix = Tied(mix.blocks[0], 3)
    d.plain.mix = a.Blocks(3)
    for block in d.plain.mix.blocks:
        block.load_state_dict(mix.blocks[0].state_dict())


class Remembering(nn.Module):
    """Answers depend on what was asked before: a running mean that goes on moving."""

    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.mix, self.running = mix, torch.zeros(a.WIDTH, dtype=torch.float64)

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        self.running = 0.5 * self.running + 0.5 * x.detach().mean((0, 1))
        return self.mix(x - self.running, *others)


@kind("a memory of earlier calls", "unlisted", "mixed", ["ids", "series"], batch=1)
def remember(d: Draft) -> None:
    """What the model answers now, from the memory that it has now, is to be explained: of every variant too."""
    d.strange.mix = Remembering(d.strange.mix)
    d.plain.mix = Changing(d.plain.mix, lambda h: h - 0.5 * h.detach().mean((0, 1)))
    d.remembers = True
    d.names.append(f"{CHANCE_NOTE}|state|memory|earlier calls|changes itself|buffer")


# --- other axes ------------------------------------------------------------------------------------------------------


@kind("classes before rows in the output", "unlisted", "returned")
def classes_first(d: Draft) -> None:
    target = d.target
    d.strange.give = lambda z: z.T
    d.own_value = lambda out: out[target]


@kind("one more axis in the output", "unlisted", "returned")
def more_axes(d: Draft) -> None:
    """What the axes are is not said by their sizes, so a refusal that asks for a function is right too."""
    target = d.target
    d.true_refusals.append(("", "which token each row belongs to is not known|not one state for each of its"))
    if d.dice.random() < 0.5:
        d.strange.give = lambda z: z[:, None]
        d.own_value = lambda out: out[:, 0, target]
    else:
        d.strange.give = lambda z: z[:, :, None]
        d.own_value = lambda out: out[:, target, 0]


@kind("another head's output first", "unlisted", "returned")
def second_head(d: Draft) -> None:
    """(auxiliary, logits): a note has to say which was explained, or the logits are."""
    target = d.target
    d.strange.give = lambda z: {"aux": 0.3 * z.flip(-1)[:, :2], "logits": z}
    d.own_value = lambda out: out["logits"][:, target]


@kind("tokens before rows in the input", "unlisted", "passed", ["ids", "series"], combines=False)
def tokens_first(d: Draft) -> None:
    """[token batch]: right, or refused because the rows touch each other."""
    x = d.plain.given[next(iter(d.plain.given))]
    d.strange.make = a.Changed(lambda given: given.transpose(0, 1), d.strange.make)
    d.strange.given = {d.main: d.strange.given[d.main].transpose(0, 1).contiguous()}
    d.perturbed = False
    d.true_refusals.append(("", f"{BATCH_NOTE}|row|axis|axes"))
    d.names.append(f"{BATCH_NOTE}|row|axis")
    d.rows = len(x)


# --- heads -----------------------------------------------------------------------------------------------------------


class Cosine(nn.Module):
    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(head.weight.detach().clone())

    def forward(self, h: Tensor) -> Tensor:
        return 8 * F.normalize(h, dim=-1) @ F.normalize(self.weight, dim=-1).T


@kind("cosine similarity to prototypes", "unlisted", "read")
def cosine_head(d: Draft) -> None:
    d.strange.head = Cosine(d.plain.head)
    d.has_twin = False
    d.true_refusals.append(("decompx", "normalize cannot be applied to parts"))


class Distances(nn.Module):
    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(head.weight.detach().clone())

    def forward(self, h: Tensor) -> Tensor:
        return -torch.cdist(h, self.weight)


@kind("distance to prototypes", "unlisted", "read")
def distance_head(d: Draft) -> None:
    d.strange.head = Distances(d.plain.head)
    d.has_twin = False
    d.true_refusals.append((f"default|{BY_RULES}|decompx", "rule for cdist|cdist cannot be applied to parts"))


class TwoTrunks(nn.Module):
    """Two stacks side by side, whose states are averaged."""

    def __init__(self, one: nn.Module, two: nn.Module) -> None:
        super().__init__()
        self.one, self.two = one, two

    def forward(self, x: Tensor) -> Tensor:
        return (self.one(x) + self.two(x)) / 2


@kind("two stacks side by side", "unlisted", "mixed", takes_over=True)
def two_stacks(d: Draft) -> None:
    d.strange.mix, d.has_twin = TwoTrunks(a.Blocks(1), a.Blocks(1)), False
    d.true_refusals.append(("", "a second tower|is not one stack of layers|does not continue where"))


# --- how it is called ------------------------------------------------------------------------------------------------


class TakesBatch(nn.Module):
    """forward(batch), with a dictionary."""

    def __init__(self, model: a.Anatomy) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict[str, Tensor]) -> Any:
        return self.model(**batch)


@kind("forward takes the batch as a dictionary", "unlisted", "passed", ["ids", "series"])
def takes_batch(d: Draft) -> None:
    d.wrap = TakesBatch
    d.called = lambda module, given: module(given)


class TakesAny(nn.Module):
    def __init__(self, model: a.Anatomy) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Any:
        return self.model(*args, **kwargs)


@kind("forward takes anything", "unlisted", "passed")
def takes_any(d: Draft) -> None:
    d.wrap = TakesAny


@kind("the mask is made of the ids", "unlisted", "passed", ["ids"], takes_over=True)
def mask_from_ids(d: Draft) -> None:
    """0 is padding: not attended to, not in the mean. One row of several ends in it. Tokens are never returned."""
    d.true_refusals.append(("", "target function failed"))
    ids = d.plain.given["input_ids"].clone()
    mix = a.Blocks(2)
    d.strange.anatomy = Padded
    d.strange.mix = d.plain.mix = mix
    d.plain.read = a.read_mean
    d.give_both(ids)


class Padded(a.Anatomy):
    def logits(self, first: Tensor, *others: Tensor) -> Tensor:
        real = first != 0
        bias = torch.zeros(first.shape, dtype=torch.float64).masked_fill(~real, -1e9)[:, None, None]
        h = self.mix(self.make(first), bias) * real[..., None]
        return self.head(h.sum(1) / real.sum(1, keepdim=True).clamp(min=1))


# --- more geometry ---------------------------------------------------------------------------------------------------


@kind("image rolled in forward", "unlisted", "made", ["image"])
def roll_image(d: Draft) -> None:
    """By whole patches, around the edges."""
    by = (a.PATCH * d.dice.choice((1, 2)), a.PATCH * d.dice.choice((0, 1)))
    back = (-by[0], -by[1])
    change_pixels(d, lambda x: x.roll(by, (2, 3)), lambda x: x.roll(back, (2, 3)))
    numbers = torch.arange(a.PATCHES).view(a.SIDE // a.PATCH, -1)
    d.reorder = numbers.roll([step // a.PATCH for step in back], (0, 1)).flatten()
    d.decides = [int((d.reorder == place).nonzero()) for place in d.decides]


@kind("a grey image repeated for three channels", "unlisted", "made", ["image"])
def repeat_grey(d: Draft) -> None:
    change = d.dice.choice((lambda x: x.repeat(1, 3, 1, 1), lambda x: x.expand(-1, 3, -1, -1)))
    grey = d.plain.given["x"][:, :1].contiguous()
    d.strange.make = a.Changed(change, d.plain.make)
    d.give_both(grey.repeat(1, 3, 1, 1), grey)
    d.unknown = "saliency"  # the slope of the one channel is that of all three, and its size is another


@kind("image padded in forward", "unlisted", "made", ["image"])
def pad_image(d: Draft) -> None:
    """The last column of patches is empty, and belongs to nothing that was given."""
    small = d.plain.given["x"][..., : a.SIDE - a.PATCH].contiguous()
    d.strange.make = a.Changed(lambda x: F.pad(x, (0, a.PATCH)), d.plain.make)
    d.give_both(F.pad(small, (0, a.PATCH)), small)
    d.perturbed = False
    d.names.append("crops, turns or frames")
    d.unknown = BY_NUMBERS


class Picked(nn.Module):
    def __init__(self, mix: nn.Module, kept: Tensor) -> None:
        super().__init__()
        self.mix, self.kept = mix, kept

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.mix(x[:, self.kept], *others)


@kind("patches in another order", "unlisted", "mixed", ["image"])
def shuffle_patches(d: Draft) -> None:
    """Class token first; after it the patches, with their positions, in any order."""
    first = [0] if isinstance(d.plain.make, a.Patches) and d.plain.make.first is not None else []
    d.strange.mix = Picked(d.strange.mix, torch.tensor([*first, *(torch.randperm(a.PATCHES) + len(first)).tolist()]))


# --- which axis holds the tokens -------------------------------------------------------------------------------------


class Variates(nn.Module):
    """Each channel of a series is a token, as in iTransformer."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.line = nn.Linear(steps, a.WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x)


@kind("channels of a series as tokens", "unlisted", "made", ["series"], combines=False)
def channels_as_tokens(d: Draft) -> None:
    """For half of the models as many as there are steps."""
    steps = d.dice.choice((5, 8))
    channels = steps if d.dice.random() < 0.5 else 6
    make = Variates(steps)
    x = torch.randn(d.batch, steps, channels).double()
    d.strange.make, d.plain.make = a.Changed(lambda x: x.mT, make), make
    d.give_both(x.mT.contiguous(), x)
    d.perturbed, d.unknown = False, BY_NUMBERS
    d.true_refusals.append(("", f"which is which is not known|{MIXES_FIRST}|cannot run after tokens were deleted"))
    d.names.append("channel|axis|which is which")


@kind("every second step left out", "unlisted", "made", ["series"])
def every_second(d: Draft) -> None:
    x = d.plain.given["x"]
    x[range(d.batch), [place // 2 * 2 for place in d.decides]] = x[range(d.batch), d.decides]
    d.decides = [place // 2 * 2 for place in d.decides]
    d.strange.make = a.Changed(lambda x: x[:, ::2], d.plain.make)
    d.give_both(x[:, ::2].contiguous(), x)
    d.spread = (torch.arange(0, x.size(1), 2), x.size(1))


# --- tokens that are their own filling -------------------------------------------------------------------------------


@kind("id 0 is a word", "unlisted", "made", ["ids"])
def zero_is_a_word(d: Draft) -> None:
    """What replaces a removed word is this word, so that removing it cannot show what it does."""
    ids = d.plain.given["input_ids"].clone()
    ids[ids == 7] = 0
    with torch.no_grad():
        d.plain.make.table.weight[0] = d.plain.make.table.weight[7]
    d.give_both(ids)
    d.must.append(("leave_one_out|kernel_shap", "same|equal|already|fill|padding|replace"))


# --- squashed answers ------------------------------------------------------------------------------------------------


@kind("logits squashed by tanh", "unlisted", "returned")
def squash(d: Draft) -> None:
    target = d.target
    d.strange.give = lambda z: 3 * torch.tanh(z / 3)
    d.own_value = lambda out: out[:, target]
    d.probability = lambda z: (3 * torch.tanh(z / 3)).softmax(-1)[:, target]
    d.has_twin = False
