"""Summary: the statistics of an audit, computed from its rows.

Every mean has an interval, its number of examples, and the number of examples for which it is undefined, which are
excluded. Intervals are 95 % intervals over examples: of means Student's t, which holds for few examples too, of medians
bootstrap intervals. *Spread* is the standard deviation over examples, as in the paper.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from whyformer._audit import checks
from whyformer._audit.checks import AuditRow, as_finite_float
from whyformer._plain.statistics import compute_t_interval, draw_resamples, paired_test

MIN_CLASS_EXAMPLES = 5  # for a comparison of classes
FAR_JSD = 0.525  # threshold for the share compared with the published plots; the maximum is log 2 = 0.693
Statistics = dict[str, Any]


def summarise_audit(
    rows: Iterable[AuditRow], choices: Sequence[str], labels: Sequence[str] | None, *, marks_spans: bool = False
) -> Statistics:
    """All statistics: of the predictions, of the shape of attention, and of the tests of each audited attention."""
    by_test: dict[tuple[str, str], list[AuditRow]] = {}
    for row in sorted(rows, key=lambda row: row["example"]):
        by_test.setdefault((row["test"], row["attention"]), []).append(row)
    answers = {row["example"]: row for row in by_test.get(("answer", ""), [])}
    summary = RowSummary(answers, labels, marks_spans)
    of_test = {
        "agreement": summary.summarise_agreement, "replacement": summary.summarise_replacement,
        "adversarial": summary.summarise_adversarial, "adversary": summary.summarise_adversary,
        "seeds": summarise_seeds, "diagnostic": summarise_diagnostic,
    }  # fmt: skip
    return {
        "answers": summary.summarise_answers(),
        "shape": summarise_shape(by_test.get(("shape", ""), [])),
        "baseline": summary.summarise_baseline(by_test.get(("baseline", ""), [])),
        "attention": {
            choice: {
                test: summarise(by_test[test, choice])
                for test, summarise in of_test.items()
                if (test, choice) in by_test
            }
            for choice in choices
        },
    }


def look_up(found: Statistics | None, path: str) -> Any:
    """The value at a path such as "tau.mean", "" for all; None where a part of it is missing. "a | b": one of them."""
    for one in path.split(" | "):
        value: Any = found
        for name in filter(None, one.split(".")):
            value = value.get(name) if value else None
        if value is not None:
            return value
    return None


def label_class(index: int, labels: Sequence[str] | None, what: str = "") -> str:
    """Its label, or its number after `what`."""
    return labels[index] if labels is not None and index < len(labels) else f"{what}{index}"


# --- statistics -------------------------------------------------------------------------------------------------------


def summarise_mean(values: Iterable[float | None]) -> Statistics:
    """Mean, interval, spread, median, and how many values are defined."""
    every = list(values)
    known = [value for value in every if value is not None and math.isfinite(value)]
    mean, low, high = compute_t_interval(known)
    return {
        "mean": as_finite_float(mean), "low": as_finite_float(low), "high": as_finite_float(high),
        "spread": as_finite_float(float(np.std(known))) if known else None,
        "median": as_finite_float(float(np.median(known))) if known else None,
        "n": len(known), "undefined": len(every) - len(known),
    }  # fmt: skip


def summarise_median(values: Iterable[float]) -> Statistics:
    """The median and its bootstrap interval."""
    known = np.array(list(values), dtype=np.float64)
    if not len(known):
        return {"median": None, "low": None, "high": None, "n": 0}
    resamples = draw_resamples(len(known), np.random.default_rng(0))
    medians = np.concatenate([np.median(known[rows], axis=1) for rows in resamples])
    low, high = np.quantile(medians, [0.025, 0.975]) if len(known) > 1 else (np.nan, np.nan)
    ends = {"low": as_finite_float(low), "high": as_finite_float(high)}
    return {"median": float(np.median(known)), **ends, "n": len(known)}


def summarise_gain(first: Sequence[float], second: Sequence[float]) -> Statistics:
    """The difference of two accuracies on the same examples."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    return {**summarise_mean(differences), "p": as_finite_float(paired_test(first, second))}


def test_groups(groups: Sequence[Sequence[float]]) -> float | None:
    """The p-value of the Kruskal-Wallis test that groups have one distribution; None without two of enough values."""
    from scipy.stats import kruskal

    large = [group for group in groups if len(group) >= MIN_CLASS_EXAMPLES]
    if len(large) < 2 or len({value for group in large for value in group}) < 2:
        return None
    return float(kruskal(*large).pvalue)


