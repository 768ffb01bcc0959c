"""All blocks of the residual stream: those with attention, and those beside them that have none.

In a hybrid (Jamba, Qwen3-Next ...) most blocks are recurrent, state spaces, linear attention or convolutions. From the
blocks with attention (blocks.py), module calls that keep the shape of the state and add to it are followed back to the
explained input, from one block to the next, and on to the end. A part of the model in which no such calls are found,
but which mixes tokens before the first block, counts as a block.

An MLP that is a module of its own after each block with attention is the second half of that block, and no other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from whyformer._engine.layout.blocks import (
    find_attending_calls,
    find_attention_blocks,
    is_repeated,
    keeps_shape,
    list_boundaries,
    resolve_entrance,
)
from whyformer._engine.layout.boundaries import is_ancestor
from whyformer._engine.run import Intercept, ModuleCall, mixes_tokens
from whyformer.errors import UnsupportedModel


@dataclass(frozen=True)
class StreamBlocks:
    """The states between all blocks."""

    states: list[Tensor]  # one more than there are blocks
    steps: list[int]  # of the forward, at which each was computed
    attending: tuple[int, ...]  # the block that each attention is in

    @property
    def count(self) -> int:
        return len(self.states) - 1


def find_blocks(mode: Intercept) -> StreamBlocks:
    """All blocks of the residual stream. Raises if those with attention, or without any, are not found."""
    calls = find_chain(mode) if mode.sites else find_chain_without_attention(mode)
    if not calls and not mode.sites:
        return take_input_for_blocks(mode)
    if calls:
        states, steps = list_boundaries(calls)
        attending = tuple(number for number, call in enumerate(calls) if call.sites)
    else:
        states, steps = find_attention_blocks(mode)
        attending = tuple(range(len(states) - 1))
    if mode.may_mix and is_mixed_before(mode, states[0]):
        assert mode.entered is not None
        states, steps, attending = [mode.entered, *states], [0, *steps], tuple(number + 1 for number in attending)
    return StreamBlocks(states, steps, attending)


def take_input_for_blocks(mode: Intercept) -> StreamBlocks:
    """The model as one block: of a convolutional network, say, no states are known but those of the input."""
    if mode.entered is None:
        raise UnsupportedModel(
            "No blocks were found: the model has no attention, no list of modules passes on a state for each token, "
            "and the explained input is not known."
        )
    return StreamBlocks([mode.entered] * 2, [0, 0], ())


def is_mixed_before(mode: Intercept, state: Tensor) -> bool:
    """Whether tokens are mixed between the explained input and this state, which has an entry for each of them."""
    entered = mode.entered
    if mode.moves_tokens or entered is None or state is entered or entered.dim() != 3:
        return False
    return state.shape[:2] == entered.shape[:2] and mixes_tokens(mode, entered, state)


def find_chain(mode: Intercept) -> list[ModuleCall]:
    """The calls that are blocks, of which each begins where the one before ended.

    Empty if there are none but those with attention, or if there is a gap between two of these.
    """
    try:
        attending = find_attending_calls(mode)
    except UnsupportedModel:
        return []
    finder = ChainFinder(mode, attending)
    chain = [*(finder.walk_back(attending[0], None) or ()), attending[0]]
    for block, following in pairwise(attending):
        between = finder.walk_back(following, block)
        if between is None:
            return []
        chain += [*between, following]
    chain += finder.walk_on(attending[-1])
    return [] if len(chain) == len(attending) or consists_of_halves(chain, mode) else chain


def find_chain_without_attention(mode: Intercept) -> list[ModuleCall]:
    """The longest row of elements of one list of modules, of which each begins where the one before ended."""
    rows: list[list[ModuleCall]] = []
    for call in mode.calls:
        owner, _, name = call.path.rpartition(".")
        if not name.isdigit() or not keeps_shape(call) or call.input is call.output or call.output.dim() != 3:  # type: ignore[union-attr]
            continue
        row = next((row for row in rows if resolve_entrance(call.input) is row[-1].output), None)
        if row is not None and row[-1].path.rpartition(".")[0] == owner:
            row.append(call)
        else:
            rows.append([call])
    return max(rows, key=len, default=[])


def consists_of_halves(chain: Sequence[ModuleCall], mode: Intercept) -> bool:
    """Whether each block with attention is followed by one that mixes no tokens: its second half."""
    first, second = chain[::2], chain[1::2]
    if len(first) != len(second) or not all(call.sites for call in first) or any(call.sites for call in second):
        return False
    return not any(mixes_tokens(mode, resolve_entrance(call.input), resolve_entrance(call.output)) for call in second)


class ChainFinder:
    """Follows the state through calls without attention."""

    def __init__(self, mode: Intercept, attending: Sequence[ModuleCall]) -> None:
        self.mode = mode
        self.lists = {call.path.rpartition(".")[0] for call in attending}
        shape = attending[0].input.shape if attending[0].input is not None else None
        self.others = [
            call
            for call in mode.calls
            if not call.sites and keeps_shape(call) and call.input is not call.output and call.output.shape == shape  # type: ignore[union-attr]
        ]

    def walk_back(self, block: ModuleCall, until: ModuleCall | None) -> list[ModuleCall] | None:
        """The blocks before this one, up to another one; None if it is not reached."""
        found: list[ModuleCall] = []
        state = resolve_entrance(block.input)
        while until is None or state is not until.output:
            call = self.choose([call for call in self.others if call.output is state])
            if call is None:
                return found if until is None else None
            if self.adds_to_state(call):
                found.insert(0, call)
            state = resolve_entrance(call.input)
        return found

    def walk_on(self, block: ModuleCall) -> list[ModuleCall]:
        """The blocks after this one."""
        found: list[ModuleCall] = []
        state = block.output
        while (call := self.choose([call for call in self.others if call.input is state])) is not None:
            if not self.adds_to_state(call):
                break
            found.append(call)
            state = call.output
        return found

    def choose(self, calls: Sequence[ModuleCall]) -> ModuleCall | None:
        """Of calls around each other, the one in the list of the blocks with attention, or the outermost repeated."""

        def rank(call: ModuleCall) -> tuple[bool, bool, int]:
            is_beside = call.path.rpartition(".")[0] in self.lists and call.path.rpartition(".")[2].isdigit()
            return is_beside, is_repeated(call, self.mode), -call.number

        return max(calls, key=rank, default=None)

    def adds_to_state(self, call: ModuleCall) -> bool:
        """Whether what it returns is a sum, or the norm of a sum, of which both parts come from its input."""
        given, state = resolve_entrance(call.input), call.output
        inside = [step for step in self.mode.stream if call.input_step < step.step <= call.output_step]
        while state is not given:
            step = next((step for step in inside if step.result is state), None)
            if step is not None and step.kind == "add":
                return all(part is given or is_ancestor(given, part) for part in step.operands)
            around = [one for one in self.others if one.output is state and call.number < one.number]
            if not around and step is None:
                return False
            state = resolve_entrance(around[0].input) if around else step.operands[0]  # type: ignore[union-attr]
        return False
