r"""The share of the evidence that some words or a part of an image have, to be asserted in a test suite.

    def test_reads_the_verdict_of_the_review():
        assert_looks_at(model, "a gorgeous film", words=["gorgeous"], share=0.5)

With scores $s_i$ of the tokens or patches that are neither special nor padding, the share of a set $W$ is

$$\frac{\sum_{i \in W} \max(s_i, 0)}{\sum_i \max(s_i, 0)}$$

Evidence against the target does not count.
"""

import re
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from whyformer._engine import TargetLike
from whyformer._explain.explain import explain
from whyformer._explain.method_call import MethodLike
from whyformer._model import InputLike, ModelLike
from whyformer._plain.tokens import Pieces
from whyformer.errors import InputError
from whyformer.results.explanation import Explanation, ScoredToken
from whyformer.show.visible import make_visible

Box = tuple[float, float, float, float]  # left, top, right, bottom, as fractions of the image


def assert_looks_at(
    model: ModelLike,
    inputs: InputLike,
    *,
    words: Sequence[str] = (),
    box: Box | None = None,
    share: float = 0.5,
    at_most: float = 1.0,
    method: MethodLike | None = None,
    target: TargetLike = None,
) -> float:
    """Raise AssertionError unless these words, or this part of an image, have the share of the evidence; return it.

    words: words or phrases of the text, all their occurrences, in any case. box: left, top, right and bottom of a part
    of the image, as fractions of its width and height.
    share, at_most: the limits; `share=0, at_most=0.1` asserts that the model does not look there.
    """
    explanation = explain(model, inputs, method, target=target)
    if len(explanation) != 1:
        raise InputError(f"Pass one input to assert_looks_at(), got {len(explanation)}.")
    found = measure_share(explanation, words=words, box=box)
    if share <= found <= at_most:
        return found
    where = f"the box {box}" if box is not None else ", ".join(repr(word) for word in words)
    limit = f"at least {share:.0%}" if found < share else f"at most {at_most:.0%}"
    label = make_visible(explanation.targets[0].label)
    raise AssertionError(
        f"{where} has {found:.0%} of the evidence for {label!r} by {explanation.method}, expected {limit}.\n"
        f"Most has: {describe_most(explanation)}."
    )


def measure_share(explanation: Explanation, *, words: Sequence[str] = (), box: Box | None = None) -> float:
    """The share of the positive scores of one example that these words, or this part of the image, have; 0 to 1."""
    if bool(words) == (box is not None):
        raise InputError("Pass either words= (of a text) or box= (of an image).", code="E_OPTION")
    if isinstance(words, str):
        raise InputError(f"words must be a list of words, got the text {words!r}.", code="E_OPTION")
    tokens, scores = explanation.tokens[0], explanation.scores[0].double().clamp(min=0)
    if isinstance(tokens, Pieces) != bool(words):
        raise InputError("words= belongs to a text and box= to an image.", code="E_OPTION")
    if isinstance(tokens, Pieces):
        counted = scores * torch.tensor([not (tokens.special[i] or tokens.padding[i]) for i in range(len(tokens))])
        chosen = find_words(tokens, words)
    else:
        assert box is not None
        if len(box) != 4 or not (0 <= box[0] < box[2] <= 1 and 0 <= box[1] < box[3] <= 1):
            raise InputError(
                f"box must be (left, top, right, bottom) as fractions of the image, from 0 to 1, got {box!r}.",
                code="E_OPTION",
            )
        counted, chosen = scores, cover_patches(tokens.rows, tokens.columns, box)
    total = float(counted.sum())
    return float((counted * chosen).sum()) / total if total else 0.0


def find_words(tokens: Pieces, words: Sequence[str]) -> Tensor:
    """[token]: 1 for the tokens of these words or phrases."""
    if tokens.text is None:
        raise InputError("The input was token ids, so there are no words to find. Pass a text.")
    chosen = torch.zeros(len(tokens), dtype=torch.float64)
    for word in words:
        places = [found.span() for found in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", tokens.text, re.IGNORECASE)]
        if not places:
            raise InputError(f"{word!r} does not occur in the text.", code="E_OPTION")
        for i, span in enumerate(tokens.spans):
            if span is not None and any(span[0] < stop and start < span[1] for start, stop in places):
                chosen[i] = 1
    return chosen


def cover_patches(rows: int, columns: int, box: Box) -> Tensor:
    """[patch]: how much of each patch the box covers."""
    left, top, right, bottom = box
    across, down = cover_cells(columns, left, right), cover_cells(rows, top, bottom)
    return (down[:, None] * across).flatten()


def cover_cells(count: int, start: float, stop: float) -> Tensor:
    """[cell]: the part of each of `count` equal cells of [0, 1] that lies between start and stop."""
    edges = torch.linspace(0, 1, count + 1, dtype=torch.float64).clamp(start, stop)
    return (edges[1:] - edges[:-1]) * count


def describe_most(explanation: Explanation) -> str:
    """The three tokens or patches with most evidence, and their shares."""
    has_words = isinstance(explanation.tokens[0], Pieces) and explanation.tokens[0].text is not None
    shown = explanation.words() if has_words else explanation
    top = cast(list[ScoredToken], shown.top(shown.scores.shape[1]))
    total = sum(max(score, 0.0) for _, score in top) or 1.0
    return ", ".join(f"{token!r} {max(score, 0.0) / total:.0%}" for token, score in top[:3])
