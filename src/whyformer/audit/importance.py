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

from whyformer.audit.agreement import DELETED, GRADIENT, GRADIENT_THROUGH, MASKED, REMOVED
from whyformer.audit.choice import Choice
from whyformer.audit.replay import Replay
from whyformer.comparison import compare
from whyformer.errors import UnsupportedModel
from whyformer.explanation import patch_sums
from whyformer.forward import forward
from whyformer.intervene import Intervention
from whyformer.labels import trace_of
from whyformer.layout import as_places
from whyformer.probe import Probe
from whyformer.target import answers_of, probabilities_of


def probe_of(replay: Replay) -> Probe:
    return Probe(replay.model, replay.encoded, replay.layout, replay.targets)


def gradient(replay: Replay, choice: Choice | None = None) -> Tensor:
    """[example unit]; with a choice, that attention is held."""
    change = None if choice is None else held(choice)
    run = forward(replay.model, replay.encoded, asks_gradient=True, intervention=Intervention(attention=change))
    try:
        if run.mode.leaf is None:
            raise UnsupportedModel("The explained input was not found: there is no embedding of token ids.")
        logits = answers_of(replay.encoded, run.output)[0]
        found = probabilities_of(replay.model.module, logits)
        at = torch.tensor([target.index for target in replay.targets], device=logits.device)
        score = (logits if found is None else found).gather(1, at[:, None]).sum()
        (back,) = torch.autograd.grad(score, run.mode.leaf)
        trace = trace_of(run.mode.leaf)
        given = run.mode.leaf.detach() if run.mode.words is None else run.mode.words
        product = (as_places(given, trace) * as_places(back, trace)).sum(-1).detach()
    finally:
        run.mode.forget()
    return by_unit(replay, product).abs()


def held(choice: Choice) -> Callable[[int, Tensor], Tensor | None]:
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


def by_unit(replay: Replay, product: Tensor) -> Tensor:
    """[example unit] from tokens or pixels."""
    probe = probe_of(replay)
    if product.dim() == 3:
        if probe.grid is None:
            raise UnsupportedModel("The patches of the picture could not be seen, so it cannot be audited.")
        return patch_sums(product, probe.grid)
    if product.size(1) == probe.units:
        return product
    raise UnsupportedModel(f"{product.size(1)} tokens enter the model and {probe.units} are attended to.")


def at_units(replay: Replay, distribution: Tensor) -> Tensor:
    """[example unit] from [example token]: the tokens that stand for a word or a patch, in their order."""
    return distribution[:, probe_of(replay).places.to(distribution.device)]


def leave_one_out(replay: Replay, fill: str) -> Tensor:
    """[example unit]: how far the probability moves without it. 0 for special tokens and padding."""
    probe = probe_of(replay)
    real = probe.real.clone()
    real[real.sum(-1) < 2] = False  # what is left of a single word is nothing
    of, unit = real.nonzero(as_tuple=True)
    scores = torch.zeros(real.shape, dtype=torch.float64)
    if len(of):
        keep = torch.ones(len(of), probe.units, dtype=torch.bool)
        keep[torch.arange(len(of)), unit] = False
        moved = probe.without(keep, of, fill).probability - probe.before.probability[of.to(replay.logits.device)]
        scores[of, unit] = moved.abs().double().cpu()
    return scores


def fills(replay: Replay) -> dict[str, str]:
    """How tokens can be left out here: name of the measure -> fill."""
    probe = probe_of(replay)
    if probe.is_picture:
        return {REMOVED: "zero"}
    ids = not replay.encoded.inputs[replay.encoded.main].is_floating_point()
    mask = ids and getattr(replay.model.tokenizer, "mask_token_id", None) is not None
    unknown = ids and getattr(replay.model.tokenizer, "unk_token_id", None) is not None
    return {DELETED: "delete", **({MASKED: "mask"} if mask else {MASKED: "unknown"} if unknown else {})}


def shared(replay: Replay, methods: Sequence[Any] | str) -> dict[str, Tensor]:
    """The measures that are the same for every choice of attention. A signed method counts by magnitude."""
    found = {GRADIENT_THROUGH: gradient(replay)}
    found |= {name: leave_one_out(replay, fill) for name, fill in fills(replay).items()}
    if methods:
        aims = [target.index for target in replay.targets]
        wanted = methods if isinstance(methods, str) else list(methods)
        for label, explanation in compare(replay.model, replay.encoded, wanted, target=aims).explanations.items():
            found[label] = explanation.scores.abs() if explanation.signed else explanation.scores
    return found


def own(replay: Replay, choice: Choice) -> dict[str, Tensor]:
    """The measures that depend on which attention is in question."""
    return {GRADIENT: gradient(replay, choice)}
