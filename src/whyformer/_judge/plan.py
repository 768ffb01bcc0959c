"""The plan of a judgement: everything its rows depend on, with a fingerprint that refuses to resume another one.

Batches and seeds follow from the plan alone, so that a run that was stopped anywhere ends with the same rows as one
that was not. No time, no process and no path is part of it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from whyformer._explain.method_call import MethodCall
from whyformer._model.model import Model
from whyformer._plain import archive
from whyformer._plain.versions import __version__
from whyformer.data import Data
from whyformer.errors import InputError
from whyformer.metrics._registry import MetricCall as Measure

PLAN_FILE = "plan.json"
BATCH = {"cpu": 16, "cuda": 64}


@dataclass(frozen=True)
class JudgePlan:
    """What is to be judged, by what and how."""

    fields: Mapping[str, Any]  # in the words of JSON

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.fields, sort_keys=True).encode()).hexdigest()

    @property
    def batch(self) -> int:
        return int(self.fields["batch"])

    @property
    def examples(self) -> int:
        return int(self.fields["data"]["examples"])

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.fields["methods"])

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(self.fields["metrics"])

    @property
    def shards(self) -> int:
        return -(-self.examples // self.batch)

    def places(self, shard: int) -> range:
        """The examples of one shard."""
        return range(shard * self.batch, min(self.examples, (shard + 1) * self.batch))


def make_judge_plan(
    model: Model,
    data: Data,
    methods: Mapping[str, MethodCall],
    metrics: Mapping[str, Measure],
    *,
    target: Any,
    batch: int | None,
) -> JudgePlan:
    size = batch if batch is not None else BATCH.get(model.device.type, 16)
    if size < 1:
        raise InputError(f"A batch of {size} examples is none. Take 1 or more.")
    return JudgePlan(
        archive.as_json_value(
            {
                "model": collect_model_facts(model),
                "data": {"name": data.name, "examples": len(data), "fingerprint": data.fingerprint()},
                "mask_values": data.mask_values,
                "methods": {label: one.all_settings for label, one in methods.items()},
                "metrics": {label: one.settings for label, one in metrics.items()},
                "target": target,
                "batch": size,
                "whyformer": __version__,
                "torch": torch.__version__,
            }
        )
    )


def collect_model_facts(model: Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "class": type(model.module).__name__,
        "weights": hash_weights(model.module),
        "dtype": str(model.dtype),
        "device": model.device.type,
        "readout": model.readout,
    }


def hash_weights(module: torch.nn.Module) -> str:
    """Of every parameter and buffer, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def write_or_check_plan(plan: JudgePlan, folder: Path) -> None:
    """Write the plan, or find that it is the one that is there; another one is refused by what differs."""
    path = folder / PLAN_FILE
    if not path.exists():
        if any(one.suffix == ".parquet" for one in folder.iterdir()):
            raise InputError(f"There are files of something else in {folder}. Give another folder.")
        archive.write_file(
            path, (json.dumps({**plan.fields, "fingerprint": plan.fingerprint}, indent=1) + "\n").encode()
        )
        return
    try:
        there = json.loads(path.read_bytes())
        known = there.pop("fingerprint")
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise InputError(f"{path} is no plan of a judgement, or it is damaged. Give another folder.") from None
    if known != plan.fingerprint:
        raise InputError(
            f"{folder} holds another judgement: {list_plan_differences(there, plan.fields)} differ. Give another "
            "folder, or "
            "judge the same again to go on there."
        )


def list_plan_differences(one: Mapping[str, Any], other: Mapping[str, Any], before: str = "") -> str:
    """The names of the fields that are not the same, those inside of fields too."""
    found = []
    for name in sorted({*one, *other}):
        a, b = one.get(name), other.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += [inner] if (inner := list_plan_differences(a, b, f"{before}{name} ")) else []
        elif a != b:
            found.append(f"{before}{name}")
    return ", ".join(found)
