r"""What attention is compared with: gradients, leaving tokens out, and any method by name. [example unit] each.

$$ g_t = \left| e_t \cdot \frac{\partial p}{\partial e_t} \right| $$

with p the probability of the predicted class and $e_t$ the word vector of a token (or the pixels of a patch). Jain &
Wallace, 2019, hold the attention weights fixed when they take it; we give it both ways. In a transformer the attention
that is held is the one in question; the others count as part of the encoder.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from whyformer._audit.agreement import DELETED, GRADIENT, GRADIENT_THROUGH, MASKED, REMOVED
from whyformer._audit.choice import AttentionChoice
from whyformer._audit.replay import AttentionReplay
from whyformer._engine.forward import run_forward
from whyformer._engine.intervene import Intervention
from whyformer._engine.layout import to_canonical_axes
from whyformer._engine.probe import Probe
from whyformer._engine.target import probabilities_of, read_logits
from whyformer._engine.tracing.provenance import trace_of
from whyformer._explain.compare import compare
from whyformer._explain.scoring import sum_over_patches
from whyformer.errors import UnsupportedModel


def probe_replay(replay: AttentionReplay) -> Probe:
    return Probe(replay.model, replay.encoded, replay.layout, replay.targets)


def measure_gradient(replay: AttentionReplay, choice: AttentionChoice | None = None) -> Tensor:
    """[example unit]; with a choice, that attention is held."""
    change = None if choice is None else make_attention_hold(choice)
    with run_forward(
        replay.model, replay.encoded, asks_gradient=True, intervention=Intervention(attention=change)
    ) as run:
        if run.mode.leaf is None:
            raise UnsupportedModel("The explained input was not found: there is no embedding of token ids.")
        logits = read_logits(replay.encoded, run.output)[0]
        found = probabilities_of(replay.model.module, logits)
        at = torch.tensor([target.index for target in replay.targets], device=logits.device)
        score = (logits if found is None else found).gather(1, at[:, None]).sum()
        (back,) = torch.autograd.grad(score, run.mode.leaf)
        trace = trace_of(run.mode.leaf)
        given = run.mode.leaf.detach() if run.mode.words is None else run.mode.words
        product = (to_canonical_axes(given, trace) * to_canonical_axes(back, trace)).sum(-1).detach()
    return sum_by_unit(replay, product).abs()


def make_attention_hold(choice: AttentionChoice) -> Callable[[int, Tensor], Tensor | None]:
    """The same weights, through which no gradient passes."""

    def hold(block: int, attention: Tensor) -> Tensor | None:
        if block not in choice.blocks:
            return None
        stopped = attention.detach().requires_grad_()  # a leaf of its own: equal numbers alone would change nothing
        if choice.head is None:
            return stopped
        chosen = torch.zeros(attention.size(1), dtype=torch.bool, device=attention.device)
        chosen[choice.head] = True
        return torch.where(chosen.view(1, -1, 1, 1), stopped, attention)

    return hold


def sum_by_unit(replay: AttentionReplay, product: Tensor) -> Tensor:
    """[example unit] from tokens or pixels."""
    probe = probe_replay(replay)
    if product.dim() == 3:
        if probe.grid is None:
            raise UnsupportedModel("The patches of the picture could not be seen, so it cannot be audited.")
        return sum_over_patches(product, probe.grid)
    if product.size(1) == probe.units:
        return product
    raise UnsupportedModel(f"{product.size(1)} tokens enter the model and {probe.units} are attended to.")


def take_units(replay: AttentionReplay, distribution: Tensor) -> Tensor:
    """[example unit] from [example token]: the tokens that stand for a word or a patch, in their order."""
    return distribution[:, probe_replay(replay).places.to(distribution.device)]


def measure_leave_one_out(replay: AttentionReplay, fill: str) -> Tensor:
    """[example unit]: how far the probability moves without it. 0 for special tokens and padding."""
    probe = probe_replay(replay)
    real = probe.real.clone()
    real[real.sum(-1) < 2] = False  # what is left of a single word is nothing
    of, unit = real.nonzero(as_tuple=True)
    scores = torch.zeros(real.shape, dtype=torch.float64)
    if len(of):
        keep = torch.ones(len(of), probe.units, dtype=torch.bool)
        keep[torch.arange(len(of)), unit] = False
        moved = probe.keep_only(keep, of, fill).probability - probe.before.probability[of.to(replay.logits.device)]
        scores[of, unit] = moved.abs().double().cpu()
    return scores


def choose_fills(replay: AttentionReplay) -> dict[str, str]:
    """How tokens can be left out here: name of the measure -> fill."""
    probe = probe_replay(replay)
    if probe.is_image:
        return {REMOVED: "zero"}
    ids = not replay.encoded.inputs[replay.encoded.main].is_floating_point()
    mask = ids and getattr(replay.model.tokenizer, "mask_token_id", None) is not None
    unknown = ids and getattr(replay.model.tokenizer, "unk_token_id", None) is not None
    return {DELETED: "delete", **({MASKED: "mask"} if mask else {MASKED: "unknown"} if unknown else {})}


def measure_shared_importance(replay: AttentionReplay, methods: Sequence[Any] | str) -> dict[str, Tensor]:
    """The measures that are the same for every choice of attention. A signed method counts by magnitude."""
    found = {GRADIENT_THROUGH: measure_gradient(replay)}
    found |= {name: measure_leave_one_out(replay, fill) for name, fill in choose_fills(replay).items()}
    if methods:
        aims = [target.index for target in replay.targets]
        wanted = methods if isinstance(methods, str) else list(methods)
        for label, explanation in compare(replay.model, replay.encoded, wanted, target=aims).explanations.items():
            found[label] = explanation.scores.abs() if explanation.signed else explanation.scores
    return found


def measure_own_importance(replay: AttentionReplay, choice: AttentionChoice) -> dict[str, Tensor]:
    """The measures that depend on which attention is in question."""
    return {GRADIENT: measure_gradient(replay, choice)}
