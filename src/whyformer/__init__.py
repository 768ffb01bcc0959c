"""Why did the transformer say that? Explanations of any PyTorch transformer, without changing the model.

Public names are imported on first use, so that `whyformer --help` does not wait for torch.
"""

import random
import sys
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

from whyformer.errors import WhyformerError

if TYPE_CHECKING:
    from whyformer import data, demo, errors, methods, metrics, rules, show, targets
    from whyformer._audit import Audit, HeadSwaps, audit, swap_heads
    from whyformer._bulk.result import BulkRun
    from whyformer._bulk.run import bulk
    from whyformer._cite.run import cite
    from whyformer._engine import (
        RECIPES,
        SITES,
        Capture,
        Intervention,
        Recipe,
        Target,
        TargetLike,
        engine,
        make_recipe,
        record,
    )
    from whyformer._explain.answer_check import check_answer
    from whyformer._explain.attention import inspect_attention
    from whyformer._explain.classes import explain_classes
    from whyformer._explain.compare import compare
    from whyformer._explain.decoding import generate
    from whyformer._explain.diagnose import diagnose
    from whyformer._explain.explain import explain
    from whyformer._explain.generation import explain_generation
    from whyformer._explain.hops import trace_reasoning
    from whyformer._explain.redistribution_rules import compare_redistribution
    from whyformer._explain.similarity import explain_similarity
    from whyformer._judge import Judgement, MetricTrust, judge, judge_metrics
    from whyformer._model import InputLike, Model, TextPair
    from whyformer._model.loading import open
    from whyformer._model.prompt import Prompt, Region
    from whyformer._plain.random_generator import make_generator
    from whyformer._plain.tokens import Grid, Pieces
    from whyformer._plain.versions import __version__
    from whyformer._summary import BulkSummary, summarise_bulk
    from whyformer.data.data_like import DataLike
    from whyformer.methods._registry import METHODS, Scores, method
    from whyformer.metrics._registry import METRICS, Measurement, Rationale, metric
    from whyformer.results.answer_check import AnswerCheck
    from whyformer.results.attention_view import AttentionView
    from whyformer.results.citations import Citation, Citations
    from whyformer.results.class_grid import ClassGrid
    from whyformer.results.comparison import Comparison
    from whyformer.results.diagnosis import Diagnosis
    from whyformer.results.explanation import Explanation, load
    from whyformer.results.generation import Generation
    from whyformer.results.hops import Hop, Hops
    from whyformer.results.rule_grid import RuleGrid
    from whyformer.results.similarity import Similarity

HOMES = {
    "_audit": "Audit HeadSwaps audit swap_heads",
    "_bulk.result": "BulkRun",
    "_bulk.run": "bulk",
    "_cite.run": "cite",
    "_engine": "RECIPES SITES Capture Intervention Recipe Target TargetLike engine make_recipe record",
    "_explain.answer_check": "check_answer",
    "_explain.attention": "inspect_attention",
    "_explain.classes": "explain_classes",
    "_explain.compare": "compare",
    "_explain.decoding": "generate",
    "_explain.diagnose": "diagnose",
    "_explain.explain": "explain",
    "_explain.generation": "explain_generation",
    "_explain.redistribution_rules": "compare_redistribution",
    "_explain.hops": "trace_reasoning",
    "_explain.similarity": "explain_similarity",
    "_judge": "Judgement MetricTrust judge judge_metrics",
    "_model": "InputLike Model TextPair",
    "_model.loading": "open",
    "_model.prompt": "Prompt Region",
    "_plain.random_generator": "make_generator",
    "_plain.tokens": "Grid Pieces",
    "_plain.versions": "__version__",
    "_summary": "BulkSummary summarise_bulk",
    "data.data_like": "DataLike",
    "methods._registry": "METHODS Scores method",
    "metrics._registry": "METRICS Measurement Rationale metric",
    "results.answer_check": "AnswerCheck",
    "results.attention_view": "AttentionView",
    "results.citations": "Citation Citations",
    "results.class_grid": "ClassGrid",
    "results.comparison": "Comparison",
    "results.diagnosis": "Diagnosis",
    "results.explanation": "Explanation load",
    "results.generation": "Generation",
    "results.hops": "Hop Hops",
    "results.rule_grid": "RuleGrid",
    "results.similarity": "Similarity",
}
HOME_OF = {name: home for home, names in HOMES.items() for name in names.split()}
SUBPACKAGES = ("data", "demo", "errors", "methods", "metrics", "rules", "show", "targets")
FILLED_BY = {"METHODS": "methods", "METRICS": "metrics"}  # registry -> the package whose import fills it

__all__ = [
    "METHODS",
    "METRICS",
    "RECIPES",
    "SITES",
    "AnswerCheck",
    "AttentionView",
    "Audit",
    "BulkRun",
    "BulkSummary",
    "Capture",
    "Citation",
    "Citations",
    "ClassGrid",
    "Comparison",
    "DataLike",
    "Diagnosis",
    "Explanation",
    "Generation",
    "Grid",
    "HeadSwaps",
    "Hop",
    "Hops",
    "InputLike",
    "Intervention",
    "Judgement",
    "Measurement",
    "MetricTrust",
    "Model",
    "Pieces",
    "Prompt",
    "Rationale",
    "Recipe",
    "Region",
    "RuleGrid",
    "Scores",
    "Similarity",
    "Target",
    "TargetLike",
    "TextPair",
    "WhyformerError",
    "__version__",
    "audit",
    "bulk",
    "check_answer",
    "cite",
    "compare",
    "compare_redistribution",
    "data",
    "demo",
    "diagnose",
    "engine",
    "errors",
    "explain",
    "explain_classes",
    "explain_generation",
    "explain_similarity",
    "generate",
    "inspect_attention",
    "judge",
    "judge_metrics",
    "load",
    "make_generator",
    "make_recipe",
    "method",
    "methods",
    "metric",
    "metrics",
    "open",
    "record",
    "rules",
    "show",
    "summarise_bulk",
    "swap_heads",
    "targets",
    "trace_reasoning",
]


def __getattr__(name: str) -> Any:
    before = random.getstate()
    try:
        with import_module("whyformer._plain.torch_state").neutral_torch() if "torch" in sys.modules else nullcontext():
            return _import_public_name(name)
    finally:
        random.setstate(before)  # rich draws a random number when it is imported


def _import_public_name(name: str) -> Any:
    if name in SUBPACKAGES:
        return import_module(f"whyformer.{name}")
    if name not in HOME_OF:
        from whyformer.errors import suggest_nearest

        raise AttributeError(f"whyformer has no {name!r}.{suggest_nearest(name, HOME_OF)}", name=name)
    if name in FILLED_BY:
        import_module(f"whyformer.{FILLED_BY[name]}")
    value = getattr(import_module(f"whyformer.{HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
