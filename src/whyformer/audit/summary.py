"""Summary: the figures of an audit, made from its rows. Every mean has its interval, its number of examples, and the
number of those for which it is undefined, which take no part.

Intervals are bootstrap intervals of 95 % over examples. *Spread* is the standard deviation over examples, as in the
paper.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from whyformer.audit.agreement import MEASURES, SIGNIFICANT
from whyformer.audit.diagnostic import GUIDES
from whyformer.audit.replacement import BINS
from whyformer.statistics import bootstrap, draws, paired_test

MANY = 0.525  # JSD from which the published plots are counted here; log 2 = 0.693 is the most
Row = Mapping[str, Any]
Figure = dict[str, Any]


def summary(rows: Iterable[Row], choices: Sequence[str], labels: Sequence[str] | None) -> dict[str, Any]:
    """All figures: of the answers, of the shape of all attention, and for each attention in question."""
    by_test: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["example"]):
        by_test.setdefault((row["test"], row["attention"]), []).append(row)
    answers = {row["example"]: row for row in by_test.get(("answer", ""), [])}
    name = lambda index: labels[index] if labels is not None and index < len(labels) else str(index)  # noqa: E731
    of_test: dict[str, Callable[..., Any]] = {
        "agreement": agreement, "replacement": replacement, "adversarial": adversarial,
        "seeds": seeds, "diagnostic": diagnostic,
    }  # fmt: skip
    return {
        "answers": answered(list(answers.values()), name),
        "shape": shape(by_test.get(("shape", ""), [])),
        "baseline": baseline(by_test.get(("baseline", ""), []), answers),
        "attention": {
            choice: {
                test: make(by_test[test, choice], answers, name)
                for test, make in of_test.items()
                if (test, choice) in by_test
            }
            for choice in choices
        },
    }


# --- figures ----------------------------------------------------------------------------------------------------------


def mean_of(values: Iterable[float | None]) -> Figure:
    """Mean, interval, spread and how many are defined."""
    every = list(values)
    known = [value for value in every if value is not None and math.isfinite(value)]
    mean, low, high = bootstrap(known)
    return {
        "mean": plain(mean), "low": plain(low), "high": plain(high),
        "spread": plain(float(np.std(known))) if known else None,
        "median": plain(float(np.median(known))) if known else None,
        "n": len(known), "undefined": len(every) - len(known),
    }  # fmt: skip


def median_of(values: Iterable[float]) -> Figure:
    """The median, and the interval it has over examples drawn with replacement."""
    known = np.array(list(values), dtype=np.float64)
    if not len(known):
        return {"median": None, "low": None, "high": None, "n": 0}
    drawn = np.concatenate([np.median(known[rows], axis=1) for rows in draws(len(known), np.random.default_rng(0))])
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(known) > 1 else (np.nan, np.nan)
    return {"median": float(np.median(known)), "low": plain(low), "high": plain(high), "n": len(known)}


def plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def share(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None


def answered(answers: Sequence[Row], name: Callable[[int], str]) -> Figure:
    known = [row for row in answers if row["label"] is not None]
    predicted = sorted({row["predicted"] for row in answers})
    return {
        "n": len(answers),
        "accuracy": mean_of([float(row["predicted"] == row["label"]) for row in known]) if known else None,
        "predicted": {name(index): sum(row["predicted"] == index for row in answers) for index in predicted},
        "tokens": mean_of([row["tokens"] for row in answers]),
    }


def by_class(rows: Sequence[Row], answers: Mapping[int, Row], name: Callable[[int], str]) -> dict[str, list[Row]]:
    """Rows by what was predicted."""
    groups: dict[int, list[Row]] = {}
    for row in rows:
        if row["example"] in answers:
            groups.setdefault(answers[row["example"]]["predicted"], []).append(row)
    return {name(index): groups[index] for index in sorted(groups)}


# --- tests ------------------------------------------------------------------------------------------------------------


def agreement(rows: Sequence[Row], answers: Mapping[int, Row], name: Callable[[int], str]) -> dict[str, Figure]:
    pairs = list(dict.fromkeys(pair for row in rows for pair in row["pairs"]))
    return {pair: agreement_of(pair, rows, answers, name) for pair in pairs}


def agreement_of(pair: str, rows: Sequence[Row], answers: Mapping[int, Row], name: Callable[[int], str]) -> Figure:
    found = [row["pairs"][pair] for row in rows if pair in row["pairs"]]
    classes = by_class([row for row in rows if pair in row["pairs"]], answers, name)
    return {
        **{measure: mean_of(one[measure] for one in found) for measure in MEASURES},
        "by_chance": mean_of(one["by_chance"] for one in found)["mean"],
        "significant": significant(found),
        "classes": {
            label: {
                **mean_of(row["pairs"][pair]["tau"] for row in group),
                "significant": significant([row["pairs"][pair] for row in group]),
            }
            for label, group in classes.items()
        },
    }


def significant(found: Sequence[Row]) -> float | None:
    """The share of the defined ones with p of at most 0.05."""
    return share([one["p"] <= SIGNIFICANT for one in found if one["p"] is not None])


def replacement(rows: Sequence[Row], answers: Mapping[int, Row], name: Callable[[int], str]) -> Figure:
    defined = [row for row in rows if not row.get("undefined")]
    kinds = list(dict.fromkeys(kind for row in defined for kind in row["kinds"]))
    return {
        "undefined": len(rows) - len(defined),
        "kinds": {kind: replacement_of(kind, defined, answers, name) for kind in kinds},
    }


def replacement_of(kind: str, rows: Sequence[Row], answers: Mapping[int, Row], name: Callable[[int], str]) -> Figure:
    rows = [row for row in rows if kind in row["kinds"]]
    classes = by_class(rows, answers, name)
    of = lambda group, what: [row["kinds"][kind][what] for row in group]  # noqa: E731
    return {
        "tvd": median_of(of(rows, "tvd")),
        "change": median_of(of(rows, "change")),
        "shift": mean_of(of(rows, "shift")),
        "flips": mean_of(of(rows, "flips")),
        "accuracy": accuracy_after(kind, rows, answers),
        "bins": {label: median_of(of(group, "tvd")) for label, group in binned(rows).items()},
        "classes": {
            label: {
                "tvd": median_of(of(group, "tvd")),
                "change": median_of(of(group, "change")),
                "bins": {bin_: median_of(of(part, "tvd")) for bin_, part in binned(group).items()},
            }
            for label, group in classes.items()
        },
    }


def accuracy_after(kind: str, rows: Sequence[Row], answers: Mapping[int, Row]) -> Figure | None:
    """The share right before and after, and the change, on the same examples."""
    pairs = []
    for row in rows:
        label = answers.get(row["example"], {}).get("label")
        if label is not None:
            counts = row["kinds"][kind]["predicted"]
            right = counts.get(str(label), 0) / sum(counts.values())
            pairs.append((float(answers[row["example"]]["predicted"] == label), right))
    if not pairs:
        return None
    before, after = (list(side) for side in zip(*pairs, strict=True))
    return {
        "before": mean_of(before)["mean"],
        "after": mean_of(after)["mean"],
        "change": mean_of([b - a for a, b in pairs]),
    }


def binned(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by the largest weight of the attention, in the four bins of the paper."""
    groups: dict[str, list[Row]] = {f"[{low:g}, {high:g})": [] for low, high in pairwise(BINS)}
    names = list(groups)
    for row in rows:
        groups[names[min(int(row["largest"] * 4), 3)]].append(row)
    return {label: group for label, group in groups.items() if group}


