r"""How much does the output change when the attention weights are moved to other tokens?

$$ \tilde\alpha^{(i)} = \pi_i(\hat\alpha), \qquad
\Delta = \operatorname{median}_i\; TVD(\hat y, \hat y(\tilde\alpha^{(i)})) $$

Jain & Wallace, Attention is not Explanation, NAACL 2019, section 4.2.1 (100 permutations). arXiv:1902.10186

A permutation moves the weights of every replaced query among the tokens that query may attend to. Each query has its
own permutation, shared by all audited heads, so that their mean is permuted too. Values stay the same; everything after
the attention is recomputed. The other replacements are our additions, `uniform` after Wiegreffe & Pinter, EMNLP 2019:

    permutation   the weights in random order, `draws` times
    uniform       the same weight for every token the query may attend to
    one-hot       all weight on one such token, drawn at random, `draws` times
    largest       all weight on the token with the largest weight
    other         the weights of another example at the same positions, scaled to sum to 1

Special tokens are included (they often have most of the weight) unless `words_only` is set: then weights move among the
other tokens only.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TypedDict

import torch
from torch import Tensor

from whyformer._audit.checks.audited_attention import AuditedAttention
from whyformer._audit.checks.distance import tvd
from whyformer._plain.random_generator import make_generator

REPLACEMENT_KINDS = ("permutation", "uniform", "one-hot", "largest", "other")
RANDOM_KINDS = ("permutation", "one-hot")
LARGEST_WEIGHT_BINS = (0.0, 0.25, 0.5, 0.75, 1.0)  # as in the paper

ReplacementJob = tuple[str, int, int]  # kind, example, draw


class ReplacementEffect(TypedDict):
    """How one kind of replacement changes the probabilities of one example: medians, and what is predicted."""

    tvd: float
    tvd_mean: float
    tvd_most: float
    shift: float
    change: float
    flips: float
    predicted: dict[str, int]


def permute_weights(own: Tensor, free: Tensor, noise: Tensor) -> Tensor:
    """own [... key] with the weights at free keys in the random order of `noise`; the others keep their place."""
    keys = torch.arange(own.size(-1), dtype=torch.float64, device=own.device).expand(free.shape)
    targets, sources = order_free_keys(keys, free), order_free_keys(noise, free)
    shape = torch.broadcast_shapes(own.shape, targets.shape, sources.shape)
    moved = own.expand(shape).gather(-1, sources.expand(shape))
    return own.expand(shape).clone().scatter_(-1, targets.expand(shape), moved)


def order_free_keys(keys: Tensor, free: Tensor) -> Tensor:
    """Free keys first, sorted by `keys`; then the others in their order."""
    return keys.masked_fill(~free, torch.inf).argsort(dim=-1, stable=True)


def make_uniform(own: Tensor, free: Tensor) -> Tensor:
    return spread_mass(own, free, torch.ones_like(own))


def make_one_hot(own: Tensor, free: Tensor, noise: Tensor) -> Tensor:
    """All weight on the free key with the largest noise, the same for all heads."""
    best = noise.masked_fill(~free, -1).argmax(-1, keepdim=True)
    return spread_mass(own, free, torch.zeros_like(noise, dtype=own.dtype).scatter_(-1, best, 1.0))


def concentrate_on_largest(own: Tensor, free: Tensor) -> Tensor:
    return make_one_hot(own, free, own)


def borrow_weights(own: Tensor, free: Tensor, other: Tensor) -> Tensor:
    """The weights of another example, cut to this one's length; keys it does not have get 0."""
    given = torch.zeros_like(own)
    queries, keys = min(own.size(-2), other.size(-2)), min(own.size(-1), other.size(-1))
    given[..., :queries, :keys] = other[..., :queries, :keys]
    return spread_mass(own, free, given)


def spread_mass(own: Tensor, free: Tensor, shares: Tensor) -> Tensor:
    """The total weight on free keys, distributed over them in these shares (uniformly where all are 0)."""
    shares = torch.where(free, shares, 0)
    total = shares.sum(-1, keepdim=True)
    shares = torch.where(total > 0, shares / total, free / free.sum(-1, keepdim=True).clamp(min=1))
    amount = torch.where(free, own, 0).sum(-1, keepdim=True)
    return torch.where(free, shares.to(own.dtype) * amount, own)


# --- a batch ----------------------------------------------------------------------------------------------------------


