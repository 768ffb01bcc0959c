"""What the search found, to look at: the observed attention and the other one, over the same tokens, with both answers.

A distribution is that of the audited attention at the position where the output is read (the mean over heads, or the
rollout), as everywhere in an audit. What is kept is bounded: `MOST_EXAMPLES` examples of each attention, texts of at
most `MOST_TOKENS` tokens, the `MOST_CLASSES` most probable classes. A text is kept with its tokens, an image as the
grid of its patches, without its pixels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whyformer._audit.checks.importance import take_units
from whyformer._audit.replay import AuditedAttention
from whyformer._plain.schema import SchemaError
from whyformer._plain.tokens import Grid, Pieces, Tokens

MOST_EXAMPLES = 100
MOST_TOKENS = 512
MOST_CLASSES = 4
DIGITS = 6
FOUND_SCHEMA = {
    "observed": [float], "other": [float], "classes": [int], "before": [float], "after": [float],
    "pieces": (None, [str]), "special": (None, [bool]), "spans": (None, [(None, [int])]), "text": (None, str),
    "grid": (None, [int]),
}  # fmt: skip


@dataclass(frozen=True)
class FoundAttention:
    """The observed attention of one example and the farthest other one with the same answer."""

    tokens: Tokens
    observed: Tensor  # [token]
    other: Tensor  # [token]
    classes: tuple[int, ...]  # the most probable first
    before: tuple[float, ...]  # the probability of each, with the observed attention
    after: tuple[float, ...]  # and with the other
    jsd: float
    tvd: float


def keep_found(audited: AuditedAttention, example: int, weights: Mapping[int, Tensor]) -> dict[str, Any] | None:
    """The fields of a row for these weights [1 head query key] of each block; None if the example is too long."""
    replay = audited.replay
    of = torch.tensor([example])
    with torch.no_grad():
        other = audited.read_distribution(audited.complete_weights(weights, of), of)[0]
        after = audited.predict(weights, of)[0]
    observed, before, tokens = (
        audited.distribution[example],
        replay.probabilities[example],
        replay.layout.tokens[example],
    )
    fields = describe_tokens(tokens)
    if fields is None:
        return None
    if isinstance(tokens, Grid):
        observed, other = (take_units(replay, row[None])[0] for row in (observed, other))
    else:
        real = ~torch.tensor(tokens.padding, device=observed.device)
        observed, other = observed[real], other[real]
    classes = before.topk(min(MOST_CLASSES, len(before))).indices
    return {
        **fields,
        "observed": round_values(observed),
        "other": round_values(other),
        "classes": classes.tolist(),
        "before": round_values(before[classes]),
        "after": round_values(after[classes]),
    }


def describe_tokens(tokens: Tokens) -> dict[str, Any] | None:
    """Tokens without padding, as plain values; None if there are too many."""
    if len(tokens) > MOST_TOKENS:
        return None
    if isinstance(tokens, Grid):
        return {**dict.fromkeys(("pieces", "special", "spans", "text")), "grid": [tokens.rows, tokens.columns]}
    real = [i for i, is_padding in enumerate(tokens.padding) if not is_padding]
    spans = [tokens.spans[i] for i in real]
    return {
        "pieces": [tokens.pieces[i] for i in real],
        "special": [tokens.special[i] for i in real],
        "spans": [None if span is None else list(span) for span in spans],
        "text": tokens.text,
        "grid": None,
    }


def round_values(values: Tensor) -> list[float]:
    return [round(float(value), DIGITS) for value in values.double().cpu()]


def read_found(row: Mapping[str, Any]) -> FoundAttention | None:
    """What a row of the search holds; None if nothing was found or kept."""
    found = row.get("found")
    if not found:
        return None
    best = max(range(len(row["apart"])), key=lambda i: row["apart"][i] if row["apart"][i] == row["jsd"] else -1.0)
    return FoundAttention(
        read_tokens(found),
        torch.tensor(found["observed"], dtype=torch.double),
        torch.tensor(found["other"], dtype=torch.double),
        tuple(found["classes"]),
        tuple(found["before"]),
        tuple(found["after"]),
        row["jsd"],
        row["tvd"][best],
    )


def read_tokens(found: Mapping[str, Any]) -> Tokens:
    if found.get("grid"):
        rows, columns = found["grid"]
        return Grid(rows, columns)
    spans = tuple(None if span is None else (span[0], span[1]) for span in found["spans"])
    count = len(found["pieces"])
    return Pieces(tuple(found["pieces"]), tuple(found["special"]), (False,) * count, spans, found.get("text"))


def check_saved_found(row: Mapping[str, Any]) -> None:
    """Refuse what no search has kept."""
    found = row["found"]
    sizes = {len(found["observed"]), len(found["other"])}
    if found.get("grid"):
        if len(found["grid"]) != 2 or min(found["grid"]) < 1:
            raise SchemaError("found attention has no grid of rows and columns")
        sizes.add(found["grid"][0] * found["grid"][1])
    else:
        parts = [found.get(name) for name in ("pieces", "special", "spans")]
        if any(part is None for part in parts):
            raise SchemaError("found attention has no tokens")
        sizes |= {len(part) for part in parts}
        text = found.get("text")
        for span in found["spans"]:
            if span is not None and (len(span) != 2 or not 0 <= span[0] <= span[1] <= len(text or "")):
                raise SchemaError(f"a token is at {span}, outside of its text")
    if len(sizes) != 1 or len({len(found[name]) for name in ("classes", "before", "after")}) != 1:
        raise SchemaError("found attention has values for other tokens or classes")
    if min(found["classes"], default=0) < 0 or len(row.get("apart", ())) != len(row.get("tvd", ())) or not row["apart"]:
        raise SchemaError("found attention has no candidates")
