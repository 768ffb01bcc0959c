r"""Is the answer supported? The probability that a source states it, from how certain it is and what it rests on.

$$ p = \operatorname{sigmoid}\Bigl(b + \sum_k c_k \min(f_k, m_k)\Bigr) $$

A logistic regression of answers whose truth is known. Every feature speaks for support: no coefficient is below 0.
Above $m_k$, the median of supported answers, more of it says no more: certainty alone does not make up for the rest.

* `certainty`: asinh of the log-odds of the least certain token of the answer;
* `share`: of the relevance of what it rests on, in the magnitudes of all sources;
* `mention`: 1 if a source contains the answer (mention.py), else 0;
* `topic`: how well a word of the question tells what it rests on from the other sources (mention.py);
* `need`: asinh of the drop of the log-odds without what it rests on.

Supported: p is at least .7. At most .3: contradicted, if a source speaks against the answer, else not supported.
Between them: undecided. The regression is that of maximum likelihood, so that p is a frequency among answers like those
that it was fitted to, of which a quarter are supported. It is fitted by benchmarks/citation_verdicts.py, which also
prints how often verdicts are wrong and how far p is from the frequency, on texts kept out of the fit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from whyformer._cite.likelihood import Likelihood
from whyformer._cite.verification import Evidence
from whyformer.results.citations import CONTRADICTED, NOT_SUPPORTED, SUPPORTED, UNDECIDED

LOW, HIGH = 0.3, 0.7  # set before the fit


@dataclass(frozen=True)
class Calibration:
    """A fitted rule."""

    base: float
    coefficients: Mapping[str, float]
    most: Mapping[str, float]  # of each feature

    def estimate_support(self, features: Mapping[str, float]) -> float:
        """The probability that the sources state the answer."""
        known = ((weight, min(features[name], self.most[name])) for name, weight in self.coefficients.items())
        total = self.base + sum(weight * feature for weight, feature in known)
        return 1 / (1 + math.exp(-max(min(total, 500.0), -500.0)))


def judge_support(support: float, is_opposed: bool) -> str:
    """The verdict on an answer that is supported with this probability."""
    if support >= HIGH:
        return SUPPORTED
    if support > LOW:
        return UNDECIDED
    return CONTRADICTED if is_opposed else NOT_SUPPORTED


FAST = Calibration(
    base=-8.1807,
    coefficients={"certainty": 1.4207, "share": 8.738, "mention": 3.7966, "topic": 2.0845},
    most={"certainty": 2.7042, "share": 0.6508, "mention": 1.0, "topic": 0.8228},
)
CHECKED = Calibration(
    base=-8.9553,
    coefficients={"certainty": 1.3441, "share": 3.5219, "mention": 2.2928, "topic": 0.7291, "need": 1.692},
    most={"certainty": 2.7042, "share": 0.708, "mention": 1.0, "topic": 1.0, "need": 3.8479},
)


def measure_features(likelihood: Likelihood, evidence: Evidence, mentioned: bool, topic: float) -> dict[str, float]:
    """What the verdict rests on; without ablations, `need` is 0."""
    basis = list(evidence.likely_basis)
    total = float(abs(evidence.relevance).sum())
    return {
        "certainty": math.asinh(min(max(likelihood.least_log_odds, -1e6), 1e6)),
        "share": float(evidence.relevance[basis].sum()) / total if total else 0.0,
        "mention": float(mentioned),
        "topic": topic,
        "need": math.asinh(max(evidence.drop, 0.0)),
    }
