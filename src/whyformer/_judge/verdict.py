"""The verdict: what the table says, in sentences."""

from collections import Counter
from collections.abc import Sequence

from whyformer._judge.bench import is_chance
from whyformer._judge.preparation import NOTE_SEPARATOR
from whyformer._judge.rows import Row, RowTable
from whyformer._judge.table import FEW_EXAMPLES, Line, Table, format_mean
from whyformer.data import Problem

STATE_WORDING = {"failed": "failed", "missing": "had no truth to compare with", "undefined": "are undefined"}
DECIDING_KINDS = ("faithfulness", "localisation", "plausibility")  # kinds of metric by which a method is recommended


def write_verdict(table: Table) -> str:
    """One plain paragraph: what to use here, and what cannot be told from chance."""
    if not any(line.count for line in table.lines):
        return "Nothing could be measured on this data: there is no number for any method."
    deciding = [metric for metric in table.metrics if table.kinds[metric] in DECIDING_KINDS] or list(table.metrics)
    told = [metric for metric in deciding if is_informative(table, metric)]
    if not told:
        return (
            "On this data no method can be told from chance by any of these metrics: there is nothing to recommend. "
            "Take more examples, or other metrics."
        )
    winner, wins = recommend_method(table, told)
    where = told[0] if len(told) == 1 else f"{wins} of {len(told)} metrics"
    parts = [f"On this data use {winner}: it is the best, or not to be told from the best, in {where}."]
    if lost := find_like_chance(table, told):
        verb = "is" if len(lost) == 1 else "are"
        parts.append(f"{join_with_and(lost)} {verb} not distinguishable from chance in {format_metric_choice(told)}.")
    if worse := find_worse_than_chance(table, told):
        where = told[0] if len(told) == 1 else "some of them and better in none"
        parts.append(f"{join_with_and(worse)} {'does' if len(worse) == 1 else 'do'} worse than chance in {where}.")
    if mute := [metric for metric in deciding if metric not in told]:
        parts.append(f"By {join_with_and(mute)} no method can be told from chance here.")
    return " ".join(parts)


def is_informative(table: Table, metric: str) -> bool:
    """Some method beats chance by it."""
    return any(line.beats_chance for line in table.of(metric))


def recommend_method(table: Table, metrics: Sequence[str]) -> tuple[str, int]:
    """Most often among the best and above chance; then the better mean rank; then fewer passes."""
    wins: Counter[str] = Counter()
    ranks: Counter[str] = Counter()
    cost: dict[str, float] = {}
    for metric in metrics:
        tied = {line.method for line in table.tied(metric) if line.beats_chance}
        for line in table.of(metric):
            if not is_chance(line.method):
                wins[line.method] += line.method in tied
                ranks[line.method] += line.rank
                counts = (line.forward, line.backward, line.relevance)
                cost[line.method] = sum(count for count in counts if count == count)
    best = min(wins, key=lambda method: (-wins[method], ranks[method], cost[method], method))
    return best, wins[best]


def find_like_chance(table: Table, metrics: Sequence[str]) -> list[str]:
    """Methods that no metric can tell from chance."""
    lines = group_by_method(table, metrics)
    return [method for method, held in lines.items() if all(line.beats_chance is None for line in held)]


def find_worse_than_chance(table: Table, metrics: Sequence[str]) -> list[str]:
    """Methods that are below chance by some metric and above it by none."""
    lines = group_by_method(table, metrics)
    return [
        method
        for method, held in lines.items()
        if any(line.beats_chance is False for line in held) and not any(line.beats_chance for line in held)
    ]


def group_by_method(table: Table, metrics: Sequence[str]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for metric in metrics:
        for line in table.of(metric):
            if not is_chance(line.method) and line.count:
                found.setdefault(line.method, []).append(line)
    return found


def write_metric_sentence(table: Table, metric: str) -> str:
    """What one metric says."""
    best = table.best(metric)
    if best is None:
        return f"{metric}: no number for any method."
    between = f", 95 % {format_mean(best.low)} to {format_mean(best.high)}" if best.low == best.low else ""
    said = f"{metric}: best is {best.method} ({format_mean(best.mean)}{between})"
    tied = [line.method for line in table.tied(metric) if not line.is_best]
    said += f"; not to be told from it: {', '.join(tied)}" if tied else ""
    others = [line for line in table.of(metric) if not is_chance(line.method)]
    lost = [line.method for line in others if line.beats_chance is None and line.count]
    said += f"; not to be told from chance: {', '.join(lost)}" if lost else ""
    worse = [line.method for line in table.of(metric) if line.beats_chance is False]
    said += f"; worse than chance: {', '.join(worse)}" if worse else ""
    mute = [line.method for line in others if not line.count]
    return said + (f"; no number for: {', '.join(mute)}" if mute else "") + "."


def list_cautions(rows: RowTable, table: Table, problems: Sequence[Problem]) -> list[str]:
    """What a reader must know about the data before believing the table."""
    examples = rows.examples()
    found = []
    if problems:
        found.append(
            f"{format_count(len(problems), 'remark', 'remarks')} on the rows of the data: "
            f"{format_first_problems(problems)}."
        )
    if len(examples) < FEW_EXAMPLES:
        found.append(f"Only {format_count(len(examples), 'example', 'examples')}: intervals are wide and tests weak.")
    labels = {row.label for row in examples if row.label >= 0}
    if len(labels) == 1:
        found.append("All labelled examples are of one class: this says nothing about the others.")
    every = list(rows.all.reshape(-1))
    for state, what in STATE_WORDING.items():
        held = [row for row in every if row.state == state]
        if held:
            found.append(f"{format_count(len(held), 'row', 'rows')} of {len(every)} {what}: {format_reasons(held)}.")
    if notes := Counter(note for row in examples for note in row.note.split(NOTE_SEPARATOR) if note):
        found += [f"{format_count(count, 'example', 'examples')} {note}." for note, count in sorted(notes.items())]
    right = [row.predicted == row.label for row in examples if row.label >= 0 and row.predicted >= 0]
    if right:
        found.append(
            f"The model is right on {sum(right)} of {len(right)} labelled examples ({sum(right) / len(right):.1%})."
        )
    return found


def format_reasons(rows: Sequence[Row], most: int = 3) -> str:
    """The commonest reasons and whose they are."""
    counts = Counter(row.reason for row in rows)
    owners: dict[str, dict[str, None]] = {}
    for row in rows:
        owners.setdefault(row.reason, {})[row.method if row.state == "failed" else row.metric] = None
    shown_ones = [
        f"{', '.join(owners[reason]) if len(owners[reason]) <= most else f'{len(owners[reason])} of them'}, "
        f"{count} x: {reason.rstrip('.')}"
        for reason, count in counts.most_common(most)
    ]
    rest = len(counts) - len(shown_ones)
    return "; ".join(shown_ones) + (f"; and {format_count(rest, 'more reason', 'more reasons')}" if rest > 0 else "")


def format_first_problems(problems: Sequence[Problem], most: int = 3) -> str:
    """The first of them in full; where there is a folder, problems.txt holds all."""
    rest = len(problems) - most
    return "; ".join(str(one).rstrip(".") for one in problems[:most]) + (f"; and {rest} more" if rest > 0 else "")


def format_count(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def join_with_and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def format_metric_choice(metrics: Sequence[str]) -> str:
    return metrics[0] if len(metrics) == 1 else "any of them"
