"""The verdict: what the table means, in sentences.

Metrics of faithfulness and localisation decide; plausibility, what people mark, informs and never decides. The first
sentence names what speaks against a method in the same breath: where it is worse than a control or another method,
and by how much another may be better. Where nothing can be recommended, it says how many examples would tell.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from statistics import NormalDist

from whyformer._judge.finalist import Finalist
from whyformer._judge.rows import Row, RowTable
from whyformer._judge.table import FEW_EXAMPLES, Lead, Line, Table, format_mean, format_p_value, has_enough_values
from whyformer._runs.choice import is_chance
from whyformer._runs.preparation import NOTE_SEPARATOR
from whyformer.data import Problem
from whyformer.show.wording import join_with_and

STATE_WORDING = {"failed": "failed", "missing": "had no ground truth", "undefined": "are undefined"}
DECIDING_KINDS = ("faithfulness", "localisation")  # kinds of metric by which a method is recommended
INFORMING_KIND = "plausibility"
MOST_NAMED = 3
MIN_TESTED = 6  # examples; of five, the exact test gives no p-value below 0.05
FALSE_RATE = 0.02  # measured by benchmarks/judge_noise.py, see docs/judge-measured.md
MOST_NEEDED = 100_000  # examples; where more would be needed, none are advised
POWER_QUANTILE = 0.84  # of the normal distribution: a real lead is found in 80 % of cases
CONTROL_WORDING = {
    "centre_blob": "the same blob in the centre of every image",
    "random_pixels": "a random number for each pixel",
    "first_words": "the earlier a word, the higher",
    "last_words": "the later a word, the higher",
}


def write_verdict(table: Table, finalist: Finalist | None = None) -> str:
    """One paragraph: the method to use, or why there is none; what to mind about it, and how the others compare."""
    return " ".join(list_verdict(table, finalist))


def list_verdict(table: Table, finalist: Finalist | None = None) -> list[str]:
    """The sentences of the verdict, the most important first.

    A metric decides if a method is significantly better in it than every control. A method is recommended only if it is
    significantly better than every control in every metric that decides. Methods with too few or infinite values in a
    metric are left out there, and named. finalist: how the recommended method depends on class and weights.
    """
    if not any(line.count for line in table.lines):
        return ["Nothing could be measured on this data: no metric has a value for any method."]
    candidates, fair, deciding = list_candidate_metrics(table), list_fair_metrics(table), list_deciding_metrics(table)
    undecided = [metric for metric in fair if metric not in deciding]
    winner = find_winner(table)
    if winner is not None:
        parts = [
            write_recommendation(table, deciding, winner, finalist),
            *([] if finalist is None else finalist.describe()),
            *write_few_examples(table, deciding),
            *write_class_warnings(table, deciding, winner),
            *write_comparison_with_controls(table, deciding),
        ]
    elif not candidates:
        parts = [f"Nothing is recommended by {join_with_and(table.metrics)} alone."]
    elif not deciding:
        undecided = [metric for metric in undecided if rewards_control(table, metric)]
        parts = [write_nothing_found(table, candidates, fair)]
    else:
        parts = [write_refusal(table, deciding), *write_comparison_with_controls(table, deciding)]
    won = [metric for metric in undecided if not is_chance(name_control(table, metric))]
    is_blind = winner is not None and winner in table.class_blind
    weak = [metric for metric in deciding if is_blind and table.kinds[metric] == "localisation"] + won
    return [
        *parts,
        *write_left_out(table, candidates),
        *write_undecided(table, undecided),
        *write_plausibility(table),
        *(
            []
            if winner is None
            else [f"Where no method is better than the controls, {100 * FALSE_RATE:.0f} % of tables recommend one."]
        ),
        *write_weaknesses(table, weak),
    ]


def list_candidate_metrics(table: Table) -> list[str]:
    """The metrics that may decide: of faithfulness and localisation; without any, all but those of what people mark."""
    chosen = [metric for metric in table.metrics if table.kinds[metric] in DECIDING_KINDS]
    return chosen or [metric for metric in table.metrics if table.kinds[metric] != INFORMING_KIND]


def list_deciding_metrics(table: Table) -> list[str]:
    """Of the fair metrics, the ones in which a method is significantly better than every control."""
    fair = list_fair_metrics(table)
    return [metric for metric in fair if any(line.beats_control and line.is_fit for line in table.of(metric))]


def find_winner(table: Table) -> str | None:
    """The method that the verdict recommends."""
    deciding = list_deciding_metrics(table)
    return recommend_method(table, deciding) if deciding else None


def find_unfit_controls(table: Table, metric: str) -> list[Line]:
    """Controls with too few or infinite values: beating what is left of them shows nothing."""
    return [line for line in table.of(metric) if line.is_control and line.count and not line.is_fit]


def recommend_method(table: Table, metrics: Sequence[str], ignored: Collection[str] = ()) -> str | None:
    """Of the methods that beat every control in all these metrics, the one that gives up least in any fair metric.

    First those that are significantly worse than a control in no metric that may decide. Then by the largest loss
    (measure_loss) in any of these; then by the fewer passes through the model.
    """
    methods = {
        method: lines
        for method, lines in group_by_method(table, metrics).items()
        if method not in ignored and all(line.beats_control for line in lines) and len(lines) == len(metrics)
    }
    compared = group_by_method(table, list_fair_metrics(table))

    def key(method: str) -> tuple[int, float, float, str]:
        passes = (n for line in methods[method] for n in (line.forward, line.backward, line.relevance))
        loss = max(measure_loss(table, line) for line in compared[method])
        return len(list_lost_to_controls(table, method)), loss, sum(n for n in passes if n == n), method

    return min(methods, key=key, default=None)


def measure_loss(table: Table, line: Line) -> float:
    """How far a method is behind the best one in a metric, as a share of the range from the best to the worst row."""
    means = [one.mean for one in table.of(line.metric) if one.is_fit]
    best = next((one.mean for one in table.of(line.metric) if one.is_fit and not one.is_control), line.mean)
    whole = max(means, default=0.0) - min(means, default=0.0)
    return abs(best - line.mean) / whole if whole else 0.0


def list_fair_metrics(table: Table) -> list[str]:
    """The metrics that may decide and have no control with missing or infinite values."""
    return [metric for metric in list_candidate_metrics(table) if not find_unfit_controls(table, metric)]


def list_lost_to_controls(table: Table, method: str) -> list[Line]:
    """The lines of this method, in metrics that may decide, that are significantly worse than the best control."""
    own = [line for metric in list_candidate_metrics(table) for line in table.of(metric) if line.method == method]
    return [line for line in own if line.beats_control is False]


def group_by_method(table: Table, metrics: Sequence[str]) -> dict[str, list[Line]]:
    """The lines of each method that have enough values, all finite, without controls."""
    lines: dict[str, list[Line]] = {}
    for metric in metrics:
        for line in table.of(metric):
            if not line.is_control and line.is_fit:
                lines.setdefault(line.method, []).append(line)
    return lines


# --- the headline -----------------------------------------------------------------------------------------------------


def write_recommendation(table: Table, deciding: Sequence[str], winner: str, finalist: Finalist | None) -> str:
    """What to use, and what speaks against it."""
    fair = list_fair_metrics(table)
    lost = [(line, table.best_control(line.metric)) for line in list_lost_to_controls(table, winner)]
    against = [
        *(
            f"it is worse than {best.method} in {line.metric} ({format_p_value(line.p_control)})"
            for line, best in lost
            if best
        ),
        *list_better_rivals(table, fair, winner),
        *(["it ignores the class"] if winner in table.class_blind else []),
        *([] if finalist is None else finalist.list_objections()),
    ]
    although = f", although {join_with_and(against)}" if against else ""
    reason = f"it is significantly better than {name_all_controls(table)} in {join_with_and(deciding)}"
    return f"On this data use {winner}{although}: {reason}{describe_open_leads(table, fair, winner)}."


def list_better_rivals(table: Table, metrics: Sequence[str], winner: str) -> Iterator[str]:
    """In which metrics another method is better by the whole interval, and by how much."""
    for metric in metrics:
        certain = {rival: lead for rival, lead in find_leads_over(table, metric, winner).items() if lead.low > 0}
        if certain:
            rival, lead = max(certain.items(), key=lambda item: item[1].mean)
            amount = f"{lead.mean:.2g}, 95 % {lead.low:.2g} to {lead.high:.2g}"
            yield f"it is worse than {rival} in {metric} (by {amount})"


def describe_open_leads(table: Table, metrics: Sequence[str], winner: str) -> str:
    """By how much another method may be better: in each metric in which none is, the end of the farthest interval."""
    found, has_better = [], False
    for metric in metrics:
        leads = {rival: lead for rival, lead in find_leads_over(table, metric, winner).items() if lead.high > 0}
        if any(lead.low > 0 for lead in leads.values()):
            has_better = True
        elif leads:
            rival, lead = max(leads.items(), key=lambda item: item[1].high)
            found.append(f"by up to {lead.high:.2g} in {metric} ({rival})")
    if not found:
        is_alone = len(group_by_method(table, metrics)) == 1
        return "" if is_alone or has_better else ", and than every other method"
    counts = sorted({table.of(metric)[0].expected for metric in metrics})
    examples = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    return f"; with {examples} examples it is open whether another method is better {join_with_and(found)}"


def find_leads_over(table: Table, metric: str, method: str) -> dict[str, Lead]:
    """How much better each other method is than this one. Methods that are not fit to be compared are left out."""
    rivals = [line.method for line in table.of(metric) if not line.is_control and line.is_fit and line.method != method]
    return {rival: table.leads[metric, rival, method] for rival in rivals if (metric, rival, method) in table.leads}


# --- nothing to recommend ---------------------------------------------------------------------------------------------


def write_nothing_found(table: Table, candidates: Sequence[str], fair: Sequence[str]) -> str:
    """That no method is better than the controls in any metric, and how many examples would tell."""
    where = "any of these metrics" if fair == candidates else "any metric that allows a fair comparison"
    said = (
        f"On this data no method is significantly better than {name_all_controls(table)} in {where}, so there is "
        "nothing to recommend"
    )
    return f"{said}{describe_need(table, fair)}."


def describe_need(table: Table, metrics: Sequence[str]) -> str:
    """How many examples would show the largest lead over the controls, if it is real; or why that cannot be said."""
    expected = max((table.of(metric)[0].expected for metric in metrics), default=0)
    if expected < MIN_TESTED:
        own = count_noun(expected, "example")
        return f": with {own} no test can be significant, at least {MIN_TESTED} examples are needed"
    if all(lead.low == lead.high == 0 for (metric, _, _), lead in table.leads.items() if metric in metrics):
        return ": every value is the same, so these metrics tell nothing apart here"
    tests = len({line.method for line in table.lines if not line.is_control}) * len(metrics)
    needs = {
        (metric, method): needed
        for metric in metrics
        for method in group_by_method(table, [metric])
        if (needed := count_needed_examples(table, metric, method, tests)) <= MOST_NEEDED
    }
    if not needs:
        return ": by its mean no method is ahead of every control"
    (metric, method), needed = min(needs.items(), key=lambda item: item[1])
    return f"; if the largest lead, that of {method} in {metric}, is real, about {needed:,} examples would show it"


def count_needed_examples(table: Table, metric: str, method: str, tests: int) -> float:
    """For the lead over the control that is hardest to beat, at 80 % power and corrected for this many tests."""
    controls = [line.method for line in table.of(metric) if line.is_control and line.count]
    leads = [lead for control in controls if (lead := table.leads.get((metric, method, control))) is not None]
    if not leads or not all(lead.mean > 0 and lead.count > 1 for lead in leads):
        return math.inf
    quantile = NormalDist().inv_cdf(1 - 0.025 / tests) + POWER_QUANTILE
    return max(MIN_TESTED, math.ceil((quantile * max(lead.spread / lead.mean for lead in leads)) ** 2))


def write_plausibility(table: Table) -> list[str]:
    """What people mark: the best method there, which decides nothing."""
    own = [metric for metric in table.metrics if table.kinds[metric] == INFORMING_KIND]
    best = [
        f"{line.method} in {line.metric} ({format_mean(line.mean)})"
        for metric in own
        if (line := table.best(metric)) is not None
    ]
    if not best:
        return []
    says = "says what people mark and decides nothing" if len(own) == 1 else "say what people mark and decide nothing"
    return [f"{join_with_and(own)} {says}: the highest mean has {join_with_and(best)}."]


# --- sentences of the verdict -----------------------------------------------------------------------------------------


def write_few_examples(table: Table, deciding: Sequence[str]) -> list[str]:
    """The metrics that decide although no row has values for nearly all examples of the data."""
    lines = [table.of(metric)[0] for metric in deciding]
    totals = [line.count + line.undefined + line.missing + line.failed for line in lines]
    return [
        f"{line.metric} has values for only {line.expected} of the {total} examples."
        for line, total in zip(lines, totals, strict=True)
        if not has_enough_values(line.expected, total)
    ]


def write_left_out(table: Table, metrics: Sequence[str]) -> list[str]:
    """Which methods, and which metrics because of a control, are left out for values that are missing or infinite."""
    found: dict[tuple[str, str], list[str]] = {}
    for metric in metrics:
        unfit = [line for line in table.of(metric) if not line.is_control and line.expected and not line.is_fit]
        for line in (*unfit, *find_unfit_controls(table, metric)):
            name = f"the control {line.method}, and with it the metric" if line.is_control else line.method
            found.setdefault((name, describe_lack(line)), []).append(metric)
    if not found:
        return []
    reasons = [
        f"{name} ({lack} in {join_with_and(own) if len(own) <= MOST_NAMED else f'{len(own)} metrics'})"
        for (name, lack), own in found.items()
    ]
    return [f"Left out, because the values do not allow a fair comparison: {join_with_and(reasons)}."]


def describe_lack(line: Line) -> str:
    if not line.count:
        return "no value"
    if line.infinite:
        return count_noun(line.infinite, "infinite value")
    return f"values for only {line.count} of {line.expected} examples"


def write_refusal(table: Table, deciding: Sequence[str]) -> str:
    """Why nothing is recommended although some methods beat the controls in some metrics."""
    matched = {
        method: [line for line in lines if not line.beats_control]
        for method, lines in group_by_method(table, deciding).items()
        if len(lines) == len(deciding)
    }
    start = (
        f"On this data no method is significantly better than {name_all_controls(table)} in all of "
        f"{join_with_and(deciding)}, so there is nothing to recommend."
    )
    if not matched:
        return start
    closest = min(matched, key=lambda method: (len(matched[method]), method))
    where = [
        f"in {line.metric}, where the best control is {name_control(table, line.metric)}" for line in matched[closest]
    ]
    return f"{start} {closest} comes closest, but fails {join_with_and(where)}."


def write_class_warnings(table: Table, deciding: Sequence[str], winner: str) -> list[str]:
    """Sentences on a winner that ignores the class."""
    if winner not in table.class_blind:
        return []
    parts = ["Its map is the same whichever class is explained."]
    other = recommend_method(table, deciding, ignored=table.class_blind)
    if other is not None:
        parts.append(f"Of the methods that depend on the class, {other} comes first.")
    elif any(method not in table.class_blind for method in group_by_method(table, deciding)):
        controls, where = name_all_controls(table), deciding[0] if len(deciding) == 1 else "all of them"
        parts.append(f"No method that depends on the class is significantly better than {controls} in {where}.")
    return parts


def write_comparison_with_controls(table: Table, deciding: Sequence[str]) -> list[str]:
    """Which methods are not better than the best control in any metric, and which are worse."""
    results = {
        method: {line.beats_control for line in lines} for method, lines in group_by_method(table, deciding).items()
    }
    rivals = {best.method for metric in deciding if (best := table.best_control(metric)) is not None}
    rival = rivals.pop() if len(rivals) == 1 else "the best control"
    alike = [method for method, one in results.items() if one == {None}]
    worse = [method for method, one in results.items() if False in one and True not in one]
    found = [
        (alike, f"not significantly {name_relation(table)}", "any of them"),
        (worse, f"worse than {rival}", "some of them and better in none"),
    ]
    return [
        f"{join_with_and(methods)} {'is' if len(methods) == 1 else 'are'} {relation} in "
        f"{deciding[0] if len(deciding) == 1 else where}."
        for methods, relation, where in found
        if methods
    ]


def write_undecided(table: Table, metrics: Sequence[str]) -> list[str]:
    """The metrics in which no method beats every control, and the best control."""
    controls = name_all_controls(table)
    groups: dict[tuple[str, bool], list[str]] = {}
    for metric in metrics:
        groups.setdefault((name_control(table, metric), rewards_control(table, metric)), []).append(metric)
    parts = []
    for (rival, is_rewarded), own in groups.items():
        itself = ", which itself is significantly better than chance" if is_rewarded else ""
        best = "" if rival == controls else f"; the best one is {rival}{itself}"
        parts.append(f"In {join_with_and(own)} no method is significantly better than {controls}{best}.")
    return parts


def write_weaknesses(table: Table, metrics: Sequence[str]) -> list[str]:
    """The known weakness of each metric, those that share one together."""
    weaknesses = dict.fromkeys(table.weaknesses[metric] for metric in metrics if metric in table.weaknesses)
    owners = {weak: [metric for metric in metrics if table.weaknesses.get(metric) == weak] for weak in weaknesses}
    return [f"Known weakness of {join_with_and(own)}: {weakness}." for weakness, own in owners.items()]


def rewards_control(table: Table, metric: str) -> bool:
    """Whether the best control is significantly better than chance: the metric rewards what says nothing."""
    best = table.best_control(metric)
    return best is not None and bool(best.beats_chance)


def name_control(table: Table, metric: str) -> str:
    """The best control of a metric, with what it is."""
    best = table.best_control(metric)
    if best is None:
        return "chance"
    wording = CONTROL_WORDING.get(best.method.split("(")[0])
    return f"{best.method} ({wording})" if wording else best.method


def name_all_controls(table: Table) -> str:
    """What a method has to beat: "chance", if there is no other control."""
    return "every control" if any(line.is_control and not is_chance(line.method) for line in table.lines) else "chance"


def name_relation(table: Table) -> str:
    return "different from chance" if name_all_controls(table) == "chance" else "better than every control"


def write_metric_sentence(table: Table, metric: str) -> str:
    """One sentence: the best row in a metric, and how the methods compare with it and with the best control."""
    best, control = table.best(metric), table.best_control(metric)
    unfit = [line for line in table.of(metric) if line.count and not line.is_fit]
    if best is None and not unfit:
        return f"{metric}: no value for any method."
    methods = [line for line in table.of(metric) if not line.is_control and (line.is_fit or not line.count)]
    rival = "chance" if control is None else control.method
    remarks = {
        "not significantly different from it": [line.method for line in table.tied(metric) if not line.is_best],
        f"not significantly {name_relation(table)}": [m.method for m in methods if m.beats_control is None and m.count],
        f"worse than {rival}": [line.method for line in methods if line.beats_control is False],
        "no value for": [line.method for line in methods if not line.count],
        "not compared": [f"{line.method} ({describe_lack(line)})" for line in unfit],
    }
    written = [f"; {remark}: {', '.join(names)}" for remark, names in remarks.items() if names]
    if best is None:
        return f"{metric}: no row can be called the best{''.join(written)}."
    interval = f", 95 % {format_mean(best.low)} to {format_mean(best.high)}" if best.low == best.low else ""
    name = f"the control {best.method}" if best.is_control else best.method
    return f"{metric}: best is {name} ({format_mean(best.mean)}{interval}){''.join(written)}."


# --- cautions ---------------------------------------------------------------------------------------------------------


def list_cautions(rows: RowTable, problems: Sequence[Problem], *, explains_labels: bool = False) -> list[str]:
    """What to know about the data before trusting the table."""
    examples = rows.examples()
    cautions = []
    if problems:
        first = [str(problem).rstrip(".") for problem in problems[:MOST_NAMED]]
        more = [f"and {len(problems) - MOST_NAMED} more"] if len(problems) > MOST_NAMED else []
        cautions.append(f"{count_noun(len(problems), 'problem')} in the data: {'; '.join([*first, *more])}.")
    if len(examples) < FEW_EXAMPLES:
        cautions.append(f"Only {count_noun(len(examples), 'example')}: intervals are wide and tests weak.")
    if len({row.label for row in examples if row.label >= 0}) == 1:
        cautions.append("All labelled examples have the same class: the result says nothing about other classes.")
    cautions += list_rows_without_value(list(rows.all.reshape(-1)))
    notes = Counter(note for row in examples for note in row.note.split(NOTE_SEPARATOR) if note)
    cautions += [f"{count_noun(count, 'example')} {note}." for note, count in sorted(notes.items())]
    right = [row.predicted == row.label for row in examples if row.label >= 0 and row.predicted >= 0]
    if right:
        share = sum(right) / len(right)
        explained = (
            ": what is judged are explanations of wrong answers" if not any(right) and not explains_labels else ""
        )
        cautions.append(
            f"The model is right on {sum(right)} of {len(right)} labelled examples ({share:.1%}){explained}."
        )
    unlabelled = sum(row.label < 0 and row.predicted >= 0 for row in examples)
    if explains_labels and unlabelled:
        without = count_noun(unlabelled, "example")
        cautions.append(f"{without} without a known label: the predicted class was explained.")
    return cautions


def list_rows_without_value(rows: Sequence[Row]) -> list[str]:
    """How many rows failed, had no ground truth or are undefined, and why."""
    lines = []
    for state, wording in STATE_WORDING.items():
        if affected := [row for row in rows if row.state == state]:
            count = count_noun(len(affected), "row")
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
    return "; ".join(written) + (f"; and {count_noun(rest, 'more reason')}" if rest > 0 else "")


def count_noun(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
