"""What several methods agree on, in a sentence: the words or patches that most of them rank highest."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer._plain.tokens import Grid, ScoredTokens
from whyformer._plain.words import list_some
from whyformer.results.explanation import Explanation
from whyformer.show.visible import make_visible

MOST = 2 / 3  # of the methods
FIRST_WORDS = 3
FIRST_PATCHES = 0.1  # of all
ALIKE, PARTLY = 0.6, 0.3  # mean rank correlations
MOST_NAMED = 3
THIRDS = (
    ("upper left", "upper middle", "upper right"),
    ("left", "centre", "right"),
    ("lower left", "lower middle", "lower right"),
)


def describe_consensus(explanations: Sequence[Explanation], agreement: Tensor) -> str:
    """What most of these methods rank highest in the first example, and how alike they rank the rest.

    agreement: [method method], rank correlations. Empty for fewer than three methods.
    """
    if len(explanations) < 3:
        return ""
    needed = math.ceil(MOST * len(explanations))
    tokens = explanations[0].tokens[0]
    ranks = [rank_content(e.scores[0], tokens) for e in explanations]
    count = math.ceil(FIRST_PATCHES * len(ranks[0])) if isinstance(tokens, Grid) else FIRST_WORDS
    votes = torch.zeros(len(explanations[0].scores[0]))
    for ranked in ranks:
        votes[ranked[:count]] += 1
    shared = [int(i) for i in votes.argsort(descending=True, stable=True) if votes[i] >= needed]
    who = f"{needed} or more of the {len(explanations)} methods"
    verb = "are" if len(shared) > 1 else "is"
    if isinstance(tokens, Grid):
        named = f"{count_patches(shared)}, {locate(shared, tokens)}," if shared else "no patch"
        found = f"{named} {verb} in the highest tenth of {who}"
    else:
        named = list_some([repr(make_visible(tokens.pieces[i].strip())) for i in shared[:MOST_NAMED]]) or "no token"
        found = f"{named} {verb} among the first {FIRST_WORDS} of {who}"
    where = " of the first example" if len(explanations[0]) > 1 else ""
    return f"What they agree on{where}: {found}. {describe_rest(agreement)}"


def rank_content(scores: Tensor, tokens: ScoredTokens) -> list[int]:
    """The patches, or the tokens that are neither special nor padding, highest score first."""
    order: list[int] = scores.double().argsort(descending=True, stable=True).tolist()
    if isinstance(tokens, Grid):
        return order
    return [i for i in order if not (tokens.special[i] or tokens.padding[i])]


def count_patches(shared: Sequence[int]) -> str:
    return "1 patch" if len(shared) == 1 else f"{len(shared)} patches"


def locate(shared: Sequence[int], grid: Grid) -> str:
    """Where these patches are, by thirds of the image: 'most in the upper left'."""
    places = [(3 * (i // grid.columns) // grid.rows, 3 * (i % grid.columns) // grid.columns) for i in shared]
    most = max(dict.fromkeys(places), key=places.count)
    share = places.count(most) / len(shared)
    how_many = "all" if share == 1 else "most" if share > 0.5 else "more than elsewhere"
    return f"{how_many} in the {THIRDS[most[0]][most[1]]}"


def describe_rest(agreement: Tensor) -> str:
    """How alike the methods rank everything."""
    others = ~torch.eye(len(agreement), dtype=torch.bool)
    mean = float(agreement[others].nanmean())
    if math.isnan(mean):
        return "Their rankings cannot be compared."
    how = "alike" if mean >= ALIKE else "partly alike" if mean >= PARTLY else "differently"
    return f"On the whole they rank {how} (mean rank correlation {mean:+.2f}); agreement is no proof."
