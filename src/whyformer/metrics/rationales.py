r"""Rationales: do the highest-scored words of a text agree with the words that people marked?

$$ F_1@k = \frac{2 \, |\text{top}_k \cap \text{marked}|}{k + |\text{marked}|} $$

Token-F1 is averaged over documents (macro). IOU-F1 counts a run of selected words as found if its intersection over
union with a marked run is at least one half. AUPRC is the area under precision over recall. DeYoung et al., ERASER: A
Benchmark to Evaluate Rationalized NLP Models, ACL 2020. arXiv:1911.03429. Token-F1 of the k highest words, k = 5, 10,
..., 80: Chefer, Gur & Wolf, CVPR 2021. arXiv:2012.09838

Words are separated by blanks, and a word's score is the highest of its tokens. Tokens are assigned to words by the
characters they cover, so a word unknown to the tokenizer ([UNK]) keeps its position. Marked words beyond what the model
saw count as missed. Deviations: where words of equal score compete for the last places, the number of hits is the mean
over all choices among them (the released code takes them in reading order); a text in which nothing is marked is
undefined, not 0.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from whyformer._plain.environment import keep_environment
from whyformer._plain.setting_checks import (
    MOST,
    allow_choice,
    allow_share,
    quote_value,
    refuse_setting,
    to_plain_number,
    to_plain_values,
)
from whyformer._plain.tokens import Pieces, ScoredTokens
from whyformer.errors import InputError
from whyformer.methods._registry import Setting
from whyformer.metrics._ordering import to_nearest_unit_count
from whyformer.metrics._registry import Measurement, MetricFacts, Rationale, RationaleLike, metric
from whyformer.metrics._settings import check_metric_settings
from whyformer.results.explanation import Explanation

NAN = float("nan")
ERASER = "DeYoung et al., ACL 2020"
DEFAULT_K = tuple(range(5, 81, 5))
WordCount = int | float | Literal["marked"]
# The facts of metrics that compare words with those that people marked.
PLAUSIBILITY: MetricFacts = {"better": "higher", "kind": "plausibility", "needs_truth": "rationale", "only": "texts"}


def allow_word_count(setting: str, value: Setting) -> WordCount:
    """An integer is a number of words, a float a fraction of all words, "marked" as many as people marked."""
    number = to_plain_number(value)
    if isinstance(value, str) and value == "marked":
        return "marked"
    if number is None or not (1 <= number <= MOST if isinstance(number, int) else 0 < number <= 1):
        raise refuse_setting(setting, "a number of words, a fraction in (0, 1] or 'marked'", value)
    return number


def allow_word_counts(setting: str, value: Setting) -> tuple[WordCount, ...]:
    """One word count, or a sequence of word counts."""
    several = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else (value,)
    if not several:
        raise refuse_setting(setting, "at least one number, for example (5, 0.2, 'marked')", value)
    return tuple(allow_word_count(setting, item) for item in several)


@dataclass(frozen=True)
class MarkedText:
    """The words of one text: their scores (-inf if the model did not see the word), and which of them are marked."""

    scores: Tensor  # [word] float64
    truth: Tensor  # [word] bool

    @property
    def seen(self) -> int:
        return int((self.scores > -torch.inf).sum())

    def size(self, k: WordCount) -> int:
        """How many words are selected: a number, a fraction of those seen, or as many as are marked."""
        if k == "marked":
            return min(int(self.truth.sum()), self.seen)
        if isinstance(k, float):
            return to_nearest_unit_count(k, self.seen)
        return min(int(k), self.seen)


@metric(paper=ERASER, **PLAUSIBILITY)
@check_metric_settings(k=allow_word_counts)
def token_f1(
    explanation: Explanation, rationale: Sequence[RationaleLike], *, k: WordCount | Sequence[WordCount] = DEFAULT_K
) -> Measurement:
    """How well the k highest-scored words match the words that people marked: F1 of precision and recall.

    k: a number of words, a fraction of them (0.2), "marked" (as many as are marked), or several, which are averaged.

    Higher is better. Control: random scores find k times the fraction of words that are marked. Undefined if nothing is
    marked.
    """
    sizes: Sequence[WordCount] = (k,) if isinstance(k, int | float | str) else k
    curve = torch.full((len(explanation), len(sizes)), NAN, dtype=torch.float64)
    for i, text in enumerate(align_rationales(explanation, rationale)):
        if bool(text.truth.any()) and text.seen:
            marked, counts = float(text.truth.sum()), [text.size(size) for size in sizes]
            f1 = [2 * expected_hits(text, count) / (count + marked) for count in counts]  # the same as 2 P R / (P + R)
            curve[i] = torch.tensor(f1, dtype=torch.float64)
    at = tuple(float(size) if size != "marked" else NAN for size in sizes)
    return Measurement(curve.mean(1), curve, at)


def expected_hits(text: MarkedText, k: int) -> float:
    """The number of marked words among the k highest; if several share the k-th score, its mean over all choices."""
    if not k:
        return 0.0
    cut = text.scores.sort(descending=True).values[k - 1]
    over, level = text.scores > cut, text.scores == cut
    share = float((level & text.truth).sum()) / float(level.sum())
    return float((over & text.truth).sum()) + (k - int(over.sum())) * share


def macro_f1(parts: Tensor) -> float:
    """F1 of the mean precision and the mean recall over documents, as ERASER reports IOU-F1."""
    precision, recall = parts.mean(0).tolist()
    return f1_score(precision, recall)


def f1_score(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision and recall else 0.0


@metric(paper=ERASER, **PLAUSIBILITY, combine=macro_f1)
@check_metric_settings(k=allow_word_count, threshold=allow_share)
def iou_f1(
    explanation: Explanation, rationale: Sequence[RationaleLike], *, k: WordCount = "marked", threshold: float = 0.5
) -> Measurement:
    """How many runs of consecutive selected words match a run that people marked, as the F1 of precision and recall.

    k: how many words are selected: a number, a fraction, or "marked" (as many as are marked).
    threshold: a selected run is found if its intersection with a marked run is at least this fraction of their union.

    The value of a data set is the F1 of mean precision and mean recall.

    Higher is better. Control: random scores, near 0.
    """
    parts = torch.full((len(explanation), 2), NAN, dtype=torch.float64)
    for i, text in enumerate(align_rationales(explanation, rationale)):
        if bool(text.truth.any()) and text.seen:
            chosen = torch.zeros_like(text.truth)
            chosen[text.scores.argsort(descending=True, stable=True)[: text.size(k)]] = True
            ours, theirs = find_marked_runs(chosen), find_marked_runs(text.truth)
            hits = sum(max(run_iou(run, other) for other in theirs) >= threshold for run in ours)
            parts[i] = torch.tensor([hits / len(ours) if ours else 0.0, hits / len(theirs)], dtype=torch.float64)
    values = [f1_score(*row) if row[0] == row[0] else NAN for row in parts.tolist()]
    return Measurement(torch.tensor(values, dtype=torch.float64), parts=parts)


def find_marked_runs(chosen: Tensor) -> list[tuple[int, int]]:
    """Start and end of every run of True."""
    edges = torch.diff(chosen.int(), prepend=torch.zeros(1, dtype=torch.int), append=torch.zeros(1, dtype=torch.int))
    starts, ends = ((edges == step).nonzero()[:, 0].tolist() for step in (1, -1))
    return list(zip(starts, ends, strict=True))


def run_iou(one: tuple[int, int], other: tuple[int, int]) -> float:
    """Intersection over union of two runs."""
    common = max(0, min(one[1], other[1]) - max(one[0], other[0]))
    return common / (one[1] - one[0] + other[1] - other[0] - common)


@metric(paper=ERASER, **PLAUSIBILITY)
@keep_environment()
@check_metric_settings(rule=allow_choice(("trapezoid", "step")))
def auprc(
    explanation: Explanation, rationale: Sequence[RationaleLike], *, rule: Literal["trapezoid", "step"] = "trapezoid"
) -> Tensor:
    """How well the scores rank marked words above the others: the area under precision over recall.

    rule: "trapezoid" as ERASER computes it, or "step", the average precision.

    Higher is better. Control: random scores get about the share of marked words. Undefined if nothing or everything is
    marked.
    """
    from sklearn.metrics import auc, average_precision_score, precision_recall_curve

    areas = []
    for text in align_rationales(explanation, rationale):
        truth = text.truth.numpy()
        if truth.all() or not truth.any() or not text.seen:
            areas.append(NAN)
            continue
        lowest = text.scores[text.scores > -torch.inf].min()
        scores = text.scores.clamp(min=float(lowest) - 1).numpy()  # words the model did not see come last
        if rule == "step":
            areas.append(float(average_precision_score(truth, scores)))
        else:
            precision, recall, _ = precision_recall_curve(truth, scores)
            areas.append(float(auc(recall, precision)))
    return torch.tensor(areas, dtype=torch.float64)


# --- words and marks --------------------------------------------------------------------------------------------------


def refuse_other_count(explanation: Explanation, rationale: Sequence[RationaleLike]) -> None:
    if not hasattr(rationale, "__len__") or len(rationale) != len(explanation):
        count = len(rationale) if hasattr(rationale, "__len__") else "no list of"
        raise InputError(f"Got {count} rationales for {len(explanation)} texts. Give one rationale per text.")


def align_rationales(explanation: Explanation, rationale: Sequence[RationaleLike]) -> list[MarkedText]:
    refuse_other_count(explanation, rationale)
    rows = zip(explanation.tokens, explanation.scores.double(), rationale, explanation.names, strict=True)
    return [align_rationale(tokens, scores, truth, name) for tokens, scores, truth, name in rows]


def align_rationale(tokens: ScoredTokens, scores: Tensor, truth: RationaleLike, name: str) -> MarkedText:
    """The scores of the words of one text, with their marks."""
    if not isinstance(tokens, Pieces):
        raise InputError("Rationales mark words of a text, but the input is an image. Use a metric with a mask.")
    given = read_rationale(tokens, truth, name)
    if given is None:
        return MarkedText(scores[:0], torch.zeros(0, dtype=torch.bool))
    if given.of == "token":
        own = ~(torch.tensor(tokens.padding) | torch.tensor(tokens.special))
        return MarkedText(scores[own], spread_token_marks(tokens, given.marks, name)[own])
    marks = torch.as_tensor(list(given.marks)).bool()
    values = score_words(tokens, scores)
    if given.of == "character":
        text = tokens.text or ""
        marks = torch.tensor([bool(marks[m.start() : m.end()].any()) for m in re.finditer(r"\S+", text)]).bool()
    if len(marks) < len(values):
        raise InputError(f"Got marks for {len(marks)} words, but the text has {len(values)}: {name[:60]!r}.")
    missed = torch.full((len(marks) - len(values),), -torch.inf, dtype=torch.float64)
    return MarkedText(torch.cat([values, missed]), marks)


def read_rationale(tokens: Pieces, truth: RationaleLike, name: str) -> Rationale | None:
    """The marks of one text and what they belong to; None if it is not annotated."""
    marks = truth.marks if isinstance(truth, Rationale) else truth
    if marks is None or not check_marks(marks):
        return None
    return truth if isinstance(truth, Rationale) else guess_rationale(tokens, marks, name)


def check_marks(marks: Sequence[int] | Tensor | np.ndarray) -> int:
    """The number of marks, if they are numbers or flags."""
    listed = to_plain_values(marks)
    is_list = isinstance(listed, Sequence) and not isinstance(listed, str | bytes)
    if not is_list or any(not isinstance(mark, bool) and to_plain_number(mark) is None for mark in listed):
        raise InputError(f"A rationale must be a list of marks, 0 or 1, got {quote_value(marks)}.")
    return len(listed)


def guess_rationale(tokens: Pieces, truth: Sequence[int] | Tensor | np.ndarray, name: str) -> Rationale:
    """The unit of a plain list of marks, inferred from its length."""
    marks = [int(bool(mark)) for mark in truth]
    words = len(re.findall(r"\S+", tokens.text)) if tokens.text is not None else None
    unpadded = len(tokens) - sum(tokens.padding)
    if tokens.text is not None and len(marks) == len(tokens.text):
        return Rationale(marks, "character")
    if len(marks) == words:
        return Rationale(marks, "word")
    if len(marks) in (len(tokens), unpadded, unpadded - sum(tokens.special)):
        return Rationale(marks, "token")
    known = f"{len(tokens.text)} characters, {words} words and " if tokens.text is not None else ""
    raise InputError(
        f"{len(marks)} marks match neither the characters, words nor tokens of {name[:60]!r}, "
        f"which has {known}{unpadded} tokens. "
        "Pass Rationale(marks, of='word') if the text was truncated."
    )


def spread_token_marks(tokens: Pieces, marks: Sequence[int], name: str) -> Tensor:
    """[token] bool, from one mark for each token, or for each that is no padding, or neither padding nor special."""
    there = ~torch.tensor(tokens.padding)
    content = there & ~torch.tensor(tokens.special)
    for marked in (torch.ones_like(there), there, content):
        if int(marked.sum()) == len(marks):
            return torch.zeros_like(there).masked_scatter(marked, torch.as_tensor(list(marks)).bool())
    raise InputError(f"Got {len(marks)} marks for {int(content.sum())} tokens of {name[:60]!r}.")


def score_words(tokens: Pieces, scores: Tensor) -> Tensor:
    """[word]: the highest score of the tokens that cover a character of the word; -inf if none does."""
    if tokens.text is None:
        raise InputError("The input was given as token ids, so its words are unknown. Mark tokens, or pass a text.")
    spans = [match.span() for match in re.finditer(r"\S+", tokens.text)]
    found = torch.full((len(spans),), -torch.inf, dtype=torch.float64)
    word_at = {at: number for number, (start, end) in enumerate(spans) for at in range(start, end)}
    for i, span in enumerate(tokens.spans):
        if span is None or tokens.special[i] or tokens.padding[i]:
            continue
        for word in {word_at[at] for at in range(*span) if at in word_at}:
            found[word] = torch.maximum(found[word], scores[i])
    return found
