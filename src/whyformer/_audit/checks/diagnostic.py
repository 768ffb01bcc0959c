r"""The diagnostic model of Wiegreffe & Pinter: does this attention help a model that sees each token separately?

$$ \hat y = W \sum_t \alpha_t \tanh(U x_t) $$

A small model sees each token without its context ($x_t$ is its vector, or the pixels of its patch). The weights
$\alpha_t$ are the frozen attention under audit, uniform, or learned by the small model. If the frozen attention beats
uniform weights on held-out examples, it carries information about the tokens that does not depend on the model it came
from; that supports it as an explanation even where permutations hardly change the output.
Wiegreffe & Pinter, Attention is not not Explanation, EMNLP 2019, section 4 (their MLP). arXiv:1908.04626

They train on the training set of each task and test on its test set. We train on the examples passed as `training`,
or by cross-validation in `FOLDS` folds on the audited examples. The small model learns the labels, or the audited
model's predictions if there are none. Comparisons are paired by example.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whyformer._audit.checks.audited_attention import AuditedAttention
from whyformer._audit.checks.importance import take_units
from whyformer._audit.reruns import AttentionReplay
from whyformer._plain.tokens import Grid
from whyformer.errors import UnsupportedModel

FOLDS = 5
GUIDES = ("attention", "uniform", "learned")


@dataclass(frozen=True)
class DiagnosticSample:
    """One example as the small model sees it: its ordinary tokens, as ids [token] or as features [token feature]."""

    tokens: Tensor
    attention: Tensor  # [token], summing to 1
    label: int


class DiagnosticModel(nn.Module):
    """Transforms each token separately, then classifies the weighted sum."""

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
    advance: Callable[[float], None] = lambda _: None,
) -> dict[str, list[bool]]:  # fmt: skip
    """For each kind of weights: which samples the small model classifies correctly without having seen them."""
    vocabulary = count_token_ids([*samples, *training])
    features = 0 if vocabulary else samples[0].tokens.size(-1)
    make = lambda: DiagnosticModel(classes, vocabulary=vocabulary, features=features, width=settings.width)  # noqa: E731
    folds = [([], list(range(len(samples))))] if training else make_folds(len(samples), seed)
    correct: dict[str, list[bool]] = {guide: [False] * len(samples) for guide in GUIDES}
    for guide in GUIDES:
        for learned, held_out in folds:
            known = list(training) or [samples[i] for i in learned]
            model = train_diagnostic(make, known, guide, seed, settings)
            graded = grade_answers(model, [samples[i] for i in held_out], guide)
            for i, is_correct in zip(held_out, graded, strict=True):
                correct[guide][i] = is_correct
            advance(1.0)
    return correct


def count_trainings(has_training: bool) -> int:
    """How many small models are trained: `advance` is called after each."""
    return len(GUIDES) * (1 if has_training else FOLDS)


def count_token_ids(samples: Sequence[DiagnosticSample]) -> int:
    """The size of the vocabulary; 0 if tokens are features."""
    if samples[0].tokens.dim() > 1:
        return 0
    return 1 + max(int(sample.tokens.max()) for sample in samples)


def make_folds(count: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """Pairs of training and held-out indices, `FOLDS` of them."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    parts = [order[start::FOLDS] for start in range(min(FOLDS, count))]
    return [([i for other in parts if other is not part for i in other], part) for part in parts if count > 1]


def train_diagnostic(
    make: Callable[[], DiagnosticModel],
    samples: Sequence[DiagnosticSample],
    guide: str,
    seed: int,
    settings: DiagnosticSettings,
) -> DiagnosticModel:
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        model = make()
        optimizer = torch.optim.Adam(model.parameters(), lr=settings.rate, weight_decay=1e-4)
        for _ in range(settings.epochs):
            order = torch.randperm(len(samples), generator=generator).tolist()
            for start in range(0, len(order), settings.batch):
                batch = [samples[i] for i in order[start : start + settings.batch]]
                tokens, weights, mask, labels = pad_samples(batch, guide)
                loss = F.cross_entropy(model(tokens, weights, mask), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return model.eval()


@torch.no_grad()
def grade_answers(model: DiagnosticModel, samples: Sequence[DiagnosticSample], guide: str) -> list[bool]:
    correct: list[bool] = []
    for start in range(0, len(samples), 256):
        tokens, weights, mask, labels = pad_samples(samples[start : start + 256], guide)
        correct += (model(tokens, weights, mask).argmax(-1) == labels).tolist()
    return correct


def pad_samples(samples: Sequence[DiagnosticSample], guide: str) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Tokens, weights (None: learned), mask and labels of a padded batch."""
    pad = nn.utils.rnn.pad_sequence
    tokens = pad([s.tokens for s in samples], batch_first=True)
    mask = pad([torch.ones(len(s.tokens), dtype=torch.bool) for s in samples], batch_first=True)
    labels = torch.tensor([s.label for s in samples])
    if guide == "learned":
        return tokens, None, mask, labels
    if guide == "uniform":
        return tokens, mask / mask.sum(-1, keepdim=True), mask, labels
    return tokens, pad([s.attention.float() for s in samples], batch_first=True), mask, labels


# --- samples ----------------------------------------------------------------------------------------------------------


def make_diagnostic_samples(audited: AuditedAttention, labels: Sequence[int | None]) -> list[DiagnosticSample]:
    """The examples of a batch. Where there is no label, the small model learns the model's prediction."""
    replay = audited.replay
    attention, real = take_units(replay, audited.distribution).cpu(), replay.probe().real
    return [
        DiagnosticSample(
            take_diagnostic_tokens(replay, i)[real[i]],
            normalise_weights(attention[i][real[i]]),
            replay.targets[i].index if label is None else label,
        )
        for i, label in enumerate(labels)
    ]


def normalise_weights(weights: Tensor) -> Tensor:
    """Scaled to sum to 1; uniform if all are 0."""
    total = float(weights.sum())
    return weights / total if total > 0 else torch.full_like(weights, 1 / max(len(weights), 1))


def take_diagnostic_tokens(replay: AttentionReplay, example: int) -> Tensor:
    """Token ids [token], or the pixels of each patch or the features of each token [token feature]."""
    given, grid = replay.encoded.inputs[replay.encoded.main], replay.layout.tokens[example]
    if isinstance(grid, Grid):
        channels, height, width = given.shape[1:]
        tiles = given[example].reshape(channels, grid.rows, height // grid.rows, grid.columns, width // grid.columns)
        return tiles.permute(1, 3, 0, 2, 4).flatten(0, 1).flatten(1).float().cpu()
    if given.dim() == 2 and not given.is_floating_point():
        return given[example].cpu()
    if given.dim() == 3:
        return given.select(replay.encoded.batch_axis, example).float().cpu()
    raise UnsupportedModel(
        f"The tokens of an input of shape {list(given.shape)} could not be identified, so no diagnostic model can be "
        'trained on them. Leave out the test "diagnostic".'
    )
