"""Order: which token of the input is at each position inside the model, checked on the model.

A model may sort its batch, reverse its ids, number its patches by columns or put a start token first. The labels of a
run (tracing/provenance.py) claim an input token for each position of the leaf and of the first attention. The claim is
checked (order_probe.py) before anything is read from it, once for a model and a kind of input, or on every call if the
order differs between two inputs. Where labels are wrong or lost, the order that was measured counts. Models that
consist of library code are not checked if their labels are unbroken.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from whyformer._engine.layout.blocks import find_block_calls
from whyformer._engine.layout.layout import Order, look_up
from whyformer._engine.layout.order_probe import (
    OrderProbe,
    Seen,
    Units,
    decode,
    draw_half,
    make_codes,
    make_other_input,
)
from whyformer._engine.run.foreign_errors import FOREIGN_ERRORS
from whyformer._engine.run.forward import Run, choose_relevance_dtype
from whyformer._engine.run.model_code import are_modules_known
from whyformer._engine.run.model_memory import recall
from whyformer._engine.run.quantised import has_rounding_layers
from whyformer._engine.tracing.attention import AttentionSite
from whyformer._engine.tracing.provenance import axis_of, trace_of
from whyformer._engine.tracing.recording import pause_recording
from whyformer._model import EncodedBatch, Model, list_modules, unwrap
from whyformer._plain.failure import is_out_of_memory
from whyformer.errors import UnsupportedModel, WhyformerError

UNKNOWN = (
    "Which token of the input each place of the model holds could not be established: this model moves, mixes or drops "
    "tokens before its first attention. Use a method that only changes the input, such as leave_one_out."
)
CHANGES = (
    "The order of the tokens changes between the blocks of this model. Methods that read blocks or attention do not "
    "work; use attnlrp, gradient_x_input or leave_one_out."
)


@dataclass
class Verdict:
    """What a check found for one kind of input."""

    trusts_labels: bool = True
    depends_on_input: bool = False
    moves_examples: bool = False
    mixes: bool = False
    obstacle: str = ""  # between blocks
    measured: dict[Hashable, Order] = field(default_factory=dict)  # by the shape of an example


class ExamplesMoved(Exception):
    """The rows of a batch are not where the input has them: examples must run one by one."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output


def find_order(model: Model, encoded: EncodedBatch, run: Run, *, always: bool = False) -> Order:
    """The order of a run, which from then on knows whether tokens are moved. always: also check library code."""
    with pause_recording():
        if count := sum(run.mode.streams):  # source and prefix are where the joined sequence has them
            places = torch.arange(count).expand(encoded.batch, -1)
            return Order(places, places)
        order = read_labels(run, encoded)
        if run.mode.follower.numbers is not None:
            return check_numbers(model, encoded, run, order)
        if run.mode.sites and (always or order.sequence is None or not run.is_library_code):
            units = find_probe_units(run, encoded)
            order = order if units is None else check_order(model, encoded, run, order, units)
            if units is None and order.sequence is None and has_fewer_tokens(run, encoded):
                columns = torch.arange(encoded.inputs[encoded.main].size(1))
                check = OrderCheck(model, encoded, run, order, Units(len(columns), columns))
                order = order if check.has_frames() else replace(order, obstacle=UNKNOWN)
        run.mode.moves_tokens = order.moves_tokens
        return order


def has_fewer_tokens(run: Run, encoded: EncodedBatch) -> bool:
    """Whether attention sees some of the columns of a table, which is not cut into frames."""
    main, frames = encoded.inputs[encoded.main], run.mode.frames
    is_table = main.is_floating_point() and main.dim() == 2 and frames is not None and not frames.cuts
    return is_table and run.mode.sites[0].value.size(-2) < main.size(1)


def check_numbers(model: Model, encoded: EncodedBatch, run: Run, claimed: Order) -> Order:
    """The order where layers do not all have the same tokens: each patch has its number, or nothing is known."""
    units = None if run.is_library_code else find_probe_units(run, encoded)
    found = claimed if units is None else check_order(model, encoded, run, claimed, units)
    return replace(claimed, obstacle=UNKNOWN) if found.is_measured else found


# --- what labels claim ------------------------------------------------------------------------------------------------


