"""open(): a model from a folder, a name or a module, or a clear error."""

import base64
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers as hf
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_text import bert, byte_pairs, gpt2, wordpiece
from tokenizers import normalizers
from torch import nn

import whyformer
from whyformer._model.loading.checkpoint import SILENT_TRANSFORMERS
from whyformer.errors import IncompleteModel, ModelError, ModelNotFound, UnsafeModel, UnsupportedModel, WhyformerError

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A text classifier with its tokenizer, as save_pretrained leaves it."""
    folder = tmp_path_factory.mktemp("saved") / "bert"
    save(bert().float(), folder)
    wordpiece().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A copy to damage."""
    shutil.copytree(saved, tmp_path / "bert")
    return tmp_path / "bert"


@pytest.fixture(autouse=True)
def refuse_side_effects(monkeypatch, capfd):
    """No network, no question on standard input, and no output: neither a report nor a progress bar."""

    def refuse(*_, **__):
        raise AssertionError("used the network or asked a question")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("builtins.input", refuse)
    yield
    assert capfd.readouterr() == ("", "")


def save(module: hf.PreTrainedModel, folder: Path, **settings: object) -> None:
    hf.utils.logging.disable_progress_bar()
    module.save_pretrained(folder, **settings)
    hf.utils.logging.enable_progress_bar()


