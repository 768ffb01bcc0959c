"""Some layers, some heads: what every method that reads them can be asked to confine itself to.

    explain(model, x, "rollout", layers=[4, 5, 6])        as if the model had only these blocks
    explain(model, x, "raw_attention", heads=2)           one head
    explain(model, x, "rollout", per_layer=True)          details["per_layer"]: [batch layer unit], how it builds up

The capture is cut down before the method sees it, so no method knows about this. The build-up begins at the answer:
entry l is the explanation from the layers l to the last, so entry 0 is the explanation itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from whyformer._engine.capture import LazyLayers
from whyformer._engine.sites import SITES
from whyformer.errors import MethodError

SELECTION_SETTINGS = {"layers": None, "heads": None, "per_layer": False}


def list_selection_settings(needs: Sequence[str]) -> dict[str, Any]:
    """Which of these settings make sense for what a method needs."""
    axes = [SITES[need].split() for need in needs]
    has_layers = any(a[0] in ("layer", "boundary") for a in axes)
    has_heads = any("head" in a for a in axes)
    return {
        **({"layers": None, "per_layer": False} if has_layers else {}),
        **({"heads": None} if has_heads else {}),
    }


@dataclass(frozen=True)
class Selection:
    """The layers and heads that count; None is all of them."""

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None

    def of(self, need: str, captured: Any) -> Any:
        """What is left of a site."""
        axes = SITES[need].split()
        if axes[0] == "boundary":
            return captured if self.layers is None else self.boundaries(captured)
        if axes[0] != "layer":
            return captured
        chosen = captured if self.layers is None else [_defer_layer(captured, layer) for layer in self.layers]
        if self.layers is not None:
            chosen = LazyLayers(chosen)
        if self.heads is None or "head" not in axes:
            return chosen
        return LazyLayers([_defer_heads(chosen, layer, list(self.heads)) for layer in range(len(chosen))])

    def boundaries(self, states: Sequence[Any]) -> Sequence[Any]:
        """The hidden states around a run of layers."""
        assert self.layers is not None
        first, last = self.layers[0], self.layers[-1]
        if self.layers != tuple(range(first, last + 1)):
            raise MethodError(
                f"layers={list(self.layers)} leaves some out in between, but this method reads the hidden states "
                "around its layers. Give a run of neighbours."
            )
        return states[first : last + 2]


def _defer_layer(captured: Sequence[Any], layer: int) -> Any:
    return lambda: captured[layer]


def _defer_heads(captured: Sequence[Any], layer: int, heads: list[int]) -> Any:
    return lambda: captured[layer][:, heads]


def resolve_selection(settings: Mapping[str, Any], captured: Mapping[str, Any]) -> Selection:
    """The selection that was asked for, checked against what was captured."""
    layers = heads = None
    sites = [value for need, value in captured.items() if SITES[need].split()[0] == "layer"]
    states = [value for need, value in captured.items() if SITES[need].split()[0] == "boundary"]
    depth = len(sites[0]) if sites else len(states[0]) - 1 if states else 0
    if settings.get("layers") is not None:
        layers = resolve_indices("layers", settings["layers"], depth)
    if settings.get("heads") is not None:
        site = next(value for need, value in captured.items() if "head" in SITES[need].split())
        counts = {site[layer].size(1) for layer in layers or range(depth)}
        heads = resolve_indices("heads", settings["heads"], min(counts))
        if len(counts) > 1 and resolve_indices("heads", settings["heads"], max(counts)) != heads:
            raise MethodError(
                f"heads={settings['heads']!r} counts from the end, but layers have {min(counts)} to {max(counts)} "
                "heads. Count from 0, or choose layers that have the same."
            )
    return Selection(layers, heads)


def depth_of(captured: Mapping[str, Any]) -> int:
    """How many layers there are."""
    for need, value in captured.items():
        if SITES[need].split()[0] in ("layer", "boundary"):
            return len(value) - (SITES[need].split()[0] == "boundary")
    return 0


def resolve_indices(setting: str, wanted: Any, count: int) -> tuple[int, ...]:
    """One number or several, in order, below 0 counted from the end."""
    one = setting[:-1]
    try:
        given = [index(w) for w in wanted] if isinstance(wanted, Sequence | range | set) else [index(wanted)]
    except TypeError:
        given = []
    if isinstance(wanted, str) or not given:
        raise MethodError(f"{setting}={wanted!r} names no {one}. Give a number or a list of numbers.")
    if strange := [n for n in given if not -count <= n < count]:
        raise MethodError(
            f"There is no {one} {strange[0]} at each place this method reads: there are {count}. "
            f"Give {-count} to {count - 1}; below 0 counts from the end."
        )
    return tuple(sorted({n % count for n in given}))
