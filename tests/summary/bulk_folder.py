"""Write the folder of a bulk run: plan.json and Parquet parts in the schema of `whyformer bulk`."""

import json
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from whyformer._runs.parts import fingerprint_parts
from whyformer._runs.plan import PLAN_VERSION, RunPlan
from whyformer._runs.seal import HEADER_KEY, make_unsealed_header, seal_file

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("position", pa.int64()),
        ("method", pa.string()),
        ("error", pa.string()),
        ("message", pa.string()),
        ("kind", pa.string()),
        ("source", pa.string()),
        ("label", pa.string()),
        ("prediction", pa.int32()),
        ("prediction_name", pa.string()),
        ("probability", pa.float32()),
        ("target", pa.int32()),
        ("target_name", pa.string()),
        ("scores", pa.list_(pa.float32())),
        ("rows", pa.int32()),
        ("columns", pa.int32()),
        ("tokens", pa.list_(pa.string())),
        ("special", pa.list_(pa.bool_())),
        ("starts", pa.list_(pa.int32())),
        ("ends", pa.list_(pa.int32())),
        ("map_png", pa.binary()),
        ("content", pa.string()),
    ]
)


def write_run(folder, rows, *, parts=1, plan=None):
    """All rows, in `parts` files."""
    (folder / "parts").mkdir(parents=True, exist_ok=True)
    fields = plan or {"methods": {"rollout": {}}}
    fingerprint = RunPlan(fields).fingerprint
    (folder / "plan.json").write_text(json.dumps({"version": PLAN_VERSION, **fields, "fingerprint": fingerprint}))
    size = -(-len(rows) // max(1, parts))
    for number in range(parts):
        chunk = [{name: row.get(name) for name in SCHEMA.names} for row in rows[number * size : (number + 1) * size]]
        write_part_file(folder, number, pa.Table.from_pylist(chunk, SCHEMA), fingerprint_parts(fields))
    return folder


def write_part_file(folder, number, table, fingerprint):
    """A part with its checksum."""
    sink = BytesIO()
    with pq.ParquetWriter(sink, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({HEADER_KEY: make_unsealed_header({"fingerprint": fingerprint, "shard": number})})
    (folder / "parts" / f"part-{number:05}.parquet").write_bytes(seal_file(sink.getvalue()))


def image_row(name, position, scores, grid, *, target=0, method="rollout", label=None, **more):
    """An image explained by one method."""
    return {
        "id": name, "position": position, "method": method, "kind": "image", "label": label, "prediction": target,
        "prediction_name": f"class {target}", "probability": 0.9, "target": target, "target_name": f"class {target}",
        "scores": [float(score) for score in scores], "rows": grid[0], "columns": grid[1], **more,
    }  # fmt: skip


def text_row(name, position, words, scores, *, target=0, method="rollout", label=None, **more):
    """A text of one token per word between [CLS] and [SEP]."""
    text = " ".join(words)
    starts = [sum(len(word) + 1 for word in words[:i]) for i in range(len(words))]
    return {
        "id": name, "position": position, "method": method, "kind": "text", "source": text, "label": label,
        "prediction": target, "prediction_name": f"class {target}", "probability": 0.9, "target": target,
        "target_name": f"class {target}", "tokens": ["[CLS]", *words, "[SEP]"],
        "scores": [0.0, *map(float, scores), 0.0], "special": [True, *[False] * len(words), True],
        "starts": [-1, *starts, -1], "ends": [-1, *(s + len(w) for s, w in zip(starts, words, strict=True)), -1],
        **more,
    }  # fmt: skip


def explain_images(model, paths, labels, method, *, batch=32):
    """The rows of `whyformer bulk` for these images."""
    import whyformer

    rows = []
    for start in range(0, len(paths), batch):
        chunk = [str(path) for path in paths[start : start + batch]]
        explained = whyformer.explain(model, chunk, method)
        for i, path in enumerate(chunk):
            target, grid = explained.targets[i], explained.tokens[i]
            rows.append(
                image_row(
                    Path(path).name, start + i, explained.scores[i].tolist(), (grid.rows, grid.columns), method=method,
                    target=target.index, label=labels[start + i], source=path, target_name=target.label,
                    prediction_name=target.label, probability=target.probability,
                )
            )  # fmt: skip
    return rows
