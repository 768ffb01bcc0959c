"""What the rows of a saved audit must look like, so that a file that somebody changed is refused while it is read."""

from collections.abc import Mapping, Sequence
from typing import Any

from whyformer._audit.checks.agreement import AGREEMENT_MEASURES
from whyformer._audit.checks.diagnostic import GUIDES
from whyformer._plain.schema import SchemaError, check_schema

AuditRow = Mapping[str, Any]  # its test, attention and example, and what the test measured

NUMBER = (None, float)
REPLACED = {"tvd": float, "change": float, "shift": float, "flips": float, "predicted": {str: int}}
HEADS = {"entropy": [float], "largest": [float], "special": [float]}
ROW_SCHEMAS: dict[str, dict[str, Any]] = {
    "answer": {"predicted": int, "label": (None, int), "tokens": int},
    "agreement": {"pairs": {str: dict.fromkeys((*AGREEMENT_MEASURES, "p", "by_chance"), NUMBER)}},
    "replacement": {"largest": float, "kinds": {str: REPLACED}},
    "adversarial": {"jsd": float, "attainable": float, "kept": int, "largest": float},
    "adversary": {"jsd": float, "tvd": float, "attainable": float, "predicted": int},
    "seeds": {"jsd": [float], "tvd": [float]},
    "diagnostic": {"right": dict.fromkeys(GUIDES, (bool, float))},
    "baseline": {"predicted": int},
    "shape": {"heads": [HEADS], "heads_jsd": [NUMBER], "heads_kl": [NUMBER], "blocks_jsd": [[float]]},
}
FOUND_SCHEMA = {
    "observed": [float], "other": [float], "classes": [int], "before": [float], "after": [float],
    "pieces": (None, [str]), "special": (None, [bool]), "spans": (None, [(None, [int])]), "text": (None, str),
    "grid": (None, [int]),
}  # fmt: skip
SETTINGS = {
    "search": {"candidates": int, "steps": int, "tolerance": float, "selection": float}, "words_only": bool,
    "searched": (None, int), "draws": int, "seed": int,
}  # fmt: skip
AUDIT = {
    "rows": [{"test": str, "attention": str, "example": int}], "attention": [str], "descriptions": [str],
    "model": str, "data": str, "labels": (None, [str]), "settings": SETTINGS, "versions": {str: str}, "notes": [str],
}  # fmt: skip


def check_saved_audit(fields: AuditRow) -> None:
    """Refuse fields that no audit has."""
    check_schema(fields, AUDIT, "the audit")
    attention = fields["attention"]
    if not len(fields["descriptions"]) == len(attention) == len(set(attention)):
        raise SchemaError("the audited attention has no description, or two names are the same")
    for row in fields["rows"]:
        check_saved_row(row)
    if len({(row["test"], row["attention"], row["example"]) for row in fields["rows"]}) < len(fields["rows"]):
        raise SchemaError("there are two rows of one test and example")
    if not any(row["test"] == "answer" and row["attention"] == "" for row in fields["rows"]):
        raise SchemaError("there are no predictions")
    check_shape_rows([row for row in fields["rows"] if row["test"] == "shape"])


def check_saved_row(row: AuditRow) -> None:
    name = f"a row of {row['test'][:40]!r}"
    if row["test"] not in ROW_SCHEMAS:
        raise SchemaError(f"there is no test {row['test'][:40]!r}")
    check_schema(row.get("undefined"), (None, bool), f"{name}, undefined")
    if row.get("undefined"):
        return
    check_schema(row, ROW_SCHEMAS[row["test"]], name)
    if not 0 <= row.get("largest", 0) <= 1.01:
        raise SchemaError(f"{name} has a largest weight of {row['largest']}")
    if not all(sum(kind["predicted"].values()) > 0 for kind in row.get("kinds", {}).values()):
        raise SchemaError(f"{name} has no predictions")
    if row.get("found") is not None:
        check_schema(row["found"], FOUND_SCHEMA, f"{name}, found")
        check_schema(row, {"apart": [float], "tvd": [float]}, name)
        check_saved_found(row)
    if row["test"] == "seeds" and not (row["jsd"] and row["tvd"]):
        raise SchemaError(f"{name} has no values")


def check_shape_rows(rows: Sequence[AuditRow]) -> None:
    """All rows have the same blocks and heads."""
    sizes = {
        (
            tuple(tuple(len(block[what]) for what in HEADS) for block in row["heads"]),
            tuple(value is None for value in row["heads_jsd"]),
            tuple(value is None for value in row["heads_kl"]),
            tuple(len(block) for block in row["blocks_jsd"]),
        )
        for row in rows
        if not row.get("undefined")
    }
    if len(sizes) > 1 or any(row.get("undefined") for row in rows):
        raise SchemaError("the rows of the shape of attention differ in blocks and heads")
    for heads, jsd, kl, blocks in sizes:
        if (
            not len(jsd) == len(kl) == len(heads)
            or any(size != len(blocks) for size in blocks)
            or any(len(set(block)) > 1 or 0 in block for block in heads)
        ):
            raise SchemaError("a row of the shape of attention has other blocks and heads")


def check_saved_found(row: AuditRow) -> None:
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
