r"""Blocks of the residual stream, and the states between them.

Block boundaries from the residual stream, for models whose blocks are no modules.

$$ x_l \;\to\; x_l + \mathrm{attention}_l(x_l) \;\to\; \dots \;\to\; x_{l+1} $$

$x_l$ is the state that the output of attention $l$ is added to. It is found among the additions of the forward: one
addend depends on the attention, the other is a state from before it from which the attention was computed. The last
boundary is where the stream ends: the last sum that has the sum before it as an addend. In a model that normalises
after each addition (BERT), an addend is the norm of the sum before it, and the stream ends with a norm.

Boundaries between blocks that add to no residual stream: gates (GRU), spheres (nViT), several streams at once.

A boundary is then a state that all of the answer passes: without it, no path of the graph leads from the answer to the
explained input. Of several between two attentions, the last is what the second one begins with.

Blocks with attention, found in the record of module calls, for any architecture. All blocks: blocks.py.

A block is the outermost repeated module call that contains one attention site and returns the shape it takes (the
attention module inside it often qualifies too, so the outermost is taken). If no such call is repeated, the outermost
one below the model itself is the block. Blocks are calls, not modules: ALBERT calls one module many times. Boundaries
are the tensors that enter each block and the one that leaves the last.

A call is a whole block only if the output of the attention is added to the state inside it. In models that add it
outside of every module (vit-pytorch, blocks that are functions), boundaries come from the residual stream itself
(blocks.py); where there is no such addition, they are states that all of the answer passes (blocks.py).

All blocks of the residual stream: those with attention, and those beside them that have none.

In a hybrid (Jamba, Qwen3-Next ...) most blocks are recurrent, state spaces, linear attention or convolutions. From the
blocks with attention (blocks.py), module calls that keep the shape of the state and add to it are followed back to the
explained input, from one block to the next, and on to the end. A part of the model in which no such calls are found,
but which mixes tokens before the first block, counts as a block.

An MLP that is a module of its own after each block with attention is the second half of that block, and no other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from torch import Tensor
from torch.autograd.graph import Node

from whyformer._engine.run.intercept import Intercept, ModuleCall, StreamStep
from whyformer._engine.run.token_mixing import mixes_tokens
from whyformer._engine.tracing.attention import AttentionSite, find_layer_sites
from whyformer._engine.tracing.provenance import trace_of
from whyformer.errors import UnsupportedModel


@dataclass(frozen=True)
class ResidualAddition:
    """Where the output of an attention is added to the state."""

    state: Tensor  # before the addition
    total: Tensor
    step: int


def find_residual_additions(mode: Intercept) -> list[ResidualAddition] | None:
    """The addition of each layer; None if a layer has none."""
    sites = find_layer_sites(mode.sites)
    found = []
    for site, following in zip_longest(sites, sites[1:]):
        until = mode.step + 1 if following is None else following.step
        between = [s for s in mode.stream if s.kind == "add" and site.step < s.step < until]
        additions = [a for step in between if (a := read_addition(step, site, mode)) is not None]
        if not additions:
            return None
        found.append(additions[-1])
    return found


def read_addition(step: StreamStep, site: AttentionSite, mode: Intercept) -> ResidualAddition | None:
    """The step as the addition of this site's output to the state, if it is one."""
    for output, addend in (step.operands, step.operands[::-1]):
        if trace_of(output).epoch != site.epoch or trace_of(addend).epoch >= site.epoch:
            continue
        for state in (addend, *find_unscaled(mode, addend)):
            if getattr(state, "_whyformer_step", 0) < site.step and is_ancestor(state, site.output):
                return ResidualAddition(state, step.result, step.step)
    return None


def find_unscaled(mode: Intercept, tensor: Tensor) -> list[Tensor]:
    """The state that this one is a multiple of, as in DeepNorm; empty if it is none."""
    return [step.operands[0] for step in mode.stream if step.kind == "scale" and step.result is tensor]


