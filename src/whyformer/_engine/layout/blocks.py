"""Blocks with attention, found in the record of module calls, for any architecture. All blocks: stream_blocks.py.

A block is the outermost repeated module call that contains one attention site and returns the shape it takes (the
attention module inside it often qualifies too, so the outermost is taken). If no such call is repeated, the outermost
one below the model itself is the block. Blocks are calls, not modules: ALBERT calls one module many times. Boundaries
are the tensors that enter each block and the one that leaves the last.

A call is a whole block only if the output of the attention is added to the state inside it. In models that add it
outside of every module (vit-pytorch, blocks that are functions), boundaries come from the residual stream itself
(boundaries.py); where there is no such addition, they are states that all of the answer passes (bottlenecks.py).
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from whyformer._engine.layout.bottlenecks import find_bottlenecks
from whyformer._engine.layout.boundaries import find_residual_additions, find_stream_boundaries
from whyformer._engine.run import Intercept, ModuleCall
from whyformer._engine.tracing import AttentionSite, find_layer_sites
from whyformer.errors import UnsupportedModel


def find_attention_blocks(mode: Intercept) -> tuple[list[Tensor], list[int]]:
    """The hidden states before each block with attention and after the last, and the step of each."""
    try:
        blocks = find_block_calls(mode)
    except UnsupportedModel:
        if (additions := find_residual_additions(mode)) is not None:
            return find_stream_boundaries(mode, additions)
        if (found := find_bottlenecks(mode)) is None:
            raise
        return found
    return list_boundaries(blocks)


def list_boundaries(blocks: Sequence[ModuleCall]) -> tuple[list[Tensor], list[int]]:
    """The states between calls of which each begins where the one before ended, and the step of each."""
    states = [resolve_entrance(block.input) for block in blocks] + [resolve_entrance(blocks[-1].output)]
    return states, [block.input_step for block in blocks] + [blocks[-1].output_step]


def resolve_entrance(tensor: Tensor | None) -> Tensor:
    """The tensor; of the sum of embeddings, the copy that the model computes with."""
    return getattr(tensor, "_whyformer_leaf", tensor)  # type: ignore[return-value]


def find_block_calls(mode: Intercept) -> list[ModuleCall]:
    """The call that is the block of each attention site. Raises if they do not follow each other without a gap."""
    blocks = find_attending_calls(mode)
    for block, following in pairwise(blocks):
        if resolve_entrance(following.input) is not block.output:
            raise UnsupportedModel(
                f"{following.path or 'The model'} does not continue where {block.path or 'the model'} ended: the "
                "module around the attention is not a whole block with its residual. Use a method that needs no hidden "
                "states, such as generic_attention or rollout."
            )
    return blocks


def find_attending_calls(mode: Intercept) -> list[ModuleCall]:
    """The call that is the block of each attention site. Raises if one is not a whole block with its residual."""
    blocks = [find_block_call(site, mode) for site in find_layer_sites(mode.sites)]
    for block, addition in zip(blocks, find_residual_additions(mode) or [], strict=False):
        if not block.input_step < addition.step <= block.output_step:
            raise UnsupportedModel(
                f"{block.path or 'The model'} is not a whole block with its residual: the output of the attention is "
                "added to the state outside of it. Use a method that needs no blocks, such as generic_attention or "
                "rollout."
            )
    return blocks


def find_block_call(site: AttentionSite, mode: Intercept) -> ModuleCall:
    """The call that is the block of one attention site."""
    around = [mode.calls[number] for number in site.enclosing]
    candidates = [call for call in around if len(call.sites) == 1 and keeps_shape(call)]
    repeated = [call for call in candidates if is_repeated(call, mode)]
    if not candidates:
        raise UnsupportedModel(
            f"No block was found around the attention in {site.path}: no module call there returns the shape it "
            "takes, and no addition is a residual. Use a method that needs no hidden states, such as generic_attention "
            "or rollout."
        )
    return (repeated or [call for call in candidates if call.path] or candidates)[0]


def keeps_shape(call: ModuleCall) -> bool:
    return call.input is not None and call.output is not None and call.input.shape == call.output.shape


def is_repeated(call: ModuleCall, mode: Intercept) -> bool:
    """An element of a list of modules, or called more than once."""
    in_a_list = call.path.rpartition(".")[2].isdigit()
    return in_a_list or sum(other.path == call.path for other in mode.calls) > 1
