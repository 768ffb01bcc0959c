"""Every verb that reads data takes the same sources and the same options, and gives the same numbers for them."""

import inspect

import datasets
import numpy as np
import pandas as pd
import pyarrow
import pytest
import tiny_text
import torch
from conftest import animal
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset
from typer.testing import CliRunner

import whyformer as why
from whyformer.cli import app
from whyformer.errors import InputError
from whyformer_papers.reproduction import reproduce

TEXTS = ["the film is good", "not good", "the film is not bad !"]
LABELS = ["b", "a", "b"]
PAIRS = list(zip(TEXTS, LABELS, strict=True))
FRAME = pd.DataFrame({"text": TEXTS, "label": LABELS})
ODDLY_NAMED = pd.DataFrame({"words": TEXTS, "mark": [1, 0, 1], "colour": "red"})
OPTIONS = {"columns": {"input": "words", "label": "mark"}, "classes": ["a", "b"]}
NOTE = "Columns not used: colour."


class Reviews(Dataset):
    def __len__(self):
        return len(PAIRS)

    def __getitem__(self, number):
        return PAIRS[number]


SOURCES = {
    "DataFrame": FRAME,
    "pyarrow": pyarrow.Table.from_pandas(FRAME),
    "datasets": datasets.Dataset.from_pandas(FRAME),
    "split": datasets.DatasetDict({"test": datasets.Dataset.from_pandas(FRAME)}),
    "torch Dataset": Reviews(),
    "DataLoader": DataLoader(Reviews(), batch_size=2),
}


@pytest.fixture(scope="module")
def model():
    return why.Model(animal("bert").module, "tiny", "text", ("a", "b", "c", "d"), tiny_text.wordpiece())


def judge_values(model, data, **options):
    judgement = why.judge(model, data, ["rollout"], ["aopc"], **options)
    return [(row.value, row.label) for row in judgement.rows.all.reshape(-1)], judgement.cautions


def bulk_values(model, data, out, **options):
    run = why.bulk(model, data, ["rollout"], out=out, **options)
    rows = run.table().to_pylist()
    assert not run.failed
    return [(row["source"], row["label"], row["scores"]) for row in rows], [row["id"] for row in rows], run


def audit_values(model, data, **options):
    audit = why.audit(model, data, tests=["agreement"], **options)
    rows = [{name: value for name, value in row.items() if name != "name"} for row in audit.rows]
    return repr(rows), audit.notes


@pytest.fixture(scope="module")
def of_pairs(model, tmp_path_factory):
    """What each verb gives for a list of (input, label)."""
    out = tmp_path_factory.mktemp("pairs")
    return judge_values(model, PAIRS)[0], bulk_values(model, PAIRS, out)[0], audit_values(model, PAIRS)[0]


@pytest.mark.parametrize("kind", SOURCES)
def test_numbers_do_not_depend_on_what_holds_the_data(kind, model, of_pairs, tmp_path):
    source = SOURCES[kind]
    found = judge_values(model, source)[0], bulk_values(model, source, tmp_path)[0], audit_values(model, source)[0]
    assert found == of_pairs


def test_each_verb_names_columns_and_classes_and_what_it_does_not_use(model, of_pairs, tmp_path):
    judged, cautions = judge_values(model, ODDLY_NAMED, **OPTIONS)
    rows, ids, run = bulk_values(model, ODDLY_NAMED, tmp_path, **OPTIONS)
    audited, notes = audit_values(model, ODDLY_NAMED, **OPTIONS)
    assert (judged, rows, audited) == of_pairs and ids == ["row 0", "row 1", "row 2"]
    assert run.notes == (NOTE,) and str(run).count(NOTE) == cautions.count(NOTE) == notes.count(NOTE) == 1


@pytest.mark.parametrize("verb", [why.judge, why.judge_metrics, why.bulk, why.audit, reproduce, why.data.read])
def test_every_verb_that_reads_data_has_the_same_options(verb):
    found = inspect.signature(verb).parameters
    wanted = inspect.signature(why.data.read).parameters
    assert {name: found[name].default for name in ("split", "columns", "classes")} == dict.fromkeys(
        ("split", "columns", "classes")
    )
    assert all(str(found[name].annotation) == str(wanted[name].annotation) for name in ("split", "columns", "classes"))


def test_a_split_is_chosen(model, of_pairs):
    parts = datasets.DatasetDict({"train": datasets.Dataset.from_pandas(FRAME[:1]), "own": SOURCES["datasets"]})
    assert judge_values(model, parts, split="own")[0] == of_pairs[0]
    with pytest.raises(InputError, match=r"no split 'tset'\. Available: train, own"):
        judge_values(model, parts, split="tset")


def test_bulk_resumes_on_the_same_frame_and_refuses_another(model, tmp_path):
    frame = FRAME.set_index(pd.Index(["x", "y", "z"], name="ticket"))
    _, ids, first = bulk_values(model, frame, tmp_path)
    _, _, second = bulk_values(model, frame.copy(), tmp_path)
    assert ids == ["x", "y", "z"] and (first.computed, second.computed) == (3, 0)
    with pytest.raises(why.WhyformerError, match="data"):
        bulk_values(model, frame.rename(index={"z": "w"}), tmp_path)


