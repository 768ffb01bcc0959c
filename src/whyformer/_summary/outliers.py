"""Items whose evidence is unlike that of all others of their class, and items that are taken for another class."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.spatial.distance import cdist

from whyformer._runs.parts import BulkRow
from whyformer._summary.finding import Confusion, Finding, Outlier

NEIGHBOURS = 5
OUTLIER_SCORE = 5.0  # modified z-score, Iglewicz & Hoaglin 1993 (who suggest 3.5 for normal data)
MAX_OUTLIERS = 20
MAX_CONFUSIONS = 12


def find_outliers(points: np.ndarray, rows: Sequence[BulkRow]) -> list[Outlier]:
    """Items far from their nearest neighbours, by the mean distance to them."""
    if len(rows) < 2 * NEIGHBOURS:
        return []
    distances = np.concatenate(
        [np.sort(cdist(points[i : i + 512], points), axis=1)[:, 1 : NEIGHBOURS + 1] for i in range(0, len(rows), 512)]
    )
    return pick_outliers(distances.mean(1), rows)


def find_text_outliers(
    evidence: Sequence[Mapping[str, float]], others: Sequence[Mapping[str, float]], rows: Sequence[BulkRow]
) -> list[Outlier]:
    """Texts of a class that are decided by words which decide texts of other classes rather than those of their own.

    evidence, others: of each text of the class and of the other classes, the share of relevance of the words that
    decide it. A text is unlike its class by the mean of log(rate elsewhere / rate in the class), weighted by these
    shares; its own words do not count for its class.
    """
    if len(rows) < 2 * NEIGHBOURS or not others:
        return []
    own, elsewhere = (Counter(word for one in some for word in one) for some in (evidence, others))

    def rate(one: Mapping[str, float]) -> float:
        total = sum(one.values())
        return sum(
            share / total * np.log((elsewhere[word] + 0.5) / (len(others) + 1) * len(evidence) / (own[word] - 0.5))
            for word, share in one.items()
        ) if total else 0.0  # fmt: skip

    rates = np.array([rate(one) for one in evidence])
    rather_others = {row.id for row, value in zip(rows, rates, strict=True) if value > 0}
    return [one for one in pick_outliers(rates, rows) if one.id in rather_others]


def pick_outliers(values: np.ndarray, rows: Sequence[BulkRow]) -> list[Outlier]:
    """The items whose value is far above the others', by the modified z-score."""
    median = float(np.median(values))
    spread = float(np.median(abs(values - median)))
    scores = 0.6745 * (values - median) / max(spread, 1e-3)
    return [
        Outlier(row.id, row.class_name, float(score), row)
        for row, score in zip(rows, scores, strict=True)
        if score > OUTLIER_SCORE
    ]


def find_confusions(rows: Sequence[BulkRow], findings: Sequence[Finding]) -> list[Confusion]:
    """The most frequent confusions, each with the evidence of the predicted class that most of its items show."""
    pairs: dict[tuple[str, str], list[BulkRow]] = {}
    for row in rows:
        if row.is_right is False and row.label is not None and row.target == row.prediction:
            pairs.setdefault((row.label, row.class_name), []).append(row)
    found = []
    for (label, name), wrong in sorted(pairs.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:MAX_CONFUSIONS]:
        ids = {row.id for row in wrong}
        counts = [(sum(row.id in ids for row in one.rows), one) for one in findings if one.class_name == name]
        shown, best = max(counts, key=lambda pair: (pair[0], pair[1].effect), default=(0, None))
        found.append(Confusion(label, name, len(wrong), tuple(wrong), best if shown else None, shown))
    return found