def is_ancestor(tensor: Tensor, of: Tensor) -> bool:
    """Whether one tensor was computed from another; True if there is no graph to tell."""
    if tensor.grad_fn is None or of.grad_fn is None:
        return tensor.grad_fn is None and of.grad_fn is None
    seen: set[Node] = set()
    waiting: list[Node] = [of.grad_fn]
    while waiting:
        node = waiting.pop(0)
        if node is tensor.grad_fn:
            return True
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return False


def find_stream_boundaries(mode: Intercept, additions: Sequence[ResidualAddition]) -> tuple[list[Tensor], list[int]]:
    """The states at the boundaries, one more than there are layers, and the step of each."""
    states = [addition.state for addition in additions]
    end = find_end(mode, additions)
    states.append(end)
    return states, [getattr(state, "_whyformer_step", 0) for state in states]


def find_end(mode: Intercept, additions: Sequence[ResidualAddition]) -> Tensor:
    """The state that leaves the last layer."""
    state = additions[-1].total
    totals = {id(step.result) for step in mode.stream if step.kind == "add"}
    normalises_after = any(id(addition.state) not in totals for addition in additions[1:])
    for step in mode.stream:
        if step.kind != "add" or step.step <= additions[-1].step or step.result.shape != state.shape:
            continue
        addends = [t for operand in step.operands for t in (operand, *find_unscaled(mode, operand))]
        if any(addend is state for addend in addends):
            state = step.result
        elif any(addend is norm for addend in addends for norm in find_norms(mode, state)):
            state, normalises_after = step.result, True
    return next(find_norms(mode, state), state) if normalises_after else state


def find_norms(mode: Intercept, state: Tensor) -> Iterator[Tensor]:
    """What normalises this state: a norm of torch, or a module that takes it and has no attention."""
    for step in mode.stream:
        if step.kind == "norm" and step.operands[0] is state:
            yield step.result
    for call in mode.calls:
        if call.input is state and call.output is not None and call.output.shape == state.shape and not call.sites:
            yield call.output


# --- bottlenecks ------------------------------------------------------------------------------------------------------


def find_bottlenecks(mode: Intercept) -> tuple[list[Tensor], list[int]] | None:
    """The last such state before each attention, and the last of all, with the step of each; None if one is missing."""
    sites, answer = find_layer_sites(mode.sites), mode.answer
    if mode.entered is None or answer is None or not answer.requires_grad or not sites:
        return None
    passed = [state for state in list_states(mode) if is_passed_by_all(state, answer, mode.leaves)]
    found: list[Tensor] = []
    for before, site in pairwise([None, *sites]):
        between = [s for s in passed if (before is None or find_step(s) > before.step) and find_step(s) < site.step]  # type: ignore[union-attr]
        if not between:
            return None
        found.append(between[-1])
    after = [state for state in passed if find_step(state) > sites[-1].step and state.shape == found[-1].shape]
    return ([*found, after[-1]], [find_step(state) for state in (*found, after[-1])]) if after else None


def list_states(mode: Intercept) -> list[Tensor]:
    """What modules take and return that has tokens and depends on the input, in the order in which it was made."""
    taken = [tensor for call in mode.calls for tensor in (call.input, call.output)]
    given = [getattr(t, "_whyformer_leaf", t) for t in (*taken, mode.last_state) if t is not None]
    states = {id(t): t for t in given if t.requires_grad and t.dim() >= 3 and trace_of(t).tokens is not None}
    return sorted(states.values(), key=find_step)


def find_step(state: Tensor) -> int:
    return getattr(state, "_whyformer_step", 0)


def is_passed_by_all(state: Tensor, answer: Tensor, leaves: list[Tensor]) -> bool:
    """Whether every path of the graph from the answer to the input passes this state."""
    seen: set[Node | None] = {state.grad_fn, None}
    waiting: list[Node | None] = [answer.grad_fn]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if any(getattr(node, "variable", None) is leaf for leaf in leaves):
            return False
        waiting.extend(following for following, _ in node.next_functions)  # type: ignore[union-attr]
    return True


# --- blocks with attention --------------------------------------------------------------------------------------------


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


# --- blocks without attention -----------------------------------------------------------------------------------------


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
