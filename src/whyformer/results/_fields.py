"""How the fields of an explanation are saved to a file and restored: tensors, tokens, targets and images.

Whatever is restored is checked: types, shapes, lengths that fit each other, finite numbers. A file that somebody
changed is refused while it is read, and what is loaded can be shown.
"""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from whyformer._engine import Target
from whyformer._model import ImageView, KeptImage
from whyformer._plain.archive import FLOAT_DTYPES, Fields, to_json_text
from whyformer._plain.schema import SchemaError, check_schema
from whyformer._plain.tokens import PAIR, Grid, NamedTokens, Pieces, ScoredTokens, Stream
from whyformer.results.conditioning import DETAIL_PREFIX as ROUNDING_PREFIX
from whyformer.results.conditioning import PARTS as ROUNDING_PARTS
from whyformer.results.health import ABSORBED_PREFIX, DETAIL_PREFIX, TOTALS

TARGET = {
    "index": int, "label": str, "score": float, "probability": (None, float), "predicted": bool, "versus": (None, int),
    "versus_label": (None, str), "position": (None, int),
}  # fmt: skip
GRID = {"rows": int, "columns": int}
PIECES = {"pieces": [str], "special": [bool], "padding": [bool], "spans": [(None, [int])], "text": (None, str)}
REGION = {"name": str, "kind": str, "start": int, "stop": int}
STREAM = {"name": str, "start": int, "stop": int, "grid": (None, GRID)}
VIEW = {"left": float, "top": float, "right": float, "bottom": float, "height": int, "width": int}
EXPLANATION = {
    "scores": Tensor, "tokens": [(GRID, PIECES)], "targets": [TARGET], "names": [str], "method": str,
    "settings": {str: object}, "model": str, "versions": {str: str}, "class_specific": bool, "signed": bool,
    "pixels": (None, Tensor), "special": (None, Tensor), "notes": [str], "details": {str: Tensor},
    "spent": {str: float},
}  # fmt: skip
MAX_VIEW_EDGE = 100_000  # pixels
MAX_VIEW_PIXELS = 100_000_000


def to_safetensors(kind: str, fields: Fields) -> bytes:
    """Tensors (details and the bytes of images included) as tensors, all other fields as JSON in the metadata."""
    details = {f"details.{name}": value for name, value in fields.get("details", {}).items()}
    images = fields.get("images", ())
    contents = {f"picture.{i}": torch.frombuffer(bytearray(im.data), dtype=torch.uint8) for i, im in enumerate(images)}
    values = {**fields, **details, **contents}
    tensors = {name: value.contiguous() for name, value in values.items() if isinstance(value, Tensor)}
    facts = {name: value for name, value in fields.items() if not isinstance(value, Tensor) and name != "details"}
    if "images" in facts:
        facts["images"] = [{"view": image.view} for image in images]
    return safetensors_bytes(tensors, {"whyformer": to_json_text(kind, facts)})


def restore_explanation_fields(saved: Fields) -> dict[str, Any]:
    """The fields of an explanation as they were before saving."""
    check_schema(saved, {}, "the explanation")
    details = {name.removeprefix("details."): saved[name] for name in saved if name.startswith("details.")}
    images = saved.get("images", ())
    check_schema(images, [{"view": (None, VIEW)}], "images")
    check_schema(saved.get("details", {}), {str: Tensor}, "details")
    split = ("images", "details.", "picture.")  # fields that are read one by one
    plain = {name: value for name, value in saved.items() if not name.startswith(split)}
    plain |= {"details": {**saved.get("details", {}), **details}}
    check_schema({"pixels": None, "special": None, "notes": (), "spent": {}, **plain}, EXPLANATION, "the explanation")
    check_shapes(plain)
    return {
        **plain,
        "images": tuple(restore_image(image, saved.get(f"picture.{i}")) for i, image in enumerate(images)),
        "tokens": tuple(restore_saved_tokens(tokens, plain["scores"].shape[1]) for tokens in plain["tokens"]),
        "targets": tuple(restore_saved_target(target) for target in plain["targets"]),
        "names": tuple(plain["names"]),
        "parts": restore_streams(plain.get("parts", ())),
        "notes": tuple(plain.get("notes", ())),
    }


# --- tensors ----------------------------------------------------------------------------------------------------------


