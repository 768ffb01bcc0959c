"""bulk(): every item ends in a row, a run resumes where it stopped, and a folder never mixes two runs."""

import copy
import errno
import os
import shutil
import signal
import threading
import time
from functools import partial

import pytest
import tiny_text
import torch
from bulk.bad_items import write_table
from bulk.bulk_inputs import METHODS, MODEL, check_complete, hash_parts, run_bulk, write_images
from bulk.child import start_child, wait_for

import whyformer as why
from whyformer._bulk.worker import ShardWorker
from whyformer.errors import (
    InputError,
    MethodError,
    ModelError,
    OutputError,
    ResourceError,
    TargetError,
    UnsupportedModel,
)

COUNT = 18  # images: five shards of four, the last one smaller


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"), COUNT)


@pytest.fixture(scope="module")
def golden(images, tmp_path_factory):
    """An uninterrupted run."""
    return run_bulk(images, tmp_path_factory.mktemp("golden") / "run").folder


@pytest.fixture
def begun(golden, tmp_path):
    """A copy of the run with two parts missing."""
    shutil.copytree(golden, tmp_path / "run")
    for number in (1, 4):
        (tmp_path / "run" / "parts" / f"part-0000{number}.parquet").unlink()
    return tmp_path / "run"


def list_ids(images):
    return [str(path.relative_to(images)) for path in sorted(images.rglob("*.png"))]


def slow_down(monkeypatch, seconds: float) -> None:
    inner = ShardWorker.explain_batch

    def explain_slowly(*arguments):
        time.sleep(seconds)
        return inner(*arguments)

    monkeypatch.setattr(ShardWorker, "explain_batch", explain_slowly)


# --- rows -------------------------------------------------------------------------------------------------------------


def test_every_item_has_a_row_for_each_method(images, tmp_path):
    run = run_bulk(images, tmp_path / "run")
    assert (run.items, run.failed, run.computed) == (COUNT, 0, COUNT)
    assert len(list(run.parts.iterdir())) == 5
    check_complete(run, list_ids(images))
    assert str(run) == (
        f"18 of 18 items explained by rollout, transformer_attribution. Rows are in {tmp_path / 'run' / 'parts'}."
    )


def test_the_same_run_gives_the_same_bytes(images, golden, tmp_path):
    assert hash_parts(run_bulk(images, tmp_path / "run").folder) == hash_parts(golden)


def test_another_batch_or_shard_size_gives_the_same_numbers(images, tmp_path):
    sizes = {"first": {}, "second": {"shard": 7, "batch_size": 5}}
    runs = [run_bulk(images, tmp_path / name, methods="rollout", **size) for name, size in sizes.items()]
    for one, two in zip(*(run.table(["scores"]).column(0).to_pylist() for run in runs), strict=True):
        assert max(abs(a - b) for a, b in zip(one, two, strict=True)) <= 1e-5 * max(map(abs, one))


@pytest.mark.parametrize(("good", "bad"), [(25, 31), pytest.param(950, 50, marks=pytest.mark.slow)])
def test_bad_items_become_error_records_and_never_stop_the_run(good, bad, tmp_path):
    """31 kinds: every file and row of bad_items.py."""
    (tmp_path / "data").mkdir()
    path, codes = write_table(tmp_path / "data", good, bad)
    run = run_bulk(path, tmp_path / "run", shard=20, batch_size=16, methods=("rollout",))
    assert (run.items, run.failed) == (good + bad, bad)
    rows = run.table().to_pylist()
    assert [row["position"] for row in rows] == list(range(good + bad))
    assert [row["error"] for row in rows] == codes
    assert all((row["scores"] is None) == (row["error"] is not None) for row in rows)
    assert all(row["message"] for row in rows if row["error"])
    assert len(list(run.errors())) == bad
    assert f"{bad} failed, see the column error" in str(run)


