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
    other         the weights of another example at the same places, scaled to sum to 1

Special tokens are included (they often have most of the weight) unless `words_only` is set: then weights move among the
other tokens only.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from whyformer._audit.checks.distance import tvd
from whyformer._audit.replay import AttentionChoice, AttentionReplay, AuditedAttention
from whyformer._plain.random_generator import make_generator

REPLACEMENT_KINDS = ("permutation", "uniform", "one-hot", "largest", "other")
RANDOM_KINDS = ("permutation", "one-hot")
LARGEST_WEIGHT_BINS = (0.0, 0.25, 0.5, 0.75, 1.0)  # as in the paper

OtherAttention = Mapping[int, Tensor]  # block -> [head query key] of another example, without padding
ReplacementJob = tuple[str, int, int]  # kind, example, draw
NoiseKey = tuple[str, int, int]  # kind, block, example


def permute_weights(own: Tensor, free: Tensor, noise: Tensor) -> Tensor:
    """own [... key] with the weights at free keys in the random order of `noise`; the others keep their place."""
    places = order_free_keys(
        torch.arange(own.size(-1), dtype=torch.float64, device=own.device).expand(free.shape), free
    )
    sources = order_free_keys(noise, free)
    shape = torch.broadcast_shapes(own.shape, places.shape, sources.shape)
    moved = own.expand(shape).gather(-1, sources.expand(shape))
    return own.expand(shape).clone().scatter_(-1, places.expand(shape), moved)


def order_free_keys(keys: Tensor, free: Tensor) -> Tensor:
    """Free places first, sorted by `keys`; then the others in their order."""
    return keys.masked_fill(~free, torch.inf).argsort(dim=-1, stable=True)


def make_uniform(own: Tensor, free: Tensor) -> Tensor:
    return spread_mass(own, free, torch.ones_like(own))


def make_one_hot(own: Tensor, free: Tensor, noise: Tensor) -> Tensor:
    best = noise.masked_fill(~free, -1).argmax(-1, keepdim=True)
    return spread_mass(
        own, free, torch.zeros_like(noise, dtype=own.dtype).scatter_(-1, best, 1.0)
    )  # the same for all heads


def concentrate_on_largest(own: Tensor, free: Tensor) -> Tensor:
    best = own.masked_fill(~free, -1).argmax(-1, keepdim=True)
    return spread_mass(own, free, torch.zeros_like(own).scatter_(-1, best, 1.0))


def borrow_weights(own: Tensor, free: Tensor, other: Tensor) -> Tensor:
    """The weights of another example, cut to this one's length; places it does not have get 0."""
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
    others: Sequence[OtherAttention],
    *,
    kinds: Sequence[str] = REPLACEMENT_KINDS,
    draws: int = 100,
    seed: int = 0,
    advance: Callable[[float], None] | None = None,
) -> list[dict[str, Any] | None]:
    """The effect of each kind of replacement on each example of the batch; None where no weight can be moved.

    advance: is called with the share of the rows that are done.
    """
    replay = audited.replay
    examples = [i for i in range(replay.batch) if audited.can_change(i)]
    jobs = [(kind, i, draw) for i in examples for kind in kinds for draw in range(draws if kind in RANDOM_KINDS else 1)]
    outputs: dict[tuple[str, int], list[Tensor]] = {}
    noise = ReplacementNoise(audited, draws, seed)
    size = audited.max_rows
    for start in range(0, len(jobs), size):
        part = jobs[start : start + size]
        of = torch.tensor([i for _, i, _ in part])
        weights = {
            block: torch.cat(list(make_replacements(audited, block, part, noise, others)))
            for block in audited.choice.blocks
        }
        with torch.no_grad():
            probabilities = audited.predict(weights, of).detach()
        for (kind, i, _), row in zip(part, probabilities, strict=True):
            outputs.setdefault((kind, i), []).append(row)
        if advance is not None:
            advance(len(part) / len(jobs))
    return [
        {
            kind: summarise_change(replay.probabilities[i], torch.stack(outputs[kind, i]), replay.targets[i].index)
            for kind in kinds
        }
        if i in examples
        else None
        for i in range(replay.batch)
    ]


def make_replacements(
    audited: AuditedAttention,
    block: int,
    jobs: Sequence[ReplacementJob],
    noise: "ReplacementNoise",
    others: Sequence[OtherAttention],
) -> Iterator[Tensor]:
    """The weights [row head query key] of these jobs, grouped by kind and example."""
    for (kind, i), group in groupby(jobs, key=lambda job: job[:2]):
        own, free = audited.own_weights(block)[i : i + 1], audited.free_keys(block)[i : i + 1]
        if kind == "uniform":
            yield make_uniform(own, free)
        elif kind == "largest":
            yield concentrate_on_largest(own, free)
        elif kind == "other":
            yield audited.take_queries(block, borrow_other(audited, block, i, others[i][block]))
        else:
            draws = noise.draw(kind, block, i)[[draw for _, _, draw in group]]
            yield (permute_weights if kind == "permutation" else make_one_hot)(own, free, draws)


def borrow_other(audited: AuditedAttention, block: int, example: int, other: Tensor) -> Tensor:
    """The weights of another example for all queries of this one."""
    own = audited.select_heads(audited.replay.attention[block])[example : example + 1]
    return borrow_weights(own, audited.every_free_key(block)[example : example + 1], audited.select_heads(other[None]))


class ReplacementNoise:
    """Random numbers [draw 1 query key] that depend only on the seed and the example, not on its batch or padding."""

    def __init__(self, audited: AuditedAttention, draws: int, seed: int) -> None:
        self.audited, self.draws, self.seed = audited, draws, seed
        self.fingerprints = audited.replay.encoded.fingerprints()
        self._last: tuple[NoiseKey, Tensor] | None = None  # consecutive jobs share an example

    def draw(self, kind: str, block: int, example: int) -> Tensor:
        key = (kind, block, example)
        if self._last is None or self._last[0] != key:
            self._last = key, self._draw_anew(kind, block, example)
        return self._last[1]

    def _draw_anew(self, kind: str, block: int, example: int) -> Tensor:
        own = self.audited.replay.attention[block]
        queries, keys = own.shape[-2:]
        real = self.audited.replay.layout.mask[example].cpu()
        rows = real if queries == keys else torch.ones(queries, dtype=torch.bool)
        generator = make_generator(self.seed + 1000 * block + REPLACEMENT_KINDS.index(kind), self.fingerprints[example])
        noise = torch.zeros(self.draws, 1, queries, keys)
        small = torch.rand(self.draws, int(rows.sum()), int(real.sum()), generator=generator)
        noise[:, 0, rows.nonzero(), real.nonzero()[:, 0]] = small
        return self.audited.take_queries(block, noise).to(own.device)


def pair_attention(replay: AttentionReplay, choice: AttentionChoice) -> list[OtherAttention]:
    """For each example the attention of the next one in the batch (of the previous one for the last), unpadded."""
    pairs: list[OtherAttention] = []
    for i in range(replay.batch):
        other = i + 1 if i + 1 < replay.batch else max(i - 1, 0)
        real = replay.layout.mask[other]
        unpadded = {}
        for block in choice.blocks:
            weights = replay.attention[block][other]
            unpadded[block] = weights[..., real] if weights.size(1) == 1 else weights[:, real][..., real]
        pairs.append(unpadded)
    return pairs


def summarise_change(before: Tensor, after: Tensor, target: int) -> dict[str, Any]:
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
