r"""What happens to the answer when the weights are moved to other tokens?

$$ \tilde\alpha^{(i)} = \pi_i(\hat\alpha), \qquad
\Delta = \operatorname{median}_i\; TVD(\hat y, \hat y(\tilde\alpha^{(i)})) $$

Jain & Wallace, Attention is not Explanation, NAACL 2019, section 4.2.1 (100 permutations). arXiv:1902.10186

A permutation moves the weights of every replaced row among the tokens that row may attend to, each row by a permutation
of its own and all heads in question by the same one, so that their mean is permuted too. Values stay; what comes
after is computed anew. The other replacements are ours, `uniform` after Wiegreffe & Pinter, EMNLP 2019:

    permutation   the weights in random order, `draws` times
    uniform       the same weight for every token the row may attend to
    one-hot       all weight on one such token, drawn at random, `draws` times
    largest       all weight on the token that had most
    other         the weights another example has in these places, scaled to sum to 1

Special tokens take part (they often hold most of the weight) unless `words_only`: then weights move among the other
tokens and the special ones keep theirs.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from whyformer._audit.distance import tvd
from whyformer._audit.question import AttentionQuestion
from whyformer._plain.random_generator import make_generator

REPLACEMENT_KINDS = ("permutation", "uniform", "one-hot", "largest", "other")
RANDOM_KINDS = ("permutation", "one-hot")
LARGEST_WEIGHT_BINS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the largest weight, as in the paper

OtherAttention = Mapping[int, Tensor]  # block -> [head query key] of another example, in its own length
ReplacementJob = tuple[str, int, int]  # kind, example, draw


def permute_weights(own: Tensor, free: Tensor, noise: Tensor) -> Tensor:
    """own [... key] with the weights at free keys in the random order of `noise`; the others stay."""
    places = order_free_keys(
        torch.arange(own.size(-1), dtype=torch.float64, device=own.device).expand(free.shape), free
    )
    drawn = order_free_keys(noise, free)
    shape = torch.broadcast_shapes(own.shape, places.shape, drawn.shape)
    return (
        own.expand(shape).clone().scatter_(-1, places.expand(shape), own.expand(shape).gather(-1, drawn.expand(shape)))
    )


def order_free_keys(keys: Tensor, free: Tensor) -> Tensor:
    """Free places first, by their key; then the others as they stand."""
    return keys.masked_fill(~free, torch.inf).argsort(dim=-1, stable=True)


def make_uniform(own: Tensor, free: Tensor) -> Tensor:
    return spread_mass(own, free, torch.ones_like(own))


def make_one_hot(own: Tensor, free: Tensor, noise: Tensor) -> Tensor:
    best = noise.masked_fill(~free, -1).argmax(-1, keepdim=True)
    return spread_mass(own, free, torch.zeros_like(noise, dtype=own.dtype).scatter_(-1, best, 1.0))  # one for all heads


def concentrate_on_largest(own: Tensor, free: Tensor) -> Tensor:
    best = own.masked_fill(~free, -1).argmax(-1, keepdim=True)
    return spread_mass(own, free, torch.zeros_like(own).scatter_(-1, best, 1.0))


def borrow_weights(own: Tensor, free: Tensor, other: Tensor) -> Tensor:
    """The weights of another example, cut to this one's length; places it does not have get none."""
    given = torch.zeros_like(own)
    queries, keys = min(own.size(-2), other.size(-2)), min(own.size(-1), other.size(-1))
    given[..., :queries, :keys] = other[..., :queries, :keys]
    return spread_mass(own, free, given)


def spread_mass(own: Tensor, free: Tensor, shares: Tensor) -> Tensor:
    """The weight that lies on free keys, spread over them in these shares (evenly where all are 0)."""
    shares = torch.where(free, shares, 0)
    total = shares.sum(-1, keepdim=True)
    shares = torch.where(total > 0, shares / total, free / free.sum(-1, keepdim=True).clamp(min=1))
    amount = torch.where(free, own, 0).sum(-1, keepdim=True)
    return torch.where(free, shares.to(own.dtype) * amount, own)


