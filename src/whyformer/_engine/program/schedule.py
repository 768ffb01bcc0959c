"""The order of the steps of a program: all that follows the forward pass goes through the layers together.

A run computes gradients at all layers, then relevance at all layers, then the method reads all layers. So most of what
the forward pass left has to be kept to the end. Each of these passes uses what is in the program, layer by layer from
the last to the first, so their steps can take turns: once all are through with a layer, its results are freed, and
what is computed again (recompute.py) is computed again once for all of them.

Steps keep their numbers: each still runs after those whose results it uses, or whose memory it writes into.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from whyformer._engine.reruns.steps import Step

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
