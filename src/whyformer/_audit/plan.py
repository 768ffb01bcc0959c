"""The plan of an audit: everything its rows depend on. Only an audit with the same plan can continue a run folder."""

from collections.abc import Sequence
from typing import Any

from whyformer._audit.settings import AuditSettings
from whyformer._model import Model
from whyformer._runs.weights import hash_weights
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
        "model": hash_weights(model.module),
        "data": data.fingerprint(),
        "checkpoints": [hash_weights(checkpoint.module) for checkpoint in checkpoints],
        "baseline": None if baseline is None else hash_weights(baseline.module),
        "training": None if training is None else training.fingerprint(),
        "device": model.device.type,
    }
