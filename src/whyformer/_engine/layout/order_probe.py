r"""The order probe: changes some units of the input a little and sees which positions inside the model change.

Unit $u$ of example $b$ has the code $c(b,u) = ((u + s b) \bmod n) + 1$. Run $k$ of $\lceil\log_2(n+1)\rceil$ moves the
units whose code has bit $k$; a position with unit $u$ alone changes in exactly the runs of $c(b,u)$, one without
a token in none, and one that mixes several in those of all of them. Changes are so small that the model sorts as
before. Token ids cannot be changed a little: their embeddings are, and the ids themselves are seen where they are
embedded. A run stops at the first attention, so it costs less than one layer. A further input, with other values and
its examples in reverse, tells whether the order depends on the input.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.layout.blocks import find_attention_blocks
from whyformer._engine.layout.layout import to_canonical_axes
from whyformer._engine.run.foreign_errors import FOREIGN_ERRORS
from whyformer._engine.run.forward import run_forward
from whyformer._engine.run.intercept import Intercept
from whyformer._engine.tracing.attention import AttentionSite, find_layer_sites
from whyformer._engine.tracing.placement import place_states
from whyformer._engine.tracing.provenance import Trace, trace_of
from whyformer._engine.tracing.token_numbers import TokenNumbers
from whyformer._model import EncodedBatch, Model
from whyformer.errors import UnsupportedModel, WhyformerError

STEPS = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2}  # of the spread
NOTICED = 1e-4  # of the largest change: smaller ones are rounding
OWN_NOTICED, LEAST = 1e-3, 1e-7  # of the largest change of a position in all runs, and of all positions


@dataclass(frozen=True)
class Units:
    """What is changed one by one: `count` patches, vectors or features, or positions in the sum of embeddings."""

    count: int
    of: Tensor | None = None  # broadcasts to one example of the input: the unit of each entry, or -1; None: token ids
    by_ids: bool = False  # where ids are embedded is not known: they are replaced by others

    @classmethod
    def of_patches(cls, grid: tuple[int, int], covers: tuple[int, ...], size: Sequence[int]) -> "Units":
        """Patches of an image, row by row; pixels outside all patches belong to none."""
        numbers = torch.arange(grid[0] * grid[1], dtype=torch.float64).view(1, 1, *grid)
        pixels = F.interpolate(numbers, size=tuple(covers), mode="nearest")[0, 0].long()
        return cls(grid[0] * grid[1], F.pad(pixels, (0, size[1] - covers[1], 0, size[0] - covers[0]), value=-1))


@dataclass(frozen=True)
class Seen:
    """What one run shows up to its first attention. Axes: [batch position channel]; None where it is not known."""

    states: tuple[Tensor, ...]  # what enters the first block, the values of the first attention, and later ones
    ids: Tensor | None  # as they are embedded, with their labels
    site: AttentionSite
    numbers: TokenNumbers | None = None  # if layers do not all have the same tokens: states are of the patches

    @classmethod
    def read(cls, mode: Intercept, batch: int, block: int | None) -> "Seen":
        site = mode.sites[0].parts[0] if mode.sites[0].parts else mode.sites[0]
        if (numbers := mode.follower.numbers) is not None:
            return cls(read_patches(site, numbers, batch), mode.embedded_ids, site, numbers)
        given = mode.calls[block].input if block is not None and block < len(mode.calls) else None
        states = [site.value.transpose(1, 2).flatten(2)]
        if given is not None and (given := getattr(given, "_whyformer_leaf", given)).dim() == 3:
            states.insert(0, to_canonical_axes(given, trace_of(given)))
        fitting = tuple(state.detach() for state in states if len(state) == batch)
        return cls(fitting, mode.embedded_ids, site)

    @classmethod
    def read_all(cls, mode: Intercept, batch: int, block: int | None) -> "Seen":
        """The same, and all later block boundaries and values."""
        seen = cls.read(mode, batch, block)
        if seen.numbers is not None:
            return seen
        later = [site.value.transpose(1, 2).flatten(2) for site in find_layer_sites(mode.sites)]
        with suppress(UnsupportedModel):
            states, _ = find_attention_blocks(mode)
            later += [to_canonical_axes(state, trace_of(state)) for state in states if state.dim() == 3]
        return replace(seen, states=(*seen.states, *(state.detach() for state in later if len(state) == batch)))


def read_patches(site: AttentionSite, numbers: TokenNumbers, batch: int) -> tuple[Tensor, ...]:
    """[batch patch channel]: the values of an attention over some of the patches in each window; none if not known."""
    if site.tokens is None:
        return ()
    tokens, head = site.tokens, site.tokens.heads == 0
    keys, examples = tokens.keys[head], tokens.examples[head]
    trace = Trace(examples[:, None, None], keys[..., None])
    placed = place_states(site.value[head].detach(), trace, numbers, batch)
    return () if placed is None else (placed[0][:, : numbers.patches],)


class AtFirstAttention(BaseException):
    """Ends a run: all that was to be seen has been seen."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen


