"""Two counter-tests: the same model trained with other seeds, and trained with uniform attention.

Wiegreffe & Pinter, Attention is not not Explanation, EMNLP 2019. arXiv:1908.04626
"""

from collections.abc import Sequence

import torch

from whyformer._audit.checks.attention_choice import AttentionChoice
from whyformer._audit.checks.audited_attention import AuditedAttention
from whyformer._audit.checks.distance import jsd, tvd
from whyformer._audit.reruns import AttentionReplay
from whyformer._engine import make_shadow, read_logits, run_plain
from whyformer._model import Model, OneInput
from whyformer.errors import InputError


def compare_checkpoints(
    first: AttentionReplay, others: Sequence[AttentionReplay], choice: AttentionChoice
) -> list[dict[str, list[float]]]:
    """For each example: JSD of attention and TVD of the output between the model and every other checkpoint."""
    own = AuditedAttention(first, choice).distribution.double()
    rows: list[dict[str, list[float]]] = [{"jsd": [], "tvd": []} for _ in range(first.batch)]
    for other in others:
        if other.heads != first.heads or other.layout.tokens != first.layout.tokens:
            raise InputError(
                "A checkpoint is not a checkpoint of the same model: its blocks, heads or tokens differ from the "
                "audited model's."
            )
        distances = jsd(own, AuditedAttention(other, choice).distribution.double())
        moved = tvd(first.probabilities, other.probabilities)
        for i, row in enumerate(rows):
            row["jsd"].append(float(distances[i]))
            row["tvd"].append(float(moved[i]))
    return rows


@torch.no_grad()
def predict_baseline(baseline: Model, inputs: Sequence[OneInput], classes: int | None) -> list[dict[str, int]]:
    """The predicted class of each input; None: classes are spans, whose number depends on the length of the text.

    The baseline need not have attention, so it runs without interception.
    """
    encoded = baseline.encode(list(inputs))
    logits = read_logits(encoded, run_plain(make_shadow(baseline.module), encoded))[0]
    if classes is not None and logits.size(1) != classes:
        raise InputError(f"The baseline has {logits.size(1)} classes, the audited model {classes}.")
    return [{"predicted": index} for index in logits.argmax(-1).tolist()]
