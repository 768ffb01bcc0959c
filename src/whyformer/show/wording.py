"""What is said about a target and an example, in the same words everywhere."""

from collections.abc import Iterator

from rich.cells import cell_len, set_cell_size

from whyformer._engine.target import Target
from whyformer.show.panel import Panel
from whyformer.show.visible import make_visible


def name_target(target: Target) -> str:
    return name_answer(target.index, target.label, target.position is not None)


def name_answer(index: int, label: str, is_token: bool) -> str:
    """A class by its label, a token in quotes since blanks count, either by its number if it has no name."""
    if is_token:
        return f"'{make_visible(label)}'"
    return f"class {index}" if label in ("", str(index)) else shorten_text(make_visible(label), 60)


def describe_target(target: Target) -> str:
    """What is explained: the target, and what it is set against."""
    against = (
        ""
        if target.versus is None
        else (f" rather than {name_answer(target.versus, target.versus_label or '', target.position is not None)}")
    )
    return name_target(target) + against


def list_target_remarks(target: Target) -> Iterator[str]:
    if target.versus is not None:
        yield f"difference {target.score:+.3g}"
    elif target.probability is not None:
        yield f"{target.probability:.1%}"
    else:
        yield f"output {target.score:.3g}"
    if not target.predicted:
        yield "not what the model answers"


def format_certainty(target: Target) -> str:
    return ", ".join(list_target_remarks(target))


def format_headline(case: Panel) -> str:
    """Why Bengal? 80.6%"""
    return f"Why {describe_target(case.target)}? {format_certainty(case.target)}"


def shorten_text(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 3).rstrip() + "..."