@dataclass(kw_only=True, eq=False, repr=False)
class ShortRun(Intercept):
    """A run that ends at the first attention."""

    block: int | None
    differentiates: bool = False
    moved: Tensor | None = None  # the positions in the sum of embeddings that are moved

    def make_leaf(self, tensor: Tensor) -> Tensor:
        if self.moved is not None and self.leaf is None:
            at = self.moved if self.moved.shape == tensor.shape[:2] else self.moved.T
            self.starting_at = nudge(tensor, at.unsqueeze(-1))
        return super().make_leaf(tensor)

    def add_site(self, site: AttentionSite) -> None:
        super().add_site(site)
        raise AtFirstAttention(Seen.read(self, self.batch, self.block))


class SilentRun(ShortRun):
    """A run in which attention adds nothing, so that a change stays with its token as far as the last block."""

    def add_site(self, site: AttentionSite) -> None:
        Intercept.add_site(self, site)
        site.output.data.zero_()


class OrderProbe:
    """Runs a model up to its first attention, or without attention, on changed inputs."""

    def __init__(
        self,
        model: Model,
        encoded: EncodedBatch,
        units: Units,
        block: int | None,
        first_grid: tuple[int, int] | None = None,
    ) -> None:
        self.model, self.encoded, self.block, self.units, self.first_grid = model, encoded, block, units, first_grid
        self.forwards = 0
        self.change: Callable[[Tensor, Tensor], Tensor] = nudge  # how a unit is moved

    def look(self, encoded: EncodedBatch, moved: Tensor | None = None, *, goes_on: bool = False) -> Seen:
        """What a run on these inputs shows.

        moved: [batch position], where the sum of embeddings is moved.
        goes_on: the run ends at the last block, without attention.
        """
        self.forwards += 1
        mode = partial(SilentRun if goes_on else ShortRun, block=self.block, moved=moved)
        try:
            with run_forward(
                self.model,
                encoded,
                asks_gradient=self.units.of is None,
                mode_class=mode,
                widens=True,
                first_grid=self.first_grid,
            ) as run:
                return Seen.read_all(run.mode, encoded.batch, self.block)
        except AtFirstAttention as reached:
            return reached.seen

    def look_moved(self, encoded: EncodedBatch, base: Seen, moved: Tensor, *, goes_on: bool = False) -> list[Tensor]:
        """[batch position] for each kind of state: which positions change if these units [batch unit] are moved."""
        return [
            change > NOTICED * change.amax() if change.numel() else change > 0
            for change in self.compare_moved(encoded, base, moved, goes_on=goes_on)
        ]

    def compare_moved(self, encoded: EncodedBatch, base: Seen, moved: Tensor, *, goes_on: bool = False) -> list[Tensor]:
        """[batch position] for each kind of state: by how much positions change if these units [batch unit] move."""
        given = encoded.inputs[encoded.main]
        if self.units.by_ids:
            others = change_ids(given, encoded.token_mask, encoded.special_mask, int(given.max()) + 1)
            inputs = {**encoded.inputs, encoded.main: torch.where(moved.to(given.device), others, given)}
            seen = self.look(replace(encoded, inputs=inputs), goes_on=goes_on)
        elif self.units.of is None:
            seen = self.look(encoded, moved, goes_on=goes_on)
        else:
            at = moved[:, self.units.of.clamp(min=0).flatten()].unflatten(1, self.units.of.shape) & (self.units.of >= 0)
            at = at.view(len(at), *[1] * (given.dim() - at.dim()), *at.shape[1:]) if given.dim() == 4 else at
            inputs = {**encoded.inputs, encoded.main: self.change(given, at)}
            seen = self.look(replace(encoded, inputs=inputs), goes_on=goes_on)
        return [compare_states(new, old) for new, old in zip(seen.states, base.states, strict=False)]

    def measure(self, base: Seen) -> list[Tensor]:
        """[batch position] for each kind of state: the code that was read at each position.

        A value near the end of its range reacts little, so a change is compared with those of the same position.
        """
        codes = make_codes(self.encoded.batch, self.units.count)
        bits = torch.arange(int(codes.max()).bit_length())
        runs = [self.compare_moved(self.encoded, base, (codes >> bit & 1).bool()) for bit in bits]
        read = []
        for changes in map(torch.stack, zip(*runs, strict=True)):
            noticed = torch.maximum(OWN_NOTICED * changes.amax(0), LEAST * changes.amax())
            read.append(((changes > noticed).long() << bits[:, None, None]).sum(0))
        return read

    def measure_silent(self, base: Seen, read: list[Tensor]) -> list[Tensor]:
        """The codes that were read, with those of units that only another value shows.

        A clipped value or a code reacts to none of the small changes; it is replaced by others, until one shows.
        """
        codes, known = make_codes(self.encoded.batch, self.units.count), read[0]
        is_silent = torch.stack([~torch.isin(row, seen) for row, seen in zip(codes, known, strict=True)])
        is_unread = torch.stack([seen == 0 for seen in read]).all(0)
        if self.units.of is None or not bool(is_silent.any()) or not bool(is_unread.any()):
            return read
        for change in REPLACEMENTS:
            self.change = change
            with suppress(WhyformerError, *FOREIGN_ERRORS):  # what a model raises on values that it does not take
                bits = range(int(codes.max()).bit_length())
                moved = [self.look_moved(self.encoded, base, is_silent & (codes >> bit & 1).bool()) for bit in bits]
                for bit, changes in enumerate(moved):
                    read = [one | ((c & is_unread).long() << bit) for one, c in zip(read, changes, strict=True)]
            if bool((read[0] != 0)[is_unread].any()):
                break
        self.change = nudge
        return read


