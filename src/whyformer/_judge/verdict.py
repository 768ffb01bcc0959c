"""The verdict: what the table means, in sentences."""

from collections import Counter
from collections.abc import Sequence

from whyformer._judge.bench import is_chance
from whyformer._judge.preparation import NOTE_SEPARATOR
from whyformer._judge.rows import Row, RowTable
from whyformer._judge.table import FEW_EXAMPLES, Line, Table, format_mean
from whyformer.data import Problem

STATE_WORDING = {"failed": "failed", "missing": "had no ground truth", "undefined": "are undefined"}
DECIDING_KINDS = ("faithfulness", "localisation", "plausibility")  # kinds of metric by which a method is recommended


def write_verdict(table: Table) -> str:
    """One paragraph: the method to use, and the methods that are no better than chance."""
    if not any(line.count for line in table.lines):
        return "Nothing could be measured on this data: no metric has a value for any method."
    deciding = [metric for metric in table.metrics if table.kinds[metric] in DECIDING_KINDS] or list(table.metrics)
    informative = [metric for metric in deciding if is_informative(table, metric)]
    if not informative:
        return (
            "On this data no method is significantly better than chance in any of these metrics, so there is nothing "
            "to recommend. Use more examples, or other metrics."
        )
    winner, wins = recommend_method(table, informative)
    is_single = len(informative) == 1
    where = informative[0] if is_single else f"{wins} of {len(informative)} metrics"
    parts = [f"On this data use {winner}: it is the best, or not significantly different from the best, in {where}."]
    if like_chance := find_like_chance(table, informative):
        verb = "is" if len(like_chance) == 1 else "are"
        where = informative[0] if is_single else "any of them"
        parts.append(f"{join_with_and(like_chance)} {verb} not significantly different from chance in {where}.")
    if worse := find_worse_than_chance(table, informative):
        verb = "is" if len(worse) == 1 else "are"
        where = informative[0] if is_single else "some of them and better in none"
        parts.append(f"{join_with_and(worse)} {verb} worse than chance in {where}.")
    if uninformative := [metric for metric in deciding if metric not in informative]:
        parts.append(f"In {join_with_and(uninformative)} no method is significantly better than chance.")
    return " ".join(parts)


def is_informative(table: Table, metric: str) -> bool:
    """Whether any method beats chance in this metric."""
    return any(line.beats_chance for line in table.of(metric))


def recommend_method(table: Table, metrics: Sequence[str]) -> tuple[str, int]:
    """The method that is most often among the best and above chance, and how often.

    Ties go to the better mean rank, then to the fewer passes through the model.
    """
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
    """Methods that are not significantly different from chance in any metric."""
    lines = group_by_method(table, metrics)
    return [method for method, own in lines.items() if all(line.beats_chance is None for line in own)]


def find_worse_than_chance(table: Table, metrics: Sequence[str]) -> list[str]:
    """Methods that are worse than chance in some metric and better in none."""
    lines = group_by_method(table, metrics)
    return [
        method
        for method, own in lines.items()
        if any(line.beats_chance is False for line in own) and not any(line.beats_chance for line in own)
    ]


def group_by_method(table: Table, metrics: Sequence[str]) -> dict[str, list[Line]]:
    """The lines of each method that have a value, without chance."""
    lines: dict[str, list[Line]] = {}
    for metric in metrics:
        for line in table.of(metric):
            if not is_chance(line.method) and line.count:
                lines.setdefault(line.method, []).append(line)
    return lines


def write_metric_sentence(table: Table, metric: str) -> str:
    """One sentence: the best method in a metric, and how the others compare."""
    best = table.best(metric)
    if best is None:
        return f"{metric}: no value for any method."
    interval = f", 95 % {format_mean(best.low)} to {format_mean(best.high)}" if best.low == best.low else ""
    methods = [line for line in table.of(metric) if not is_chance(line.method)]
    remarks = {
        "not significantly different from it": [line.method for line in table.tied(metric) if not line.is_best],
        "not significantly different from chance": [m.method for m in methods if m.beats_chance is None and m.count],
        "worse than chance": [line.method for line in table.of(metric) if line.beats_chance is False],
        "no value for": [line.method for line in methods if not line.count],
    }
    written = [f"; {remark}: {', '.join(names)}" for remark, names in remarks.items() if names]
    return f"{metric}: best is {best.method} ({format_mean(best.mean)}{interval}){''.join(written)}."


# --- cautions ---------------------------------------------------------------------------------------------------------


def list_cautions(rows: RowTable, problems: Sequence[Problem], *, explains_labels: bool = False) -> list[str]:
    """What to know about the data before trusting the table."""
    examples = rows.examples()
    cautions = []
    if problems:
        count = format_count(len(problems), "problem", "problems")
        cautions.append(f"{count} in the data: {format_first_problems(problems)}.")
    if len(examples) < FEW_EXAMPLES:
        count = format_count(len(examples), "example", "examples")
        cautions.append(f"Only {count}: intervals are wide and tests weak.")
    if len({row.label for row in examples if row.label >= 0}) == 1:
        cautions.append("All labelled examples have the same class: the result says nothing about other classes.")
    cautions += list_rows_without_value(list(rows.all.reshape(-1)))
    notes = Counter(note for row in examples for note in row.note.split(NOTE_SEPARATOR) if note)
    cautions += [f"{format_count(count, 'example', 'examples')} {note}." for note, count in sorted(notes.items())]
    right = [row.predicted == row.label for row in examples if row.label >= 0 and row.predicted >= 0]
    if right:
        share = sum(right) / len(right)
        cautions.append(f"The model is right on {sum(right)} of {len(right)} labelled examples ({share:.1%}).")
    unlabelled = sum(row.label < 0 and row.predicted >= 0 for row in examples)
    if explains_labels and unlabelled:
        count = format_count(unlabelled, "example", "examples")
        cautions.append(f"{count} without a known label: the predicted class was explained.")
    return cautions


def list_rows_without_value(rows: Sequence[Row]) -> list[str]:
    """How many rows failed, had no ground truth or are undefined, and why."""
    lines = []
    for state, wording in STATE_WORDING.items():
        if affected := [row for row in rows if row.state == state]:
            count = format_count(len(affected), "row", "rows")
            lines.append(f"{count} of {len(rows)} {wording}: {format_reasons(affected)}.")
    return lines


def format_reasons(rows: Sequence[Row], most: int = 3) -> str:
    """The most frequent reasons, each with the methods that failed or the metrics that have no value."""
    counts = Counter(row.reason for row in rows)
    owners: dict[str, dict[str, None]] = {}
    for row in rows:
        owners.setdefault(row.reason, {})[row.method if row.state == "failed" else row.metric] = None
    kind = "methods" if rows[0].state == "failed" else "metrics"
    written = []
    for reason, count in counts.most_common(most):
        names = ", ".join(owners[reason]) if len(owners[reason]) <= most else f"{len(owners[reason])} {kind}"
        written.append(f"{names}, {count} x: {reason.rstrip('.')}")
    rest = len(counts) - len(written)
    return "; ".join(written) + (f"; and {format_count(rest, 'more reason', 'more reasons')}" if rest > 0 else "")


def format_first_problems(problems: Sequence[Problem], most: int = 3) -> str:
    """The first problems in full. In a folder, problems.txt holds all of them."""
    written = [str(problem).rstrip(".") for problem in problems[:most]]
    rest = len(problems) - most
    return "; ".join([*written, f"and {rest} more"] if rest > 0 else written)


def format_count(count: int, singular: str, plural: str) -> str:
    return f"{count} {singular if count == 1 else plural}"


def join_with_and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
