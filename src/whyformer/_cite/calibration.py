r"""Is the answer supported? The probability that a source states it, from how certain it is and what it rests on.

$$ p = \operatorname{sigmoid}\Bigl(b + \sum_k c_k f_k\Bigr) $$

A logistic regression of answers whose truth is known. Every feature speaks for support: no coefficient is below 0.

* `certainty`: asinh of the log-odds of the least certain token of the answer;
* `share`: of the relevance of what it rests on, in the magnitudes of all sources;
* `mention`: 1 if a source contains the answer (mention.py), else 0;
* `topic`: how well a word of the question tells what it rests on from the other sources (mention.py);
* `need`: asinh of the drop of the log-odds without what it rests on;
* `clarity`: the logarithm of that drop beside the largest change without a control.

Supported: p is at least `high`. At most `low`: contradicted, if the answer is likelier without a source, else not
supported. Between them: undecided. Coefficients and limits are fitted and printed by benchmarks/citation_verdicts.py,
which also prints how often the verdicts are wrong; they hold for what was measured there.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from whyformer._cite.likelihood import Likelihood
from whyformer._cite.verification import Evidence
from whyformer.results.citations import CONTRADICTED, NOT_SUPPORTED, SUPPORTED, UNDECIDED

FLOOR = 0.1  # of drops, in nats: smaller ones are rounding


@dataclass(frozen=True)
class Calibration:
    """A fitted rule."""

    base: float
    coefficients: Mapping[str, float]
    low: float
    high: float

    def estimate_support(self, features: Mapping[str, float]) -> float:
        """The probability that the sources state the answer."""
        total = self.base + sum(weight * features[name] for name, weight in self.coefficients.items())
        return 1 / (1 + math.exp(-max(min(total, 500.0), -500.0)))

    def judge(self, support: float, is_opposed: bool) -> str:
        if support >= self.high:
            return SUPPORTED
        if support > self.low:
            return UNDECIDED
        return CONTRADICTED if is_opposed else NOT_SUPPORTED


FAST = Calibration(
    base=-5.496,
    coefficients={"certainty": 1.2085, "share": 7.3769, "mention": 3.0257, "topic": 1.5285},
    low=0.6492,
    high=0.7073,
)
CHECKED = Calibration(
    base=-5.114,
    coefficients={
        "certainty": 1.2791, "share": 3.9545, "mention": 3.0021, "topic": 1.4408, "need": 0.1487, "clarity": 0.4563,
    },
    low=0.7198,
    high=0.7572,
)  # fmt: skip


def measure_features(likelihood: Likelihood, evidence: Evidence, mentioned: bool, topic: float) -> dict[str, float]:
    """What the verdict rests on; without ablations, `need` and `clarity` are 0."""
    basis = list(evidence.likely_basis)
    total = float(abs(evidence.relevance).sum())
    drop = max(evidence.drop, 0.0)
    return {
        "certainty": math.asinh(min(max(likelihood.least_log_odds, -1e6), 1e6)),
        "share": float(evidence.relevance[basis].sum()) / total if total else 0.0,
        "mention": float(mentioned),
        "topic": topic,
        "need": math.asinh(drop) if evidence.drops else 0.0,
        "clarity": math.log((drop + FLOOR) / (evidence.control + FLOOR)) if evidence.drops else 0.0,
    }
