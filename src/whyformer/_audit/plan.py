"""The plan of an audit: everything its rows depend on. Only an audit with the same plan can continue a run folder."""

import hashlib
from collections.abc import Sequence
from typing import Any

from whyformer._audit.settings import AuditSettings
from whyformer._model.model import Model
from whyformer.data import Data


def describe_audit_plan(
    settings: AuditSettings,
    attention: Sequence[str],
    model: Model,
    data: Data,
    *,
    checkpoints: Sequence[Model],
    baseline: Model | None,
    training: Data | None,
) -> dict[str, Any]:
    return {
        **settings.to_fields(attention),
        "model": fingerprint_weights(model),
        "data": data.fingerprint(),
        "checkpoints": [fingerprint_weights(checkpoint) for checkpoint in checkpoints],
        "baseline": None if baseline is None else fingerprint_weights(baseline),
        "training": None if training is None else training.fingerprint(),
        "device": model.device.type,
    }


def fingerprint_weights(model: Model) -> str:
    """A hash of the names, shapes and sums of all weights."""
    digest = hashlib.sha256(model.name.encode())
    for name, weight in model.module.named_parameters():
        digest.update(f"{name} {tuple(weight.shape)} {float(weight.detach().double().sum()):.12e}".encode())
    return digest.hexdigest()
