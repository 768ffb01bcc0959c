"""Folders of bulk runs on the page: what is listed, and what a folder of somebody else cannot do."""

import asyncio
import json
import os
import shutil

import pytest
from page.calls import send
from page.test_server_images import encode
from PIL import Image

pytest.importorskip("fastapi", reason="whyformer[page] is not installed")

import whyformer as why
from whyformer._page import serving
from whyformer._page.app import guard, make_app
from whyformer._page.bodies import RunBody
from whyformer._page.desk import Desk
from whyformer._page.limits import Limits
from whyformer._page.messages import read_message, write_message
from whyformer._page.problems import PageProblem
from whyformer._page.stored_runs import ORDERS, StoredRuns, answer_safely, is_stored_run
from whyformer._runs import parts
from whyformer.errors import InputError

TEXTS = ["a gorgeous, witty film", "a <b>tedious</b> mess\u202e", "", "the plot is predictable"]
LABELS = ["positive", "positive", "negative", "negative"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run over four texts: one is answered wrongly, one is empty."""
    made = tmp_path_factory.mktemp("runs") / "films"
    table = made.parent / "films.jsonl"
    rows = [
        {"id": str(n), "text": text, "label": label} for n, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True))
    ]
    table.write_text("\n".join(map(json.dumps, rows)))
    why.bulk(why.open("demo/sentiment"), why.data.read(table), ["rollout"], out=made)
    return made


def read_rows(folder, order="stored", offset=0):
    fields = {"folder": str(folder), "what": "rows", "order": order, "offset": offset}
    return read_message(answer_safely(write_message(fields)))[0]


def test_the_items_of_a_run_are_listed_in_every_order(folder):
    found = read_rows(folder)
    assert (found["model"], found["total"], found["of"]) == ("demo/sentiment", 4, 4)
    assert [row["source"] for row in found["rows"]][:2] == TEXTS[:2]
    expected = why.explain(why.open("demo/sentiment"), TEXTS[0]).targets[0]
    assert found["rows"][0]["answer"] == expected.label
    assert found["rows"][0]["probability"] == pytest.approx(expected.probability, abs=1e-6)
    assert [row["source"] for row in read_rows(folder, "wrong")["rows"]] == [TEXTS[1]]
    chances = [row["probability"] for row in read_rows(folder, "unsure")["rows"]]
    assert chances == sorted(chances) and len(chances) == 3
    assert [row["error"] for row in read_rows(folder, "failed")["rows"]] == ["E_DATA"]
    assert read_rows(folder, offset=3)["rows"][0]["id"] == found["rows"][3]["id"] and set(ORDERS) > {"stored"}


def rewrite(folder, change):
    """The run with its rows changed and sealed again, as whoever made it could."""
    from pyarrow import parquet

    (path,) = (folder / "parts").glob("*.parquet")
    facts = parts.read_seal(path.read_bytes())
    table = parquet.read_table(path).replace_schema_metadata(None)
    for name, cell in change.items():
        place = table.schema.get_field_index(name)
        column = [cell, *table.column(name).to_pylist()[1:]]
        import pyarrow as pa

        table = table.set_column(place, table.schema.field(name), pa.array(column, table.schema.field(name).type))
    path.write_bytes(parts.encode_table(table, facts["shard"], facts["fingerprint"]))


@pytest.fixture
def own(folder, tmp_path):
    """A copy of the run that a test may change."""
    return shutil.copytree(folder, tmp_path / "run")


def test_numbers_that_are_none_and_long_texts_do_no_harm(own):
    rewrite(own, {"probability": float("nan"), "source": "x" * 200_000, "id": "<script>alert(1)</script>"})
    first = read_rows(own)["rows"][0]
    assert first["probability"] is None and first["id"].startswith("<script>")
    json.dumps(first, allow_nan=False)


def test_a_path_in_a_run_is_named_and_never_opened(own, tmp_path):
    """A pipe would block whoever opens it for ever."""
    os.mkfifo(tmp_path / "pipe")
    rewrite(own, {"kind": "image", "source": f"{tmp_path}/pipe", "rows": None, "columns": None})
    assert read_rows(own)["rows"][0]["source"] == "pipe"
    found = read_message(answer_safely(write_message({"folder": str(own), "what": "map", "part": 0, "row": 0})))[0]
    assert found["code"] == "E_DATA" and "no map" in found["message"]


def damage_part(folder):
    (path,) = (folder / "parts").glob("*.parquet")
    path.write_bytes(path.read_bytes()[:-40] + b"\0" * 40)


def damage_plan(folder):
    (folder / "plan.json").write_text("[" * 100_000)


def empty(folder):
    shutil.rmtree(folder / "parts")


def contradict(folder):
    rewrite(folder, {"scores": [1.0]})


@pytest.mark.parametrize("damage", [damage_part, damage_plan, empty, contradict])
def test_a_damaged_run_is_refused_in_words(own, damage):
    damage(own)
    found = read_rows(own)
    assert found["code"] == "E_DATA" and len(found["message"]) > 20


def test_only_a_run_that_was_named_at_the_start_is_read_and_only_with_the_token(folder, own):
    picture = encode(Image.new("RGB", (8, 8), "red"))
    rewrite(own, {"map_png": picture})
    desk = Desk([], Limits(), runs=[str(folder), str(own)])
    app = guard(make_app(desk, "secret", "c"), desk, ["127.0.0.1:1"], "secret", "c")

    def ask(path, body, *headers):
        given = [("Host", "127.0.0.1:1"), ("Content-Type", "application/json"), *headers]
        return send(app, "POST", path, headers=given, body=json.dumps(body).encode())

    token = ("Authorization", "Bearer secret")
    try:
        assert ask("/api/run", {"run": 0}, token).json["total"] == 4
        assert ask("/api/run-map", {"run": 1, "part": 0, "row": 0}, token).json["width"] == 8
        assert ask("/api/run", {"run": 0}).status == 401
        assert ask("/api/run", {"run": 2}, token).code == "E_DATA"
        for body in ({"run": -1}, {"run": "/etc"}, {"run": 0, "order": "other"}, {"run": 0, "folder": "/etc"}):
            assert ask("/api/run", body, token).code == "E_USAGE"
    finally:
        desk.runs.stop()
        desk.decoder.stop()


def test_a_run_that_takes_too_much_memory_or_time_is_given_up_and_the_next_one_is_read(folder):
    for limits in (Limits(decode_bytes=1_000_000), Limits(decode_seconds=0)):
        runs = StoredRuns([str(folder)], limits)
        try:
            with pytest.raises(PageProblem) as refused:
                asyncio.run(runs.list_rows(RunBody(run=0)))
            assert refused.value.code == "E_DATA"
            runs.stop()
            runs.limits = Limits()
            assert asyncio.run(runs.list_rows(RunBody(run=0)))["total"] == 4
        finally:
            runs.stop()


def test_runs_need_a_model_beside_them(folder, tmp_path):
    assert is_stored_run(str(folder)) and not is_stored_run(str(tmp_path)) and not is_stored_run("demo/pets")
    with pytest.raises(InputError, match="Name the model too"):
        serving.serve([str(folder)])
