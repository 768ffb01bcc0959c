"""Targets, certainty and scores in words, the same everywhere."""

from collections.abc import Iterable, Mapping, Sequence

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
    """The target, and what it is compared with: 'cat rather than dog'; of a regression, the value: 'price = 3.2'."""
    if target.versus is None:
        return f"{name_target(target)} = {format_probability(target)}" if target.is_value else name_target(target)
    versus = name_class_or_token(target.versus, target.versus_label or "", target.position is not None)
    return f"{name_target(target)} rather than {versus}"


def name_with_probability(target: Target) -> str:
    """'cat rather than dog, ahead by 3.1'; of a regression 'price = 3.2'"""
    is_said = target.is_value and target.versus is None
    return describe_target(target) + ("" if is_said else f", {format_probability(target)}")


def format_certainty(target: Target) -> str:
    """'80.6%', and whether the target is not what the model predicts; nothing more about a value that is named."""
    if target.is_value and target.versus is None:
        return ""
    return format_probability(target) + ("" if target.predicted else f", {target.contradiction}")


def format_probability(target: Target) -> str:
    """The probability of the target, its output if there is no probability, or how far it is ahead of the other."""
    if target.versus is not None:
        return f"{'ahead' if target.score >= 0 else 'behind'} by {abs(target.score):.3g}"
    if target.is_value:
        return f"{target.score:.4g}"
    return f"output {target.score:.3g}" if target.probability is None else f"{target.probability:.1%}"


def ask_why(target: Target) -> str:
    """'Why Bengal? 80.6%'; of a regression 'Why 3.2?' or 'Why price = 3.2?'"""
    what = describe_target(target).removeprefix("the value = ")
    return f"Why {what}? {format_certainty(target)}".rstrip()


def format_headline(panel: Panel) -> str:
    return ask_why(panel.target)


def describe_considered(target: Target) -> str:
    """What else the model considered, in a sentence; empty if it is not known or nothing."""
    named = [
        f"{name_class_or_token(-1, label, target.position is not None)} {chance:.1%}"
        for label, chance in target.considered
    ]
    if not named:
        return ""
    if target.is_multi_label:
        too = " too" if target.predicted else ""
        return f"Other labels (each above 50% is an answer{too}): {', '.join(named)}."
    if target.predicted:
        return f"Next likeliest: {', '.join(named)}."
    return f"The model's own answer: {'; then '.join([named[0], ', '.join(named[1:])]) if named[1:] else named[0]}."


def describe_sum(panel: Panel) -> str:
    """What has a score, what the scores sum to, and the output that they are about."""
    total, output = float(panel.scores.double().sum()), panel.target.score
    start, answer = (
        f"One score for each {name_scored_unit(panel)}; they sum to",
        f"{output:.3g}, {name_explained_output(panel.target)}",
    )
    if not has_output_units(panel):
        return f"{start} {total:.3g}, in other units than {answer}."
    if abs(total - output) <= EXACT * abs(output):
        return f"{start} {answer}."
    times = total / output if output else 0.0
    return f"{start} {total:+.3g}, {f'{times:.3g} times' if times > 0 else 'not to'} {answer}."


def describe_limits(*panels: Panel) -> str:
    """What the map of a method, or the maps of several, cannot show."""
    hidden = [] if any(one.signed for one in panels) else ["what speaks against this answer"]
    hidden += [] if any(one.class_specific for one in panels) else ["what speaks for it rather than for another"]
    untested = (
        ""
        if any(one.check for one in panels)
        else " Whether hiding the highest scores changes it was not tested; `check` does that."
    )
    return f"Not shown: {', '.join([*hidden, 'whether the answer is right'])}.{untested}"


def describe_sums(panels: Mapping[str, Panel]) -> str:
    """The same of one example by several methods, or of several answers by one."""
    first = next(iter(panels.values()))
    has_one_answer = len({one.target.score for one in panels.values()}) == 1
    sums: dict[bool, list[str]] = {True: [], False: []}
    for label, one in panels.items():
        output = "" if has_one_answer else f" for {one.target.score:.3g}"
        sums[has_output_units(one)].append(f"{float(one.scores.double().sum()):+.3g}{output} ({label})")
    named = "; in other units ".join(", ".join(own) for own in sums.values() if own)
    to = "the scores sum to" if sums[True] else "the scores sum, in other units, to"
    answer = f"{name_explained_output(first.target)} is {first.target.score:.3g}, " if has_one_answer else ""
    each = "" if has_one_answer else ", each for the output of its answer"
    return make_visible(f"One score for each {name_scored_unit(first)}; {answer}{to} {named}{each}.")


def name_scored_unit(panel: Panel) -> str:
    unit = next((name[:-1] for name in ("words", "sentences", "paragraphs") if name in panel.settings), "token")
    return "patch" if panel.is_image else unit


def name_explained_output(target: Target) -> str:
    return f"the {'output' if target.versus is None else 'difference of the outputs'} for this answer"


def has_output_units(panel: Panel) -> bool:
    """Whether a score is an amount of the model's output, as far as the method says."""
    return panel.signed and panel.class_specific


def explain_colours(signs: Iterable[bool]) -> str:
    """What the colours of maps mean, of which these are signed: one sentence for each kind."""
    kinds = set(signs)
    signed = ["Orange: for the answer; blue: against it."] if True in kinds else []
    return " ".join(signed + (["Purple: the stronger, the higher the score."] if False in kinds else []))


def name_explainer(*panels: Panel) -> str:
    """Which method explained which model, and what the colours mean."""
    first, several = panels[0], len({panel.label for panel in panels}) > 1
    by = "several methods" if several else first.label
    same = "" if any(panel.class_specific for panel in panels) else " The scores are the same for every class."
    return f"Explained by {by} for {first.model}. {explain_colours(panel.signed for panel in panels)}{same}"


def format_score(score: float, *, signed: bool, digits: int = 3) -> str:
    """A score with that many significant digits; signed scores with their sign. One that is undefined is a dash."""
    if score != score:
        return "–"
    return f"{score:{'+' if signed else ''}.{digits}g}"


def shorten_text(text: str, width: int) -> str:
    """The text cut to `width` terminal cells, '...' included."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 3).rstrip() + "..."


def join_with_and(names: Sequence[str]) -> str:
    """`a, b and c`"""
    return " and ".join([*filter(None, [", ".join(names[:-1])]), *names[-1:]])