def replace_by(make: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda tensor, at: torch.where(at.to(tensor.device), make(tensor), tensor)


# Other values, of which one is in the range of whatever the model does with it
REPLACEMENTS = (
    replace_by(lambda x: x.new_zeros(())),
    replace_by(lambda x: -x),
    replace_by(lambda x: torch.where(x >= 1, x - 1, x + 1)),
)


def nudge(tensor: Tensor, at: Tensor) -> Tensor:
    """The tensor, a little different at these entries; always by the same amounts."""
    size = torch.stack([tensor.float().std(correction=0), tensor.float().abs().mean() / 10]).amax().clamp(min=1e-3)
    step = STEPS.get(tensor.dtype, 1e-3) * size.detach()
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor) * 2 - 1
    away = torch.where(tensor < 0, -1, 1).to(tensor)  # a code that becomes a whole number again stays the same one
    signs = torch.where(tensor == tensor.round(), away, signs)
    return tensor.detach() + signs * step.to(tensor) * at.to(tensor.device)


def compare_states(new: Tensor, old: Tensor) -> Tensor:
    """[batch position]: by how much two states differ, 0 where that is rounding."""
    if new.shape != old.shape:
        return torch.zeros(old.shape[:2], dtype=torch.float64)
    difference = (new.double() - old.double()).abs().flatten(2).amax(-1).cpu()
    noise = old.double().abs().flatten(2).amax(-1).cpu() * torch.finfo(old.dtype).eps * 8
    return torch.where(difference > noise, difference, 0)