def change_config(folder: Path, **changes: object) -> Path:
    """Change entries of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


def change_weights(folder: Path, change) -> Path:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


# --- folders ----------------------------------------------------------------------------------------------------------


def test_a_folder(saved):
    for source in (saved, str(saved)):
        model = whyformer.open(source)
        assert (model.kind, model.labels, model.name) == ("text", ("negative", "neutral", "positive"), "bert")
        assert not model.module.training
        e = whyformer.explain(model, "the film is good", target="positive")
        assert e.scores.shape == (1, 6)
    assert whyformer.explain(saved, "the film is good", target="positive").scores.equal(e.scores)


def test_a_folder_is_found_from_home(saved, monkeypatch):
    monkeypatch.setenv("HOME", str(saved.parent))
    assert whyformer.open("~/bert").kind == "text"


def test_a_folder_without_a_tokenizer_takes_tensors(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    model = whyformer.open(folder)
    assert (model.kind, model.tokenizer) == ("tensors", None)
    assert whyformer.explain(model, torch.tensor([[2, 5, 6, 3]]), "rollout").scores.shape == (1, 4)
    with pytest.raises(WhyformerError, match="was opened without a tokenizer, so it needs tensors, got str"):
        whyformer.explain(model, "the film")


def test_a_folder_of_an_image_model(zoo, tmp_path):
    save(zoo("vit").module, tmp_path)
    bare = whyformer.open(tmp_path)
    assert (bare.kind, bare.dtype) == ("tensors", torch.float64)
    hf.ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(tmp_path)
    wordpiece().save_pretrained(tmp_path)  # not needed by an image model
    model = whyformer.open(tmp_path)
    assert (model.kind, model.tokenizer) == ("image", None)
    assert whyformer.explain(model, Image.new("RGB", (30, 20)), "rollout").scores.shape == (1, 16)


def test_weights_in_several_files(tmp_path):
    save(bert(), tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert torch.equal(whyformer.open(tmp_path).module.classifier.weight, bert().classifier.weight)


def test_tied_weights_are_not_missing(tmp_path):
    save(gpt2(), tmp_path)
    byte_pairs().save_pretrained(tmp_path)
    model = whyformer.open(tmp_path)
    assert whyformer.explain(model, "the city of", "gradient_x_input").scores.shape[0] == 1


def test_a_tokenizer_argument_overrides_that_of_the_folder(folder):
    (folder / "tokenizer.json").write_text("{")
    model = whyformer.open(folder, tokenizer=byte_pairs())
    assert len(model.tokenizer) == len(byte_pairs())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype(saved, dtype):
    model = whyformer.open(saved, dtype=dtype, device="cpu")
    assert model.dtype == dtype
    assert model.notes == ()


def test_half_precision_weights_are_used_as_float32_on_the_cpu(tmp_path):
    """Half precision is slow on CPUs and crashes on some."""
    save(bert().half(), tmp_path)
    model = whyformer.open(tmp_path)
    assert model.dtype == torch.float32
    assert model.notes == ("The weights are float16; on the CPU they are used as float32.",)
    assert whyformer.open(tmp_path, dtype=torch.float16).dtype == torch.float16


def test_wrong_dtypes_and_devices(saved):
    for wrong in (torch.int64, "float64", 64):
        with pytest.raises(ModelError, match="dtype must be a floating-point dtype"):
            whyformer.open(saved, dtype=wrong)
    for wrong in ("gpu", "cuda:99", 3.5):
        with pytest.raises(ModelError, match=r"The device .* is not available"):
            whyformer.open(saved, device=wrong)


def test_labels(saved):
    assert whyformer.open(saved, labels=["a", "b", "c"]).labels == ("a", "b", "c")
    with pytest.raises(ModelError, match="got 2, but the model has 3 classes"):
        whyformer.open(saved, labels=["a", "b"])
    with pytest.raises(ModelError, match="one name per class, got a string"):
        whyformer.open(saved, labels="abc")


# --- incomplete folders -----------------------------------------------------------------------------------------------


def test_a_missing_head(folder):
    change_weights(folder, lambda weights: weights.pop("classifier.weight"))
    with pytest.raises(
        IncompleteModel, match=r"classifier.weight is missing from the weights of .*prediction would be random"
    ):
        whyformer.open(folder)


def test_missing_layers(folder):
    change_config(folder, num_hidden_layers=3)
    with pytest.raises(IncompleteModel, match=r"bert\.encoder\.layer\.2.* and 13 more are missing from the weights"):
        whyformer.open(folder)


def publish_without_pooler(folder: Path) -> nn.Module:
    """As facebook/dino-vits16 is published: a ViTModel whose weights have no pooler, and a config from before poolers
    had settings."""
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 24}
    torch.manual_seed(0)
    module = hf.ViTModel(hf.ViTConfig(**sizes, image_size=16, patch_size=8), add_pooling_layer=False).eval()
    save(module, folder)
    config = {"architectures": ["ViTModel"], "model_type": "vit", "image_size": 16, "patch_size": 8, "num_channels": 3}
    config |= {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "qkv_bias": True, "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps({**config, **sizes, "transformers_version": "4.9.0.dev0"}))
    return module


def test_a_checkpoint_without_a_pooler_is_opened_without_one(tmp_path):
    module, x = publish_without_pooler(tmp_path), {"pixel_values": torch.randn(1, 3, 16, 16)}
    model = whyformer.open(tmp_path)
    note = "The checkpoint has no weights for a pooler, so the model is opened without one."
    assert model.notes == (note,)
    with torch.no_grad():
        returned = model.module(**x)
        torch.testing.assert_close(returned.last_hidden_state, module(**x).last_hidden_state)
    assert returned.pooler_output is None
    assert note in whyformer.explain(model, x).notes


def test_other_missing_weights_are_refused_with_the_pooler(tmp_path):
    publish_without_pooler(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["layernorm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(IncompleteModel, match=r"layernorm\.weight, pooler\.dense\.bias, .* missing from the weights"):
        whyformer.open(tmp_path)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite(folder, value):
    change_weights(folder, lambda weights: weights["classifier.bias"].fill_(value))
    with pytest.raises(IncompleteModel, match=r"The weight classifier.bias of .* contains NaN or infinity"):
        whyformer.open(folder)


def test_weights_of_another_shape(folder):
    change_weights(folder, lambda weights: weights.update({"classifier.weight": torch.zeros(7, 24)}))
    with pytest.raises(IncompleteModel, match=r"classifier\.weight has the shape \[7, 24\] .*, but \[3, 24\] in its"):
        whyformer.open(folder)


def test_a_config_far_larger_than_the_weights_allocates_no_memory(folder):
    change_config(folder, vocab_size=10**8)
    with pytest.raises(
        IncompleteModel, match=r"describes 2,4.* parameters, but .*word_embeddings.weight.*\[20, 24\] in the file"
    ):
        whyformer.open(folder)
    change_config(folder, vocab_size=20, num_hidden_layers=10**6)
    with pytest.raises(IncompleteModel, match=r"num_hidden_layers is 1,000,000; the limit is 1,000"):
        whyformer.open(folder)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:200], lambda b: b[:-100], lambda b: b"", lambda b: b"\xff" * 8 + b[8:]]
)
def test_damaged_weights(folder, damage):
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(IncompleteModel, match=r"model\.safetensors in .* is damaged \(.*\). Copy or download it again"):
        whyformer.open(folder)


def test_a_damaged_index(tmp_path):
    save(bert(), tmp_path, max_shard_size="20KB")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {')
    with pytest.raises(IncompleteModel, match=r"The weights of .* could not be read"):
        whyformer.open(tmp_path)


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(IncompleteModel, match=r"has no weights: there is no \.safetensors file"):
        whyformer.open(folder)


class Canary:
    """Unpickling this would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_pickle_is_never_loaded(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    torch.save(Canary(tmp_path / "sang"), folder / "pytorch_model.bin")
    with pytest.raises(UnsafeModel, match=r"only pickle weights \(pytorch_model\.bin\).* Convert them to safetensors"):
        whyformer.open(folder)
    assert not (tmp_path / "sang").exists()


def test_pickle_next_to_safetensors_is_never_loaded(folder, tmp_path):
    torch.save(Canary(tmp_path / "sang"), folder / "pytorch_model.bin")
    assert whyformer.open(folder).kind == "text"
    assert not (tmp_path / "sang").exists()


# --- configs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ['{"architectures": ["Bert', "", "\x00\x01", "[" * 100_000])
def test_a_config_that_is_not_json(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(IncompleteModel, match=r"config\.json is not valid JSON"):
        whyformer.open(folder)


def test_a_config_that_cannot_be_read(folder, monkeypatch):
    def refuse(_):
        raise PermissionError("no")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(IncompleteModel, match=r"config\.json cannot be read \(no\)"):
        whyformer.open(folder)


def test_a_pipe_as_weights_does_not_block(folder):
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(IncompleteModel, match="has no weights"):
        whyformer.open(folder)


def test_a_config_that_is_not_an_object(folder):
    (folder / "config.json").write_text("[1, 2]")
    with pytest.raises(IncompleteModel, match=r"config\.json must contain an object, got a list"):
        whyformer.open(folder)
    (folder / "config.json").write_bytes(b" " * 10_000_001)
    with pytest.raises(IncompleteModel, match=r"config\.json has 10,000,001 bytes, too many for a config"):
        whyformer.open(folder)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"architectures": None}, IncompleteModel, "has no architectures, so the model class is unknown"),
        ({"architectures": []}, IncompleteModel, "has no architectures"),
        ({"model_type": None}, IncompleteModel, "has no model_type, so the model class is unknown"),
        (
            {"model_type": "nonsense"},
            UnsupportedModel,
            "has the model_type 'nonsense', which transformers .* does not support",
        ),
        (
            {"architectures": ["Nonsense"]},
            UnsupportedModel,
            "has the architecture Nonsense, which transformers .* does not support",
        ),
        ({"architectures": ["AutoModel"]}, UnsupportedModel, "has the architecture AutoModel, which"),
        (
            {"architectures": ["GPT2LMHeadModel"]},
            IncompleteModel,
            "has the model_type bert, but the architecture GPT2LMHeadModel",
        ),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, UnsupportedModel, "is quantised"),
        ({"hidden_size": "many"}, IncompleteModel, "hidden_size must be a whole number >= 1, got 'many'"),
        ({"hidden_size": 25}, IncompleteModel, "cannot build BertForSequenceClassification from config.json"),
    ],
)
def test_configs_that_cannot_be_built(folder, changes, error, message):
    with pytest.raises(error, match=message):
        whyformer.open(change_config(folder, **changes))


