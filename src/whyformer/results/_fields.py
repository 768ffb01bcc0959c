"""How the fields of an explanation are saved to a file and restored: tensors, tokens, targets and images."""

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
    """Tensors (details and the bytes of images included) as tensors, all other fields as JSON in the metadata."""
    details = {f"details.{name}": value for name, value in fields.get("details", {}).items()}
    images = fields.get("images", ())
    contents = {f"picture.{i}": torch.frombuffer(bytearray(im.data), dtype=torch.uint8) for i, im in enumerate(images)}
    tensors = {
        name: value.contiguous()
        for name, value in {**fields, **details, **contents}.items()
        if isinstance(value, Tensor)
    }
    facts = {name: value for name, value in fields.items() if not isinstance(value, Tensor) and name != "details"}
    if "images" in facts:
        facts["images"] = [{"view": image.view} for image in images]
    return safetensors_bytes(tensors, {"whyformer": to_json_text(kind, facts)})


def restore_explanation_fields(saved: Fields) -> dict[str, Any]:
    """The fields of an explanation as they were before saving."""
    details = {name.removeprefix("details."): saved[name] for name in saved if name.startswith("details.")}
    images = saved.get("images", saved.get("pictures", ()))  # before version 0.2 the field was called pictures
    plain = {
        name: value
        for name, value in saved.items()
        if name != "pictures" and not name.startswith(("details.", "picture."))
    }
    return {
        **plain,
        "details": {**saved.get("details", {}), **details},
        "images": tuple(restore_image(image, saved.get(f"picture.{i}")) for i, image in enumerate(images)),
        "tokens": tuple(map(restore_tokens, saved["tokens"])),
        "targets": tuple(Target(**target) for target in saved["targets"]),
        "names": as_strings(saved["names"]),
        "notes": as_strings(saved["notes"]),
    }


def restore_tokens(saved: Fields) -> Tokens:
    if "rows" in saved:
        return Grid(saved["rows"], saved["columns"], tuple(saved["covers"]) if saved.get("covers") else None)
    spans = tuple(None if span is None else (span[0], span[1]) for span in saved["spans"])
    return Pieces(as_strings(saved["pieces"]), tuple(saved["special"]), tuple(saved["padding"]), spans, saved["text"])


def restore_image(saved: Fields, contents: Tensor | None) -> KeptImage:
    """An image from its bytes: a tensor of a safetensors file, or base 64 in a JSON file."""
    data = bytes(contents.tolist()) if contents is not None else b64decode(saved["data"], validate=True)
    return KeptImage.read(data, None if saved["view"] is None else ImageView(**saved["view"]))
