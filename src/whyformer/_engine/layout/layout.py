"""Layout: how the token sequence that attention sees relates to the input.

Which tokens are padding, which are special, where the patches are, and how much of the answer is read at each token.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from whyformer._engine.run.forward import Run
from whyformer._engine.tracing.attention import AttentionSite, find_layer_sites
from whyformer._engine.tracing.frames import Frames
from whyformer._engine.tracing.provenance import Trace, axis_of, trace_of
from whyformer._engine.tracing.recording import pause_recording
from whyformer._engine.tracing.token_numbers import TokenNumbers
from whyformer._model import EncodedBatch, Model
from whyformer._plain.tokens import Grid, Pieces, ScoredTokens
from whyformer.errors import UnsupportedModel


@dataclass(frozen=True)
class Order:
    """The token of the input at each position inside the model, [batch position], or -1; None where it is unknown."""

    leaf: Tensor | None = None  # positions in the sum of embeddings
    sequence: Tensor | None = None  # positions in the sequence that attention sees
    moves_examples: bool = False  # a row of a batch inside the model is not that of the input
    obstacle: str = ""  # why nothing is known about the sequence
    is_measured: bool = False  # and not from labels
    has_lost_leaf: bool = False  # the ids that are embedded are others than those of the labels
    mixes: bool = False  # a position has its token and a share of others

    @property
    def is_as_given(self) -> bool:
        """ScoredTokens are in the order of the input, also if the model adds others."""
        known = [tokens for tokens in (self.leaf, self.sequence) if tokens is not None]
        return not any(bool((row[row >= 0].diff() < 0).any()) for tokens in known for row in tokens)

    @property
    def moves_tokens(self) -> bool:
        """ScoredTokens are elsewhere in the sequence than in the sum of embeddings, each of them whole."""
        if self.leaf is None or self.sequence is None or self.mixes or self.obstacle:
            return False
        return not torch.equal(self.leaf, self.sequence)

    @property
    def leaf_positions(self) -> Tensor | None:
        """[batch position]: where in the sum of embeddings the token at each position of the sequence is, or -1."""
        if self.leaf is None or self.sequence is None:
            return self.sequence
        largest = max(int(self.leaf.max()), int(self.sequence.max()))
        return look_up(invert_order(self.leaf, largest + 1), self.sequence)


@dataclass(frozen=True)
class Layout:
    """The token sequence that attention sees."""

    mask: Tensor  # [batch token]: not padding
    special: Tensor  # [batch token]: no word and no patch
    patches: tuple[int, ...] | None  # images: positions of the patches in the sequence, row by row
    tokens: tuple[ScoredTokens, ...]
    positions: tuple[int, ...] | None = None  # of `tokens`, if the model adds others to those of the input
    owners: Tensor | None = None  # signals, [time] or [time channel]: which of `tokens` an entry belongs to, or -1
    slots: Tensor | None = None  # [batch token]: the position of each of `tokens`, or -1, if nothing above has it
    leaf_slots: Tensor | None = None  # [batch token]: its position in the sum of embeddings; None: the same
    obstacle: str = ""  # why the positions of `tokens` are not known
    has_lost_leaf: bool = False  # not even their positions in the sum of embeddings are
    blank: Tensor | None = None  # images: the colour that a model which normalises its pixels itself makes 0
    is_joined: bool = False  # layers do not all have the same tokens: positions are not those of any one attention

    @property
    def length(self) -> int:
        return self.mask.size(1)


def lay_out(run: Run, encoded: EncodedBatch, order: Order | None = None) -> Layout:
    """The layout of a run, with what it knows about the pixels of an image."""
    return replace(arrange(run, encoded, order), blank=run.mode.follower.find_blank())


def arrange(run: Run, encoded: EncodedBatch, order: Order | None) -> Layout:
    """The layout of a run, from the labels of its first and last attention site, or from an order that was checked.

    Without attention, the tokens are those of the input.
    """
    if run.mode.streams:
        return lay_out_streams(run, encoded)
    if (numbers := run.mode.follower.numbers) is not None:
        return lay_out_numbered(run, encoded, numbers, order or Order())
    if not run.mode.sites:
        return add_slots(lay_out_input(run, encoded), order or Order())
    last = find_layer_sites(run.mode.sites)[-1]
    length = last.value.size(-2) if last.is_pooling else last.queries
    sequence = order.sequence if order is not None and order.is_measured else run.mode.sites[0].origin
    is_one_order = sequence is None or not bool((sequence != sequence[:1]).any())
    if order is not None and order.sequence is not None and not is_one_order and order.sequence.size(1) == length:
        return lay_out_each(run, encoded, order, order.sequence)
    fits = sequence is not None and is_one_order and sequence.size(-1) == length
    origin = sequence[0] if sequence is not None and fits else None
    layout = lay_out_alike(run, encoded, origin, length, is_one_order)
    return layout if order is None else add_slots(layout, order)


def lay_out_streams(run: Run, encoded: EncodedBatch) -> Layout:
    """The layout of source and prefix, one after the other."""
    device = run.mode.sites[-1].output.device
    assert encoded.token_mask is not None and encoded.special_mask is not None
    mask, special = encoded.token_mask.to(device), encoded.special_mask.to(device)
    return Layout(mask, special, None, encoded.pieces(mask.size(1)))


def lay_out_numbered(run: Run, encoded: EncodedBatch, numbers: TokenNumbers, order: Order) -> Layout:
    """The layout where layers do not all have the same tokens: patches or words, then tokens that the model adds."""
    grid, device = run.mode.follower.grid, run.output.device
    origin = torch.arange(numbers.length, device=device)
    origin = torch.where(origin < numbers.patches, origin, -1).expand(encoded.batch, -1)
    mask, special = mask_positions(encoded, origin)
    patches = None if grid is None else tuple(range(numbers.patches))
    tokens = list_tokens(run, encoded, numbers.patches, is_grid=grid is not None)
    return Layout(mask, special, patches, tokens, obstacle=order.obstacle, is_joined=True)


def lay_out_input(run: Run, encoded: EncodedBatch) -> Layout:
    """The layout of a model without attention: patches, words, or the steps of a signal, as they are given."""
    main, grid = encoded.inputs[encoded.main], run.mode.follower.grid
    is_image = main.dim() == 4
    length = (grid[0] * grid[1] if grid else 1) if is_image else main.size(1 - encoded.batch_axis)
    origin = torch.arange(length, device=run.output.device)
    if main.is_floating_point() and not is_image and encoded.batch_axis == 0:
        steps = origin.cpu().view(-1, *[1] * (main.dim() - 2)).expand(main.shape[1:])
        return lay_out_signal(encoded, origin, steps)
    mask, special = mask_positions(encoded, origin.expand(encoded.batch, -1))
    patches = tuple(range(length)) if is_image and grid is not None else None
    return Layout(mask, special, patches, list_tokens(run, encoded, length, is_grid=patches is not None))


def lay_out_alike(run: Run, encoded: EncodedBatch, origin: Tensor | None, length: int, is_one_order: bool) -> Layout:
    """The layout where all examples have one order; origin: the token of each position, None if it is not known."""
    grid, embedded = run.mode.follower.grid, run.mode.embedded
    if origin is None and embedded is not None and embedded.numel() == length:
        origin = embedded.flatten()
    if origin is None:  # the labels were lost: patches come last; without patches every token is an input token
        origin = torch.arange(length) - (0 if grid is None else max(length - grid[0] * grid[1], 0))
    origin = origin.long().to(run.mode.sites[-1].output.device)
    if run.mode.frames is not None and (owners := find_signal_owners(run, run.mode.frames, origin)) is not None:
        return lay_out_signal(encoded, origin, owners)
    mask, special = mask_positions(encoded, origin.expand(encoded.batch, -1))
    count = count_scored_tokens(run, encoded, length)
    if count != length and torch.equal(origin[origin >= 0].sort().values, torch.arange(count, device=origin.device)):
        # The model adds tokens to those of a text (prompts, padding to a window); these are not scored.
        return Layout(mask, special, None, encoded.pieces(count), find_patch_positions(origin))
    has_patches = is_one_order and grid is not None and int((origin >= 0).sum()) == grid[0] * grid[1]
    patches = find_patch_positions(origin) if has_patches else None
    return Layout(mask, special, patches, list_tokens(run, encoded, length, is_grid=has_patches))


def list_tokens(run: Run, encoded: EncodedBatch, length: int, *, is_grid: bool) -> tuple[ScoredTokens, ...]:
    """What is scored, for each example: patches, or pieces of a text."""
    follower = run.mode.follower
    if is_grid and follower.grid is not None:
        return (Grid(*follower.grid, follower.covers),) * encoded.batch
    with pause_recording():
        return encoded.pieces(count_scored_tokens(run, encoded, length))


def mask_positions(encoded: EncodedBatch, origin: Tensor) -> tuple[Tensor, Tensor]:
    """[batch position]: not padding, and no word and no patch; origin: [batch position], the token of each."""
    is_input = origin >= 0
    mask, special = torch.ones_like(is_input), ~is_input
    if encoded.token_mask is not None and encoded.token_mask.size(1) > int(origin.max()):
        at = origin.clamp(min=0)
        own = encoded.token_mask.to(origin.device)
        mask = own.gather(1, at)
        if not bool(is_input.all()):
            mask = torch.where(is_input, mask, ~has_padding(origin, own))
        if encoded.special_mask is not None:
            special = special | (encoded.special_mask.to(origin.device).gather(1, at) & is_input)
    return mask, special


def has_padding(origin: Tensor, token_mask: Tensor) -> Tensor:
    """[batch 1]: the positions without a token are as many as the padding that has none: the model made its own."""
    is_padding = ~token_mask & (invert_order(origin.cpu(), token_mask.size(1)).to(origin.device) < 0)
    lost = is_padding.sum(-1, keepdim=True)
    return (lost > 0) & (lost == (origin < 0).sum(-1, keepdim=True))


def lay_out_each(run: Run, encoded: EncodedBatch, order: Order, sequence: Tensor) -> Layout:
    """The layout where every example has an order of its own."""
    mask, special = mask_positions(encoded, sequence.to(run.mode.sites[-1].output.device))
    tokens = list_tokens(run, encoded, sequence.size(1), is_grid=encoded.inputs[encoded.main].dim() == 4)
    return add_slots(Layout(mask, special, None, tokens), order)


def add_slots(layout: Layout, order: Order) -> Layout:
    """The layout with the positions of its tokens, where they are not 0, 1, 2, ... and not in the layout already."""
    count = len(layout.tokens[0])
    layout = replace(layout, obstacle=order.obstacle, has_lost_leaf=order.has_lost_leaf)
    with pause_recording():
        if order.leaf is not None and not is_plain_order(order.leaf, count):
            leaf_slots = invert_order(order.leaf, count)
            if layout.positions is None or bool((leaf_slots != torch.tensor(layout.positions)).any()):
                layout = replace(layout, leaf_slots=leaf_slots)
        is_known = layout.patches is not None or layout.positions is not None
        if order.sequence is None or order.sequence.size(1) != layout.length or is_known:
            return layout
        slots = None if is_plain_order(order.sequence, count) else invert_order(order.sequence, count)
        return replace(layout, slots=slots)


def is_plain_order(tokens: Tensor, count: int) -> bool:
    """Token 0, 1, 2, ... of every example, and no other."""
    return tokens.size(1) == count and not bool((tokens != torch.arange(count)).any())


def invert_order(tokens: Tensor, count: int) -> Tensor:
    """[batch token]: the position of each token, or -1, from [batch position], the token at each position."""
    positions = torch.full((len(tokens), count + 1), -1)
    where = torch.where((tokens >= 0) & (tokens < count), tokens, count)
    positions.scatter_(1, where, torch.arange(tokens.size(1)).expand_as(tokens))
    return positions[:, :count]


def look_up(table: Tensor, index: Tensor, missing: int = -1) -> Tensor:
    """[batch position]: the entry of each row of the table at this index, `missing` where the index is -1."""
    if not table.size(1):
        return torch.full_like(index, missing)
    return torch.where(index >= 0, table.gather(1, index.clamp(min=0)), missing)


def find_signal_owners(run: Run, frames: Frames, origin: Tensor) -> Tensor | None:
    """Which token each entry of a signal belongs to; of a table, each feature is one."""
    tokens = int(origin.max()) + 1
    is_table = len(frames.shape) == 1 and not frames.cuts and run.mode.sites[0].origin is not None
    if is_table and torch.equal(origin[origin >= 0].sort().values.cpu(), torch.arange(frames.shape[0])):
        return torch.arange(tokens)
    return frames.find_owners(tokens)


def lay_out_signal(encoded: EncodedBatch, origin: Tensor, owners: Tensor) -> Layout:
    """The layout where attention runs over frames of a signal. A frame is padding if all of its entries are."""
    positions = find_patch_positions(origin)
    count = len(positions)
    real = torch.ones(encoded.batch, count, dtype=torch.bool)
    if encoded.token_mask is not None and encoded.token_mask.size(1) == owners.size(0):
        of_frame = [(owners == frame).reshape(owners.size(0), -1).any(-1) for frame in range(count)]
        real = torch.stack([encoded.token_mask[:, steps].any(-1) for steps in of_frame], dim=1)
    mask = torch.ones(encoded.batch, len(origin), dtype=torch.bool)
    mask[:, list(positions)] = real
    special = (origin < 0).expand(encoded.batch, -1)
    names, nothing, unknown = tuple(map(str, range(count))), (False,) * count, (None,) * count
    pieces = tuple(Pieces(names, nothing, tuple((~row).tolist()), unknown) for row in real)
    return Layout(mask.to(origin.device), special, None, pieces, positions, owners)


def count_scored_tokens(run: Run, encoded: EncodedBatch, length: int) -> int:
    """How many tokens can be scored: those of a text or of a sequence of vectors, however many attention sees; else
    all that it sees."""
    main, frames = encoded.inputs[encoded.main], run.mode.frames
    is_text = main.dim() == 2 and not main.is_floating_point() and encoded.token_mask is not None
    is_vectors = main.dim() == 3 and frames is not None and not any(cut.shortens for cut in frames.cuts)
    # of a table, attention may see a part of the columns
    is_table = main.dim() == 2 and frames is not None and not frames.cuts and length < main.size(1)
    is_labelled = is_table and run.mode.sites[0].origin is not None
    return main.size(1) if is_text or is_vectors or is_labelled else length


def find_patch_positions(origin: Tensor) -> tuple[int, ...]:
    """The positions of patch 0, 1, 2, ... in the sequence."""
    by_patch = sorted((patch, position) for position, patch in enumerate(origin.tolist()) if patch >= 0)
    return tuple(position for _, position in by_patch)


def axis_order_of(tensor: Tensor, trace: Trace) -> str:
    """The model's order of axes: "plain" [batch token channel], "turned" [token batch channel], "pixels", or "alone"
    [token channel], of one example."""
    if trace.is_pixels:
        return "pixels"
    if tensor.dim() == 2 and trace.samples is not None and trace.samples.numel() == 1 and axis_of(trace.tokens) == 0:
        return "alone"
    batch_axis, token_axis = axis_of(trace.samples), axis_of(trace.tokens)
    return "turned" if batch_axis == 1 or (batch_axis is None and token_axis == 0) else "plain"


def to_canonical_axes(tensor: Tensor, trace: Trace) -> Tensor:
    """[batch token channel] or [batch height width channel], from the model's order of axes."""
    return arrange_axes(tensor, axis_order_of(tensor, trace))