def test_code_in_the_folder_is_not_run(folder, tmp_path):
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'sang')!r}, 'w')")
    change_config(folder, auto_map={"AutoConfig": "evil.Config", "AutoModelForSequenceClassification": "evil.Model"})
    with pytest.raises(
        UnsafeModel, match=r"needs its own Python code \(auto_map in config\.json\), which whyformer does"
    ):
        whyformer.open(folder)
    assert not (tmp_path / "sang").exists()


def test_code_of_a_tokenizer_is_not_run(folder, tmp_path):
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'sang')!r}, 'w')")
    (folder / "tokenizer.json").unlink()
    settings = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}, "tokenizer_class": "EvilTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UnsafeModel, match=r"The tokenizer in .* needs its own Python code \(auto_map\)"):
        whyformer.open(folder)
    assert not (tmp_path / "sang").exists()


def replace_all(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def chain(kind, *steps):
    """Steps, nested once more than they need be."""
    return {"type": "Sequence", kind: [{"type": "Sequence", kind: list(steps)}]}


MANY_A = chain("normalizers", *[replace_all("a", "a" * 50)] * 5)
EACH_BYTE = {"type": "Replace", "pattern": {"Regex": ""}, "content": "x" * 2000}
TABLE = base64.b64encode(b"\4\0\0\0\0\0\0\0" + b"x" * 5000 + b"\0").decode()
TWICE = [{"Sequence": {"id": "A", "type_id": 0}}] * 2
MARK = {"[X]": {"id": "[X]", "ids": [1] * 100, "tokens": ["[X]"] * 100}}
GROWING = [
    {"normalizer": MANY_A},
    {"normalizer": MANY_A, "added_tokens": [{"id": 0, "content": "a" * 9, "normalized": True, "special": False}]},
    {"normalizer": EACH_BYTE},
    {"normalizer": chain("normalizers", *[{"type": "Prepend", "prepend": "ab"}] * 9)},
    {"normalizer": chain("normalizers", *[{"type": "ByteLevel"}] * 10)},
    {"normalizer": {"type": "Precompiled", "precompiled_charsmap": TABLE}},
    {"pre_tokenizer": chain("pretokenizers", *[{"type": "ByteLevel", "add_prefix_space": False}] * 30)},
    {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[X]"}}] * 20,
                        "pair": [], "special_tokens": MARK}},
    {"post_processor": chain("processors", *[{"type": "TemplateProcessing", "single": TWICE, "pair": [],
                                              "special_tokens": {}}] * 20)},
    {"decoder": chain("decoders", *[replace_all("a", "a" * 50)] * 5)},
]  # fmt: skip


