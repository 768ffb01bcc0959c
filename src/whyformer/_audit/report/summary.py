"""Summary: the statistics of an audit, computed from its rows.

Every mean has an interval, its number of examples, and the number of examples for which it is undefined, which are
excluded. Intervals are 95 % bootstrap intervals over examples. *Spread* is the standard deviation over examples, as in
the paper.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from whyformer._audit.checks import (
    AGREEMENT_MEASURES,
    GUIDES,
    LARGEST_WEIGHT_BINS,
    SIGNIFICANCE_LEVEL,
    TOP_K_DISTANCE,
    as_finite_float,
)
from whyformer._plain.statistics import bootstrap, draw_resamples, paired_test

FAR_JSD = 0.525  # threshold for the share compared with the published plots; the maximum is log 2 = 0.693
AuditRow = Mapping[str, Any]
Statistics = dict[str, Any]


def summarise_audit(rows: Iterable[AuditRow], choices: Sequence[str], labels: Sequence[str] | None) -> dict[str, Any]:
    """All statistics: of the predictions, of the shape of attention, and of the tests of each audited attention."""
    by_test: dict[tuple[str, str], list[AuditRow]] = {}
    for row in sorted(rows, key=lambda row: row["example"]):
        by_test.setdefault((row["test"], row["attention"]), []).append(row)
    answers = {row["example"]: row for row in by_test.get(("answer", ""), [])}
    name = lambda index: labels[index] if labels is not None and index < len(labels) else str(index)  # noqa: E731
    of_test: dict[str, Callable[..., Any]] = {
        "agreement": summarise_agreement, "replacement": summarise_replacement, "adversarial": summarise_adversarial,
        "seeds": summarise_seeds, "diagnostic": summarise_diagnostic,
    }  # fmt: skip
    return {
        "answers": summarise_answers(list(answers.values()), name),
        "shape": summarise_shape(by_test.get(("shape", ""), [])),
        "baseline": summarise_baseline(by_test.get(("baseline", ""), []), answers),
        "attention": {
            choice: {
                test: make(by_test[test, choice], answers, name)
                for test, make in of_test.items()
                if (test, choice) in by_test
            }
            for choice in choices
        },
    }


# --- statistics -------------------------------------------------------------------------------------------------------


def summarise_mean(values: Iterable[float | None]) -> Statistics:
    """Mean, interval, spread, median, and how many values are defined."""
    every = list(values)
    known = [value for value in every if value is not None and math.isfinite(value)]
    mean, low, high = bootstrap(known)
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
    medians = np.concatenate(
        [np.median(known[rows], axis=1) for rows in draw_resamples(len(known), np.random.default_rng(0))]
    )
    low, high = np.quantile(medians, [0.025, 0.975]) if len(known) > 1 else (np.nan, np.nan)
    return {
        "median": float(np.median(known)),
        "low": as_finite_float(low),
        "high": as_finite_float(high),
        "n": len(known),
    }


def share_of_true(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None


def summarise_answers(answers: Sequence[AuditRow], name: Callable[[int], str]) -> Statistics:
    known = [row for row in answers if row["label"] is not None]
    predicted = sorted({row["predicted"] for row in answers})
    return {
        "n": len(answers),
        "accuracy": summarise_mean([float(row["predicted"] == row["label"]) for row in known]) if known else None,
        "predicted": {name(index): sum(row["predicted"] == index for row in answers) for index in predicted},
        "tokens": summarise_mean([row["tokens"] for row in answers]),
    }


def group_by_class(
    rows: Sequence[AuditRow], answers: Mapping[int, AuditRow], name: Callable[[int], str]
) -> dict[str, list[AuditRow]]:
    """Rows by predicted class."""
    groups: dict[int, list[AuditRow]] = {}
    for row in rows:
        if row["example"] in answers:
            groups.setdefault(answers[row["example"]]["predicted"], []).append(row)
    return {name(index): groups[index] for index in sorted(groups)}


# --- tests ------------------------------------------------------------------------------------------------------------


def summarise_agreement(
    rows: Sequence[AuditRow], answers: Mapping[int, AuditRow], name: Callable[[int], str]
) -> dict[str, Statistics]:
    pairs = list(dict.fromkeys(pair for row in rows for pair in row["pairs"]))
    return {pair: summarise_agreement_pair(pair, rows, answers, name) for pair in pairs}


def summarise_agreement_pair(
    pair: str, rows: Sequence[AuditRow], answers: Mapping[int, AuditRow], name: Callable[[int], str]
) -> Statistics:
    values = [row["pairs"][pair] for row in rows if pair in row["pairs"]]
    classes = group_by_class([row for row in rows if pair in row["pairs"]], answers, name)
    return {
        **{measure: summarise_mean(value[measure] for value in values) for measure in AGREEMENT_MEASURES},
        TOP_K_DISTANCE: summarise_mean(value.get(TOP_K_DISTANCE) for value in values),
        "by_chance": summarise_mean(value["by_chance"] for value in values)["mean"],
        "significant": share_significant(values),
        "classes": {
            label: {
                **summarise_mean(row["pairs"][pair]["tau"] for row in group),
                "significant": share_significant([row["pairs"][pair] for row in group]),
            }
            for label, group in classes.items()
        },
    }


def share_significant(pairs: Sequence[AuditRow]) -> float | None:
    """The share of the defined correlations with p <= 0.05."""
    return share_of_true([pair["p"] <= SIGNIFICANCE_LEVEL for pair in pairs if pair["p"] is not None])


def summarise_replacement(
    rows: Sequence[AuditRow], answers: Mapping[int, AuditRow], name: Callable[[int], str]
) -> Statistics:
    defined = [row for row in rows if not row.get("undefined")]
    kinds = list(dict.fromkeys(kind for row in defined for kind in row["kinds"]))
    return {
        "undefined": len(rows) - len(defined),
        "kinds": {kind: summarise_replacement_kind(kind, defined, answers, name) for kind in kinds},
    }


def summarise_replacement_kind(
    kind: str, rows: Sequence[AuditRow], answers: Mapping[int, AuditRow], name: Callable[[int], str]
) -> Statistics:
    rows = [row for row in rows if kind in row["kinds"]]
    classes = group_by_class(rows, answers, name)
    of = lambda group, what: [row["kinds"][kind][what] for row in group]  # noqa: E731
    return {
        "tvd": summarise_median(of(rows, "tvd")),
        "change": summarise_median(of(rows, "change")),
        "shift": summarise_mean(of(rows, "shift")),
        "flips": summarise_mean(of(rows, "flips")),
        "accuracy": compare_accuracy(kind, rows, answers),
        "bins": {label: summarise_median(of(group, "tvd")) for label, group in group_by_largest_weight(rows).items()},
        "classes": {
            label: {
                "tvd": summarise_median(of(group, "tvd")),
                "change": summarise_median(of(group, "change")),
                "bins": {
                    bin_: summarise_median(of(part, "tvd")) for bin_, part in group_by_largest_weight(group).items()
                },
            }
            for label, group in classes.items()
        },
    }


def compare_accuracy(kind: str, rows: Sequence[AuditRow], answers: Mapping[int, AuditRow]) -> Statistics | None:
    """Accuracy before and after the replacement, and its change, on the same examples."""
    pairs = []
    for row in rows:
        label = answers.get(row["example"], {}).get("label")
        if label is not None:
            counts = row["kinds"][kind]["predicted"]
            correct = counts.get(str(label), 0) / sum(counts.values())
            pairs.append((float(answers[row["example"]]["predicted"] == label), correct))
    if not pairs:
        return None
    before, after = (list(side) for side in zip(*pairs, strict=True))
    return {
        "before": summarise_mean(before)["mean"],
        "after": summarise_mean(after)["mean"],
        "change": summarise_mean([b - a for a, b in pairs]),
    }


def group_by_largest_weight(rows: Sequence[AuditRow]) -> dict[str, list[AuditRow]]:
    """Rows by the largest attention weight, in the four bins of the paper."""
    groups: dict[str, list[AuditRow]] = {f"[{low:g}, {high:g})": [] for low, high in pairwise(LARGEST_WEIGHT_BINS)}
    names = list(groups)
    for row in rows:
        groups[names[min(int(row["largest"] * 4), 3)]].append(row)
    return {label: group for label, group in groups.items() if group}


def summarise_adversarial(
    rows: Sequence[AuditRow], answers: Mapping[int, AuditRow], name: Callable[[int], str]
) -> Statistics:
    defined = [row for row in rows if not row.get("undefined")]
    return {
        **summarise_adversarial_rows(defined),
        "undefined": len(rows) - len(defined),
        "classes": {
            label: summarise_adversarial_rows(group) for label, group in group_by_class(defined, answers, name).items()
        },
        "bins": {
            label: summarise_median([row["jsd"] for row in group])
            for label, group in group_by_largest_weight(defined).items()
        },
    }


def summarise_adversarial_rows(rows: Sequence[AuditRow]) -> Statistics:
    return {
        "jsd": summarise_mean([row["jsd"] for row in rows]),
        "of_attainable": summarise_mean(
            [row["jsd"] / row["attainable"] if row["attainable"] > 0 else None for row in rows]
        ),
        "many": share_of_true([row["jsd"] >= FAR_JSD for row in rows]),
        "none": share_of_true([row["kept"] == 0 for row in rows]),
    }


def summarise_seeds(
    rows: Sequence[AuditRow], answers: Mapping[int, AuditRow], name: Callable[[int], str]
) -> Statistics:
    return {
        "checkpoints": len(rows[0]["jsd"]) if rows else 0,
        "jsd": summarise_mean([float(np.mean(row["jsd"])) for row in rows]),
        "most": summarise_mean([max(row["jsd"]) for row in rows]),
        "tvd": summarise_mean([float(np.mean(row["tvd"])) for row in rows]),
    }


def summarise_diagnostic(
    rows: Sequence[AuditRow], answers: Mapping[int, AuditRow], name: Callable[[int], str]
) -> Statistics:
    correct = {guide: [float(row["right"][guide]) for row in rows] for guide in GUIDES}
    difference = [a - b for a, b in zip(correct["attention"], correct["uniform"], strict=True)]
    return {
        **{guide: summarise_mean(values) for guide, values in correct.items()},
        "gain": {
            **summarise_mean(difference),
            "p": as_finite_float(paired_test(correct["attention"], correct["uniform"])),
        },
    }


def summarise_baseline(rows: Sequence[AuditRow], answers: Mapping[int, AuditRow]) -> Statistics | None:
    """Accuracy of the model and of one trained with uniform attention, on the labelled examples."""
    known = [row for row in rows if answers.get(row["example"], {}).get("label") is not None]
    if not known:
        return None
    own = [float(answers[row["example"]]["predicted"] == answers[row["example"]]["label"]) for row in known]
    other = [float(row["predicted"] == answers[row["example"]]["label"]) for row in known]
    gain = [a - b for a, b in zip(own, other, strict=True)]
    return {
        "model": summarise_mean(own),
        "uniform": summarise_mean(other),
        "gain": {**summarise_mean(gain), "p": as_finite_float(paired_test(own, other))},
    }


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
        "entropy": of("entropy"), "largest": of("largest"), "special": of("special"),
        "heads_jsd": pairs("heads_jsd"), "heads_kl": pairs("heads_kl"),
        "blocks_jsd": np.mean([row["blocks_jsd"] for row in rows], axis=0).tolist() if rows[0]["blocks_jsd"] else [],
    }  # fmt: skip