def check_shapes(fields: Fields) -> None:
    """Scores [batch token], pixels [batch height width], special [batch token]; details begin with the batch."""
    scores = fields["scores"]
    check_tensor(scores, "scores", 2)
    batch = len(scores)
    if batch and not scores.shape[1]:
        raise SchemaError("there are no scores")
    for name, rank in (("pixels", 3), ("special", 2)):
        if (tensor := fields.get(name)) is not None:
            check_tensor(tensor, name, rank)
            check_batch_axis(tensor, name, batch)
            if name == "pixels" and batch and tensor.numel() == 0:
                raise SchemaError("there are no pixels")
    for name, detail in fields["details"].items():
        check_batch_axis(detail, f"details {name[:40]!r}", batch)
    if (layers := fields["details"].get("per_layer")) is not None:
        check_tensor(layers, "per_layer", 3)
        if layers.shape[2] != scores.shape[1] or not layers.shape[1]:
            raise SchemaError(f"per_layer has the shape {list(layers.shape)}")
    check_health_details(fields["details"])
    check_rounding_details(fields["details"])


def check_tensor(tensor: Tensor, name: str, rank: int) -> None:
    if str(tensor.dtype).removeprefix("torch.") not in FLOAT_DTYPES or tensor.dim() != rank:
        raise SchemaError(f"{name} has the shape {list(tensor.shape)} and the dtype {tensor.dtype}")
    if not bool(tensor.isfinite().all()):
        raise SchemaError(f"{name} contains NaN or infinity")


def check_batch_axis(tensor: Tensor, name: str, batch: int) -> None:
    if tensor.dim() == 0 or len(tensor) != batch:
        raise SchemaError(f"{name} has the shape {list(tensor.shape)}, but there are {batch} examples")


def check_health_details(details: Mapping[str, Tensor]) -> None:
    """All totals of a conservation check, with shapes that fit each other, or none."""
    parts = {name: detail for name, detail in details.items() if name.startswith(DETAIL_PREFIX)}
    if not parts:
        return
    if missing := [name for name in TOTALS if DETAIL_PREFIX + name not in parts]:
        raise SchemaError(f"the conservation check has no {missing[0]}")
    relevance = parts[DETAIL_PREFIX + "relevance"]
    boundaries = relevance.shape[1] if relevance.dim() == 2 else 0
    widths = {"sent": (), "arrived": (), "relevance": (boundaries,), "magnitude": (boundaries,)}
    for name, detail in parts.items():
        width = (boundaries + 1,) if name.startswith(ABSORBED_PREFIX) else widths.get(name.removeprefix(DETAIL_PREFIX))
        if tuple(detail.shape[1:]) != width or not boundaries or not detail.is_floating_point():
            raise SchemaError(f"details {name[:40]!r} has the shape {list(detail.shape)}")


def check_rounding_details(details: Mapping[str, Tensor]) -> None:
    """One finite number per example; the parts of the measurement only with an estimate, and all of them or none."""
    parts = {name: detail for name, detail in details.items() if name.startswith(ROUNDING_PREFIX)}
    for name, detail in parts.items():
        check_tensor(detail, f"details {name[:40]!r}", 1)
    if len(parts) not in (0, 1, len(ROUNDING_PARTS)) or (parts and ROUNDING_PREFIX + "estimate" not in parts):
        raise SchemaError(f"the conditioning has only {', '.join(sorted(parts))[:80]}")


# --- tokens, targets and images ---------------------------------------------------------------------------------------