@pytest.mark.parametrize("steps", GROWING, ids=lambda steps: " ".join(steps))
def test_a_tokenizer_that_makes_texts_far_longer_is_refused_before_it_is_built(folder, monkeypatch, steps):
    """It runs in compiled code, which ends the process when there is no memory."""
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | steps))
    monkeypatch.setattr(hf.AutoTokenizer, "from_pretrained", lambda *_, **__: pytest.fail("it was built"))
    with pytest.raises(UnsafeModel, match=r"can make a text [\d,]+ times as long") as caught:
        whyformer.open(folder)
    assert caught.value.code == "E_MODEL_TOKENIZER"


def test_a_tokenizer_that_is_made_of_other_files_is_looked_at_too(folder, monkeypatch):
    loaded = byte_pairs()
    loaded.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("a", "a" * 50)] * 5)
    monkeypatch.setattr(hf.AutoTokenizer, "from_pretrained", lambda *_, **__: loaded)
    with pytest.raises(UnsafeModel, match="625,000,000 times as long"):
        whyformer.open(folder)


@pytest.mark.parametrize("padding", [10**9, 2**40])
def test_padding_that_a_tokenizer_asks_for_is_not_done(folder, padding):
    file = folder / "tokenizer.json"
    asked = {"strategy": {"Fixed": padding}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
             "pad_type_id": 0, "pad_token": "[PAD]"}  # fmt: skip
    file.write_text(json.dumps(json.loads(file.read_text()) | {"padding": asked}))
    assert whyformer.explain(whyformer.open(folder), "a film", "rollout").scores.numel() < 20


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation", "_attn_implementation_internal"])
def test_an_attention_kernel_named_by_the_config_is_ignored(folder, key):
    model = whyformer.open(change_config(folder, **{key: "evil/kernel"}, experts_implementation="evil/experts"))
    assert model.module.config._attn_implementation == "sdpa"
    assert "evil" not in json.dumps(model.module.config.to_dict())


def test_the_attention_of_the_loaded_model_is_checked(saved, monkeypatch):
    monkeypatch.setattr("whyformer._model.loading.checkpoint.ATTENTION_IMPLEMENTATIONS", ("eager",))
    with pytest.raises(UnsafeModel, match="was built with the attention 'sdpa', which was not asked for"):
        whyformer.open(saved)