def arrange_axes(tensor: Tensor, order: str) -> Tensor:
    """The same, from this order."""
    if order == "alone":
        return tensor.unsqueeze(0)
    return tensor.permute(0, 2, 3, 1) if order == "pixels" else tensor.transpose(0, 1) if order == "turned" else tensor


def to_token_states(state: Tensor, trace: Trace, length: int) -> Tensor:
    """[batch token channel], from states between blocks in the model's order of axes.

    Further axes (the copies of a stream that hyper connections keep) become channels. Other states stay as they are.
    """
    tokens, samples = axis_of(trace.tokens), axis_of(trace.samples)
    if axis_order_of(state, trace) == "alone":
        return state.unsqueeze(0)
    if state.dim() == 4 and is_grid_of_tokens(state, trace, length):
        return state.flatten(2).transpose(1, 2)
    if samples is None:  # one example
        samples = next((axis for axis in range(state.dim()) if state.size(axis) == 1 and axis != tokens), 0)
    is_usual = trace.is_pixels or (state.dim() == 3 and tokens != 2)
    if is_usual or tokens is None or tokens == samples or state.size(tokens) != length:
        return to_canonical_axes(state, trace)
    return state.movedim((samples, tokens), (0, 1)).flatten(2)


def is_grid_of_tokens(state: Tensor, trace: Trace, length: int) -> bool:
    """Whether states are [batch channel row column], with the tokens that attention covers row by row."""
    label = trace.tokens
    if trace.is_pixels or label is None or label.shape != (1, 1, *state.shape[-2:]):
        return False
    return torch.equal(label.flatten(), torch.arange(length, device=label.device, dtype=label.dtype))