def restore_saved_tokens(saved: Fields, count: int) -> ScoredTokens:
    if "rows" in saved:
        check_schema(saved.get("covers"), (None, [int]), "covers")
        covers = tuple(saved["covers"]) if saved.get("covers") else None
        sides = (saved["rows"], saved["columns"], *(covers or ()))
        if min(sides) < 1 or len(sides) not in (2, 4) or saved["rows"] * saved["columns"] != count:
            raise SchemaError(f"a grid of {saved['rows']} x {saved['columns']} patches has {count} scores")
        return Grid(saved["rows"], saved["columns"], covers)
    pieces, text = tuple(saved["pieces"]), saved["text"]
    if not len(pieces) == len(saved["special"]) == len(saved["padding"]) == len(saved["spans"]) == count:
        raise SchemaError("the tokens, their marks and the scores differ in number")
    spans = tuple(restore_span(span, -1 if text is None else len(text)) for span in saved["spans"])
    second = saved.get("second")  # where the second text of a pair begins
    check_schema(second, (None, int), "second")
    if second is not None and not 0 < second <= len(text or ""):
        raise SchemaError("the second text begins outside the text")
    regions = restore_regions(saved.get("regions", ()), count)
    names = saved.get("segment_names", PAIR)
    check_schema(names, [str], "segment_names")
    if len(names) != 2:
        raise SchemaError("a pair of texts has two names")
    marks = (tuple(saved["special"]), tuple(saved["padding"]))
    return Pieces(pieces, *marks, spans, text, second, regions, (names[0], names[1]))


def restore_regions(saved: Sequence[Fields], count: int) -> tuple[NamedTokens, ...]:
    """The parts of a prompt; files of earlier versions have none."""
    check_schema(saved, [REGION], "regions")
    at = 0
    for region in saved:
        if not at <= region["start"] <= region["stop"] <= count:
            raise SchemaError("the regions of a prompt overlap or have more tokens than there are")
        at = region["stop"]
    return tuple(NamedTokens(**{name: region[name] for name in REGION}) for region in saved)


def restore_streams(saved: Sequence[Fields]) -> tuple[Stream, ...]:
    """The sequences that the model read; files of earlier versions have none."""
    check_schema(saved, [STREAM], "parts")
    grids = [
        None if part["grid"] is None else restore_saved_tokens(part["grid"], part["stop"] - part["start"])
        for part in saved
    ]
    if any(grid is not None and not isinstance(grid, Grid) for grid in grids):
        raise SchemaError("a stream of patches has no grid")
    return tuple(Stream(p["name"], p["start"], p["stop"], grid) for p, grid in zip(saved, grids, strict=True))  # type: ignore[arg-type]


def restore_span(saved: Sequence[int] | None, length: int) -> tuple[int, int] | None:
    if saved is None:
        return None
    if len(saved) != 2 or not 0 <= saved[0] <= saved[1] <= length:
        raise SchemaError("a token lies outside the text")
    return saved[0], saved[1]


def restore_saved_target(saved: Fields) -> Target:
    for name in ("spec", "versus_spec"):
        check_schema(saved.get(name), (None, str), name)
    check_schema(saved.get("is_multi_label", False), bool, "is_multi_label")
    considered = saved.get("considered", ())  # files of earlier versions have none
    check_schema(considered, [[(str, float)]], "considered")
    if any(len(pair) != 2 or not isinstance(pair[0], str) or isinstance(pair[1], str) for pair in considered):
        raise SchemaError("a class that the model considered is not a name and a probability")
    target = Target(**{**saved, "considered": tuple((name, chance) for name, chance in considered)})
    if (target.versus is None) != (target.versus_label is None):
        raise SchemaError("a target has a versus without a label")
    if target.probability is not None and not -1e-3 <= target.probability <= 1.001:
        raise SchemaError(f"a target has the probability {target.probability}")
    return target


def restore_image(saved: Fields, contents: Tensor | None) -> KeptImage:
    """An image from its bytes: a tensor of a safetensors file, or base 64 in a JSON file."""
    if contents is not None:
        if not isinstance(contents, Tensor) or contents.dtype != torch.uint8 or contents.dim() != 1:
            raise SchemaError("an image is not a row of bytes")
        data = contents.numpy().tobytes()
    else:
        check_schema(saved, {"data": str}, "an image")
        data = b64decode(saved["data"], validate=True)
    return KeptImage.read(data, None if saved["view"] is None else restore_view(saved["view"]))


def restore_view(saved: Fields) -> ImageView:
    view = ImageView(**saved)
    across, down = view.right - view.left, view.bottom - view.top
    edges = max(*(abs(edge) for edge in (view.left, view.top, view.right, view.bottom)), view.height, view.width)
    if min(across, down) < 1e-3 or across * down > MAX_VIEW_PIXELS or edges > MAX_VIEW_EDGE:
        raise SchemaError("the view of an image is empty or too large")
    if min(view.height, view.width) < 1:
        raise SchemaError("the view of an image is empty")
    return view