def test_a_damaged_tokenizer(folder):
    (folder / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(IncompleteModel, match=r"The tokenizer in .* could not be loaded"):
        whyformer.open(folder)


def test_a_damaged_image_processor(zoo, tmp_path):
    save(zoo("vit").module, tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"size": ')
    with pytest.raises(IncompleteModel, match=r"preprocessor_config\.json is not valid JSON"):
        whyformer.open(tmp_path)


# --- side effects -----------------------------------------------------------------------------------------------------


def describe_logging():
    logger = logging.getLogger("transformers")
    return logger.level, hf.utils.logging.is_progress_bar_enabled(), are_progress_bars_disabled()


@pytest.mark.parametrize("level", [logging.NOTSET, logging.INFO, logging.ERROR])
def test_loading_leaves_the_logging_of_transformers_as_it_was(folder, level):
    logger, before = logging.getLogger("transformers"), describe_logging()
    try:
        logger.setLevel(level)
        disable_progress_bars()
        wanted = describe_logging()
        whyformer.open(folder)
        assert describe_logging() == wanted
        (folder / "tokenizer.json").write_text("{")
        with pytest.raises(IncompleteModel):
            whyformer.open(folder)
        assert describe_logging() == wanted
    finally:
        logger.setLevel(before[0])
        enable_progress_bars()
    assert describe_logging() == before


def test_two_threads_that_load_leave_the_logging_as_it_was():
    """The one that came second leaves last: it must not restore the silence of the first."""
    before, first, second = describe_logging(), SILENT_TRANSFORMERS, SILENT_TRANSFORMERS
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert describe_logging()[0] == logging.CRITICAL
    second.__exit__(None, None, None)
    assert describe_logging() == before


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["", "../x", "./x", "/no/such/folder", "a/b/c", "nul\0", "x" * 300, "x" * 5000,
     "~/no-such-folder", "gpt2 ", "a b", "größe", "-x", "org/", "/x"],
)  # fmt: skip
def test_neither_a_folder_nor_a_valid_name(name):
    with pytest.raises(ModelNotFound, match=r"is neither an existing model folder nor a valid model name"):
        whyformer.open(name)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("https://huggingface.co/gpt2", "Pass the name on the hub, 'gpt2'"),
        ("https://huggingface.co/google/vit-base-patch16-224/tree/main", "'google/vit-base-patch16-224'"),
        ("s3://bucket/model", "Download the model, and pass its folder"),
    ],
)
def test_a_url_is_no_model(url, advice):
    with pytest.raises(ModelNotFound, match=rf"^'{url}' is a URL\. .*{advice}\.$"):
        whyformer.open(url)


def test_folders_without_a_model(tmp_path):
    with pytest.raises(ModelNotFound, match=r"is not a model folder: it has no config\.json"):
        whyformer.open(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match="contains only an adapter"):
        whyformer.open(tmp_path)
    with pytest.raises(ModelNotFound, match=r"config\.json' is a file. Pass the folder"):
        whyformer.open(tmp_path / "adapter_config.json")


def test_values_that_are_not_models():
    for wrong, name in ((None, "None"), (5, "int"), (b"gpt2", "bytes"), ({}, "dict")):
        with pytest.raises(ModelNotFound, match=f"A model must be a folder, a name or an nn.Module, got {name}"):
            whyformer.open(wrong)


def test_demo_models():
    assert whyformer.open("demo/untrained-vit").kind == "image"
    for name in ("demo/nonsense", "demo/", "demo/../models/untrained-vit"):
        with pytest.raises(ModelNotFound, match=r"No demo model .* Available: .*demo/untrained-vit"):
            whyformer.open(name)


def test_without_the_package_of_the_demo_models_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("whyformer._model.loading.opening.DEMO_MODELS", tmp_path / "models")
    with pytest.raises(ModelNotFound, match=r"demo/pets is not there.* pip install 'whyformer\[demo\]'"):
        whyformer.open("demo/pets")


@pytest.fixture
def cache(saved, tmp_path) -> Path:
    """A hub cache that holds one model, someone/tiny."""
    cached = tmp_path / "hub" / "models--someone--tiny"
    shutil.copytree(saved, cached / "snapshots" / "0")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0")
    return tmp_path / "hub"


NOT_HERE = (
    r"'nobody/has-this' is neither a local folder nor in the local cache, and downloading is disabled "
    r"\(HF_HUB_OFFLINE\)\. Download it first, or pass a folder"
)