@pytest.mark.slow
def test_workers_get_images_of_a_dataset_that_they_cannot_import(tmp_path):
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)) for _ in range(4)]

    class Local(Dataset):
        def __len__(self):
            return len(images)

        def __getitem__(self, number):
            return images[number], number % 2

    settings = {"methods": ["rollout"], "shard": 2, "batch_size": 2}
    here = why.bulk("demo/untrained-vit", Local(), out=tmp_path / "one", workers=1, **settings)
    there = why.bulk("demo/untrained-vit", Local(), out=tmp_path / "two", workers=2, **settings)
    assert not here.failed and here.table().equals(there.table())


def test_pixels_of_a_loader_are_judged_as_their_images_are():
    vit = why.open("demo/untrained-vit")
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)) for _ in range(2)]
    pixels = TensorDataset(vit.process_images(images), torch.tensor([0, 1]))
    frame = pd.DataFrame({"image": images, "label": [0, 1]})
    arrays = pd.DataFrame({"image": [np.asarray(image) for image in images], "label": [0, 1]})
    found = [
        [row.value for row in why.judge(vit, data, ["rollout"], ["deletion"]).rows.all.reshape(-1)]
        for data in (frame, arrays, DataLoader(pixels, batch_size=2))
    ]
    assert found[0] == found[1] == found[2] and np.isfinite(found[0]).all()


def test_a_summary_reads_images_again_that_were_not_files(tmp_path):
    vit = why.open("demo/untrained-vit")
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)) for _ in range(10)]
    frame = pd.DataFrame({"pixels": images})
    run = why.bulk(vit, frame, "rollout", target=0, out=tmp_path, columns={"input": "pixels"})
    without = why.summarise_bulk(run.folder, test_limit=4)
    assert any("Pass the data of the run with data= (--data)." in note for note in without.notes)
    again = why.summarise_bulk(run.folder, vit, data=frame, columns={"input": "pixels"}, test_limit=4)
    assert not again.notes and len(again.reader.given) == 10 and not again.reader.failed


# --- lists of inputs --------------------------------------------------------------------------------------------------

LISTS = {
    "Series": FRAME["text"],
    "array": FRAME["text"].array,
    "objects": FRAME["text"].to_numpy(object),
    "pyarrow": pyarrow.chunked_array([TEXTS]),
    "datasets": SOURCES["datasets"]["text"],
}


@pytest.mark.parametrize("kind", LISTS)
def test_a_column_is_explained_like_a_list(kind, model):
    wanted = why.explain(model, TEXTS, "rollout").scores
    assert torch.equal(why.explain(model, LISTS[kind], "rollout").scores, wanted)
    assert torch.equal(why.explain(model, LISTS[kind], "rollout", windows=True).scores, wanted)
    assert torch.equal(why.compare(model, LISTS[kind], ["rollout"])["rollout"].scores, wanted)


def test_targets_may_be_a_column_too(model):
    wanted = why.explain(model, TEXTS, "attcat", target=LABELS).scores
    assert torch.equal(why.explain(model, FRAME["text"], "attcat", target=FRAME["label"]).scores, wanted)


@pytest.mark.parametrize("kind", ["DataFrame", "pyarrow", "datasets", "split", "torch Dataset", "DataLoader"])
def test_explain_names_the_table_it_refuses(kind, model):
    with pytest.raises(InputError, match=r"inputs is a .*Pass the inputs alone.*judge, bulk and audit take"):
        why.explain(model, SOURCES[kind])


@pytest.mark.parametrize("inputs", [set(TEXTS), iter(TEXTS), dict(PAIRS).keys()], ids=["set", "iterator", "keys"])
def test_explain_asks_for_a_list(inputs, model):
    with pytest.raises(InputError, match=r"inputs is a .*Pass a list of inputs"):
        why.explain(model, inputs)


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("--column", "--class"), ("--columns", "--classes")])
def test_the_command_line_has_the_same_options(names, tmp_path):
    ODDLY_NAMED.to_csv(tmp_path / "test.csv", index=False)
    column, classes = names
    words = [column, "input=words", column, "label=mark", classes, "1=positive", classes, "0=negative"]
    source = [str(tmp_path), "-M", "demo/sentiment", "--split", "test", *words]
    done = CliRunner().invoke(app, ["bulk", *source, "-m", "rollout", "-o", str(tmp_path / "out"), "--workers", "1"])
    assert done.exit_code == 0, done.output
    assert " ".join(done.output.split()).count(NOTE) == 1
    table = pd.read_parquet(tmp_path / "out" / "parts")
    assert list(table["label"]) == ["positive", "negative", "positive"] and list(table["source"]) == TEXTS


def test_a_summary_on_the_command_line_reads_images_from_a_table(tmp_path):
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)) for _ in range(10)]
    features = datasets.Features({"picture": datasets.Image()})
    file, out = str(tmp_path / "a.parquet"), str(tmp_path / "out")
    datasets.Dataset.from_dict({"picture": images}, features=features).to_parquet(file)
    model = ["-M", "demo/untrained-vit"]
    made = CliRunner().invoke(app, ["bulk", file, *model, "-m", "rollout", "-t", "0", "-o", out, "--workers", "1"])
    assert made.exit_code == 0, made.output
    summary = ["bulk-summary", out, *model, "--test-limit", "4"]
    without = CliRunner().invoke(app, summary)
    assert without.exit_code == 3
    assert "Pass the data of the run with data= (--data)." in " ".join(without.output.split())
    found = CliRunner().invoke(app, [*summary, "--data", file, "--column", "input=picture"])
    assert found.exit_code == 0 and "could not be read again" not in found.output, found.output