def from_canonical_axes(tensor: Tensor, order: str) -> Tensor:
    """The inverse of `to_canonical_axes`."""
    if order == "alone":
        return tensor.squeeze(0)
    return tensor.permute(0, 3, 1, 2) if order == "pixels" else tensor.transpose(0, 1) if order == "turned" else tensor


def split_entries(tensor: Tensor, layout: Layout) -> Tensor:
    """[batch entry 1] from [batch time] or [batch time channel], where frames share the entries of a signal."""
    return tensor if layout.owners is None else tensor.flatten(1).unsqueeze(-1)


def order_leaf(tensor: Tensor, layout: Layout, of: Tensor | None = None) -> Tensor:
    """[batch token channel] in the order of the input, from the leaf; a token that was left out gets zeros.

    of: the example that each row is a variant of; by default the rows are the examples.
    """
    tensor, slots = split_entries(tensor, layout), layout.leaf_slots
    return tensor if slots is None else pick_positions(tensor, slots if of is None else slots[of.cpu()])


def unorder_leaf(tensor: Tensor, layout: Layout, of: Tensor, like: Tensor) -> Tensor:
    """The inverse for rows that are variants of the examples `of`; positions without a token are those of `like`."""
    if layout.leaf_slots is None:
        return tensor
    tokens = invert_order(layout.leaf_slots[of.cpu()], like.size(1)).to(tensor.device)
    return torch.where((tokens >= 0).unsqueeze(-1), pick_positions(tensor, tokens), like)