def test_names_offline(cache, monkeypatch):
    """A model in the cache opens by its name, another one is a clear error."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    model = whyformer.open("someone/tiny")
    assert (model.name, model.kind, model.labels) == ("someone/tiny", "text", ("negative", "neutral", "positive"))
    with pytest.raises(ModelNotFound, match=NOT_HERE) as raised:
        whyformer.open("nobody/has-this")
    assert raised.value.__context__ is None


@pytest.mark.parametrize("broken", ["auto_map", "quantization_config"])
def test_the_config_of_a_cached_model_is_checked_too(cache, monkeypatch, broken):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    change_config(cache / "models--someone--tiny" / "snapshots" / "0", **{broken: {"AutoConfig": "evil.Config"}})
    with pytest.raises(ModelError, match=f"{broken} in config.json"):
        whyformer.open("someone/tiny")


@pytest.mark.slow
def test_a_name_offline_from_the_command_line(cache):
    """Within seconds, without a question, in one line."""
    places = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "whyformer.cli", "explain", "the film", "-M", "nobody/has-this"]
    begun = time.monotonic()
    done = subprocess.run(
        command,
        env=os.environ | places,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert time.monotonic() - begun < 30  # almost all of it imports
    assert (done.returncode, done.stdout) == (4, "")
    assert "Traceback" not in done.stderr
    assert re.search(NOT_HERE, done.stderr.replace("\n", " "))


def fake_hub(monkeypatch, cache, answer) -> None:
    """A hub that gives this answer, or raises it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # the tests themselves run offline

    def info(_, name, **__):
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in answer])

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", info)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (ConnectionError("no route\nmore"), ModelNotFound, "and the hub could not be reached: no route$"),
        (
            RepositoryNotFoundError.__new__(RepositoryNotFoundError),
            ModelNotFound,
            "there is no such model on the hub, or",
        ),
        (
            ["config.json", "pytorch_model.bin"],
            UnsafeModel,
            "nobody/x has no safetensors weights on the hub; other formats",
        ),
    ],
)
def test_names_that_cannot_be_downloaded(cache, monkeypatch, answer, error, message):
    fake_hub(monkeypatch, cache, answer)
    with pytest.raises(error, match=message) as raised:
        whyformer.open("nobody/x")
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_a_download_that_fails(cache, monkeypatch):
    def refuse(*_, **__):
        raise OSError("it broke off\nmore advice")

    fake_hub(monkeypatch, cache, ["config.json", "model.safetensors"])
    monkeypatch.setattr("transformers.utils.hub.cached_file", refuse)
    with pytest.raises(ModelNotFound, match=r"config\.json of 'nobody/x' could not be downloaded: it broke off$"):
        whyformer.open("nobody/x")


# --- modules ----------------------------------------------------------------------------------------------------------


def test_a_module_is_used_unchanged(zoo):
    module = zoo("bert").module
    model = whyformer.open(module)
    assert (model.module, model.kind, model.name) == (module, "tensors", "BertForSequenceClassification")
    assert whyformer.open(model) is model


def test_a_module_is_not_moved(zoo):
    with pytest.raises(
        UnsupportedModel, match=r"An nn.Module is used unchanged: call module.to\(...\) before opening it"
    ):
        whyformer.open(zoo("bert").module, dtype=torch.float64)
    with pytest.raises(UnsupportedModel, match=r"An nn\.Module is used unchanged"):
        whyformer.open(zoo("bert").module, device="cpu")


def test_an_open_model_takes_no_options(zoo):
    with pytest.raises(ModelError, match="BertForSequenceClassification is already open"):
        whyformer.open(whyformer.open(zoo("bert").module), readout="mean")


def test_a_module_on_the_meta_device():
    with torch.device("meta"):
        module = nn.Linear(3, 3)
    with pytest.raises(IncompleteModel, match="Linear has parameters on the meta device, which have no values"):
        whyformer.open(module)


def test_wrong_tokenizers_and_processors(zoo):
    with pytest.raises(ModelError, match=r"tokenizer must be a transformers tokenizer .*, got str"):
        whyformer.open(zoo("bert").module, tokenizer="bert-base-uncased")
    with pytest.raises(ModelError, match=r"tokenizer must be a transformers tokenizer .*, got Tokenizer"):
        whyformer.open(zoo("bert").module, tokenizer=wordpiece().backend_tokenizer)
    with pytest.raises(ModelError, match=r"processor must be .* image processor or a function .*, got dict"):
        whyformer.open(zoo("vit").module, processor={})


def test_finds_the_batch_axis_of_torch_encoders():
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    assert whyformer.open(layer).batch_axis == 1
    assert whyformer.open(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).batch_axis == 0
    assert whyformer.open(layer, batch_axis=0).batch_axis == 0
