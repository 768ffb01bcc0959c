"""The plan of a bulk run: model, input list, methods, and which items share a batch. See whyformer._runs.plan.

Everything a row depends on is a field, down to the number of threads, because sums over several threads differ in the
last digits. What a row does not depend on is not: the engine, the number of workers, the folder.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch

from whyformer._bulk.items import ItemList
from whyformer._explain.method_call import MethodLike, label_methods
from whyformer._model import InputKind, Model
from whyformer._plain import archive
from whyformer._plain.versions import __version__
from whyformer._runs.choice import write_run_target
from whyformer._runs.parts import LAYOUT
from whyformer._runs.plan import PLAN_FILE, ShardedPlan, read_plan_file
from whyformer._runs.weights import describe_planned_model

if TYPE_CHECKING:
    from whyformer._bulk.worker import WorkerSetup


@dataclass(frozen=True)
class BatchSettings:
    """How items are put together: what numbers may depend on beyond the last digits, and what an engine must keep."""

    shard: int  # items per part
    batch: int  # items that go through the model together
    threads: int  # of each worker


@dataclass(frozen=True)
class BulkPlan(ShardedPlan):
    """What is explained. A part holds the rows of one shard."""

    kind: str = "bulk run"
    counted: ClassVar[str] = "items"
    shard_field: ClassVar[str] = "shard"

    @property
    def settings(self) -> BatchSettings:
        return BatchSettings(**{name: int(self.fields[name]) for name in ("shard", "batch", "threads")})

    def replace_data(self, items: ItemList, kind: InputKind) -> "BulkPlan":
        """The plan for items that were arranged."""
        if not items.is_arranged:
            return self
        return replace(self, fields={**self.fields, "data": describe_items(items, kind)})


def make_bulk_plan(
    model: Model, items: ItemList, setup: "WorkerSetup", device: torch.device, batches: BatchSettings
) -> BulkPlan:
    """The plan, in JSON fields."""
    fields = {
        "layout": LAYOUT,
        **list_run_fields(model, items, model.kind, device, batches),
        "methods": {label: call.all_settings for label, call in label_methods(setup.methods).items()},
        "target": write_run_target(setup.target),
        "truncate": setup.truncate,
        "maps": setup.maps,
    }
    if setup.check:
        fields["check"] = True
    if setup.windows is not False:
        fields["windows"] = setup.windows
    return BulkPlan(archive.as_json_value(fields))


def list_run_fields(
    model: Model, items: ItemList, kind: InputKind, device: torch.device, batches: BatchSettings
) -> dict[str, object]:
    """What rows of any kind depend on."""
    return {
        "model": {**describe_planned_model(model), "device": device.type, "labels": hash_text(repr(model.labels))},
        "preprocessing": describe_preprocessing(model),
        "precision": torch.get_float32_matmul_precision() if device.type == "cuda" else "highest",
        "data": describe_items(items, kind),
        **asdict(batches),
        "whyformer": __version__,
        "torch": torch.__version__,
    }


def describe_items(items: ItemList, kind: InputKind) -> dict[str, str | int]:
    return {"items": len(items), "fingerprint": items.fingerprint(kind)}


def describe_preprocessing(model: Model) -> str:
    """A hash of everything the image processor or tokenizer says about itself."""
    if model.processor is not None and hasattr(model.processor, "to_dict"):
        return hash_text(json.dumps(model.processor.to_dict(), sort_keys=True, default=repr))
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is not None and hasattr(backend, "to_str"):
        described = json.loads(backend.to_str())
        for state in ("padding", "truncation"):  # of the last call
            described.pop(state, None)
        return hash_text(json.dumps(described, sort_keys=True) + str(model.tokenizer.padding_side))
    return type(model.processor or model.tokenizer).__name__


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def read_stored_settings(folder: Path) -> Mapping[str, int]:
    """Shard, batch and threads of the run in a folder, for a resumed run that does not name them; else nothing."""
    try:
        stored = read_plan_file(folder / PLAN_FILE)
        return {name: int(stored[name]) for name in ("shard", "batch", "threads")}
    except (KeyError, TypeError, ValueError):
        return {}  # no plan, or another kind of run: refused, with the reason, when the plan is written


def read_stored_methods(folder: Path) -> tuple[str, ...]:
    """The labels of the methods of the run in a folder, in the order of its rows."""
    try:
        return tuple(read_plan_file(folder / PLAN_FILE)["methods"])
    except (KeyError, TypeError, ValueError):
        return ()


def order_methods(methods: Sequence[MethodLike], stored: Sequence[str]) -> list[MethodLike]:
    """The methods of a run in its order, then those that are new."""
    by_label = dict(zip(label_methods(methods), methods, strict=True))
    return [by_label[label] for label in dict.fromkeys((*stored, *by_label)) if label in by_label]
