"""Shadows that are used again: making one takes longer than starting a short run on a GPU.

Between runs a kept shadow has no weights, so that it holds no memory of a model that was moved or deleted. It is used
again only while the model is what it was (model_state.py), and only if its run left it as it was: some models keep what
depends on the length of an input.
"""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from whyformer._engine.run import WRITERS, ModelState, make_shadow
from whyformer._model import list_modules, unwrap
from whyformer._plain.private_torch import buffers_of, parameters_of
from whyformer._plain.torch_state import leave_inference

Identities = list[tuple[int, ...]]


@dataclass
class KeptShadow:
    """A shadow, its modules in order, and what they keep."""

    shadow: nn.Module
    parts: list[nn.Module]
    before: Identities

    def fill(self, originals: list[nn.Module]) -> None:
        """Give it the weights of the model, as detached views; shared weights stay shared."""
        views: dict[int, Tensor] = {}
        for part, original in zip(self.parts, originals, strict=True):
            for name, weight in parameters_of(original).items():
                if weight is not None and id(weight) not in views:
                    views[id(weight)] = nn.Parameter(weight.detach(), requires_grad=False)
                parameters_of(part)[name] = None if weight is None else views[id(weight)]  # type: ignore[assignment]
            for name, buffer in buffers_of(original).items():
                buffers_of(part)[name] = None if buffer is None else buffer.detach()

    def empty(self) -> None:
        for part in self.parts:
            for store in (parameters_of(part), buffers_of(part)):
                store.update(dict.fromkeys(store))


@dataclass
class ShadowsOfModel:
    """The shadows of one model that are not in use; several threads may use some at a time."""

    state: ModelState
    idle: list[KeptShadow] = field(default_factory=list)


POOL: "weakref.WeakKeyDictionary[nn.Module, ShadowsOfModel]" = weakref.WeakKeyDictionary()
LOCK = threading.Lock()


@contextmanager
def borrow_shadow(module: nn.Module) -> Iterator[nn.Module]:
    """A shadow for one run and its backward pass."""
    own = find_shadows(module)
    is_writer = unwrap(module) in WRITERS  # a new shadow has copies of what it writes into
    if is_writer or not own.state.is_known or own.state.has_hooks or has_unusual_weights(module):
        yield make_shadow(module)
        return
    originals = list_modules(unwrap(module))
    with LOCK:
        kept = own.idle.pop() if own.idle else None
    if kept is None:
        shadow = make_shadow(module)
        parts = list_modules(shadow)
        if [type(part) for part in parts] != [type(part) for part in originals]:  # wrapped inside
            yield shadow
            return
        kept = KeptShadow(shadow, parts, read_identities(parts))
    else:
        kept.fill(originals)
    try:
        yield kept.shadow
        is_same = read_identities(kept.parts) == kept.before
    finally:
        kept.empty()
    if is_same:
        with LOCK:
            own.idle.append(kept)


def find_shadows(module: nn.Module) -> ShadowsOfModel:
    """The shadows of the model as it is now."""
    known = POOL.get(module)
    if known is not None and known.state.is_same(ModelState(module, known.state)):
        return known
    made = ShadowsOfModel(ModelState(module).keep(module))
    POOL[module] = made
    return made


def has_unusual_weights(module: nn.Module) -> bool:
    """Weights of other classes, or made in inference mode, of which a shadow needs copies."""
    weights = [w for part in list_modules(unwrap(module)) for w in parameters_of(part).values() if w is not None]
    return any(type(weight) is not nn.Parameter or leave_inference(weight) is not weight for weight in weights)


def read_identities(parts: list[nn.Module]) -> Identities:
    """What each module keeps besides weights and hooks."""
    return [tuple(map(id, part.__dict__.values())) for part in parts]
