"""A result says which weights it was made with, by the hash of their files, and names no path of the machine."""

import hashlib
import json

import pytest
import torch
from safetensors import safe_open
from tiny_text import WORDS, wordpiece
from transformers import BertConfig, BertForSequenceClassification

import whyformer as why
from whyformer._model.weight_files import NO_FILES, name_source


@pytest.fixture
def folder(tmp_path):
    """A model as transformers saves it."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=2,
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path / "my-bert")
    wordpiece().save_pretrained(tmp_path / "my-bert")
    return tmp_path / "my-bert"


def test_the_hash_is_that_of_the_file(folder):
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert why.open(folder).describe_versions()["weights"] == f"sha256 {digest}"


def test_several_files_have_the_hash_of_what_sha256sum_prints(folder):
    module = why.open(folder).module
    (folder / "model.safetensors").unlink()
    module.save_pretrained(folder, max_shard_size="8KB")
    files = sorted(folder.glob("*.safetensors"))
    lines = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    wanted = f"sha256 {hashlib.sha256(lines.encode()).hexdigest()} of the hashes of {len(files)} files"
    assert len(files) > 1 and why.open(folder).describe_versions()["weights"] == wanted


def test_weights_that_changed_get_no_hash(folder):
    model = why.open(folder)
    with torch.no_grad():
        next(model.module.parameters()).add_(1)
    assert "changed in memory" in model.describe_versions()["weights"]
    model = why.open(folder)
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b" ")
    assert "files changed" in model.describe_versions()["weights"]


def test_a_module_in_memory_has_no_file(folder):
    assert why.open(why.open(folder).module).describe_versions()["weights"] == NO_FILES


def test_a_model_is_named_as_it_was_given(folder, monkeypatch):
    assert why.open(folder).name == "my-bert"
    monkeypatch.chdir(folder.parent)
    assert why.open("my-bert").name == "my-bert" and why.open("./my-bert").name == "./my-bert"
    assert [name_source(text) for text in ("demo/pets", "org/model", "/models/pets/")] == [
        "demo/pets",
        "org/model",
        "pets",
    ]


@pytest.mark.parametrize("suffix", [".json", ".safetensors", ".html", ".csv", ".txt", ".svg", ".parquet"])
def test_no_saved_file_has_an_absolute_path(folder, tmp_path, suffix):
    e = why.explain(folder, "the film is good", "rollout")
    file = tmp_path / f"saved{suffix}"
    e.save(file)
    assert str(tmp_path).encode() not in file.read_bytes()
    assert b"my-bert" in file.read_bytes() or suffix in (".csv", ".txt", ".parquet")


def test_saved_files_have_the_hash_of_the_weights(folder, tmp_path):
    e = why.explain(folder, "the film is good", "rollout")
    e.save(tmp_path / "e.json")
    e.save(tmp_path / "e.safetensors")
    assert json.loads((tmp_path / "e.json").read_text())["versions"]["weights"] == e.versions["weights"]
    with safe_open(tmp_path / "e.safetensors", "pt") as file:
        assert e.versions["weights"] in str(file.metadata())
    assert why.load(tmp_path / "e.safetensors").versions == e.versions


def test_a_bulk_run_has_no_absolute_path_and_its_summary_finds_the_model(folder, tmp_path):
    texts = [f"the film is good and the film is {word}" for word in ("bad", "good", "a film", "not good")] * 8
    why.bulk(folder, texts, "rollout", out=tmp_path / "run", workers=1)
    for name in ("plan.json", "model-folder.txt"):
        assert str(tmp_path) not in (tmp_path / "run" / name).read_text()
    summary = why.summarise_bulk(tmp_path / "run", test_limit=2)
    assert summary.model == "my-bert" and summary.reader is not None
    summary.save(tmp_path / "summary.html")
    page = (tmp_path / "summary.html").read_text()
    assert str(tmp_path) not in page and summary.reader.model.describe_versions()["weights"] in page
