r"""The trained adversary: one model that gives the answers of the audited one over a data set and attends elsewhere.

$$ L = \frac1n \sum_i TVD(\hat y_i, \hat y_i^b) - \lambda\, KL(\hat\alpha_i \,\|\, \hat\alpha_i^b) $$

with b the audited model. Wiegreffe & Pinter, Attention is not not Explanation, EMNLP 2019, section 4. arXiv:1908.04626
The search of Jain & Wallace makes weights for one example at a time, which no model need ever produce; this is their
answer to it. In the paper it is a recurrent model trained from random weights; here it is any model with attention, a
transformer too, trained from the weights of the audited one, without dropout, all but those of its words. KL is bounded
by taking $\hat\alpha^b$ as at least `FLOOR`. It is measured on examples that it was not trained on.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import torch
from torch import Tensor, nn

from whyformer._audit.checks.attention_choice import AttentionChoice
from whyformer._audit.checks.audited_attention import AuditedAttention
from whyformer._audit.checks.distance import attainable_jsd, jsd, kl, tvd
from whyformer._audit.reruns import AttentionReplay
from whyformer._engine import Intervention, read_logits, run_forward
from whyformer._model import Model

WEIGHT = 0.03  # lambda
RATE = 2e-4  # of Adam
NOISE = 0.02  # on each weight at the start, in standard deviations of its matrix: the loss is flat at 0
FLOOR = 1e-6
MOST_NORM = 1.0  # of the gradient
MOST_ROWS = 16  # examples in a step


def train_adversary(
    replay: Callable[[Sequence[int]], AttentionReplay],
    model: Model,
    choice: AttentionChoice,
    batches: Sequence[Sequence[int]],
    *,
    epochs: int,
    seed: int = 0,
    advance: Callable[[float], None] = lambda _: None,
) -> Model:
    """A trained copy of the model. replay: runs a batch through the model itself. advance: with the share done."""
    adversary = replace(model, module=copy.deepcopy(model.module), files=None)
    add_noise(adversary.module, seed)
    optimizer = torch.optim.Adam([p for p in adversary.module.parameters() if p.is_floating_point()], lr=RATE)
    order, parts = (
        Random(seed),
        [batch[i : i + MOST_ROWS] for batch in batches for i in range(0, len(batch), MOST_ROWS)],
    )
    for _ in range(epochs):
        for batch in order.sample(parts, len(parts)):
            take_step(AuditedAttention(replay(batch), choice), adversary, optimizer)
            advance(1 / (epochs * len(parts)))
    return adversary


@torch.no_grad()
def add_noise(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in module.parameters():
        if weight.is_floating_point() and weight.numel() > 1:
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(NOISE * weight.float().std() * noise.to(weight.device))


def take_step(own: AuditedAttention, adversary: Model, optimizer: torch.optim.Optimizer) -> float:
    """One step of the optimizer on a batch; the loss before it."""
    encoded, of, sites, shadows = own.replay.encoded, torch.arange(own.replay.batch), list[Tensor](), list[nn.Module]()

    def watch(shadow: nn.Module) -> None:
        shadows[:], sites[:] = [shadow], []
        for weight in shadow.parameters():
            weight.requires_grad_(weight.is_floating_point())

    keep = Intervention(attention=lambda _, attention: sites.append(attention))
    with run_forward(adversary, encoded, asks_gradient=True, intervention=keep, prepare=watch) as run:
        answers = own.replay.to_probabilities(read_logits(encoded, run.output)[0])
        attention = own.read_distribution(dict(enumerate(sites)), of)
        apart = kl(attention, own.distribution.clamp(min=FLOOR))
        loss = tvd(answers, own.replay.probabilities).mean() - WEIGHT * apart.mean()
        loss.backward()
    for weight, shadow in zip(adversary.module.parameters(), shadows[0].parameters(), strict=True):
        weight.grad = shadow.grad
    nn.utils.clip_grad_norm_(adversary.module.parameters(), MOST_NORM)
    optimizer.step()
    return float(loss.detach())


def measure_adversary(
    own: AttentionReplay, other: AttentionReplay, choice: AttentionChoice
) -> list[dict[str, float | int]]:
    """For each example: how far the attention and the answers of the adversary are, and what it predicts."""
    first, second = (AuditedAttention(one, choice).distribution.double() for one in (own, other))
    distances, moved = jsd(first, second).tolist(), tvd(own.probabilities, other.probabilities).tolist()
    attainable = attainable_jsd(first, own.layout.mask.to(first.device)).tolist()
    return [
        {"jsd": distances[i], "tvd": moved[i], "attainable": attainable[i], "predicted": other.targets[i].index}
        for i in range(own.batch)
    ]