def test_failed_items_are_tried_again_only_if_asked(images, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(images, data)
    broken = sorted(data.rglob("*.png"))[5]
    whole = broken.read_bytes()
    broken.write_bytes(b"x")
    run = run_bulk(data, tmp_path / "run")
    assert run.failed == 1 and [row["error"] for row in run.errors()] == ["E_IMG_FORMAT"] * 2
    broken.write_bytes(whole)
    assert run_bulk(data, tmp_path / "run").failed == 1
    again = run_bulk(data, tmp_path / "run", retry_failed=True)
    assert (again.failed, again.computed) == (0, 1)
    check_complete(again, list_ids(data))


def test_texts_in_a_table(tmp_path):
    table = tmp_path / "reviews.csv"
    table.write_text("id,text,label\nr1,a gorgeous film,positive\nr2,,negative\nr3,dull,negative\n")
    run = run_bulk(table, tmp_path / "run", model="demo/sentiment", methods="attcat")
    rows = run.table().to_pylist()
    assert [(row["id"], row["error"], row["label"]) for row in rows] == [
        ("r1", None, "positive"),
        ("reviews.csv:3", "E_DATA", None),
        ("r3", None, "negative"),
    ]


# --- resuming ---------------------------------------------------------------------------------------------------------


def test_long_texts_in_windows_are_as_explained_alone(tmp_path):
    """One long text between short ones, by two methods: the scores, target and prediction of explain()."""
    model = why.open(tiny_text.bert(), tokenizer=tiny_text.wordpiece())
    texts = ["the film", "the film is not good ! " * 6, "a bad film ."]
    (tmp_path / "texts.csv").write_text("text\n" + "\n".join(texts) + "\n")
    methods = ("rollout", "libragrad")
    plain = run_bulk(tmp_path / "texts.csv", tmp_path / "plain", model=model, methods=methods)
    assert plain.failed == 1 and [error["error"] for error in plain.errors()] == ["E_TXT_TOO_LONG"] * 2
    run = run_bulk(tmp_path / "texts.csv", tmp_path / "run", model=model, methods=methods, windows=3)
    assert run.failed == 0
    for row in run.table().to_pylist():
        alone = why.explain(model, texts[row["position"]], row["method"], windows=3)
        assert row["scores"] == pytest.approx(alone.scores[0].tolist(), abs=1e-6)
        assert (row["target"], row["prediction"]) == (alone.targets[0].index, alone.targets[0].index)
        assert row["probability"] == pytest.approx(alone.targets[0].probability)
        assert len(row["starts"]) == len(row["scores"])
    with pytest.raises(InputError, match="truncate and windows cannot be combined"):
        run_bulk(tmp_path / "texts.csv", tmp_path / "both", model=model, windows=True, truncate=True)
    with pytest.raises(OutputError, match="windows"):
        run_bulk(tmp_path / "texts.csv", tmp_path / "run", model=model, methods=methods, windows=True)


def test_finished_parts_are_kept(images, golden, begun):
    times = {path: path.stat().st_mtime_ns for path in (begun / "parts").iterdir()}
    run = run_bulk(images, begun)
    assert run.computed == 4 + 2
    assert hash_parts(begun) == hash_parts(golden)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert run_bulk(images, begun).computed == 0


def test_a_resumed_run_need_not_name_batch_shard_and_threads(images, golden, begun):
    run = why.bulk(MODEL, images, METHODS, out=begun, workers=1)
    assert run.computed == 6 and hash_parts(begun) == hash_parts(golden)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "foreign", "other part"])
def test_damaged_parts_are_computed_again_with_a_warning(images, golden, tmp_path, damage, capfd):
    out = tmp_path / "run"
    shutil.copytree(golden, out)
    part = out / "parts" / "part-00002.parquet"
    whole = part.read_bytes()
    middle = len(whole) // 2
    part.write_bytes(
        {
            "flip": whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :],
            "cut": whole[:-100],
            "empty": b"",
            "foreign": b"PAR1" + bytes(100),
            "other part": (out / "parts" / "part-00000.parquet").read_bytes(),
        }[damage]
    )
    run = run_bulk(images, out)
    assert run.computed == 4 and hash_parts(out) == hash_parts(golden)
    assert "part-00002.parquet is damaged or belongs to another run; it is computed again" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["part-00005.parquet", "notes.parquet"])
def test_a_foreign_file_among_the_parts_is_refused(images, begun, name):
    """pandas.read_parquet of the folder would take it for rows."""
    (begun / "parts" / name).write_bytes(b"")
    with pytest.raises(OutputError, match=f"{name} is not a part of this run") as refused:
        run_bulk(images, begun)
    assert refused.value.code == "E_OUT_MISMATCH"


def change_weights() -> why.Model:
    model = why.open(MODEL)
    module = copy.deepcopy(model.module)
    with torch.no_grad():
        next(module.parameters()).add_(0.1)
    return why.open(module, processor=model.processor, labels=model.labels, readout=model.readout)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"methods": ["rollout"]}, "methods transformer_attribution differs"),
        ({"methods": ["rollout", "attcat"]}, "methods attcat, methods transformer_attribution differ"),
        ({"target": 1}, "target differs"),
        ({"batch_size": 2}, "batch differs"),
        ({"shard": 5}, "shard differs"),
        ({"threads": 2}, "threads differs"),
        ({"maps": True}, "maps differs"),
        ({"truncate": True}, "truncate differs"),
        ({"limit": 5}, "data fingerprint, data items differ"),
        ({"model": change_weights}, "model weights"),
    ],
    ids=["method", "other method", "target", "batch", "shard", "threads", "maps", "truncate", "data", "weights"],
)
def test_another_run_in_the_folder_is_refused_and_the_difference_named(images, begun, change, named):
    change = {name: value() if callable(value) else value for name, value in change.items()}
    with pytest.raises(OutputError, match=f"holds another bulk run: .*{named}") as refused:
        run_bulk(images, begun, **change)
    assert refused.value.code == "E_OUT_MISMATCH"
    assert len(list((begun / "parts").iterdir())) == 3