def read_labels(seen: Run | Seen, encoded: EncodedBatch) -> Order:
    """The order as the labels of a run have it."""
    if isinstance(seen, Run) and not seen.mode.sites:
        return read_leaf_order(seen, encoded)
    numbers = seen.numbers if isinstance(seen, Seen) else seen.mode.follower.numbers
    if numbers is not None:
        return Order(None, torch.arange(numbers.patches).expand(encoded.batch, -1))
    ids, site = (seen.ids, seen.site) if isinstance(seen, Seen) else (seen.mode.embedded_ids, seen.mode.sites[0])
    leaf, rows = read_leaf_labels(ids, encoded)
    sequence, others = read_site_labels(site, encoded.batch)
    samples, examples = site.keys.samples, torch.arange(encoded.batch)
    is_packed = samples is not None and samples.dim() > 1 and samples.size(-2) > 1  # several examples in one sequence
    moved = any(of is not None and bool((of != examples).any()) for of in (rows, others))
    return Order(leaf, sequence, is_packed or moved)


def read_leaf_order(run: Run, encoded: EncodedBatch) -> Order:
    """The order where there is no attention: that of the embeddings, or of the input itself if it is numbers."""
    if encoded.inputs[encoded.main].is_floating_point():
        return Order()
    leaf, rows = read_leaf_labels(run.mode.embedded_ids, encoded)
    if leaf is None and not run.is_library_code:
        return Order(obstacle=UNKNOWN, has_lost_leaf=True)
    return Order(leaf, leaf, rows is not None and bool((rows != torch.arange(encoded.batch)).any()))


def read_leaf_labels(ids: Tensor | None, encoded: EncodedBatch) -> tuple[Tensor | None, Tensor | None]:
    """[batch position], the token at each position where ids are embedded, and [batch], the example of each row."""
    trace = trace_of(ids)
    if ids is None or read_embedded_ids(ids, encoded) is None or trace.tokens is None:
        return None, None
    is_turned = axis_of(trace.samples) == 1
    tokens, samples = (
        None if label is None else label.expand(ids.shape).transpose(0, int(is_turned)).long().cpu()
        for label in (trace.tokens, trace.samples)
    )
    return tokens, None if samples is None else samples[:, 0]


def read_embedded_ids(ids: Tensor | None, encoded: EncodedBatch) -> Tensor | None:
    """[batch position]: the ids as they were embedded; None if the explained input is no text, or of other size."""
    if ids is None or ids.dim() != 2 or encoded.inputs[encoded.main].dim() != 2:
        return None
    ids = ids.T if axis_of(trace_of(ids).samples) == 1 else ids
    return ids.cpu() if len(ids) == encoded.batch else None


def read_own_ids(ids: Tensor | None, encoded: EncodedBatch) -> Tensor | None:
    """The same; None if the numbers are no longer those of the input."""
    return None if trace_of(ids).is_recoded else read_embedded_ids(ids, encoded)


