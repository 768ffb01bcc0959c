r"""Is there very different attention with which the model gives the same output?

$$ \max_{\alpha^{(1)} \dots \alpha^{(k)}}
\sum_i \left[ JSD(\alpha^{(i)}, \hat\alpha) - \lambda \max(0, D_i - \epsilon) \right]
+ c \sum_{i \ne j} JSD(\alpha^{(i)}, \alpha^{(j)}), \qquad D_i = TVD(\hat y(\alpha^{(i)}), \hat y) $$

for one example at a time, with the model's weights fixed. The *epsilon-max JSD* is then the largest
$JSD(\alpha^{(i)}, \hat\alpha)$ among the candidates with $D_i \le \epsilon'$; 0, the attention itself, if there is
none. JSD is at most log 2 = 0.693.
Jain & Wallace, Attention is not Explanation, NAACL 2019, section 4.2.2. arXiv:1902.10186

Presets (k = 5, $\lambda$ = 500, 500 steps of Adam with amsgrad at 0.01, logits start as log-uniform + N(0, 3²)):

    paper      $\epsilon = \epsilon' = 0.01$, c = 1 / (k (k - 1))
    released   $\epsilon = 0.01$ in the search, $\epsilon' = 0.05$ in the selection, c = 1 / k²; with more than two
               classes the search bounds $\sum |\Delta y| = 2\,TVD$

The paper's weighting of pairs is quoted from memory; everything else in both presets was read in the specification.

In a transformer the candidates are the weights of all replaced queries and audited heads, searched jointly, and JSD is
the mean over them. All candidates of up to 32 examples are searched in parallel. Adam updates each number
independently, so the candidates of an example do not depend on its batch. Every search takes all of its steps: the
candidates still move away at the last of them, so that stopping earlier would report smaller distances.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypedDict

import torch
from torch import Tensor

from whyformer._audit.checks.audited_attention import AuditedAttention, BlockWeights
from whyformer._audit.checks.distance import attainable_jsd, jsd, tvd
from whyformer._plain.random_generator import make_generator
from whyformer._plain.setting_checks import quote_value
from whyformer.errors import MethodError

MAX_STEPS = 1_000_000
MOST_AT_ONCE = 32  # examples; what an interrupt may lose


@dataclass(frozen=True)
class SearchSettings:
    """The settings of one preset."""

    candidates: int = 5
    steps: int = 500
    rate: float = 0.01
    weight: float = 500.0
    tolerance: float = 0.01
    selection: float = 0.01
    start: float = 3.0
    squares: bool = False  # divide pairs by k², not k (k - 1), and bound 2 TVD with more than two classes


class SearchResult(TypedDict):
    """What the search found for one example."""

    jsd: float  # of the farthest candidate that leaves the output unchanged
    attainable: float  # the largest JSD that any weights have
    kept: int  # candidates that leave the output unchanged
    tvd: list[float]  # of the output, for each candidate
    apart: list[float]  # JSD of each candidate


PRESETS = {"paper": SearchSettings(), "released": SearchSettings(selection=0.05, squares=True)}


def choose_search(preset: str | SearchSettings, *, steps: int | None = None) -> SearchSettings:
    """A preset, with another number of steps unless that is None; settings of one's own as they are."""
    if isinstance(preset, SearchSettings):
        return preset
    if not isinstance(preset, str) or preset not in PRESETS:
        raise MethodError(
            f"There is no preset {quote_value(preset)}. Available: {', '.join(PRESETS)}.", code="E_OPTION"
        )
    if steps is None:
        return PRESETS[preset]
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MAX_STEPS:
        raise MethodError(
            f"steps must be a whole number from 1 to {MAX_STEPS}, got {quote_value(steps)}.", code="E_OPTION"
        )
    return replace(PRESETS[preset], steps=steps)