def test_another_preprocessing_is_refused(images, begun, monkeypatch):
    monkeypatch.setattr("whyformer._bulk.plan.describe_preprocessing", lambda model: "another")
    with pytest.raises(OutputError, match="preprocessing differs"):
        run_bulk(images, begun)


def test_parts_without_a_plan_are_refused(images, begun):
    (begun / "plan.json").unlink()
    with pytest.raises(OutputError, match=r"has Parquet files but no plan\.json"):
        run_bulk(images, begun)


# --- disk and lock ----------------------------------------------------------------------------------------------------


def test_a_full_disk_stops_the_run_and_a_repeated_call_ends_as_if_nothing_had_happened(images, golden, tmp_path):
    """A real limit of the operating system, in a child: no file may be larger than plan and lock."""
    out = tmp_path / "run"

    def run_with_limit():
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
        run_bulk(images, out)

    assert wait_for(start_child(run_with_limit)) == 5
    assert (out / "plan.json").exists() and not list((out / "parts").iterdir())
    assert run_bulk(images, out).computed == COUNT
    assert hash_parts(out) == hash_parts(golden)


MOMENTS = [(call, number) for number in (1, 3, 5) for call in ("fsync", "replace")]
FAILURES = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS]


@pytest.mark.parametrize(
    ("failure", "moment"),
    [
        pytest.param(
            failure, moment, marks=() if (failure, moment) == (errno.EROFS, ("fsync", 3)) else pytest.mark.slow
        )
        for failure in FAILURES
        for moment in MOMENTS
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else f"{value[0]} {value[1]}",
)
def test_a_disk_that_fails_in_the_middle_ends_with_status_5_and_the_run_resumes(
    images, golden, tmp_path, monkeypatch, failure, moment
):
    """From the given call for a part on, as when a disk is remounted read-only after an error."""
    out, (name, first) = tmp_path / "run", moment
    inner, calls = getattr(os, name), 0

    def fail_from_then_on(*arguments):
        nonlocal calls
        calls += threading.current_thread().name.startswith("whyformer-writer")
        if calls >= first:
            raise OSError(failure, os.strerror(failure))
        return inner(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail_from_then_on)
        with pytest.raises(ResourceError, match=r"part.* bytes are needed|parts") as stopped:
            run_bulk(images, out)
    assert stopped.value.exit_code == 5
    assert 0 < run_bulk(images, out).computed <= COUNT
    assert hash_parts(out) == hash_parts(golden)


def test_a_disk_that_is_too_small_is_refused_before_any_work(images, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 100, 100))
    with pytest.raises(ResourceError, match=r"need about [\d,]+ bytes, but the disk of .* has 100 free") as refused:
        run_bulk(images, tmp_path / "run")
    assert refused.value.code == "E_DISK_FULL" and not list((tmp_path / "run" / "parts").iterdir())


def test_a_folder_that_cannot_be_written_is_refused(images, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="is a file"):
        run_bulk(images, tmp_path / "file")
    with pytest.raises(OutputError, match="Cannot write to the folder"):
        run_bulk(images, tmp_path / "file" / "run")