def adversarial(rows: Sequence[Row], answers: Mapping[int, Row], name: Callable[[int], str]) -> Figure:
    defined = [row for row in rows if not row.get("undefined")]
    return {
        **adversarial_of(defined),
        "undefined": len(rows) - len(defined),
        "classes": {label: adversarial_of(group) for label, group in by_class(defined, answers, name).items()},
        "bins": {label: median_of([row["jsd"] for row in group]) for label, group in binned(defined).items()},
    }


def adversarial_of(rows: Sequence[Row]) -> Figure:
    return {
        "jsd": mean_of([row["jsd"] for row in rows]),
        "of_attainable": mean_of([row["jsd"] / row["attainable"] if row["attainable"] > 0 else None for row in rows]),
        "many": share([row["jsd"] >= MANY for row in rows]),
        "none": share([row["kept"] == 0 for row in rows]),
    }


def seeds(rows: Sequence[Row], answers: Mapping[int, Row], name: Callable[[int], str]) -> Figure:
    return {
        "checkpoints": len(rows[0]["jsd"]) if rows else 0,
        "jsd": mean_of([float(np.mean(row["jsd"])) for row in rows]),
        "most": mean_of([max(row["jsd"]) for row in rows]),
        "tvd": mean_of([float(np.mean(row["tvd"])) for row in rows]),
    }


def diagnostic(rows: Sequence[Row], answers: Mapping[int, Row], name: Callable[[int], str]) -> Figure:
    right = {guide: [float(row["right"][guide]) for row in rows] for guide in GUIDES}
    difference = [a - b for a, b in zip(right["attention"], right["uniform"], strict=True)]
    return {
        **{guide: mean_of(values) for guide, values in right.items()},
        "gain": {**mean_of(difference), "p": plain(paired_test(right["attention"], right["uniform"]))},
    }


def baseline(rows: Sequence[Row], answers: Mapping[int, Row]) -> Figure | None:
    """The model and one trained with equal weights in place of attention, on the examples with a label."""
    known = [row for row in rows if answers.get(row["example"], {}).get("label") is not None]
    if not known:
        return None
    own = [float(answers[row["example"]]["predicted"] == answers[row["example"]]["label"]) for row in known]
    other = [float(row["predicted"] == answers[row["example"]]["label"]) for row in known]
    gain = [a - b for a, b in zip(own, other, strict=True)]
    return {
        "model": mean_of(own),
        "uniform": mean_of(other),
        "gain": {**mean_of(gain), "p": plain(paired_test(own, other))},
    }


def shape(rows: Sequence[Row]) -> Figure | None:
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
