"""Blocks, found in the record of module calls, for any architecture.

A block is the outermost repeated module call that contains one attention site and returns the shape it takes (the
attention module inside it often qualifies too, so the outermost is taken). If no such call is repeated, the outermost
one below the model itself is the block. Blocks are calls, not modules: ALBERT calls one module many times. Boundaries
are the tensors that enter each block and the one that leaves the last.
"""

from itertools import pairwise

from torch import Tensor

from whyformer._engine.intercept import Intercept, ModuleCall
from whyformer.errors import UnsupportedModel


def find_blocks(mode: Intercept) -> tuple[list[Tensor], list[int]]:
    """The hidden states at the block boundaries, one more than there are blocks, and the step of each."""
    blocks = find_block_calls(mode)
    for block, following in pairwise(blocks):
        if getattr(following.input, "_whyformer_leaf", following.input) is not block.output:
            raise UnsupportedModel(
                f"{following.path or 'The model'} does not continue where {block.path or 'the model'} ended: the "
                "module around the attention is not a whole block with its residual. Methods that need hidden states "
                "do not work with this model."
            )
    boundaries = [block.input for block in blocks] + [blocks[-1].output]
    steps = [block.input_step for block in blocks] + [blocks[-1].output_step]
    return [getattr(tensor, "_whyformer_leaf", tensor) for tensor in boundaries], steps  # type: ignore[misc]


def find_block_calls(mode: Intercept) -> list[ModuleCall]:
    """The call that is the block of each attention site."""
    blocks = []
    for site in mode.sites:
        around = [mode.calls[number] for number in site.enclosing]
        candidates = [call for call in around if len(call.sites) == 1 and keeps_shape(call)]
        repeated = [call for call in candidates if is_repeated(call, mode)]
        if not candidates:
            raise UnsupportedModel(
                f"No block was found around the attention in {site.place}: no module call there returns the shape it "
                "takes. Methods that need hidden states do not work with this model."
            )
        blocks.append((repeated or [call for call in candidates if call.path] or candidates)[0])
    return blocks


def keeps_shape(call: ModuleCall) -> bool:
    return call.input is not None and call.output is not None and call.input.shape == call.output.shape


def is_repeated(call: ModuleCall, mode: Intercept) -> bool:
    """An element of a list of modules, or called more than once."""
    in_a_list = call.path.rpartition(".")[2].isdigit()
    return in_a_list or sum(other.path == call.path for other in mode.calls) > 1