def pick_positions(tensor: Tensor, positions: Tensor) -> Tensor:
    """[batch token ...], from [batch position ...] and the position of each token; zeros where a token has none."""
    positions = positions.to(tensor.device).view(*positions.shape, *[1] * (tensor.dim() - 2))
    picked = tensor.gather(1, positions.clamp(min=0).expand(*positions.shape[:2], *tensor.shape[2:]))
    return torch.where(positions >= 0, picked, torch.zeros_like(picked))


def leaf_to_sequence(amount: Tensor, order: Order) -> Tensor:
    """[batch position] from [batch position in the leaf]: what belongs to a token is where attention sees it."""
    if order.leaf is None or order.sequence is None or amount.size(1) != order.leaf.size(1):
        return amount
    with pause_recording():
        positions = None if torch.equal(order.leaf, order.sequence) else order.leaf_positions
    return amount if positions is None else pick_positions(amount, positions)


def find_representation(model: Model, run: Run, layout: Layout) -> tuple[Tensor, str]:
    """Where a headless model that returns one state per token keeps its representation: [batch token], and a note."""
    mask, special = layout.mask, layout.special
    kind: str | int = "mean"
    first = replace(model, readout="first").readout_weights(mask).bool()
    if model.readout is not None:
        kind = model.readout
    elif mask.size(1) > 1 and not run.looks_ahead:
        kind = "last"  # causal: each token sees only those before it
    elif bool((special | ~first).all()):
        kind = "first"
    weights = replace(model, readout=kind).readout_weights(mask).to(mask.device) * mask
    words = {"mean": "the mean of its tokens", "first": "its first token", "last": "its last token"}
    where = words.get(str(kind), f"token {kind}")
    note = f"The model has no head. The explanation is of its representation: {where}."
    return weights / weights.sum(-1, keepdim=True), note


