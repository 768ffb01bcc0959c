"""Reading the folder of a bulk run: what is there, what is damaged, what is missing."""

import json
from contextlib import suppress

import numpy as np
import pyarrow.parquet as pq
import pytest
from summary.bulk_folder import image_row, text_row, write_part_file, write_run

import whyformer as why
from whyformer._runs.parts import fingerprint_parts
from whyformer._runs.plan import RunPlan
from whyformer._summary.rows import open_stored_run
from whyformer._summary.run import summarise_bulk
from whyformer.errors import InputError


def even_rows(count=10, **more):
    return [image_row(f"{i}.png", i, [1, 2, 3, 4], (2, 2), **more) for i in range(count)]


def read_all(folder):
    return [row for rows in open_stored_run(folder).iterate_parts() for row in rows]


def test_reads_every_column(tmp_path):
    rows = [
        image_row("a.png", 0, [1, 2, 3, 4, 5, 6], (2, 3), label="cat", source="photos/a.png"),
        text_row("b", 1, ["good", "film"], [0.25, 0.5]),
        {"id": "c", "position": 2, "method": "rollout", "kind": "image", "error": "E_IMG_READ", "message": "gone"},
    ]
    image, text, failed = read_all(write_run(tmp_path, rows, parts=2))
    assert (image.id, image.grid, image.label, image.source) == ("a.png", (2, 3), "cat", "photos/a.png")
    np.testing.assert_array_equal(image.scores, [1, 2, 3, 4, 5, 6])
    assert text.tokens == ("[CLS]", "good", "film", "[SEP]")
    assert text.spans == (None, (0, 4), (5, 9), None)
    assert text.special.tolist() == [True, False, False, True]
    assert (failed.error, failed.message, failed.scores) == ("E_IMG_READ", "gone", None)


@pytest.mark.parametrize(
    ("label", "name", "right"),
    [("Great_Pyrenees", "great pyrenees", True), ("0", "cat", True), ("dog", "cat", False), (None, "cat", None)],
    ids=["spelling", "number", "wrong", "no label"],
)
def test_knows_whether_a_prediction_is_right(tmp_path, label, name, right):
    (row,) = read_all(write_run(tmp_path, even_rows(1, label=label, prediction_name=name)))
    assert row.is_right is right


def test_a_row_that_occurs_twice_counts_once(tmp_path):
    rows = even_rows(5)
    assert [row.id for row in read_all(write_run(tmp_path, [*rows, *rows], parts=2))] == [row["id"] for row in rows]


def test_the_same_item_by_two_methods_counts_twice(tmp_path):
    rows = [*even_rows(2), *even_rows(2, method="grad_cam")]
    assert len(read_all(write_run(tmp_path, rows))) == 4


def test_a_missing_part_is_a_note(tmp_path):
    write_run(tmp_path, even_rows(12), parts=4)
    (tmp_path / "parts" / "part-00001.parquet").unlink()
    summary = summarise_bulk(tmp_path, test=False)
    assert summary.notes[0] == "Part 1 is missing; the summary covers the others."
    assert summary.tally.rows == 9


def test_a_part_of_an_earlier_version_is_called_so(tmp_path):
    fields = {"methods": {"rollout": {}}}
    write_run(tmp_path, [image_row("a", 0, np.ones(4), (2, 2))], plan=fields)
    table = pq.read_table(tmp_path / "parts" / "part-00000.parquet")
    write_part_file(tmp_path, 0, table.replace_schema_metadata(), RunPlan(fields).fingerprint)
    with pytest.raises(InputError, match=r"written by an earlier version of whyformer\. Run whyformer bulk again"):
        summarise_bulk(tmp_path, test=False)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(b""), "part-00001.parquet is damaged: .*Run whyformer bulk again"),
        (lambda file: file.write_bytes(file.read_bytes()[:-60]), "part-00001.parquet is damaged"),
        (lambda file: file.write_bytes(b"PAR1" + bytes(50) + b"PAR1"), "part-00001.parquet is damaged"),
        (lambda file: pq.write_table(pq.read_table(file), file), "part-00001.parquet is damaged"),
        (lambda file: file.write_bytes((file.parent / "part-00000.parquet").read_bytes()), "another place in it"),
    ],
    ids=["empty", "truncated", "zeros", "written again without a checksum", "a copy of another"],
)
def test_a_damaged_part_is_named(tmp_path, damage, message):
    write_run(tmp_path, even_rows(), parts=2)
    damage(tmp_path / "parts" / "part-00001.parquet")
    with pytest.raises(InputError, match=message) as caught:
        summarise_bulk(tmp_path, test=False)
    assert caught.value.code == "E_DATA"


