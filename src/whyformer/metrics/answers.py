r"""Answer tokens among the top tokens: does the explanation of an answer point at the words it consists of?

$$ \text{hits} = \left| \text{top}_k(s) \cap A \right|, \qquad \text{share} = \frac{\text{hits}}{\min(k, |A|)} $$

with $s$ the scores of the tokens and $A$ the tokens of the known answer, or of any other evidence. Qiang et al.,
AttCAT: Explaining Transformers via Attentive Class Activation Tokens, NeurIPS 2022, on SQuAD with $k = 20$.

The authors' code prints the mean number of hits next to the mean length of the answers; `preset="released"` is that
number. By default the value is the share, so that answers of different length count alike. The share of a whole data
set is the sum of the hits divided by the sum of what could be hit, as a later paper computes it. Special tokens and
padding are never among the $k$: they cannot be part of an answer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer._plain.setting_checks import allow_choice, allow_whole_number
from whyformer._plain.tokens import Pieces, ScoredTokens
from whyformer.errors import InputError
from whyformer.metrics._registry import Measurement, RationaleLike, metric
from whyformer.metrics._settings import check_metric_settings
from whyformer.metrics.rationales import read_rationale, refuse_other_count, spread_token_marks
from whyformer.results.explanation import Explanation

NAN = float("nan")


def combine_share(parts: Tensor) -> float:
    """The sum of the hits, divided by the sum of the most there could be."""
    hits, most = (float(part) for part in parts.sum(0))
    return hits / most if most else NAN


@metric(
    paper="Qiang et al., NeurIPS 2022",
    better="higher",
    kind="plausibility",
    needs_truth="rationale",
    only="texts",
    combine=combine_share,
    presets={"released": {"value": "count"}},
)
@check_metric_settings(k=allow_whole_number(1), value=allow_choice(("share", "count")))
def answer_tokens(
    explanation: Explanation, rationale: Sequence[RationaleLike], *, k: int = 20, value: str = "share"
) -> Measurement:
    """How many of the answer's tokens are among the k tokens with the highest scores.

    value: the "share" of those that could be among them, or their "count" as in AttCAT's code.

    Higher is better. Control: a random map finds k out of all tokens, so in a text of at most k tokens every map is
    perfect. Equal scores count in reading order. Undefined without a marked token.
    """
    refuse_other_count(explanation, rationale)
    rows = zip(explanation.tokens, explanation.scores.double(), rationale, explanation.names, strict=True)
    parts = torch.tensor([count_hits(*row, k) for row in rows], dtype=torch.float64).reshape(-1, 2)
    values = parts[:, 0] / parts[:, 1] if value == "share" else parts[:, 0].clone()
    values[parts[:, 1] == 0] = NAN
    if value == "count":
        parts[:, 1] = (parts[:, 1] > 0).double()  # so that the sums give the mean count
    return Measurement(values, parts=parts)


def count_hits(tokens: ScoredTokens, scores: Tensor, truth: RationaleLike, name: str, k: int) -> tuple[float, float]:
    """The answer tokens among the top k, and how many there could be at most."""
    if not isinstance(tokens, Pieces):
        raise InputError("Answers are words of a text, but the input is an image. Use a metric with a mask.")
    marked = mark_tokens(tokens, truth, name)
    places = [i for i in range(len(tokens)) if not (tokens.special[i] or tokens.padding[i])]
    order = sorted(places, key=lambda i: -float(scores[i]))  # stable: equal scores in reading order
    return float(sum(marked[i] for i in order[:k])), float(min(k, sum(marked[i] for i in places)))


def mark_tokens(tokens: Pieces, truth: RationaleLike, name: str) -> list[bool]:
    """Which tokens cover a marked character, word or token."""
    given = read_rationale(tokens, truth, name)
    if given is None:
        return [False] * len(tokens)
    if given.of == "token":
        return spread_token_marks(tokens, given.marks, name).tolist()
    text = tokens.text or ""
    if given.spans:
        return [
            span is not None and not tokens.special[i] and any(a < span[1] and span[0] < b for a, b in given.spans)
            for i, span in enumerate(tokens.spans)
        ]
    marks = [bool(mark) for mark in given.marks]
    if given.of == "word":
        marks = spread_word_marks(text, marks, name)
    return [
        span is not None and not tokens.special[i] and any(marks[span[0] : span[1]])
        for i, span in enumerate(tokens.spans)
    ]


def spread_word_marks(text: str, marks: Sequence[bool], name: str) -> list[bool]:
    """One mark for each character from one for each word; marks beyond the text are of words the model did not see."""
    found, start = [False] * len(text), 0
    words = text.split()
    if len(marks) < len(words):
        raise InputError(f"Got marks for {len(marks)} words, but the text has {len(words)}: {name[:60]!r}.")
    for word, mark in zip(words, marks, strict=False):
        start = text.index(word, start)
        found[start : start + len(word)] = [mark] * len(word)
        start += len(word)
    return found
