"""The fields of an explanation in a file: tensors, tokens, targets and images."""

from base64 import b64decode
from typing import Any

import torch
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from whyformer._engine.target import Target
from whyformer._model.kept_image import ImageView, KeptImage
from whyformer._plain.archive import Fields, as_strings, to_json_text
from whyformer._plain.tokens import Grid, Pieces, Tokens


def to_safetensors(kind: str, fields: Fields) -> bytes:
    details = {f"details.{name}": value for name, value in fields.get("details", {}).items()}
    kept = fields.get("images", ())
    pictures = {f"picture.{i}": torch.frombuffer(bytearray(one.data), dtype=torch.uint8) for i, one in enumerate(kept)}
    held = {**fields, **details, **pictures}
    tensors = {name: v.contiguous() for name, v in held.items() if isinstance(v, Tensor)}
    facts = {name: value for name, value in fields.items() if not isinstance(value, Tensor) and name != "details"}
    if "images" in facts:
        facts["images"] = [{"view": one.view} for one in kept]
    return safetensors_bytes(tensors, {"whyformer": to_json_text(kind, facts)})


def restore_explanation_fields(held: Fields) -> dict[str, Any]:
    """The fields of an explanation, lists made into what they were."""
    apart = {name.removeprefix("details."): held[name] for name in held if name.startswith("details.")}
    kept = held.get("images", held.get("pictures", ()))  # before version 0.2 the field was called pictures
    images = tuple(restore_image(one, held.get(f"picture.{i}")) for i, one in enumerate(kept))
    held = {name: value for name, value in held.items() if not name.startswith(("details.", "picture.", "pictures"))}
    return {
        **held,
        "details": {**held.get("details", {}), **apart},
        "images": images,
        "tokens": tuple(map(restore_tokens, held["tokens"])),
        "targets": tuple(Target(**target) for target in held["targets"]),
        "names": as_strings(held["names"]),
        "notes": as_strings(held["notes"]),
    }


def restore_tokens(held: Fields) -> Tokens:
    if "rows" in held:
        return Grid(held["rows"], held["columns"], tuple(held["covers"]) if held.get("covers") else None)
    spans = tuple(None if span is None else (span[0], span[1]) for span in held["spans"])
    return Pieces(as_strings(held["pieces"]), tuple(held["special"]), tuple(held["padding"]), spans, held["text"])


def restore_image(held: Fields, apart: Tensor | None) -> KeptImage:
    """A picture that was kept: its bytes stand by themselves, or in base 64 among the facts."""
    data = bytes(apart.tolist()) if apart is not None else b64decode(held["data"], validate=True)
    return KeptImage.read(data, None if held["view"] is None else ImageView(**held["view"]))
