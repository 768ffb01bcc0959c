"""Maps of scores for several targets by several methods, and how much the methods agree."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from whyformer._engine import TargetLike
from whyformer._explain.compare import compare
from whyformer._explain.explain import explain
from whyformer._model import EncodedBatch, Model
from whyformer._page.answers import recipes
from whyformer._page.answers.inputs import PageQuestion, read_span, read_target
from whyformer._page.answers.predicting import Ranked, rank_answers
from whyformer._page.answers.units import describe_scores, describe_units, shorten_number, shorten_numbers, show_target
from whyformer._plain.tokens import Grid, Pieces
from whyformer.errors import MethodError, TargetError, WhyformerError
from whyformer.methods._registry import METHODS
from whyformer.results.comparison import Comparison
from whyformer.results.conditioning import Conditioning
from whyformer.results.explanation import Explanation
from whyformer.show.visible import make_visible
from whyformer.show.wording import describe_sum

DISAGREE = 0.3  # a mean rank correlation below this
Tell = Callable[[str, dict[str, Any], Any], None]  # another body and the answer to it, to keep


def answer_explain(question: PageQuestion, tell: Tell) -> dict[str, Any]:
    """One map for each target and method. Answers to each target alone are told beside it, to be kept."""
    model, body, classes = question.model, question.body, rank_answers(question)
    targets = choose_targets(body, classes)
    compared = [explain_target(question, target) for target in targets]
    first = next(iter(compared[0]))
    shared = describe_input(model, first, question) | {"classes": classes}
    answers = [
        shared | describe_comparison(one, classes) | {"code": recipes.write_explain(question, target)}
        for target, one in zip(targets, compared, strict=True)
    ]
    if body["top"] is not None:
        for target, answer in zip(targets, answers, strict=True):
            tell("explain", body | {"top": None, "targets": [target]}, answer)
    maps = [one for answer in answers for one in answer["maps"]]
    return answers[0] | {"maps": maps}


def choose_targets(body: dict[str, Any], classes: list[dict[str, Any]]) -> list[int | str | None]:
    if body["top"] is None:
        return body["targets"] or [None]
    if not classes:
        raise TargetError("This model does not choose one class or next token. Name what to explain.")
    return [one["index"] for one in classes[: body["top"]]]


def explain_target(question: PageQuestion, word: int | str | None) -> Comparison:
    """One target by the methods that are asked for. Of several, those that fail are listed with the reason."""
    model, body, encoded = question.model, question.body, question.encoded
    target, versus = read_target(model, word), read_target(model, body["versus"])
    target = read_span(body["span"], target)
    methods = body["methods"]
    if isinstance(methods, str):
        return compare(model, encoded, None if methods == "usual" else methods, target=target, versus=versus)
    names = list(dict.fromkeys(methods or [None]))
    if len(names) == 1 or body["health"]:
        return explain_by_each_name(model, encoded, names, target, versus, body["health"])
    try:
        return compare(model, encoded, names, target=target, versus=versus)
    except WhyformerError:
        return explain_by_each_name(model, encoded, names, target, versus, health=False)


def explain_by_each_name(
    model: Model, encoded: EncodedBatch, names: list[str | None], target: TargetLike, versus: TargetLike, health: bool
) -> Comparison:
    """Each method in a run of its own."""
    explained: dict[str, Explanation] = {}
    failures: dict[str, str] = {}
    for name in names:
        checks = health and (name is None or (name in METHODS and METHODS[name].recipe is not None))
        settings: dict[str, Any] = {"health": True} if checks else {}
        try:
            one = explain(model, encoded, name, target=target, versus=versus, check=None, **settings)
        except WhyformerError as error:
            if len(names) == 1:
                raise
            failures[str(name)] = str(error)
        else:
            explained[one.method] = one
    if not explained:
        raise MethodError(f"None of these methods works here. {next(iter(failures.values()))}")
    return Comparison(explained, failures)


# --- as the page shows it ---------------------------------------------------------------------------------------------


def describe_comparison(compared: Comparison, classes: Ranked) -> dict[str, Any]:
    return {
        "maps": [show_map(one, classes) for one in compared],
        "failures": {label: make_visible(reason) for label, reason in compared.failures.items()},
        "agreement": show_agreement(compared) if len(compared) > 1 else None,
    }


def show_map(explained: Explanation, classes: Ranked) -> dict[str, Any]:
    target = explained.targets[0]
    known = next((row["probability"] for row in classes if row["index"] == target.spec), target.probability)
    return {
        "method": explained.method,
        "target": show_target(replace(target, probability=known)),
        **describe_scores(explained),
        "signed": explained.signed,
        "class_specific": explained.class_specific,
        "notes": [make_visible(note) for note in explained.notes],
        "cautions": describe_cautions(explained),
        "check": list_check_lines(explained),
        "sum": describe_sum(explained.panels()[0]),
        "cost": {name: shorten_number(passes) for name, passes in explained.spent.items()},
    }


def list_check_lines(explained: Explanation) -> list[str]:
    """What the model says with parts hidden, and what that speaks against."""
    hiding = explained.find_hiding()
    return [] if hiding is None else list(hiding.list_lines())


def describe_cautions(explained: Explanation) -> dict[str, str | None]:
    """What rounding and conservation say about the scores; None where nothing was checked."""
    conditioning = Conditioning.from_details(explained.details)
    try:
        conservation, is_sound = explained.health.verdict, explained.health.is_conserved
    except WhyformerError:
        conservation, is_sound = None, True
    if conservation is not None and "not conserved" in conservation:
        is_sound = False  # the totals balance, but several times what was sent has reached the input
    return {
        "rounding": None if conditioning is None else conditioning.verdict,
        "rounding_caution": "" if conditioning is None else conditioning.caution,
        "conservation": conservation,
        "conservation_caution": "" if is_sound else conservation,
    }


def show_agreement(compared: Comparison) -> dict[str, Any]:
    """The rank correlation of every two methods, and a sentence on it."""
    matrix = compared.agreement()
    means = matrix.clone().fill_diagonal_(float("nan"))
    typical = means.nanmean().item()
    pairs = [(float(matrix[i, j]), i, j) for i in range(len(matrix)) for j in range(i) if matrix[i, j] == matrix[i, j]]
    words = "The methods give no rankings to compare."
    if pairs:
        low, i, j = min(pairs)
        agree = "disagree" if typical < DISAGREE else "agree"
        words = (
            f"The methods {agree} on this input: mean rank correlation {typical:+.2f}; lowest between "
            f"{compared.labels[i]} and {compared.labels[j]}, {low:+.2f}."
        )
    return {
        "methods": list(compared.labels),
        "matrix": shorten_numbers(matrix),
        "mean": shorten_number(typical),
        "words": words,
    }


def describe_input(model: Model, explained: Explanation, question: PageQuestion) -> dict[str, Any]:
    """What the scores belong to: the grid of an image and where it is, or the units of a text."""
    tokens = explained.tokens[0]
    shown: dict[str, Any] = {"model": question.body["model"], "name": make_visible(model.name)}
    if isinstance(tokens, Grid):
        return shown | {
            "kind": "image",
            "image": describe_grid(explained, tokens),
            "text": None,
            "second": None,
            "regions": [],
            "units": None,
        }
    assert isinstance(tokens, Pieces)
    return shown | {
        "kind": "text",
        "image": None,
        "text": tokens.text,
        "second": tokens.second,
        "regions": [
            {"name": make_visible(one.name), "kind": one.kind, "start": one.start, "stop": one.stop}
            for one in tokens.regions
        ],
        "units": describe_units(explained),
    }


def describe_grid(explained: Explanation, grid: Grid) -> dict[str, Any]:
    """Rows and columns, and the part of the image that they cover, in its pixels."""
    kept = explained.images_of(0)[0] if explained.images else None
    if kept is None:
        return {"rows": grid.rows, "columns": grid.columns, "width": None, "height": None, "view": None}
    factor, view = kept.shrink_factor, kept.view
    box = None if view is None else view.scale(factor)
    edges = ("left", "top", "right", "bottom")
    return {
        "rows": grid.rows,
        "columns": grid.columns,
        "width": kept.image.width * factor,
        "height": kept.image.height * factor,
        "view": None if box is None else {edge: shorten_number(getattr(box, edge)) for edge in edges},
    }
