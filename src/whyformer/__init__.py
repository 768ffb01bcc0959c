"""Why did the transformer say that? Explanations of any PyTorch transformer, unmodified."""

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
