"""Examples as the small diagnostic model sees them: token ids or pixels, weighted by the audited attention."""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer._audit.checks.diagnostic import DiagnosticSample
from whyformer._audit.checks.importance import probe_replay, take_units
from whyformer._audit.replay import AttentionReplay, AuditedAttention
from whyformer._plain.tokens import Grid
from whyformer.errors import UnsupportedModel


def make_diagnostic_samples(audited: AuditedAttention, labels: Sequence[int | None]) -> list[DiagnosticSample]:
    """The examples of a batch. Where there is no label, the small model learns the model's prediction."""
    replay = audited.replay
    attention, real = take_units(replay, audited.distribution).cpu(), probe_replay(replay).real
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
