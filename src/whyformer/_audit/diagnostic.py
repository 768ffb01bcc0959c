r"""The counter-test of Wiegreffe & Pinter: does this attention help a model that cannot look around?

$$ \hat y = W \sum_t \alpha_t \tanh(U x_t) $$

A small model sees each token by itself ($x_t$ its vector, or the pixels of its patch) and is told how to weigh them:
by the frozen attention in question, by equal weights, or by weights it learns itself. If the frozen attention beats
equal weights on examples held out, it says something about the tokens that does not depend on the model it came from;
that speaks for it as an explanation even where permutations hardly change the answer.
Wiegreffe & Pinter, Attention is not not Explanation, EMNLP 2019, section 4 (their MLP). arXiv:1908.04626

They train on the training set of each task and test on its test set. We train on examples given for it, or else on the
examples of the audit in `FOLDS` parts, each held out once. It learns the labels, or the model's own answers if there
are none. What is compared is paired by example.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FOLDS = 5
GUIDES = ("attention", "uniform", "learned")


@dataclass(frozen=True)
class DiagnosticSample:
    """One example as the small model sees it: its ordinary tokens, by id [token] or by numbers [token feature]."""

    tokens: Tensor
    attention: Tensor  # [token], summing to 1
    label: int


class DiagnosticModel(nn.Module):
    """Each token by itself, weighed, summed, answered."""

    def __init__(self, classes: int, *, vocabulary: int = 0, features: int = 0, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width) if vocabulary else nn.Linear(features, width)
        self.hidden = nn.Linear(width, width)
        self.score = nn.Linear(width, 1, bias=False)
        self.answer = nn.Linear(width, classes)

    def forward(self, tokens: Tensor, weights: Tensor | None, mask: Tensor) -> Tensor:
        hidden = self.hidden(F.dropout(self.embed(tokens), 0.3, self.training)).tanh()
        if weights is None:
            weights = self.score(hidden)[..., 0].masked_fill(~mask, -torch.inf).softmax(-1)
        return self.answer((weights[..., None] * hidden).sum(1))


@dataclass(frozen=True)
class DiagnosticSettings:
    epochs: int = 20
    rate: float = 3e-3
    batch: int = 32
    width: int = 64


def run_diagnostic(
    samples: Sequence[DiagnosticSample], training: Sequence[DiagnosticSample] = (), *, classes: int, seed: int = 0,
    settings: DiagnosticSettings = DiagnosticSettings(),  # noqa: B008 (frozen)
) -> dict[str, list[bool]]:  # fmt: skip
    """For each way of weighing: which samples the small model answers right when it has not seen them."""
    right: dict[str, list[bool]] = {}
    vocabulary = (
        1 + max((int(s.tokens.max()) for s in (*samples, *training)), default=0) if has_token_ids(samples) else 0
    )
    features = 0 if vocabulary else samples[0].tokens.size(-1)
    make = lambda: DiagnosticModel(classes, vocabulary=vocabulary, features=features, width=settings.width)  # noqa: E731
    for guide in GUIDES:
        found = [False] * len(samples)
        for learn, held in make_folds(len(samples), seed) if not training else [(None, list(range(len(samples))))]:
            known = list(training) if learn is None else [samples[i] for i in learn]
            model = train_diagnostic(make, known, guide, seed, settings)
            for i, answer in zip(held, grade_answers(model, [samples[i] for i in held], guide), strict=True):
                found[i] = answer
        right[guide] = found
    return right


def has_token_ids(samples: Sequence[DiagnosticSample]) -> bool:
    return samples[0].tokens.dim() == 1


def make_folds(count: int, seed: int) -> list[tuple[list[int] | None, list[int]]]:
    """What is learnt from and what is held out, `FOLDS` times."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    parts = [order[start::FOLDS] for start in range(min(FOLDS, count))]
    return [([i for other in parts if other is not part for i in other], part) for part in parts if count > 1]


def train_diagnostic(
    make: Any, samples: Sequence[DiagnosticSample], guide: str, seed: int, settings: DiagnosticSettings
) -> DiagnosticModel:
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        model: DiagnosticModel = make()
        optimizer = torch.optim.Adam(model.parameters(), lr=settings.rate, weight_decay=1e-4)
        for _ in range(settings.epochs):
            order = torch.randperm(len(samples), generator=generator).tolist()
            for start in range(0, len(order), settings.batch):
                tokens, weights, mask, labels = pad_samples(
                    [samples[i] for i in order[start : start + settings.batch]], guide
                )
                loss = F.cross_entropy(model(tokens, weights, mask), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return model.eval()


@torch.no_grad()
def grade_answers(model: DiagnosticModel, samples: Sequence[DiagnosticSample], guide: str) -> list[bool]:
    right: list[bool] = []
    for start in range(0, len(samples), 256):
        tokens, weights, mask, labels = pad_samples(samples[start : start + 256], guide)
        right += (model(tokens, weights, mask).argmax(-1) == labels).tolist()
    return right


def pad_samples(samples: Sequence[DiagnosticSample], guide: str) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """A batch, padded."""
    pad = nn.utils.rnn.pad_sequence
    tokens = pad([s.tokens for s in samples], batch_first=True)
    mask = pad([torch.ones(len(s.tokens), dtype=torch.bool) for s in samples], batch_first=True)
    labels = torch.tensor([s.label for s in samples])
    if guide == "learned":
        return tokens, None, mask, labels
    if guide == "uniform":
        return tokens, mask / mask.sum(-1, keepdim=True), mask, labels
    return tokens, pad([s.attention.float() for s in samples], batch_first=True), mask, labels
