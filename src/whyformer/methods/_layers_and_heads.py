"""Selections: restrict any method that reads layers or heads to some of them.

    explain(model, x, "rollout", layers=[4, 5, 6])        as if the model had only these blocks
    explain(model, x, "raw_attention", heads=2)           one head
    explain(model, x, "rollout", per_layer=True)          details["per_layer"]: [batch layer unit], layer by layer

The capture is reduced before the method gets it, so methods need no code for this. With per_layer, entry l is the
explanation from layer l to the last layer, so entry 0 is the explanation itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import index
from typing import Any

from torch import Tensor

from whyformer._engine import SITES, LazyLayers
from whyformer.errors import MethodError
from whyformer.methods._registry import Setting


def list_selection_settings(needs: Sequence[str]) -> dict[str, Any]:
    """Which of these settings apply to a method with these needs."""
    sites = [SITES[need] for need in needs]
    return {
        **({"layers": None, "per_layer": False} if any(s.has_layers or s.has_boundaries for s in sites) else {}),
        **({"heads": None} if any(s.has_heads for s in sites) else {}),
    }


@dataclass(frozen=True)
class Selection:
    """The selected layers and heads; None selects all."""

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None

    def of(self, need: str, captured: Any) -> Any:
        """The selected part of a site."""
        site = SITES[need]
        if site.has_boundaries:
            return captured if self.layers is None else self.pick_boundaries(captured)
        if not site.has_layers:
            return captured
        chosen = captured
        if self.layers is not None:
            chosen = LazyLayers([partial(captured.__getitem__, layer) for layer in self.layers])
        if self.heads is None or not site.has_heads:
            return chosen
        return LazyLayers([partial(pick_heads, chosen, layer, list(self.heads)) for layer in range(len(chosen))])

    def pick_boundaries(self, states: Sequence[Any]) -> Sequence[Any]:
        """The hidden states before, between and after consecutive layers."""
        assert self.layers is not None
        first, last = self.layers[0], self.layers[-1]
        if self.layers != tuple(range(first, last + 1)):
            raise MethodError(
                f"layers={list(self.layers)} are not consecutive, but this method reads the hidden states between "
                "layers. Pass consecutive layers.",
                code="E_OPTION",
            )
        return states[first : last + 2]


def pick_heads(captured: Sequence[Tensor], layer: int, heads: list[int]) -> Tensor:
    return captured[layer][:, heads]


def resolve_selection(settings: Mapping[str, Setting], captured: Mapping[str, Any]) -> Selection:
    """The selection in these settings, checked against what was captured."""
    heads, wanted, depth = None, settings.get("layers"), depth_of(captured)
    layers = None if wanted is None else resolve_indices("layers", wanted, depth)
    if settings.get("heads") is not None:
        per_head = next(value for need, value in captured.items() if SITES[need].has_heads)
        counts = {per_head[layer].size(1) for layer in layers or range(depth)}
        heads = resolve_indices("heads", settings["heads"], min(counts))
        if len(counts) > 1 and resolve_indices("heads", settings["heads"], max(counts)) != heads:
            raise MethodError(
                f"heads={settings['heads']!r} counts from the end, but layers have {min(counts)} to {max(counts)} "
                "heads. Count from 0, or select layers with the same number of heads.",
                code="E_OPTION",
            )
    return Selection(layers, heads)


def depth_of(captured: Mapping[str, Any]) -> int:
    """The number of layers in what was captured; 0 if it has none."""
    for need, value in captured.items():
        if SITES[need].has_layers or SITES[need].has_boundaries:
            return len(value) - SITES[need].has_boundaries
    return 0


def resolve_indices(setting: str, wanted: Any, count: int) -> tuple[int, ...]:
    """One index or several, sorted; negative indices count from the end."""
    singular = setting[:-1]
    try:
        given = [index(w) for w in wanted] if isinstance(wanted, Sequence | range | set) else [index(wanted)]
    except (TypeError, ValueError, RuntimeError):  # what objects without an index, arrays and meta tensors raise
        given = []
    if isinstance(wanted, str) or not given:
        raise MethodError(
            f"{setting}={wanted!r} is not a {singular}. Pass a number or a list of numbers.", code="E_OPTION"
        )
    if outside := [n for n in given if not -count <= n < count]:
        raise MethodError(
            f"There is no {singular} {outside[0]}: there are {count} wherever this method reads them. "
            f"Pass {-count} to {count - 1}; negative numbers count from the end.",
            code="E_OPTION",
        )
    return tuple(sorted({n % count for n in given}))
