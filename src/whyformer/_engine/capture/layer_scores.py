r"""Layer scores: what the head of the model reads from the states of an earlier layer.

$$ s^l = \mathrm{tail}(x^l), \qquad \frac{\partial s^l}{\partial O_l} $$

where $x^l$ leaves block $l$, $O_l$ is the output of its attention and the *tail* is everything after the last block:
the final norm, pooling and head. The operations of the tail are read from the tape (residual.py) and applied again. The
gradient of $s^l$ passes through one block only, so all layers together cost about as much as one backward pass.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer._engine.capture.residual import OperationTape
from whyformer._engine.layout.blocks import find_attention_blocks
from whyformer._engine.layout.layout import Layout, axis_order_of, refuse_changing_tokens
from whyformer._engine.run.forward import Run
from whyformer._engine.run.graph import compute_gradients, refuse_untracked
from whyformer._engine.run.returned import Returned, find_output, iterate_tensors, map_tensors
from whyformer._engine.targets.reading import Reading
from whyformer._engine.tracing.attention import find_layer_sites
from whyformer._engine.tracing.operations import find_tensors
from whyformer._engine.tracing.provenance import trace_of
from whyformer._model import EncodedBatch
from whyformer.errors import UnsupportedModel


@dataclass(frozen=True)
class LayerReading:
    """How the score of a layer is read from its states."""

    pools_mean: bool = False  # every state is replaced by the mean over tokens, so any pooling reads the mean
    normalises: bool = False  # the score is divided by the length of all logits


def compute_layer_gradients(
    run: Run, encoded: EncodedBatch, layout: Layout, read: Reading, reading: LayerReading
) -> list[Tensor]:
    """The gradient of each layer's score by the output of its attention."""
    states, _ = find_attention_blocks(run.mode)
    refuse_changing_tokens(states, layout)
    outputs = [site.output for site in find_layer_sites(run.mode.sites)]
    refuse_untracked({"attention_output": outputs})
    gradients = []
    for layer, attention_output in enumerate(outputs):
        with torch.enable_grad():
            state = states[layer + 1]
            state = average_tokens(state, layout.mask) if reading.pools_mean else state
            returned = repeat_tail(run.mode.tape or [], states[-1], state, run.returned)
            answers = read.read(encoded, returned, torch.arange(encoded.batch))
            score, logits = answers.score, answers.logits
            if reading.normalises:
                logits = logits if logits.size(1) > 1 else find_output(returned).reshape(encoded.batch, -1)
                score = score / logits.norm(dim=-1)
        (gradient,) = compute_gradients(score, [attention_output], retain_graph=True, allow_unused=True)
        gradients.append(torch.zeros_like(attention_output) if gradient is None else gradient)
    return gradients


def average_tokens(state: Tensor, mask: Tensor) -> Tensor:
    """The state with each token replaced by the mean over those that are not padding."""
    is_turned = axis_order_of(state, trace_of(state)) == "turned"
    weights = mask.to(state) / mask.sum(1, keepdim=True)
    weights = weights.T[..., None] if is_turned else weights[..., None]
    return (weights * state).sum(0 if is_turned else 1, keepdim=True).expand_as(state)


def repeat_tail(tape: OperationTape, old: Tensor, new: Tensor, returned: Returned) -> Returned:
    """What the model returns if the state `old` is replaced by `new`."""
    made = {id(old): new}
    for operation, result in tape:
        if any(id(tensor) in made for tensor in operation.given):
            again = operation.map_arguments(lambda value: made.get(id(value), value)).run()
            for before, after in zip(find_tensors([result]), find_tensors([again]), strict=True):
                made[id(before)] = after
    if not any(id(tensor) in made for tensor in iterate_tensors(returned)):
        raise UnsupportedModel(
            "The output of the model could not be computed again from the states of its last block. Use another method."
        )
    return map_tensors(returned, lambda tensor: made.get(id(tensor), tensor))