def test_a_read_only_folder_is_refused(images, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("whyformer._runs.lock.open", refuse, raising=False)
    with pytest.raises(OutputError, match="permission denied") as refused:
        run_bulk(images, tmp_path / "run")
    assert refused.value.exit_code == 4


@pytest.mark.parametrize("races", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_one_of_two_runs_on_a_folder_proceeds(images, golden, tmp_path, monkeypatch, races):
    slow_down(monkeypatch, 0.05)
    for race in range(races):
        out = tmp_path / f"run {race}"
        children = [start_child(partial(run_bulk, images, out)) for _ in range(2)]
        assert sorted(wait_for(child) for child in children) == [0, 4]
        assert hash_parts(out) == hash_parts(golden)


# --- signals ----------------------------------------------------------------------------------------------------------


def wait_for_parts(out, count):
    deadline = time.monotonic() + 60
    while len(list((out / "parts").glob("part-*.parquet")) if (out / "parts").exists() else []) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_shard_and_the_run_can_be_resumed(images, golden, tmp_path, monkeypatch, number, status):
    slow_down(monkeypatch, 0.1)
    out = tmp_path / "run"
    child = start_child(partial(run_bulk, images, out))
    wait_for_parts(out, 1)
    os.kill(child, number)
    assert wait_for(child) == status
    parts = len(list((out / "parts").iterdir()))
    assert 1 <= parts < 5 and not list(out.rglob(".*.tmp"))
    assert run_bulk(images, out).computed == COUNT - 4 * parts
    assert hash_parts(out) == hash_parts(golden)


def test_the_second_signal_stops_at_once(images, tmp_path, monkeypatch):
    slow_down(monkeypatch, 30)
    out = tmp_path / "run"
    child = start_child(partial(run_bulk, images, out))
    deadline = time.monotonic() + 60
    while not (out / "parts").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)
    os.kill(child, signal.SIGINT)
    time.sleep(0.1)
    os.kill(child, signal.SIGINT)
    assert wait_for(child) == 130
    assert not list((out / "parts").iterdir())


def test_a_shard_that_takes_too_long_is_given_up(images, tmp_path, monkeypatch):
    monkeypatch.setattr("whyformer._bulk.stopping.GRACE_SECONDS", 0.0)
    inner = ShardWorker.explain_batch

    def interrupt_and_explain(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        return inner(*arguments)

    monkeypatch.setattr(ShardWorker, "explain_batch", interrupt_and_explain)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_bulk(images, tmp_path / "run")
    assert not list((tmp_path / "run" / "parts").iterdir())
    assert signal.getsignal(signal.SIGINT) is before


# --- refused before any work ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"methods": "rolout"}, MethodError, "Did you mean 'rollout'"),
        ({"methods": []}, MethodError, "There are no methods"),
        ({"methods": ["rollout", "rollout"]}, MethodError, "listed twice"),
        ({"target": "unheard of"}, TargetError, "unheard of"),
        ({"target": 10**6}, TargetError, "1000000"),
        ({"engine": "spark"}, InputError, "There is no engine 'spark'. Available: local, ray"),
        ({"address": "auto"}, InputError, "address is for engine='ray' only"),
        ({"address": "", "engine": "ray"}, InputError, "address must be"),
        ({"address": "ray://head:10001", "engine": "ray"}, InputError, "address must be HOST:PORT or auto"),
        ({"workers": 0}, InputError, "workers must be >= 1, got 0"),
        ({"batch_size": 1.5}, InputError, "batch_size must be a whole number"),
        ({"maps": "yes"}, InputError, "maps must be True or False"),
        ({"device": "gpu"}, ModelError, "There is no device 'gpu'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(images, tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        run_bulk(images, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_folder_is_needed(images):
    with pytest.raises(OutputError, match="out must be the path of a folder"):
        why.bulk(MODEL, images, out=None)


def test_an_open_model_is_not_moved(images, tmp_path):
    with pytest.raises(ModelError, match="already open"):
        run_bulk(images, tmp_path / "run", model=why.open(MODEL), device="cpu")
    run = run_bulk(images, tmp_path / "run", model=why.open(MODEL), workers=None)
    assert run.computed == COUNT


def test_a_method_that_cannot_work_on_the_model_is_refused_and_not_repeated_for_every_item(tmp_path):
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
    source = [torch.rand(3, 2, 2) for _ in range(6)]
    with pytest.raises(UnsupportedModel):
        run_bulk(source, tmp_path / "run", model=why.open(module), methods="rollout")
    assert not (tmp_path / "run" / "plan.json").exists()


def test_a_class_number_may_be_given_as_text(images, tmp_path):
    run = run_bulk(images, tmp_path / "run", target="1", methods="rollout")
    assert set(run.table(["target"]).column(0).to_pylist()) == {1}


# --- the caller's process ---------------------------------------------------------------------------------------------


def test_the_number_of_threads_is_restored(images, tmp_path):
    torch.set_num_threads(2)
    try:
        run_bulk(images, tmp_path / "run")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_worker_threads_end_with_the_run(images, tmp_path):
    run_bulk(images, tmp_path / "run")
    deadline = time.monotonic() + 10
    while any(thread.name.startswith("whyformer-loader") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_rows_are_read_in_one_line_by_pyarrow_datasets(golden):
    from pyarrow import dataset

    assert dataset.dataset(golden / "parts").count_rows() == COUNT * len(METHODS)


# --- default methods --------------------------------------------------------------------------------------------------


def test_without_a_method_each_kind_of_input_gets_its_default(tmp_path):
    """Also where only the tensors tell what they are: a model without a processor may take either."""
    vit = why.open("demo/untrained-vit")
    pixels = torch.rand(2, 3, *[vit.module.config.image_size] * 2, generator=torch.Generator().manual_seed(0))
    images = why.bulk(vit.module, [*pixels], out=tmp_path / "images", batch_size=2)
    texts = why.bulk(
        "demo/sentiment", ["a gorgeous film", "a dull film"], out=tmp_path / "texts", batch_size=2, workers=1
    )
    assert (images.methods, texts.methods) == (("gamma_attribution",), ("libragrad",))
