"""The order of the steps of a program: all that follows the forward pass goes through the layers together.

A run computes gradients at all layers, then relevance at all layers, then the method reads all layers. So most of what
the forward pass left has to be kept to the end. Each of these passes uses what is in the program, layer by layer from
the last to the first, so their steps can take turns: once all are through with a layer, its results are freed, and
what is computed again is computed again once for all of them.

Steps keep their numbers: each still runs after those whose results it uses, or whose memory it writes into.

Less memory for a program: results that are cheap to compute are computed again where they are used much later.

The forward pass leaves results that the backward passes use hundreds of steps later. Norms, activations and other
operations entry by entry are freed in between and repeated from their operands, which have to be kept anyway; so are
a few sums in a row (the residual stream). With `with_products`, so is the product with a weight that makes a tensor
larger (the first layer of an MLP), which takes a third of a forward pass of a transformer, and the product that keeps
the size of a tensor that is held anyway (the output of attention), which takes a twelfth.

A step is repeated as it was, so the numbers are the same. Only results that nothing writes into qualify.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from whyformer._engine.program.steps import Slot, Step, aten, map_slots
from whyformer._plain.private_torch import TO_COPY

LARGE = 2**16  # bytes per result: smaller ones (masks, readouts) say nothing about the layer


def order_by_layer(steps: Sequence[Step], memory: Sequence[int], sizes: dict[int, int], begins: int) -> list[Step]:
    """The steps, of which those from `begins` on are ordered by the layer that they use."""
    before = find_steps_before(steps, memory)
    layers = find_layers(steps, memory, sizes, begins, before)
    waiting = [sum(earlier >= begins for earlier in before[at]) for at in range(len(steps))]
    after: dict[int, list[int]] = {}
    for at in range(begins, len(steps)):
        for earlier in before[at]:
            after.setdefault(earlier, []).append(at)
    ready = [(-layers[at], at) for at in range(begins, len(steps)) if not waiting[at]]
    heapify(ready)
    ordered = list(steps[:begins])
    while ready:
        _, at = heappop(ready)
        ordered.append(steps[at])
        for later in after.get(at, ()):
            waiting[later] -= 1
            if not waiting[later]:
                heappush(ready, (-layers[later], later))
    return ordered


def find_steps_before(steps: Sequence[Step], memory: Sequence[int]) -> list[set[int]]:
    """For each step, those that must run before it: they made or wrote what it uses, or used what it writes into."""
    wrote: dict[int, int] = {}  # memory -> the last step that made it or wrote into it
    used: dict[int, set[int]] = {}  # memory -> the steps that have used it since
    views: dict[int, int] = {}  # slot -> the step that made it
    before: list[set[int]] = []
    for at, step in enumerate(steps):
        own: set[int] = set()
        written = {memory[number] for number in step.writes}
        for number in step.operands:
            if memory[number] in wrote:
                own.add(wrote[memory[number]])
            if number in views:
                own.add(views[number])
            used.setdefault(memory[number], set()).add(at)
        for place in written:
            own |= used.get(place, set())
            wrote[place], used[place] = at, {at}
        for made in step.outputs:
            if made is not None:
                views.setdefault(made, at)
                wrote.setdefault(memory[made], at)
                used.setdefault(memory[made], set()).add(at)
        own.discard(at)
        before.append(own)
    return before


def find_layers(
    steps: Sequence[Step], memory: Sequence[int], sizes: dict[int, int], begins: int, before: Sequence[set[int]]
) -> list[int]:
    """For each later step, the earliest place of the forward pass whose results it depends on."""
    made_at = {number: at for at, step in enumerate(steps[:begins]) for number in step.outputs if number is not None}
    unknown = len(steps)
    layers = [unknown] * len(steps)
    for at in range(begins, len(steps)):
        places = [made_at[n] for n in steps[at].operands if n in made_at and sizes.get(memory[n], 0) >= LARGE]
        layers[at] = min([*places, *(layers[earlier] for earlier in before[at] if earlier >= begins)], default=unknown)
    first_use = [-1] * len(steps)
    for at in reversed(range(begins, len(steps))):  # what depends on no layer is made where it is first used
        if layers[at] == unknown:
            layers[at] = first_use[at]
        for earlier in before[at]:
            first_use[earlier] = max(first_use[earlier], layers[at])
    return layers


# --- computed again ---------------------------------------------------------------------------------------------------


ENTRY_BY_ENTRY = {
    aten.gelu.default,
    aten.relu.default,
    aten.silu.default,
    aten.tanh.default,
    aten.sigmoid.default,
    aten.pow.Tensor_Scalar,
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.native_layer_norm.default,
    aten.clone.default,
    TO_COPY,
}
SUMS = {aten.add.Tensor}
PRODUCTS = {aten.addmm.default, aten.mm.default}
SMALLEST = 2**18  # bytes
APART = 100  # steps between two uses, from which on a result is freed in between
DEEPEST = 8  # results that are computed again one from the other
DEEPEST_SUM = 3  # sums are kept from there on: each of the next ones would repeat all before it


@dataclass
class Origin:
    """The step that computes a memory, and the views of it that later steps use."""

    step: Step
    number: int  # the slot of the result itself
    depth: int


@dataclass
class Recomputed:
    """A longer list of steps, and what it needs."""

    steps: list[Step]
    memory: list[int]  # slot -> the number of its memory
    sizes: dict[int, int]


def compute_again(
    steps: Sequence[Step], memory: Sequence[int], sizes: dict[int, int], fixed: set[int], *, with_products: bool
) -> Recomputed:
    """Steps that give the same results with less memory; `fixed` memory is held all the time."""
    uses = find_uses(steps, memory)
    origins = find_origins(steps, memory, sizes, fixed, uses, with_products=with_products)
    return Rewriter(steps, memory, sizes, origins, uses).rewrite()


def find_uses(steps: Sequence[Step], memory: Sequence[int]) -> dict[int, list[int]]:
    """Where each memory is used, in order."""
    uses: dict[int, list[int]] = {}
    for at, step in enumerate(steps):
        for number in {memory[operand] for operand in step.operands}:
            uses.setdefault(number, []).append(at)
    return uses


def find_origins(
    steps: Sequence[Step],
    memory: Sequence[int],
    sizes: dict[int, int],
    fixed: set[int],
    uses: dict[int, list[int]],
    *,
    with_products: bool,
) -> dict[int, Origin]:
    """The memories that can be freed and computed again."""
    written = {memory[number] for step in steps for number in step.writes}
    origins: dict[int, Origin] = {}
    for at, step in enumerate(steps):
        first = step.outputs[0] if step.outputs else None
        if first is None or step.writes or step.is_read or step.shape is not None:
            continue
        own, operands = memory[first], {memory[number] for number in step.operands}
        if own in operands or own in fixed or (operands | {own}) & written or sizes.get(own, 0) < SMALLEST:
            continue
        if not any(
            later - earlier > APART for earlier, later in zip([at, *uses.get(own, [])], uses.get(own, []), strict=False)
        ):
            continue
        depth = 1 + max([origins[m].depth for m in operands if m in origins], default=0)
        largest = max([sizes.get(m, 0) for m in operands - fixed], default=0)
        is_cheap = sizes[own] > 2 * largest or (sizes[own] >= largest and depth == 1)
        if (
            (step.function in ENTRY_BY_ENTRY and depth <= DEEPEST)
            or (step.function in SUMS and depth <= DEEPEST_SUM)
            or (step.function in PRODUCTS and with_products and is_cheap and depth <= DEEPEST)
        ):
            origins[own] = Origin(step, first, depth)
    return origins


class Rewriter:
    """Goes through the steps once; what is computed again gets new slots."""

    def __init__(
        self,
        steps: Sequence[Step],
        memory: Sequence[int],
        sizes: dict[int, int],
        origins: dict[int, Origin],
        uses: dict[int, list[int]],
    ) -> None:
        self.steps, self.memory, self.origins, self.uses = steps, memory, origins, uses
        self.sources = {number: step for step in steps for number in step.outputs if number is not None}
        self.made = Recomputed([], list(memory), dict(sizes))
        self.renamed: dict[int, int] = {}  # slot -> the slot that holds it now
        self.freed: set[int] = set()  # memory that is not held now

    def rewrite(self) -> Recomputed:
        for at, step in enumerate(self.steps):
            for number in step.operands:
                self.hold(number, at)
            self.made.steps.append(self.rename(step))
            self.note_views(step)
            for memory in {self.memory[number] for number in (*step.operands, *step.outputs) if number is not None}:
                self.free_until_next_use(memory, at)
        return self.made

    def note_views(self, step: Step) -> None:
        """A view of what was computed again holds until that is freed."""
        for number in step.outputs:
            for operand in step.operands:
                if number is not None and operand in self.renamed and self.memory[operand] == self.memory[number]:
                    self.renamed[number] = number
                    self.made.memory[number] = self.made.memory[self.renamed[operand]]

    def free_until_next_use(self, memory: int, at: int) -> None:
        if memory not in self.origins or memory in self.freed:
            return
        following = next((use for use in self.uses.get(memory, ()) if use > at), None)
        if following is not None and following - at > APART:
            self.freed.add(memory)

    def hold(self, number: int, at: int) -> None:
        """Compute a slot again if its memory has been freed, and if it is a view, that view."""
        memory = self.memory[number]
        if memory not in self.origins:
            return
        origin = self.origins[memory]
        if memory in self.freed:
            self.freed.discard(memory)
            for old in [old for old in self.renamed if self.memory[old] == memory]:
                del self.renamed[old]
            self.repeat(origin.step, at)
        if origin.number in self.renamed and number not in self.renamed:
            self.repeat(self.sources[number], at)

    def repeat(self, step: Step, at: int) -> None:
        """Run a step again, with new slots for its results."""
        for operand in step.operands:
            self.hold(operand, at)
        again = self.rename(step)
        outputs = [None if number is None else self.add_slot(step, number) for number in step.outputs]
        self.made.steps.append(replace(again, outputs=outputs))
        first = step.outputs[0]
        for old, new in zip(step.outputs, outputs, strict=True):
            if old is not None and new is not None and first is not None and self.memory[old] == self.memory[first]:
                self.renamed[old] = new
        for operand in step.operands:
            self.free_until_next_use(self.memory[operand], at)

    def add_slot(self, step: Step, number: int) -> int:
        """A new slot for a result; a view shares the memory of its operand."""
        new, memory = len(self.made.memory), self.made.memory
        shared = [operand for operand in step.operands if self.memory[operand] == self.memory[number]]
        memory.append(memory[self.renamed.get(shared[0], shared[0])] if shared else new)
        if not shared:
            self.made.sizes[new] = self.made.sizes.get(self.memory[number], 0)
        return new

    def rename(self, step: Step) -> Step:
        if not any(number in self.renamed for number in step.operands):
            return step
        operands = [self.renamed.get(number, number) for number in step.operands]
        change = lambda slot: Slot(self.renamed.get(slot.number, slot.number))  # noqa: E731
        return replace(
            step, args=map_slots(step.args, change), kwargs=map_slots(step.kwargs, change), operands=operands
        )