def align_to_tokens(amount: Tensor, layout: Layout) -> Tensor:
    """[batch token], also where tokens that are no patch (CLS, registers) join after positions were added."""
    patches, length = layout.patches or (), layout.length
    if amount.size(1) == length:
        return amount
    others = [position for position in range(length) if position not in patches]
    early = others[: max(amount.size(1) - len(patches), 0)]
    if not patches or len(early) + len(patches) != amount.size(1):
        raise UnsupportedModel(
            f"Positions are added at {amount.size(1)} places, but attention covers {length} tokens, and which place "
            "belongs to which token is not known."
        )
    aligned = amount.new_zeros(amount.size(0), length)
    aligned[:, [*early, *patches] if patches[0] > 0 else [*patches, *early]] = amount
    return aligned


# --- models whose tokens do not stay the same -------------------------------------------------------------------------


def find_first_grid(run: Run, encoded: EncodedBatch) -> tuple[int, int] | None:
    """The patches that the first attention sees, if attention is over windows, merged or added tokens of an image.

    Of a text whose attention is over parts of it, the same in all layers: its tokens, in one row.
    """
    mode, main = run.mode, encoded.inputs[encoded.main]
    if not can_be_numbered(encoded) or not mode.sites or mode.streams:
        return None
    if (mode.maps_examples and encoded.batch > 1) or has_stackable_sites(run, encoded.batch):
        return None
    if main.dim() == 4:
        return mode.follower.grid
    parts = {(site.value.size(0), site.queries, site.value.size(-2)) for site in mode.sites}
    count, queries, keys = parts.pop()
    is_cut = not parts and count > encoded.batch and queries == keys and count * keys == main.numel()
    return (1, main.size(1)) if is_cut else None


