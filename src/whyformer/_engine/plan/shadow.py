"""Shadows that are used again: making one takes longer than starting a short run on a GPU.

Between runs a kept shadow has no weights, so that it holds no memory of a model that was moved or deleted. It is used
again only while the model is what it was (model_state.py), and only if its run left it as it was: some models keep what
depends on the length of an input.
"""

import threading
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from torch import Tensor, nn

from whyformer._engine.plan.repeats import RepeatsOfModel
from whyformer._engine.run.model_memory import MEMORY, learnt, recall
from whyformer._engine.run.model_state import ModelState
from whyformer._engine.run.shadow import make_shadow
from whyformer._model import list_modules, unwrap
from whyformer._plain.private_torch import buffers_of, parameters_of
from whyformer._plain.torch_state import leave_inference

Slot = tuple[MutableMapping[str, Any], str]  # where a module keeps a weight


@dataclass
class KeptShadow:
    """A shadow, its modules in order, and what they keep."""

    shadow: nn.Module
    parts: list[nn.Module]
    slots: list[list[Slot]]  # of each weight of the model; of one that is shared, with the first
    before: list[int]

    def fill(self, weights: Sequence[Tensor]) -> None:
        """Give it the weights of the model, as detached views; shared weights stay shared."""
        for weight, slots in zip(weights, self.slots, strict=True):
            view = weight.detach()
            if type(weight) is nn.Parameter:
                view = nn.Parameter(view, requires_grad=False)
            for store, name in slots:
                store[name] = view

    def empty(self) -> None:
        for slots in self.slots:
            for store, name in slots:
                store[name] = None


@dataclass
class ShadowsOfModel:
    """The shadows of one model that are not in use; several threads may use some at a time."""

    are_kept: bool  # library code without hooks on weights of the usual class
    repeats: RepeatsOfModel | None
    idle: list[KeptShadow] = field(default_factory=list)


LOCK = threading.Lock()


def forget_repeats() -> None:
    """Give up the graphs of all models, and their memory."""
    for own in MEMORY.values():
        for known in own.of_weights.get("shadows", {}).values():
            known.repeats = RepeatsOfModel() if known.are_kept else None


@contextmanager
def borrow_shadow(module: nn.Module, now: ModelState) -> Iterator[nn.Module]:
    """A shadow for one run and its backward pass. now: the state of the model."""
    own = find_shadows(module, now)
    if learnt(module).writes or not own.are_kept:  # a new shadow has copies of what it writes into
        yield make_shadow(module)
        return
    with LOCK:
        kept = own.idle.pop() if own.idle else None
    if kept is None:
        shadow = make_shadow(module)
        kept = keep_shadow(shadow, unwrap(module), now)
        if kept is None:
            yield shadow
            return
    else:
        kept.fill(now.weights)
    try:
        yield kept.shadow
        is_same = read_identities(kept.parts) == kept.before
    finally:
        kept.empty()
    if is_same:
        with LOCK:
            own.idle.append(kept)


def keep_shadow(shadow: nn.Module, inner: nn.Module, now: ModelState) -> KeptShadow | None:
    """The shadow with what is needed to use it again; None if its modules are not those of the model."""
    parts, originals = list_modules(shadow), list_modules(inner)
    if [type(part) for part in parts] != [type(part) for part in originals]:  # wrapped inside
        return None
    slots: dict[int, list[Slot]] = {id(weight): [] for weight in now.weights}
    for part, original in zip(parts, originals, strict=True):
        for find_store in (parameters_of, buffers_of):
            for name, weight in find_store(original).items():
                if weight is not None:
                    slots[id(weight)].append((find_store(part), name))
    return KeptShadow(shadow, parts, [slots.pop(id(weight), []) for weight in now.weights], read_identities(parts))


def find_shadows(module: nn.Module, now: ModelState) -> ShadowsOfModel:
    """The shadows of the model as it is now."""
    known: dict[None, ShadowsOfModel] = recall(module, "shadows", now, of_weights=True)
    if None not in known:
        state = learnt(module).state
        are_kept = state is not None and state.is_known and not state.has_hooks and not has_unusual_weights(now.weights)
        known[None] = ShadowsOfModel(are_kept, RepeatsOfModel() if are_kept else None)
    return known[None]


def has_unusual_weights(weights: Sequence[Tensor]) -> bool:
    """Weights of other classes, or made in inference mode, of which a shadow needs copies."""
    kinds = (nn.Parameter, nn.Buffer, Tensor)
    return any(type(weight) not in kinds or leave_inference(weight) is not weight for weight in weights)


def read_identities(parts: list[nn.Module]) -> list[int]:
    """What each module keeps besides weights and hooks."""
    return [*map(id, chain.from_iterable([part.__dict__.values() for part in parts]))]
