"""Targets, certainty and scores in words, the same everywhere."""

from collections.abc import Iterable

from rich.cells import cell_len, set_cell_size

from whyformer._engine import Target
from whyformer.show.panel import Panel
from whyformer.show.visible import make_visible

EXACT = 0.01  # a sum that differs from the output by less than this share of it is the output


def name_target(target: Target) -> str:
    return name_class_or_token(target.index, target.label, target.position is not None)


def name_class_or_token(index: int, label: str, is_token: bool) -> str:
    """A token in quotes, as spaces matter; a class by its label, or by its index if it has none."""
    if is_token:
        return f"'{make_visible(label)}'"
    return f"class {index}" if label in ("", str(index)) else shorten_text(make_visible(label), 60)


def describe_target(target: Target) -> str:
    """The target, and what it is compared with: 'cat rather than dog'."""
    if target.versus is None:
        return name_target(target)
    versus = name_class_or_token(target.versus, target.versus_label or "", target.position is not None)
    return f"{name_target(target)} rather than {versus}"


def format_certainty(target: Target) -> str:
    """'80.6%', and whether the target is not what the model predicts."""
    return format_probability(target) + ("" if target.predicted else ", not the prediction")


def format_probability(target: Target) -> str:
    """The probability of the target, its output if there is no probability, or its difference to what it is against."""
    if target.versus is not None:
        return f"difference {target.score:+.3g}"
    return f"output {target.score:.3g}" if target.probability is None else f"{target.probability:.1%}"


def format_headline(panel: Panel) -> str:
    """'Why Bengal? 80.6%'"""
    return f"Why {describe_target(panel.target)}? {format_certainty(panel.target)}"


def describe_sum(panel: Panel) -> str:
    """What has a score, what the scores sum to, and the output that they are about."""
    unit = next((name[:-1] for name in ("words", "sentences", "paragraphs") if name in panel.settings), "token")
    unit = "patch" if panel.is_image else unit
    total, output = float(panel.scores.double().sum()), panel.target.score
    if not (panel.signed and panel.class_specific):
        return f"One score for each {unit}; they sum to {total:.3g}, which is not in units of the model's output."
    answer = (
        f"{output:.3g}, the {'output' if panel.target.versus is None else 'difference of the outputs'} for this answer"
    )
    if abs(total - output) <= EXACT * abs(output):
        return f"One score for each {unit}; they sum to {answer}."
    return f"One score for each {unit}; they sum to {total:+.3g}, not to {answer}."


def explain_colours(signs: Iterable[bool]) -> str:
    """What the colours of maps mean, of which these are signed: one sentence for each kind."""
    kinds = set(signs)
    signed = ["Orange: for the answer; blue: against it."] if True in kinds else []
    return " ".join(signed + (["Purple: unsigned scores."] if False in kinds else []))


def format_score(score: float, *, signed: bool, digits: int = 3) -> str:
    """A score with that many significant digits; signed scores with their sign. One that is undefined is a dash."""
    if score != score:
        return "–"
    return f"{score:{'+' if signed else ''}.{digits}g}"


def shorten_text(text: str, width: int) -> str:
    """The text cut to `width` terminal cells, '...' included."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 3).rstrip() + "..."