def replace_attention(
    audited: AuditedAttention,
    *,
    kinds: Sequence[str] = REPLACEMENT_KINDS,
    draws: int = 100,
    seed: int = 0,
    advance: Callable[[float], None] = lambda _: None,
) -> list[dict[str, ReplacementEffect] | None]:
    """The effect of each kind of replacement on each example of the batch; None where no weight can be moved.

    advance: is called with the share of the rows that are done.
    """
    replay = audited.replay
    kinds = [kind for kind in kinds if kind != "other" or replay.batch > 1]
    examples = [i for i in range(replay.batch) if audited.can_change(i)]
    jobs = [(kind, i, draw) for i in examples for kind in kinds for draw in range(draws if kind in RANDOM_KINDS else 1)]
    outputs: dict[tuple[str, int], list[Tensor]] = {}
    noise = ReplacementNoise(audited, draws, seed)
    size = audited.max_rows
    for start in range(0, len(jobs), size):
        part = jobs[start : start + size]
        weights = {block: torch.cat(list(make_replacements(block, part, noise))) for block in audited.choice.blocks}
        with torch.no_grad():
            probabilities = audited.predict(weights, torch.tensor([i for _, i, _ in part])).detach()
        for (kind, i, _), row in zip(part, probabilities, strict=True):
            outputs.setdefault((kind, i), []).append(row)
        advance(len(part) / len(jobs))

    def summarise(i: int, kind: str) -> ReplacementEffect:
        return summarise_change(replay.probabilities[i], torch.stack(outputs[kind, i]), replay.targets[i].index)

    return [{kind: summarise(i, kind) for kind in kinds} if i in examples else None for i in range(replay.batch)]


def make_replacements(block: int, jobs: Sequence[ReplacementJob], noise: "ReplacementNoise") -> Iterator[Tensor]:
    """The weights [row head query key] of these jobs, grouped by kind and example."""
    audited = noise.audited
    for (kind, i), group in groupby(jobs, key=lambda job: job[:2]):
        own, free = audited.own_weights(block)[i : i + 1], audited.free_keys(block)[i : i + 1]
        if kind == "uniform":
            yield make_uniform(own, free)
        elif kind == "largest":
            yield concentrate_on_largest(own, free)
        elif kind == "other":
            yield audited.take_queries(block, borrow_next(audited, block, i))
        else:
            draws = noise.draw(kind, block, i)[[draw for _, _, draw in group]]
            yield (permute_weights if kind == "permutation" else make_one_hot)(own, free, draws)


def borrow_next(audited: AuditedAttention, block: int, example: int) -> Tensor:
    """The weights of the next example (of the previous one for the last), unpadded, for all queries of this one."""
    replay, weights = audited.replay, audited.select_heads(audited.replay.attention[block])
    other = example + 1 if example + 1 < replay.batch else example - 1
    real = replay.layout.mask[other]
    lent = weights[other : other + 1][..., real]
    lent = lent if lent.size(2) == 1 else lent[:, :, real]
    return borrow_weights(weights[example : example + 1], audited.every_free_key[block][example : example + 1], lent)


class ReplacementNoise:
    """Random numbers [draw 1 query key] that depend only on the seed and the example, not on its batch or padding."""

    def __init__(self, audited: AuditedAttention, draws: int, seed: int) -> None:
        self.audited, self.draws, self.seed = audited, draws, seed
        self.fingerprints = audited.replay.encoded.fingerprints()
        # What was drawn last for a kind, block and example: consecutive jobs share an example.
        self._last: tuple[tuple[str, int, int], Tensor] | None = None

    def draw(self, kind: str, block: int, example: int) -> Tensor:
        key = (kind, block, example)
        if self._last is None or self._last[0] != key:
            seed = self.seed + 1000 * block + REPLACEMENT_KINDS.index(kind)
            draw = partial(torch.rand, self.draws, 1, generator=make_generator(seed, self.fingerprints[example]))
            self._last = key, self.audited.place_noise(block, example, draw).to(self.audited.replay.logits.device)
        return self._last[1]


def summarise_change(before: Tensor, after: Tensor, target: int) -> ReplacementEffect:
    """How several draws [draw class] change the probabilities [class] of one example."""
    before, after = before.double().cpu(), after.double().cpu()
    moved, shift = tvd(after, before), after[:, target] - before[target]
    predicted = after.argmax(-1)
    return {
        "tvd": float(moved.quantile(0.5)),
        "tvd_mean": float(moved.mean()),
        "tvd_most": float(moved.max()),
        "shift": float(shift.quantile(0.5)),
        "change": float(shift.abs().quantile(0.5)),
        "flips": float((predicted != target).double().mean()),
        "predicted": {str(label): predicted.tolist().count(label) for label in sorted(set(predicted.tolist()))},
    }
