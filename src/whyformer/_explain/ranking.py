r"""Why does one document rank above another for a query?

    r = explain_ranking(encoder, "how far is the moon", documents)
    r.order; r.contrast(); r.checks[0].turned

The difference of two scores, $s(q, A) - s(q, B)$, is explained by what explains each of them: a word of A adds what it
adds to $s(q, A)$, a word of B takes away what it adds to $s(q, B)$. Words change what other words add, so the words of
A with the highest contrast are then hidden, and A is scored again without them, beside as many random words.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import Any, Literal
from zlib import crc32

import torch
from torch import Tensor
from torch.nn.functional import normalize

from whyformer._engine import TargetLike, record
from whyformer._explain.explain import ModelLike, as_model
from whyformer._explain.method_call import MethodLike
from whyformer._explain.similarity import (
    Explainer,
    Side,
    check_vectors,
    choose_score,
    explain_by,
    explain_pair,
    explain_sides,
    make_side,
    read_scale,
)
from whyformer._explain.similarity_matrix import match_tokens
from whyformer._model import InputLike, Model, OneInput
from whyformer._plain.random_generator import make_generator
from whyformer._plain.tokens import Pieces
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError
from whyformer.methods._registry import Setting
from whyformer.results.explanation import Explanation
from whyformer.results.ranking import HidingCheck, Ranking, check_documents, order_scores
from whyformer.results.similarity import ScoreKind, Similarity

BATCH = 16  # documents that are scored together
DRAWS = 10  # random sets of words that are hidden beside the words with the highest contrast


@dataclass(frozen=True)
class Scorer:
    """How a query and a document become a score."""

    models: tuple[Model, Model]  # for queries, for documents
    query: OneInput
    kind: ScoreKind
    pooling: str | int | None
    target: TargetLike  # of a model that reads both at once

    def explain(self, document: OneInput, explain_by: Explainer) -> Similarity:
        if self.kind == "pair":
            return explain_pair(self.models[0], self.query, document, explain_by)
        sides = (self.make_side(0, self.query), self.make_side(1, document))
        return explain_sides(sides, self.kind, explain_by, None)

    def make_side(self, which: int, inputs: InputLike) -> Side:
        return make_side(self.models[which], inputs, self.kind, self.pooling)

    def score(self, documents: Sequence[OneInput]) -> tuple[float, ...]:
        """The scores of several documents, without an explanation."""
        batches = (documents[start : start + BATCH] for start in range(0, len(documents), BATCH))
        return tuple(chain.from_iterable(map(self.score_batch, batches)))

    def score_batch(self, documents: Sequence[OneInput]) -> list[float]:
        queries = [self.query] * len(documents)
        if self.kind == "pair":
            both: list[Any] = list(zip(queries, documents, strict=True))
            encoded = self.models[0].encode(both)
            return [target.score for target in record(self.models[0], encoded, target=self.target, keep=()).targets]
        sides = (self.make_side(0, queries), self.make_side(1, list(documents)))
        a, b = check_vectors(sides, (sides[0].embed(), sides[1].embed()))
        scale, bias = read_scale(sides, self.kind)
        if self.kind != "dot":
            a, b = normalize(a, dim=-1), normalize(b, dim=-1)
        if self.kind == "late_interaction":
            table: Tensor = match_tokens((a, b), tuple(side.mask for side in sides))
            return table.sum((1, 2)).tolist()
        return (scale * (a * b).sum(-1) + bias).tolist()


@neutral_torch()
def explain_ranking(
    model: ModelLike | tuple[ModelLike, ModelLike],
    query: OneInput,
    documents: Sequence[OneInput],
    method: MethodLike | None = None,
    *,
    versus: tuple[int, int] | Literal["best", "neighbours"] = "best",
    hide: int = 3,
    score: ScoreKind | None = None,
    pooling: str | int | None = None,
    target: TargetLike = None,
    **settings: Setting,
) -> Ranking:
    """What each word adds to the difference between the scores of two documents for a query.

    model, method, score, pooling: as in `explain_similarity`: an encoder, a pair of encoders, two towers, a reranker.
    query, documents: a text or image, and two or more of these.
    versus: which documents are compared: "best" (the best with the second), "neighbours" (each with the next one in the
    ranking), or the numbers of two, the upper one first.
    hide: how many words of the upper document are hidden to check whether they are what puts it there; 0 for no check.
    The check runs the model on the document without them, and on ten versions without as many random words.
    target: for a classifier of pairs with several classes, the class whose score ranks the documents.
    """
    if isinstance(documents, str) or len(documents) < 2:
        raise InputError("A ranking needs a list of two documents or more.", code="E_OPTION")
    if type(hide) is not int or hide < 0:
        raise InputError(f"hide must be a whole number >= 0, got {hide!r}.", code="E_OPTION")
    if versus not in ("best", "neighbours"):
        check_documents(versus, len(documents))
    first, second = model if isinstance(model, tuple) else (model, model)
    models = as_model(first), as_model(second)
    kind: ScoreKind = "pair" if target is not None and score is None else choose_score(models[0], score)
    scorer = Scorer(models, query, kind, pooling, target)
    by = partial(explain_by, method, settings, target)
    scores = scorer.score(documents)
    pairs = choose_pairs(versus, order_scores(scores))
    explained = {number: scorer.explain(documents[number], by) for number in dict.fromkeys(chain(*pairs))}
    names = tuple(document if isinstance(document, str) else f"image {n}" for n, document in enumerate(documents))
    ranking = Ranking(next(iter(explained.values())).a.names[0], names, scores, pairs, explained)
    if not hide or not all(isinstance(similarity.b.tokens[0], Pieces) for similarity in explained.values()):
        return ranking
    several = [pair for pair in pairs if len(locate_words(explained[pair[0]].b)[0]) > 1]
    return replace(ranking, checks=tuple(check_by_hiding(scorer, ranking, documents, pair, hide) for pair in several))


def choose_pairs(
    versus: tuple[int, int] | Literal["best", "neighbours"], order: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    if isinstance(versus, tuple):
        return (versus,)
    return tuple(pairwise(order if versus == "neighbours" else order[:2]))


def check_by_hiding(
    scorer: Scorer, ranking: Ranking, documents: Sequence[OneInput], pair: tuple[int, int], count: int
) -> HidingCheck:
    """Score the upper document without its words of the highest contrast, and without random ones."""
    above, below = pair
    text = str(documents[above])
    words, scores = locate_words(ranking.similarities[above].b)
    count = min(count, len(words) - 1)  # a document without words has no score
    best = sorted(range(len(words)), key=lambda i: -scores[i])[:count]
    generator = make_generator(0, crc32(text.encode()))
    draws = [torch.randperm(len(words), generator=generator)[:count].tolist() for _ in range(DRAWS)]
    variants = [hide_words(text, [words[i] for i in chosen]) for chosen in (best, *draws)]
    other = ranking.scores[below]
    hidden, *at_random = (found - other for found in scorer.score(variants))
    return HidingCheck(
        above=above,
        below=below,
        words=tuple(text[slice(*words[i])] for i in best),
        gap=ranking.scores[above] - other,
        hidden_gap=hidden,
        random_gaps=tuple(at_random),
    )


def locate_words(e: Explanation) -> tuple[list[tuple[int, int]], list[float]]:
    """Where each word of a text begins and ends, and its score."""
    joined = e.words()
    tokens = joined.tokens[0]
    assert isinstance(tokens, Pieces)
    places = [(i, tokens.find_place(i)) for i in range(len(tokens)) if not tokens.special[i] and not tokens.padding[i]]
    found = [(place, float(joined.scores[0, i])) for i, place in places if place is not None]
    return [place for place, _ in found], [score for _, score in found]


def hide_words(text: str, places: Sequence[tuple[int, int]]) -> str:
    """The text without these words, and without the blank after each."""
    for start, end in sorted(places, reverse=True):
        text = text[:start] + text[end + text[end : end + 1].isspace() :]
    return text