def read_site_labels(site: AttentionSite, batch: int) -> tuple[Tensor | None, Tensor | None]:
    """The token of each key of the first attention, and the example of each of its rows."""
    samples = site.keys.samples
    rows = None if samples is None or samples.numel() != batch else samples.flatten().long().cpu()
    if site.origin is None:
        return None, rows
    if len(site.origin) % batch:
        of = site.origin[:1].expand(batch, -1)
    else:
        of = site.origin[:batch] if site.folds_heads == "heads first" else site.origin[:: len(site.origin) // batch]
    return of.long().cpu(), rows


# --- what can be changed ----------------------------------------------------------------------------------------------


def find_probe_units(run: Run, encoded: EncodedBatch) -> Units | None:
    """The units of the input that a probe can change one by one; None if they are not known."""
    main, follower = encoded.inputs[encoded.main], run.mode.follower
    if not main.is_floating_point():
        ids = read_embedded_ids(run.mode.embedded_ids, encoded)
        if ids is None and run.mode.embedded_ids is None and main.dim() == 2:
            return Units(main.size(1), by_ids=True)
        return Units(ids.size(1)) if ids is not None else None
    if main.dim() == 4 and follower.cuts_elsewhere:  # which pixels a patch has is not known
        return None
    if main.dim() == 4 and follower.grid is not None:
        return Units.of_patches(follower.grid, follower.covers or tuple(main.shape[-2:]), main.shape[-2:])
    if run.mode.frames and run.mode.frames.cuts:
        return None
    if main.dim() == 3 and encoded.batch_axis == 0:
        return Units(main.size(1), torch.arange(main.size(1)).view(-1, 1))
    has_all = run.mode.sites[0].value.size(-2) >= main.size(-1)  # features of a table
    return Units(main.size(1), torch.arange(main.size(1))) if main.dim() == 2 and has_all else None


# --- the check --------------------------------------------------------------------------------------------------------


def check_order(model: Model, encoded: EncodedBatch, run: Run, claimed: Order, units: Units) -> Order:
    """The order by labels that a check has confirmed for this model and kind of input, or as it was measured."""
    verdicts, kind = recall_verdicts(model.module), describe_input_kind(encoded)
    known, shape = verdicts.get(kind), tuple(encoded.inputs[encoded.main].shape[1:])
    if claimed.moves_examples or (known is not None and known.moves_examples):
        verdicts[kind] = Verdict(moves_examples=True)
        return replace(claimed, moves_examples=True)
    if known is not None and not known.depends_on_input:
        if known.trusts_labels:
            found = refuse_other_ids(run, encoded, claimed, known.measured.get(shape))
            return replace(found, mixes=known.mixes, obstacle=found.obstacle or known.obstacle)
        if shape in known.measured:
            return known.measured[shape]
    check = OrderCheck(model, encoded, run, claimed, units)
    if known is not None and known.depends_on_input:
        found = check.find_order()
        return replace(found, obstacle=found.obstacle or known.obstacle)
    found, verdict = check.judge()
    verdicts[kind] = known = known or verdict
    known.measured[shape] = found
    return found


def is_known_to_move(model: Model, encoded: EncodedBatch) -> bool:
    """Whether a check has found that examples must run one by one."""
    known = recall_verdicts(model.module).get(describe_input_kind(encoded))
    return known is not None and known.moves_examples


def keeps_order(model: Model, encoded: EncodedBatch) -> bool:
    """Whether a run without labels may be read as it is: library code, or one example in a model that moves nothing.

    A check on an input of the same kind must have come before (the backward plan of a planned run).
    """
    if are_modules_known(list_modules(unwrap(model.module))):
        return True
    verdicts = recall_verdicts(model.module).values() if encoded.batch == 1 else ()
    return bool(verdicts) and not any(one.depends_on_input or one.moves_examples or one.obstacle for one in verdicts)


def recall_verdicts(module: nn.Module) -> dict[Hashable, Verdict]:
    """What is known about a model, as long as nothing about it has changed."""
    return recall(module, "order", of_weights=True)


def describe_input_kind(encoded: EncodedBatch) -> Hashable:
    """Inputs of one kind are taken in by the same code: names, axes, types, and whether there is padding."""
    kinds = tuple((name, given.dim(), given.dtype) for name, given in encoded.inputs.items())
    mask = encoded.token_mask
    if mask is None or bool(mask.all()):
        return kinds, encoded.batch > 1, "none"
    return kinds, encoded.batch > 1, "different" if len(mask.sum(-1).unique()) > 1 else "some"


class OrderCheck:
    """One check of a model on one input."""

    def __init__(self, model: Model, encoded: EncodedBatch, run: Run, claimed: Order, units: Units) -> None:
        self.encoded, self.run, self.claimed = encoded, run, claimed
        self.probe = OrderProbe(model, encoded, units, find_first_block(run), run.mode.first_grid)
        is_rounded = choose_relevance_dtype(model) is not None or has_rounding_layers(unwrap(model.module))
        self.base = self.probe.look(encoded) if is_rounded else Seen.read(run.mode, encoded.batch, self.probe.block)
        self.count = units.count
        self.half = draw_half(encoded.batch, units.count)  # of the units, to be moved together
        self.mixes = False  # positions have more than one token before the first attention

    def find_order(self) -> Order:
        """What labels claim if it is confirmed; else what was measured, or why nothing is known."""
        claimed = refuse_other_ids(self.run, self.encoded, self.claimed)
        if not self.base.states:
            return claimed
        # A state that never changes is no evidence: values that are constant, or a model without small changes.
        read = [codes for codes in self.probe.measure(self.base) if bool(codes.any())]
        wanted = self.encode(claimed)
        if not read:
            return claimed
        if wanted is not None and all(is_confirmed(codes, wanted) for codes in read):
            self.mixes = any(bool((codes != wanted)[codes != 0].any()) for codes in read)
            is_merged = self.mixes and any(len(set(row.tolist()) - {0}) < self.count for row in wanted)
            is_merged |= self.mixes and not self.is_own_there(read, wanted)
            return replace(claimed, mixes=self.mixes, obstacle=UNKNOWN if is_merged else claimed.obstacle)
        return self.decode(read, claimed)

    def is_own_there(self, read: list[Tensor], wanted: Tensor) -> bool:
        """Whether each position that mixes tokens has its own among them: that alone of them is moved."""
        mixed = torch.stack([(codes != wanted) & (codes != 0) & (wanted != 0) for codes in read]).any(0)
        codes = make_codes(self.encoded.batch, self.count)
        own = torch.stack([torch.isin(row, some[at]) for row, some, at in zip(codes, wanted, mixed, strict=True)])
        changes = self.probe.look_moved(self.encoded, self.base, own)
        return all(bool(change[mixed].all()) for change in changes if change.shape == mixed.shape)

    def encode(self, order: Order) -> Tensor | None:
        """[batch position]: the code that each position must show if the order is this one."""
        units = self.find_units(order)
        return None if units is None else look_up(make_codes(self.encoded.batch, self.count), units, 0)

    def find_units(self, order: Order) -> Tensor | None:
        """[batch position]: the unit at each position: for token ids, the position of the token in the leaf."""
        units = None if order.obstacle else order.leaf_positions
        return units if units is None or not units.numel() or int(units.max()) < self.count else None

    def decode(self, read: list[Tensor], claimed: Order) -> Order:
        """The order that was measured, unless it may be that of other examples, or nothing is known."""
        found = [decode(codes, self.count) for codes in self.probe.measure_silent(self.base, read)]
        units = found[0]
        is_one = units is not None and all(other is not None and torch.equal(units, other) for other in found)
        stays = self.encoded.batch == 1 or (units is not None and not bool((units != units[:1]).any()))
        stays = stays or self.keeps_examples()
        if is_one and stays and units is not None:
            tokens = units if claimed.leaf is None else look_up(claimed.leaf, units)
            return replace(claimed, sequence=tokens, is_measured=True, has_lost_leaf=False, mixes=False)
        if not stays:
            return Order(claimed.leaf, None, moves_examples=True, is_measured=True)
        return replace(claimed, sequence=None, obstacle=claimed.obstacle or UNKNOWN, is_measured=True)

    def has_frames(self) -> bool:
        """Whether a position has several units, neighbours: it changes both with the even ones and with the odd."""
        even = (torch.arange(self.count) % 2 == 0).expand(self.encoded.batch, -1)
        runs = [self.probe.look_moved(self.encoded, self.base, moved) for moved in (even, ~even)]
        return any(bool((one & other).any()) for one, other in zip(*runs, strict=True))

    def keeps_examples(self) -> bool:
        """Whether only the rows of an example change with it: in one run, every second example is moved."""
        moved = (torch.arange(self.encoded.batch) % 2 == 1)[:, None].expand(-1, self.count)
        changes = self.probe.look_moved(self.encoded, self.base, moved)
        return all(torch.equal(change.any(1), moved[:, 0]) for change in changes)

    def judge(self) -> tuple[Order, Verdict]:
        """The order on this input, and whether what it is based on is true of another input."""
        other = self.look_at_other()
        claimed = None if other is None else read_labels(other[1], other[0])
        if claimed is not None and claimed.moves_examples:
            return replace(self.claimed, moves_examples=True), Verdict(moves_examples=True)
        if other is not None and claimed is not None:
            self.claimed, claimed = self.correct_leaf(other, claimed)
        found = self.find_order()
        if found.moves_examples or other is None or claimed is None:
            return found, Verdict(not found.is_measured, not found.moves_examples, found.moves_examples)
        expected = found if found.is_measured else claimed
        changes = self.probe.look_moved(*other, self.half, goes_on=True)
        units = self.find_units(expected)
        if units is None:
            return found, Verdict(False, True, mixes=self.mixes)
        wanted = (units >= 0) & self.half.gather(1, units.clamp(min=0))  # positions of the half that is moved
        at_first, later = (
            [change for change in part if change.shape == wanted.shape]  # others are of another length
            for part in (changes[: len(self.base.states)], changes[len(self.base.states) :])
        )
        fitting = [change for change in at_first if bool(change.any())]
        is_confirmed = all(bool(c[wanted].all() if self.mixes else not (c & ~wanted).any()) for c in fitting)
        is_same = is_confirmed and (found.is_measured or is_same_order(claimed, self.claimed))
        if is_confirmed and any(bool((c & ~wanted).any()) and bool((wanted & ~c).any()) for c in later):
            found = replace(found, obstacle=found.obstacle or CHANGES)
        obstacle = found.obstacle if is_same else ""
        return found, Verdict(is_confirmed and not found.is_measured, not is_same, mixes=self.mixes, obstacle=obstacle)

    def look_at_other(self) -> tuple[EncodedBatch, Seen] | None:
        """Another input and what a run on it shows; None if the model does not take it."""
        other = make_other_input(self.encoded, self.run.mode.vocabulary)
        try:
            return other, self.probe.look(other, goes_on=True)
        except (WhyformerError, *FOREIGN_ERRORS) as error:  # what a model raises on inputs that it does not take
            if is_out_of_memory(error):
                raise
            return None

    def correct_leaf(self, other: tuple[EncodedBatch, Seen], claimed: Order) -> tuple[Order, Order]:
        """What labels claim of both inputs; if ids were embedded in another order, that of the ids themselves."""
        given, ids = other[0].inputs[other[0].main].cpu(), read_own_ids(other[1].ids, other[0])
        if ids is None or claimed.leaf is None or are_embedded(ids, given, claimed.leaf):
            return self.claimed, claimed
        is_one = (given[:, None, :] == ids[:, :, None]).long()  # [batch position token]
        leaf = torch.where(is_one.sum(-1) == 1, is_one.argmax(-1), -1)
        return tuple(move_leaf(order, of) for order, of in ((self.claimed, leaf.flip(0)), (claimed, leaf)))  # type: ignore[return-value]


def find_first_block(run: Run) -> int | None:
    """The number of the module call whose input enters the first block."""
    try:
        return find_block_calls(run.mode)[0].number
    except UnsupportedModel:
        return None


def is_confirmed(read: Tensor, wanted: Tensor) -> bool:
    """Every position shows the code that it must, or, where tokens are mixed before the first attention, more.

    A position that shows none, since its value does not react (it is clipped, or a code), is where the claim has it.
    """
    if read.shape != wanted.shape:
        return False
    is_seen = (read != 0) | (wanted == 0)
    if not bool((((read & wanted) == wanted) | ~is_seen).all()) or has_two_places(wanted, ~is_seen):
        return False
    added = read[wanted == 0]  # a class token may be computed from all tokens, but not from one
    return bool(((added == 0) | (added == 2 ** int(wanted.max()).bit_length() - 1)).all())


def has_two_places(wanted: Tensor, is_silent: Tensor) -> bool:
    """Whether one of these positions should have the code of another position."""
    return any(
        bool((row[:, None] == row[silent]).sum(0).gt(1).any()) for row, silent in zip(wanted, is_silent, strict=True)
    )


def is_same_order(one: Order, other: Order) -> bool:
    """Whether two runs, one with its examples in reverse, have the same order."""
    for a, b in ((one.leaf, other.leaf), (one.sequence, other.sequence)):
        if (a is None) != (b is None) or (a is not None and b is not None and not torch.equal(a.flip(0), b)):
            return False
    return one.moves_examples == other.moves_examples


def refuse_other_ids(run: Run, encoded: EncodedBatch, claimed: Order, measured: Order | None = None) -> Order:
    """The claimed order, or else the measured one, if the ids that were embedded are those of the order."""
    ids, given = read_own_ids(run.mode.embedded_ids, encoded), encoded.inputs[encoded.main].cpu()
    if ids is None or claimed.leaf is None or claimed.moves_examples or are_embedded(ids, given, claimed.leaf):
        return claimed
    if measured is not None and measured.leaf is not None and are_embedded(ids, given, measured.leaf):
        return move_leaf(claimed, measured.leaf)
    return replace(
        claimed, leaf=None, sequence=None, moves_examples=encoded.batch > 1, obstacle=UNKNOWN, has_lost_leaf=True
    )


def move_leaf(claimed: Order, leaf: Tensor) -> Order:
    """The order with another one of the positions where ids are embedded; later positions follow them."""
    if claimed.leaf is None or leaf.shape != claimed.leaf.shape:
        return claimed
    at = claimed.leaf_positions
    return replace(claimed, leaf=leaf, sequence=None if at is None else look_up(leaf, at))


def are_embedded(ids: Tensor, given: Tensor, tokens: Tensor) -> bool:
    """Whether these ids are those of the input, in this order of its tokens."""
    found = given.gather(1, tokens.clamp(0, given.size(1) - 1))
    return bool((found == ids)[tokens >= 0].all())
