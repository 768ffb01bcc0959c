"""Why did the transformer say that? Explanations of any PyTorch transformer, unmodified.

Public names are fetched when they are first used: `whyformer --help` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from whyformer import methods as methods
from whyformer import metrics as metrics
from whyformer.audit import Audit, audit
from whyformer.capture import Capture, record
from whyformer.classes import Sheet, sheet
from whyformer.comparison import Comparison, compare
from whyformer.errors import WhyformerError
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
from whyformer.errors import WhyformerError
from whyformer.method import method  # before anything else can put the module of that name in its place

if TYPE_CHECKING:
    from whyformer import methods as methods
    from whyformer.capture import Capture, record
    from whyformer.classes import Sheet, sheet
    from whyformer.comparison import Comparison, compare
    from whyformer.explanation import Explanation, explain, load
    from whyformer.heads import Inside, inside
    from whyformer.loading import open
    from whyformer.method import METHODS
    from whyformer.model import Model
    from whyformer.rules import RECIPES, recipe
    from whyformer.sites import SITES
    from whyformer.target import Target
    from whyformer.tokens import Grid, Pieces
    from whyformer.versions import __version__
    from whyformer.writing import Writing, written

HOMES = {
    "capture": ("Capture", "record"),
    "classes": ("Sheet", "sheet"),
    "comparison": ("Comparison", "compare"),
    "explanation": ("Explanation", "explain", "load", "METHODS"),
    "heads": ("Inside", "inside"),
    "loading": ("open",),
    "model": ("Model",),
    "rules": ("RECIPES", "recipe"),
    "sites": ("SITES",),
    "target": ("Target",),
    "tokens": ("Grid", "Pieces"),
    "versions": ("__version__",),
    "writing": ("Writing", "written"),
}

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


def __getattr__(name: str) -> Any:
    if name == "methods":
        return import_module("whyformer.methods")
    for home, names in HOMES.items():
        if name in names:
            found = getattr(import_module(f"whyformer.{home}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"whyformer has no {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