def share_of_true(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None


def share_significant(pairs: Sequence[AuditRow]) -> float | None:
    """The share of the defined correlations with p <= 0.05."""
    return share_of_true([pair["p"] <= checks.SIGNIFICANCE_LEVEL for pair in pairs if pair["p"] is not None])


def group_by_largest_weight(rows: Sequence[AuditRow]) -> dict[str, list[AuditRow]]:
    """Rows by the largest attention weight, in the four bins of the paper."""
    bins = pairwise(checks.LARGEST_WEIGHT_BINS)
    groups: dict[str, list[AuditRow]] = {f"[{low:g}, {high:g})": [] for low, high in bins}
    names = list(groups)
    for row in rows:
        groups[names[min(int(row["largest"] * 4), 3)]].append(row)
    return {label: group for label, group in groups.items() if group}


# --- tests ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowSummary:
    """The statistics of tests that are split by what the model predicts, or compared with the labels."""

    answers: Mapping[int, AuditRow]  # by example
    labels: Sequence[str] | None
    marks_spans: bool = False

    def split(self, rows: Sequence[AuditRow]) -> dict[str, list[AuditRow]]:
        """Rows by predicted class; nothing where classes are spans, each of one text."""
        groups: dict[int, list[AuditRow]] = {}
        if self.marks_spans:
            return {}
        for row in rows:
            if row["example"] in self.answers:
                groups.setdefault(self.answers[row["example"]]["predicted"], []).append(row)
        return {label_class(index, self.labels): groups[index] for index in sorted(groups)}

    def find_label(self, row: AuditRow) -> int | None:
        return self.answers.get(row["example"], {}).get("label")

    def is_correct(self, row: AuditRow) -> float:
        """Whether the model itself predicts the label of an example."""
        answer = self.answers[row["example"]]
        return float(answer["predicted"] == answer["label"])

    def summarise_answers(self) -> Statistics:
        rows = list(self.answers.values())
        known = [self.is_correct(row) for row in rows if row["label"] is not None]
        return {
            "n": len(rows),
            "accuracy": summarise_mean(known) if known else None,
            "predicted": {label: len(group) for label, group in self.split(rows).items()},
            "tokens": summarise_mean([row["tokens"] for row in rows]),
        }

    def summarise_agreement(self, rows: Sequence[AuditRow]) -> dict[str, Statistics]:
        pairs = dict.fromkeys(pair for row in rows for pair in row["pairs"])
        return {pair: self.summarise_pair(pair, [row for row in rows if pair in row["pairs"]]) for pair in pairs}

    def summarise_pair(self, pair: str, rows: Sequence[AuditRow]) -> Statistics:
        of = lambda group: [row["pairs"][pair] for row in group]  # noqa: E731
        mean = lambda group, measure: summarise_mean(value.get(measure) for value in of(group))  # noqa: E731
        return {
            **{measure: mean(rows, measure) for measure in (*checks.AGREEMENT_MEASURES, checks.TOP_K_DISTANCE)},
            "by_chance": mean(rows, "by_chance")["mean"],
            "significant": share_significant(of(rows)),
            "classes": {
                label: {**mean(group, "tau"), "significant": share_significant(of(group))}
                for label, group in self.split(rows).items()
            },
        }

    def summarise_replacement(self, rows: Sequence[AuditRow]) -> Statistics:
        defined = [row for row in rows if not row.get("undefined")]
        kinds = dict.fromkeys(kind for row in defined for kind in row["kinds"])
        return {
            "undefined": len(rows) - len(defined),
            "kinds": {kind: self.summarise_kind(kind, [r for r in defined if kind in r["kinds"]]) for kind in kinds},
        }

    def summarise_kind(self, kind: str, rows: Sequence[AuditRow]) -> Statistics:
        """One kind of replacement."""
        of = lambda group, what: [row["kinds"][kind][what] for row in group]  # noqa: E731
        medians = lambda group: {what: summarise_median(of(group, what)) for what in ("tvd", "change")}  # noqa: E731
        bins = lambda group: {  # noqa: E731
            label: summarise_median(of(part, "tvd")) for label, part in group_by_largest_weight(group).items()
        }
        return {
            **medians(rows),
            **{what: summarise_mean(of(rows, what)) for what in ("shift", "flips")},
            "accuracy": self.compare_accuracy(kind, rows),
            "bins": bins(rows),
            "classes": {label: {**medians(group), "bins": bins(group)} for label, group in self.split(rows).items()},
            "classes_p": test_groups([of(group, "change") for group in self.split(rows).values()]),
        }

    def compare_accuracy(self, kind: str, rows: Sequence[AuditRow]) -> Statistics | None:
        """Accuracy before and after the replacement, and its change, on the same examples."""
        known = [row for row in rows if self.find_label(row) is not None]
        if not known:
            return None
        before = [self.is_correct(row) for row in known]
        counts = [(row["kinds"][kind]["predicted"], str(self.find_label(row))) for row in known]
        after = [predicted.get(label, 0) / sum(predicted.values()) for predicted, label in counts]
        name, measure = ("token", average_span_f1) if self.marks_spans else ("macro", average_f1)
        own = [({str(self.answers[row["example"]]["predicted"]): 1}, str(self.find_label(row))) for row in known]
        return {
            "before": summarise_mean(before)["mean"],
            "after": summarise_mean(after)["mean"],
            "f1": name,
            "f1_before": measure(own),
            "f1_after": measure(counts),
            "change": summarise_mean([b - a for a, b in zip(before, after, strict=True)]),
        }

    def summarise_adversarial(self, rows: Sequence[AuditRow]) -> Statistics:
        defined = [row for row in rows if not row.get("undefined")]
        return {
            **summarise_found(defined),
            "undefined": len(rows) - len(defined),
            "classes": {label: summarise_found(group) for label, group in self.split(defined).items()},
            "bins": {
                label: summarise_median([row["jsd"] for row in group])
                for label, group in group_by_largest_weight(defined).items()
            },
        }

    def summarise_adversary(self, rows: Sequence[AuditRow]) -> Statistics:
        """The trained adversary on the examples that it was not trained on."""
        defined = [row for row in rows if not row.get("undefined")]
        known = [row for row in defined if self.find_label(row) is not None]
        same = [float(row["predicted"] == self.answers[row["example"]]["predicted"]) for row in defined]
        right = [float(row["predicted"] == self.find_label(row)) for row in known]
        shares = [row["jsd"] / row["attainable"] if row["attainable"] > 0 else None for row in defined]
        return {
            **{what: summarise_mean([row[what] for row in defined]) for what in ("jsd", "tvd")},
            "of_attainable": summarise_mean(shares),
            "same": summarise_mean(same),
            "accuracy": summarise_mean(right) if known else None,
            "own_accuracy": summarise_mean([self.is_correct(row) for row in known]) if known else None,
        }

    def summarise_baseline(self, rows: Sequence[AuditRow]) -> Statistics | None:
        """Accuracy of the model and of one trained with uniform attention, on the labelled examples."""
        known = [row for row in rows if self.find_label(row) is not None]
        if not known:
            return None
        own = [self.is_correct(row) for row in known]
        other = [float(row["predicted"] == self.find_label(row)) for row in known]
        return {"model": summarise_mean(own), "uniform": summarise_mean(other), "gain": summarise_gain(own, other)}


def average_f1(answers: Sequence[tuple[Mapping[str, int], str]]) -> float:
    """Macro F1 over the classes that are labelled or predicted; an example with several draws counts once.

    answers: for each example how often each class was predicted, and its label.
    """
    right, predicted, labelled = (defaultdict[str, float](float) for _ in range(3))
    for counts, label in answers:
        total = sum(counts.values())
        labelled[label] += 1
        for name, count in counts.items():
            predicted[name] += count / total
            right[name] += (name == label) * count / total
    names = sorted({*labelled, *predicted})
    return sum(2 * right[name] / (predicted[name] + labelled[name]) for name in names) / len(names)


def average_span_f1(answers: Sequence[tuple[Mapping[str, int], str]]) -> float:
    """The F1 of SQuAD, of tokens: of each predicted span with the labelled one, the mean over draws and examples."""
    means = [
        sum(count * measure_overlap(int(name), int(label)) for name, count in counts.items()) / sum(counts.values())
        for counts, label in answers
    ]
    return sum(means) / len(means)


def measure_overlap(one: int, other: int) -> float:
    """2 |a and b| / (|a| + |b|) of the tokens of two spans."""
    (a, b), (c, d) = checks.split_span(one), checks.split_span(other)
    return 2 * max(0, min(b, d) - max(a, c) + 1) / (b - a + d - c + 2)


def summarise_found(rows: Sequence[AuditRow]) -> Statistics:
    shares = [row["jsd"] / row["attainable"] if row["attainable"] > 0 else None for row in rows]
    return {
        "jsd": summarise_mean([row["jsd"] for row in rows]),
        "of_attainable": summarise_mean(shares),
        "many": share_of_true([row["jsd"] >= FAR_JSD for row in rows]),
        "none": share_of_true([row["kept"] == 0 for row in rows]),
    }


def summarise_seeds(rows: Sequence[AuditRow]) -> Statistics:
    return {
        "checkpoints": len(rows[0]["jsd"]) if rows else 0,
        "jsd": summarise_mean([float(np.mean(row["jsd"])) for row in rows]),
        "most": summarise_mean([max(row["jsd"]) for row in rows]),
        "tvd": summarise_mean([float(np.mean(row["tvd"])) for row in rows]),
    }


def summarise_diagnostic(rows: Sequence[AuditRow]) -> Statistics:
    correct = {guide: [float(row["right"][guide]) for row in rows] for guide in checks.GUIDES}
    means = {guide: summarise_mean(values) for guide, values in correct.items()}
    return {**means, "gain": summarise_gain(correct["attention"], correct["uniform"])}


def summarise_shape(rows: Sequence[AuditRow]) -> Statistics | None:
    """Means over examples, [block][head] or [block]."""
    if not rows or not rows[0]["heads"]:
        return None
    blocks = range(len(rows[0]["heads"]))
    of = lambda what: [  # noqa: E731
        np.mean([row["heads"][block][what] for row in rows], axis=0).tolist() for block in blocks
    ]
    pairs = lambda what: [  # noqa: E731
        float(np.mean([row[what][block] for row in rows])) if rows[0][what][block] is not None else None
        for block in blocks
    ]
    return {
        "n": len(rows),
        **{what: of(what) for what in ("entropy", "largest", "special")},
        **{what: pairs(what) for what in ("heads_jsd", "heads_kl")},
        "blocks_jsd": np.mean([row["blocks_jsd"] for row in rows], axis=0).tolist() if rows[0]["blocks_jsd"] else [],
    }