def make_codes(batch: int, count: int) -> Tensor:
    """[batch unit]: a number from 1 on for each unit; the same unit of another example has another one."""
    shift = math.isqrt(count) + 1
    return (torch.arange(count) + shift * torch.arange(batch)[:, None]) % count + 1


def decode(read: Tensor, count: int) -> Tensor | None:
    """[batch position]: the unit at each position, or -1; None if one has several units, or two have the same."""
    shift = math.isqrt(count) + 1
    units = (read - 1 - shift * torch.arange(len(read))[:, None]) % count
    units = torch.where(read == 0, -1, units)
    has_two = any(bool((row[row >= 0].bincount(minlength=1) > 1).any()) for row in units)
    return None if bool((read > count).any()) or has_two else units


# --- another input ----------------------------------------------------------------------------------------------------


def make_other_input(encoded: EncodedBatch, vocabulary: int) -> EncodedBatch:
    """An input of the same kind with other values, shorter examples where there is padding, and these in reverse."""
    inputs, mask = {}, shorten_mask(encoded.token_mask)
    for name, given in encoded.inputs.items():
        axis = encoded.batch_axis if given.dim() == 3 else 0
        has_rows = given.dim() > axis and given.size(axis) == encoded.batch
        turned = given.flip(axis) if has_rows else given
        if mask is not None and encoded.token_mask is not None and is_token_mask(given, encoded.token_mask):
            turned = mask.to(given).flip(0)
        inputs[name] = change_values(turned) if has_rows and name != encoded.main else turned
    special = None if encoded.special_mask is None else encoded.special_mask.flip(0)
    mask, main = None if mask is None else mask.flip(0), inputs[encoded.main]
    is_ids = not main.is_floating_point()
    inputs[encoded.main] = change_ids(main, mask, special, vocabulary) if is_ids else change_values(main)
    return replace(encoded, inputs=inputs, token_mask=mask, special_mask=special)


def shorten_mask(mask: Tensor | None) -> Tensor | None:
    """The mask of examples that are one token shorter, where there is padding; one token stays."""
    if mask is None or bool(mask.all()):
        return mask
    last = mask.size(1) - 1 - mask.flip(1).long().argmax(1)
    return torch.where(mask.sum(1, keepdim=True) > 1, mask & (torch.arange(mask.size(1)) != last[:, None]), mask)


def is_token_mask(given: Tensor, token_mask: Tensor) -> bool:
    return given.shape == token_mask.shape and torch.equal(given.cpu().bool(), token_mask) and bool((given <= 1).all())


def change_values(given: Tensor) -> Tensor:
    """Numbers in another order along all axes of tokens. Masks and kinds of token, with two values or so, stay."""
    if given.dim() < 2 or len(given.flatten()[:4096].unique()) < 4:
        return given
    return given.flip((-2, -1) if given.dim() == 4 else 1)


def change_ids(ids: Tensor, mask: Tensor | None, special: Tensor | None, vocabulary: int) -> Tensor:
    """Other ids, if possible all different; special tokens and padding stay."""
    fixed = torch.zeros(ids.shape, dtype=torch.bool)
    if mask is not None and mask.shape == ids.shape:
        fixed |= ~mask
    if special is not None and special.shape == ids.shape:
        fixed |= special
    own, kept = ids.cpu()[~fixed].unique(), ids.cpu()[fixed].unique()
    others = torch.arange(1, max(vocabulary, 1))
    others = others[~torch.isin(others, torch.cat([own, kept]))][: ids.numel()]
    allowed = torch.cat([others, own])
    if not len(allowed):
        return ids
    index = torch.arange(ids.size(1)) + (ids.size(1) + 1) * torch.arange(len(ids))[:, None]
    changed = allowed[index % len(allowed)]
    changed = torch.where(changed == ids.cpu(), allowed[(index + 1) % len(allowed)], changed)
    return torch.where(fixed, ids.cpu(), changed.to(ids.dtype)).to(ids.device)


def draw_half(batch: int, count: int) -> Tensor:
    """[batch unit]: about half of all units, without a pattern."""
    generator = torch.Generator().manual_seed(1)
    return torch.rand(batch, count, generator=generator) < 0.5