def can_be_numbered(encoded: EncodedBatch) -> bool:
    """Whether all layers may be joined into one sequence: of the patches of an image, or the tokens of a text."""
    main = encoded.inputs[encoded.main]
    is_text = main.dim() == 2 and not main.is_floating_point()
    return (main.dim() == 4 or is_text) and encoded.pictures is None


def has_stackable_sites(run: Run, batch: int) -> bool:
    """Whether all attentions are over the same tokens, one after the other, and at most one pools at the end."""
    layers = find_layer_sites(run.mode.sites)
    length = layers[-1].value.size(-2) if layers[-1].is_pooling else layers[-1].queries
    pools = len(run.mode.sites) - len(layers)
    try:
        refuse_unstackable_sites(layers, batch, length)
    except UnsupportedModel:
        return False
    return pools < 2


def refuse_unstackable_sites(sites: list[AttentionSite], batch: int, length: int) -> None:
    """Methods on attention need self-attention over the same tokens at every layer."""
    if sites and all(site.first_positions is not None for site in sites):
        return
    for site in sites:
        if site.obstacle:
            raise UnsupportedModel(
                f"Attention in {site.path} is not self-attention over one sequence: {site.obstacle}. Methods that "
                "need attention do not support this yet."
            )
        shape = (site.value.size(0), site.queries, site.value.size(-2))
        if shape != (batch, length, length):
            raise UnsupportedModel(
                f"Attention in {site.path} covers {shape[1]} x {shape[2]} tokens in a batch of {shape[0]}, the last "
                f"attention {length} x {length} in a batch of {batch}. Methods that need attention do not support "
                "windows, cross-attention and changing lengths yet."
            )
    for site, following in pairwise(sites):
        if following.epoch == site.epoch:
            raise UnsupportedModel(
                f"Attention in {following.path} is not self-attention over one sequence: it does not follow the "
                "attention before it (a second tower, a decoder). Methods that need attention do not support this yet."
            )


def has_states_of_tokens(states: list[Tensor], layout: Layout) -> bool:
    """Whether each of these is [batch token channel], for the tokens that attention covers."""
    length = layout.mask.size(1)
    shapes = [to_token_states(state.detach(), trace_of(state), length).shape for state in states]
    return all(len(shape) == 3 and shape[:2] == layout.mask.shape for shape in shapes)


def refuse_changing_tokens(states: list[Tensor], layout: Layout) -> None:
    """Methods on hidden states need the same tokens at every block boundary."""
    batch, length = layout.mask.shape
    for layer, state in enumerate(states):
        if not has_states_of_tokens([state], layout):
            shape = to_canonical_axes(state.detach(), trace_of(state)).shape
            raise UnsupportedModel(
                f"The hidden states at boundary {layer} have the shape {list(shape)}, but attention covers {length} "
                f"tokens in a batch of {batch}. Methods that need hidden states do not support models whose tokens "
                "change between layers yet."
            )


def refuse_flat_embeddings(leaf: Tensor, encoded: EncodedBatch) -> None:
    """Refuse a model that embeds the tokens of all examples in one row."""
    if leaf.dim() == 2 and not encoded.inputs[encoded.main].is_floating_point():
        raise UnsupportedModel(
            "The model embeds the tokens of all examples in one row, without a batch axis (as code that removes "
            "padding does). Methods that read the embeddings do not support this yet."
        )


def refuse_unknown_frames(encoded: EncodedBatch, layout: Layout) -> None:
    """Methods on the input need to know which entries of a signal each token is computed from."""
    if layout.has_lost_leaf:
        raise UnsupportedModel(layout.obstacle)
    main = encoded.inputs[encoded.main]
    if not main.is_floating_point() or main.dim() not in (2, 3) or layout.owners is not None:
        return
    length = main.size(1 - encoded.batch_axis)
    if main.dim() == 2 or length != len(layout.tokens[0]):
        raise UnsupportedModel(
            f"The input has {length} steps, the attention covers {layout.length} tokens, and which steps belong to "
            "which token is not known. Methods that score or change the input do not work."
        )
