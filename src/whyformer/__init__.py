"""Why did the transformer say that? Explanations of any PyTorch transformer, unmodified.

Public names are fetched when they are first used: `whyformer --help` need not wait for torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from whyformer.errors import WhyformerError

if TYPE_CHECKING:
    from whyformer import methods as methods
    from whyformer import metrics as metrics
    from whyformer.audit import Audit, audit
    from whyformer.capture import Capture, record
    from whyformer.classes import Sheet, sheet
    from whyformer.comparison import Comparison, compare
    from whyformer.explanation import Explanation, explain, load
    from whyformer.heads import Inside, inside
    from whyformer.judge import Judgement, judge
    from whyformer.loading import open
    from whyformer.method import METHODS, method
    from whyformer.metric import METRICS, Measured, Rationale, metric
    from whyformer.model import Model
    from whyformer.rules import RECIPES, recipe
    from whyformer.sites import SITES
    from whyformer.target import Target
    from whyformer.tokens import Grid, Pieces
    from whyformer.versions import __version__
    from whyformer.writing import Writing, written

HOMES = {
    "audit": "Audit audit",
    "capture": "Capture record",
    "classes": "Sheet sheet",
    "comparison": "Comparison compare",
    "explanation": "Explanation explain load",
    "heads": "Inside inside",
    "judge": "Judgement judge",
    "loading": "open",
    "method": "method",
    "metric": "Measured Rationale metric",
    "model": "Model",
    "rules": "RECIPES recipe",
    "sites": "SITES",
    "target": "Target",
    "tokens": "Grid Pieces",
    "versions": "__version__",
    "writing": "Writing written",
}
PLACES = {name: home for home, names in HOMES.items() for name in names.split()}
REGISTRIES = {"METHODS": ("method", "methods"), "METRICS": ("metric", "metrics")}  # filled by importing the second
MODULES = ("methods", "metrics")

__all__ = [
    "METHODS",
    "METRICS",
    "RECIPES",
    "SITES",
    "Audit",
    "Capture",
    "Comparison",
    "Explanation",
    "Grid",
    "Inside",
    "Judgement",
    "Measured",
    "Model",
    "Pieces",
    "Rationale",
    "Sheet",
    "Target",
    "WhyformerError",
    "Writing",
    "__version__",
    "audit",
    "compare",
    "explain",
    "inside",
    "judge",
    "load",
    "method",
    "methods",
    "metric",
    "metrics",
    "open",
    "recipe",
    "record",
    "sheet",
    "written",
]


class Package(ModuleType):
    """This package: a public name does not give way to a module that is called the same (audit, judge, method)."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in PLACES):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = Package


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return import_module(f"whyformer.{name}")
    if name in REGISTRIES:
        home, filled_by = REGISTRIES[name]
        import_module(f"whyformer.{filled_by}")
        return getattr(import_module(f"whyformer.{home}"), name)
    if name in PLACES:
        found = getattr(import_module(f"whyformer.{PLACES[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"whyformer has no {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
