"""What is said about a target and an example, in the same words everywhere."""

from collections.abc import Iterator

from rich.cells import cell_len, set_cell_size

from whyformer.show.case import Case
from whyformer.show.visible import visible
from whyformer.target import Target


def called(target: Target) -> str:
    return named(target.index, target.label, target.position is not None)


def named(index: int, label: str, is_token: bool) -> str:
    """A class by its label, a token in quotes since blanks count, either by its number if it has no name."""
    if is_token:
        return f"'{visible(label)}'"
    return f"class {index}" if label in ("", str(index)) else shortened(visible(label), 60)


def asked(target: Target) -> str:
    """What is explained: the target, and what it is set against."""
    against = (
        ""
        if target.versus is None
        else (f" rather than {named(target.versus, target.versus_label or '', target.position is not None)}")
    )
    return called(target) + against


def remarks(target: Target) -> Iterator[str]:
    if target.versus is not None:
        yield f"difference {target.score:+.3g}"
    elif target.probability is not None:
        yield f"{target.probability:.1%}"
    else:
        yield f"output {target.score:.3g}"
    if not target.predicted:
        yield "not what the model answers"


def certainty(target: Target) -> str:
    return ", ".join(remarks(target))


def headline(case: Case) -> str:
    """Why Bengal? 80.6%"""
    return f"Why {asked(case.target)}? {certainty(case.target)}"


def shortened(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 3).rstrip() + "..."