# --- a batch ----------------------------------------------------------------------------------------------------------


def replace_attention(
    question: AttentionQuestion,
    others: Sequence[OtherAttention],
    *,
    kinds: Sequence[str] = REPLACEMENT_KINDS,
    draws: int = 100,
    seed: int = 0,
) -> list[dict[str, Any] | None]:
    """For each example of the batch what every kind of replacement did; None where no weight can be moved."""
    replay = question.replay
    examples = [i for i in range(replay.batch) if question.is_free(i)]
    jobs = [(kind, i, draw) for i in examples for kind in kinds for draw in range(draws if kind in RANDOM_KINDS else 1)]
    found: dict[tuple[str, int], list[Tensor]] = {}
    marks = replay.encoded.fingerprints()
    noise = ReplacementNoise(question, marks, draws, seed)
    size = question.rows_at_once
    for start in range(0, len(jobs), size):
        part = jobs[start : start + size]
        of = torch.tensor([i for _, i, _ in part])
        weights = {
            block: torch.cat(list(make_replacements(question, block, part, noise, others)))
            for block in question.choice.blocks
        }
        with torch.no_grad():
            answers = question.answers(weights, of).detach()
        for (kind, i, _), answer in zip(part, answers, strict=True):
            found.setdefault((kind, i), []).append(answer)
    return [
        {
            kind: summarise_change(replay.probabilities[i], torch.stack(found[kind, i]), replay.targets[i].index)
            for kind in kinds
        }
        if i in examples
        else None
        for i in range(replay.batch)
    ]


def make_replacements(
    question: AttentionQuestion,
    block: int,
    jobs: Sequence[ReplacementJob],
    noise: "ReplacementNoise",
    others: Sequence[OtherAttention],
) -> Iterator[Tensor]:
    """The weights [row head query key] of these jobs, those of the same kind and example together."""
    for (kind, i), group in groupby(jobs, key=lambda job: job[:2]):
        own, free = question.own(block)[i : i + 1], question.free(block)[i : i + 1]
        if kind == "uniform":
            yield make_uniform(own, free)
        elif kind == "largest":
            yield concentrate_on_largest(own, free)
        elif kind == "other":
            yield borrow_weights(own, free, question.heads_of(others[i][block][None]))
        else:
            drawn = noise(kind, block, i)[[draw for _, _, draw in group]]
            yield (permute_weights if kind == "permutation" else make_one_hot)(own, free, drawn)


class ReplacementNoise:
    """Random numbers [draw 1 query key] that depend on the seed and the example alone, not on its batch or padding."""

    def __init__(self, question: AttentionQuestion, marks: Sequence[int], draws: int, seed: int) -> None:
        self.question, self.marks, self.draws, self.seed = question, marks, draws, seed
        self.held: dict[tuple[str, int, int], Tensor] = {}

    def __call__(self, kind: str, block: int, example: int) -> Tensor:
        key = (kind, block, example)
        if key not in self.held:
            self.held = {key: self.draw(kind, block, example)}  # jobs of one example stand together
        return self.held[key]

    def draw(self, kind: str, block: int, example: int) -> Tensor:
        own = self.question.own(block)
        queries, keys = own.shape[-2:]
        real = self.question.replay.layout.mask[example].cpu()
        rows = real if queries == keys else torch.ones(queries, dtype=torch.bool)
        generator = make_generator(self.seed + 1000 * block + REPLACEMENT_KINDS.index(kind), self.marks[example])
        noise = torch.zeros(self.draws, 1, queries, keys)
        small = torch.rand(self.draws, int(rows.sum()), int(real.sum()), generator=generator)
        noise[:, 0, rows.nonzero(), real.nonzero()[:, 0]] = small
        return noise.to(own.device)


def summarise_change(before: Tensor, after: Tensor, target: int) -> dict[str, Any]:
    """What became of an answer [class] in each of several draws [draw class]."""
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
