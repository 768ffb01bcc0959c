"""The next token that a language model predicts."""

from torch import nn

from whyformer._engine.forward import run_plain
from whyformer._engine.target import has_head, read_logits, refuse_unsupported_heads
from whyformer._model.encoded import EncodedBatch
from whyformer._model.model import Model
from whyformer.errors import NonFinite


def predict_next_token(model: Model, shadow: nn.Module, encoded: EncodedBatch) -> int | None:
    """The most likely token after the first example of the batch; None if the model predicts no tokens."""
    refuse_unsupported_heads(model.module)
    output = run_plain(shadow, encoded)
    if not bool(output.isfinite().all()):
        raise NonFinite("The model's output is not finite, so there is no most likely next token.")
    if not has_head(model.module, output, is_image=False):
        return None
    logits, positions, _ = read_logits(encoded, output)
    return int(logits[0].argmax()) if positions is not None else None
