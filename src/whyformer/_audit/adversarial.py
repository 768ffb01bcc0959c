r"""Is there quite another attention with which the model says the same?

$$ \max_{\alpha^{(1)} \dots \alpha^{(k)}}
\sum_i \left[ JSD(\alpha^{(i)}, \hat\alpha) - \lambda \max(0, D_i - \epsilon) \right]
+ c \sum_{i \ne j} JSD(\alpha^{(i)}, \alpha^{(j)}), \qquad D_i = TVD(\hat y(\alpha^{(i)}), \hat y) $$

for one example at a time, the model's weights fixed. Then the *epsilon-max JSD* is the largest
$JSD(\alpha^{(i)}, \hat\alpha)$ among the candidates with $D_i \le \epsilon'$; 0, the attention itself, if there is
none. JSD is at most log 2 = 0.693.
Jain & Wallace, Attention is not Explanation, NAACL 2019, section 4.2.2. arXiv:1902.10186

Presets (k = 5, $\lambda$ = 500, 500 steps of Adam with amsgrad at 0.01, logits begin as log-uniform + N(0, 3²)):

    paper      $\epsilon = \epsilon' = 0.01$, c = 1 / (k (k - 1))
    released   $\epsilon = 0.01$ while searching, $\epsilon' = 0.05$ when choosing, c = 1 / k²; with more than two
               classes the search bounds $\sum |\Delta y| = 2\,TVD$

The weighting of pairs in the paper is from memory of its text; the rest of both was read in the specification.

In a transformer the candidates are the weights of all rows and heads in question, found jointly, and JSD is the mean
over them. All candidates of all examples of a batch are searched side by side; Adam treats each number by itself, so an
example's candidates do not depend on its batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whyformer._audit.distance import attainable_jsd, jsd, tvd
from whyformer._audit.question import AttentionQuestion
from whyformer._plain.random_generator import make_generator
from whyformer.errors import MethodError


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
    squares: bool = False  # pairs are divided by k², not k (k - 1), and the distance counted twice beyond two classes


PRESETS = {"paper": SearchSettings(), "released": SearchSettings(selection=0.05, squares=True)}


def choose_search(preset: str | SearchSettings, **changed: Any) -> SearchSettings:
    """A preset, with some of its settings changed."""
    if isinstance(preset, SearchSettings):
        return preset
    if preset not in PRESETS:
        raise MethodError(f"There is no preset {preset!r}. There are: {', '.join(PRESETS)}.")
    given = {name: value for name, value in changed.items() if value is not None}
    found = replace(PRESETS[preset], **given)
    if found.candidates < 1 or found.steps < 1 or found.tolerance < 0 or found.selection < 0:
        raise MethodError("The search needs at least one candidate and one step, and tolerances of 0 or more.")
    return found


def search_adversarial(
    question: AttentionQuestion, search: SearchSettings, seed: int = 0
) -> list[dict[str, Any] | None]:
    """For each example of the batch what the search found; None where no weight can be moved."""
    examples = [i for i in range(question.replay.batch) if question.is_free(i)]
    together = max(1, question.rows_at_once // search.candidates)
    found: dict[int, dict[str, Any]] = {}
    for start in range(0, len(examples), together):
        part = examples[start : start + together]
        found |= dict(zip(part, Candidates(question, part, search, seed).found(), strict=True))
    return [found.get(i) for i in range(question.replay.batch)]


class Candidates:
    """The candidates of several examples, while they are searched for."""

    def __init__(self, question: AttentionQuestion, examples: list[int], search: SearchSettings, seed: int) -> None:
        self.question, self.examples, self.search = question, examples, search
        device = question.replay.logits.device
        self.of = torch.tensor(examples, device=device).repeat_interleave(search.candidates)
        self.before = question.replay.probabilities[self.of].detach()
        marks = question.replay.encoded.fingerprints()
        self.logits = {
            block: torch.cat(
                [self._start(block, i, make_generator(seed + 1000 * block + 7, marks[i])) for i in examples]
            )
            .to(question.own(block))
            .requires_grad_()
            for block in question.choice.blocks
        }

    def _start(self, block: int, example: int, generator: torch.Generator) -> Tensor:
        """Log-uniform plus noise, [candidate head query key]; drawn for real tokens: padding changes nothing."""
        own = self.question.own(block)
        heads, queries, keys = own.shape[1:]
        real = self.question.replay.layout.mask[example].cpu()
        rows = real if queries == keys else torch.ones(queries, dtype=torch.bool)
        logits = torch.zeros(self.search.candidates, heads, queries, keys)
        small = torch.randn(self.search.candidates, heads, int(rows.sum()), int(real.sum()), generator=generator)
        for place, query in enumerate(rows.nonzero()[:, 0].tolist()):
            logits[:, :, query, real] = small[:, :, place] * self.search.start
        return logits

    def weights(self) -> dict[int, Tensor]:
        """The candidates as distributions: the mass on free keys, spread by the logits."""
        made = {}
        for block, logits in self.logits.items():
            own, free = self.question.own(block)[self.of], self.question.free(block)[self.of]
            shares = logits.masked_fill(~free, -torch.inf)
            shares = torch.where(free.any(-1, keepdim=True), shares, 0).softmax(-1)
            amount = torch.where(free, own, 0).sum(-1, keepdim=True)
            made[block] = torch.where(free, shares * amount, own)
        return made

    def measure_distance(self, first: dict[int, Tensor], second: dict[int, Tensor]) -> Tensor:
        """[row]: JSD, the mean over heads and replaced rows of all blocks in question."""
        return self._mean({block: jsd(first[block], second[block]) for block in first})

    def _mean(self, values: dict[int, Tensor]) -> Tensor:
        """Of [row head query], over heads and the replaced rows."""
        total, count = torch.zeros((), device=self.of.device), torch.zeros((), device=self.of.device)
        for block, value in values.items():
            rows = self.question.rows(block)[self.of][:, None].expand_as(value)
            total = total + torch.where(rows, value, 0).sum((1, 2))
            count = count + rows.sum((1, 2))
        return total / count

    def own(self) -> dict[int, Tensor]:
        return {block: self.question.own(block)[self.of] for block in self.logits}

    def found(self) -> Iterable[dict[str, Any]]:
        """Search, then keep what leaves the answer as it was."""
        search = self.search
        optimizer = torch.optim.Adam(list(self.logits.values()), lr=search.rate, amsgrad=True)
        own = self.own()
        classes = self.before.size(1)
        factor = 2.0 if search.squares and classes > 2 else 1.0
        for _ in range(search.steps):
            with torch.enable_grad():
                weights = self.weights()
                answers = self.question.answers(weights, self.of, gradient=True)
                excess = (factor * tvd(answers, self.before) - search.tolerance).clamp(min=0)
                loss = (
                    search.weight * excess - self.measure_distance(weights, own)
                ).sum() - self._mean_mutual_distance(weights)
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
        with torch.no_grad():
            weights = self.weights()
            moved = tvd(self.question.answers(weights, self.of), self.before)
            apart = self.measure_distance(weights, own)
            attainable = self._mean(
                {b: attainable_jsd(own[b], self.question.free(b)[self.of].expand_as(own[b])) for b in own}
            )
        return self._select_candidates(moved.view(-1, search.candidates), apart.view(-1, search.candidates), attainable)

    def _mean_mutual_distance(self, weights: dict[int, Tensor]) -> Tensor:
        """How far the candidates of an example are from each other, summed over examples."""
        k = self.search.candidates
        if k == 1:
            return torch.zeros((), device=self.of.device)
        total = torch.zeros((), device=self.of.device)
        for shift in range(1, k):  # every ordered pair once
            at = torch.arange(len(self.of), device=self.of.device).view(-1, k).roll(shift, 1).flatten()
            total = (
                total + self.measure_distance(weights, {block: weight[at] for block, weight in weights.items()}).sum()
            )
        return total / (k * k if self.search.squares else k * (k - 1))

    def _select_candidates(self, moved: Tensor, apart: Tensor, attainable: Tensor) -> Iterable[dict[str, Any]]:
        fits = moved <= self.search.selection
        best = torch.where(fits, apart, 0).amax(-1)
        attainable = attainable.view(-1, self.search.candidates)[:, 0]
        for i in range(len(self.examples)):
            yield {
                "jsd": float(best[i]),
                "attainable": float(attainable[i]),
                "kept": int(fits[i].sum()),
                "tvd": [float(value) for value in moved[i]],
                "apart": [float(value) for value in apart[i]],
            }