def divide_examples(audited: AuditedAttention, search: SearchSettings) -> list[list[int]]:
    """The examples with weights that can be moved, in parts that are searched at once.

    The parts of a batch do not depend on what has been searched before, so that a search that was interrupted gives the
    same numbers when it goes on.
    """
    examples = [i for i in range(audited.replay.batch) if audited.can_change(i)]
    size = min(MOST_AT_ONCE, max(1, audited.max_rows // search.candidates))
    return [examples[start : start + size] for start in range(0, len(examples), size)]


class Candidates:
    """The candidate distributions of several examples during the search."""

    def __init__(self, audited: AuditedAttention, examples: list[int], search: SearchSettings, seed: int) -> None:
        self.audited, self.examples, self.search = audited, examples, search
        device = audited.replay.logits.device
        self.of = torch.tensor(examples, device=device).repeat_interleave(search.candidates)
        self.before = audited.replay.probabilities[self.of].detach()
        self.own = {block: audited.own_weights(block)[self.of] for block in audited.choice.blocks}
        self.free = {block: audited.free_keys(block)[self.of] for block in audited.choice.blocks}
        self.logits = {block: self._start_logits(block, seed) for block in audited.choice.blocks}

    def _start_logits(self, block: int, seed: int) -> Tensor:
        """Log-uniform plus noise, [candidate head query key] of each example."""
        fingerprints = self.audited.replay.encoded.fingerprints()
        count, heads, starts = self.search.candidates, self.own[block].size(1), []
        for i in self.examples:
            generator = make_generator(seed + 1000 * block + 7, fingerprints[i])
            draw = partial(torch.randn, count, heads, generator=generator)
            starts.append(self.audited.place_noise(block, i, draw) * self.search.start)
        return torch.cat(starts).to(self.own[block]).requires_grad_()

    def compute_weights(self) -> BlockWeights:
        """The candidates as distributions: the weight on free keys, distributed by the logits."""
        weights = {}
        for block, logits in self.logits.items():
            own, free = self.own[block], self.free[block]
            shares = logits.masked_fill(~free, -torch.inf)
            shares = torch.where(free.any(-1, keepdim=True), shares, 0).softmax(-1)
            amount = torch.where(free, own, 0).sum(-1, keepdim=True)
            weights[block] = torch.where(free, shares * amount, own)
        return weights

    def measure_distance(self, first: BlockWeights, second: BlockWeights) -> Tensor:
        """[row]: JSD, the mean over the heads and replaced queries of all audited blocks."""
        return self._average({block: jsd(first[block], second[block]) for block in first})

    def _average(self, values: BlockWeights, of: Tensor | None = None) -> Tensor:
        """The mean of [row head query] over heads and replaced queries; of: the examples of the rows."""
        total, count = torch.zeros((), device=self.of.device), torch.zeros((), device=self.of.device)
        for block, value in values.items():
            rows = self.audited.replaced_queries(block)[self.of if of is None else of][:, None].expand_as(value)
            total = total + torch.where(rows, value, 0).sum((1, 2))
            count = count + rows.sum((1, 2))
        return total / count

    def search_all(self, on_step: Callable[[], None] = lambda: None) -> Iterator[SearchResult]:
        """Run the search, then select the candidates that leave the output unchanged. One result per example."""
        optimizer = torch.optim.Adam(list(self.logits.values()), lr=self.search.rate, amsgrad=True)
        for _ in range(self.search.steps):
            with torch.enable_grad():
                loss = self.compute_loss()
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            on_step()
        with torch.no_grad():
            self.found = self.compute_weights()
            moved = tvd(self.audited.predict(self.found, self.of), self.before)
            distance = self.measure_distance(self.found, self.own)
            attainable = self._average(
                {block: attainable_jsd(own, self.free[block].expand_as(own)) for block, own in self.own.items()}
            )
        k = self.search.candidates
        return self._select_candidates(moved.view(-1, k), distance.view(-1, k), attainable.view(-1, k)[:, 0])

    def compute_loss(self) -> Tensor:
        """The negative of the objective above, summed over the candidates of all examples."""
        search = self.search
        weights = self.compute_weights()
        probabilities = self.audited.predict(weights, self.of, gradient=True)
        factor = 2.0 if search.squares and self.before.size(1) > 2 else 1.0
        excess = (factor * tvd(probabilities, self.before) - search.tolerance).clamp(min=0)
        losses = search.weight * excess - self.measure_distance(weights, self.own)
        return losses.sum() - self._mean_mutual_distance(weights)

    def _mean_mutual_distance(self, weights: BlockWeights) -> Tensor:
        """How far the candidates of an example are from each other, summed over examples."""
        k = self.search.candidates
        if k == 1:
            return torch.zeros((), device=self.of.device)
        rows = torch.arange(len(self.of), device=self.of.device).view(-1, k)
        pairs = torch.combinations(torch.arange(k, device=rows.device))
        first, second = (rows[:, pairs[:, side]].flatten() for side in (0, 1))
        values = {block: jsd(weight[first], weight[second]) for block, weight in weights.items()}
        total = 2 * self._average(values, self.of[first]).sum()  # JSD is symmetric: each pair in both orders
        return total / (k * k if self.search.squares else k * (k - 1))

    def _select_candidates(self, moved: Tensor, distance: Tensor, attainable: Tensor) -> Iterator[SearchResult]:
        fits = moved <= self.search.selection
        best = torch.where(fits, distance, 0).max(-1)
        self.best = {  # example -> the row of its farthest candidate
            example: i * self.search.candidates + int(best.indices[i])
            for i, example in enumerate(self.examples)
            if bool(fits[i].any())
        }
        for i in range(len(self.examples)):
            yield {
                "jsd": float(best.values[i]),
                "attainable": float(attainable[i]),
                "kept": int(fits[i].sum()),
                "tvd": [float(value) for value in moved[i]],
                "apart": [float(value) for value in distance[i]],
            }

    def take_found(self, example: int) -> BlockWeights | None:
        """The farthest weights [1 head query key] of each block that leave the output unchanged, after the search."""
        row = self.best.get(example)
        return None if row is None else {block: weights[row : row + 1] for block, weights in self.found.items()}