def test_a_part_without_a_column_is_named(tmp_path):
    write_run(tmp_path, even_rows())
    table = pq.read_table(tmp_path / "parts" / "part-00000.parquet").drop_columns(["scores"])
    write_part_file(tmp_path, 0, table, fingerprint_parts(json.loads((tmp_path / "plan.json").read_text())))
    with pytest.raises(InputError, match="has no column scores"):
        summarise_bulk(tmp_path, test=False)


@pytest.fixture(scope="module")
def real_run(tmp_path_factory):
    """The folder of a real run: what `whyformer bulk` writes."""
    texts = [f"a {word} film about a {place}" for word in ("dull", "warm", "witty") for place in ("town", "dog")]
    folder = tmp_path_factory.mktemp("real") / "run"
    why.bulk("demo/sentiment", texts, "rollout", out=folder, workers=1)
    return folder


def test_no_flipped_bit_of_a_part_is_summarised(real_run, tmp_path):
    """One bit in every 61st byte, from the first to the last: each is refused by name, with what to do."""
    run = why.BulkRun(real_run, 6, 0, 6, ("rollout",))
    assert summarise_bulk(real_run, test=False).tally.rows == len(run.table()) == 6
    part = real_run / "parts" / "part-00000.parquet"
    whole = part.read_bytes()
    try:
        for place in (*range(0, len(whole), 61), len(whole) - 1):
            part.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
            for read in (lambda: summarise_bulk(real_run, test=False), run.table):
                with pytest.raises(InputError, match=r"part-00000\.parquet is damaged.*Run whyformer bulk again"):
                    read()
    finally:
        part.write_bytes(whole)


def test_a_flipped_bit_of_the_plan_is_refused_or_changes_no_field(real_run):
    path = real_run / "plan.json"
    whole = path.read_bytes()
    try:
        for place in range(0, len(whole), 17):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 7]) + whole[place + 1 :])
            with suppress(InputError):
                assert open_stored_run(real_run).plan == json.loads(whole)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scores": [1.0, float("nan"), 1.0, 1.0]}, "a score is not finite"),
        ({"rows": 3}, "4 scores for 3 x 2 patches"),
        ({"scores": None}, "neither an error nor an explanation"),
        ({"position": -1}, "no id, method or position"),
        ({"kind": "sound"}, "neither an error nor an explanation"),
    ],
    ids=["nan", "grid", "no scores", "position", "kind"],
)
def test_a_row_that_contradicts_itself_is_named(tmp_path, changed, message):
    rows = even_rows(3)
    rows[1] |= changed
    with pytest.raises(InputError, match=rf"part-00000.parquet, row 1 \('1.png'\): .*{message}"):
        read_all(write_run(tmp_path, rows))


def test_a_text_with_too_few_scores_is_named(tmp_path):
    row = text_row("t", 0, ["good", "film"], [1, 2])
    row["scores"] = row["scores"][:-1]
    with pytest.raises(InputError, match=r"3 scores, but lists of \[4\] tokens"):
        read_all(write_run(tmp_path, [row]))


@pytest.mark.parametrize(
    ("plan", "message"),
    [(None, "is not the folder of a bulk run"), ("{", "it is not JSON"), ("[1]", "does not hold the fields of a plan")],
    ids=["no plan", "no JSON", "a list"],
)
def test_a_folder_without_a_plan_is_refused(tmp_path, plan, message):
    write_run(tmp_path, even_rows())
    path = tmp_path / "plan.json"
    path.unlink() if plan is None else path.write_text(plan)
    with pytest.raises(InputError, match=message) as caught:
        open_stored_run(tmp_path)
    assert caught.value.code == "E_DATA"


def test_a_run_without_a_finished_part_is_refused(tmp_path):
    write_run(tmp_path, [], parts=0)
    with pytest.raises(InputError, match="has no finished part"):
        open_stored_run(tmp_path)
