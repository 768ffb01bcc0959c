"""Hostile config.json and preprocessor_config.json: refused by name, at once, without eating memory."""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

import whyformer
from whyformer._model.loading import checkpoint
from whyformer._model.loading.opening import DEMO_MODELS
from whyformer.errors import CODES, IncompleteModel, WhyformerError

CONFIG, LARGE, UNSUPPORTED = "E_MODEL_CONFIG", "E_MODEL_TOO_LARGE", "E_MODEL_UNSUPPORTED"
NAN, INFINITY = float("nan"), float("inf")
LABELS = None  # removes id2label and label2id, so that num_labels counts


@pytest.fixture
def vit(tmp_path) -> Path:
    return shutil.copytree(DEMO_MODELS / "untrained-vit", tmp_path / "vit")


def change_json(path: Path, changes: dict) -> None:
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))


HOSTILE_CONFIGS = [
    (dict(num_labels=10**9, id2label=LABELS, label2id=LABELS), LARGE, "num_labels is 1,000,000,000; the limit is 100"),
    (dict(num_labels=10**8, id2label=LABELS, label2id=LABELS), LARGE, "num_labels is 100,000,000; the limit is"),
    (dict(num_labels=90_000, id2label=LABELS, label2id=LABELS), LARGE, "describes 3,.*the limit is 1,180"),
    (dict(num_labels="many", id2label=LABELS, label2id=LABELS), CONFIG, "num_labels must be a whole number >= 0"),
    (dict(num_labels=-3, id2label=LABELS, label2id=LABELS), CONFIG, "num_labels must be a whole number >= 0, got -3"),
    (dict(num_labels=1.5, id2label=LABELS, label2id=LABELS), CONFIG, "num_labels must be a whole number >= 0, got 1.5"),
    (dict(num_labels=[5]), CONFIG, "num_labels must be"),
    (dict(hidden_size=10**7), LARGE, "config.json describes .* parameters, but the weights have only"),
    (dict(hidden_size=10**12), LARGE, "hidden_size is 1,000,000,000,000; the limit is 100,000,000"),
    (dict(hidden_size=10**4000), LARGE, "hidden_size is 1000000.*; the limit is 100,000,000"),
    (dict(hidden_size=0), CONFIG, "hidden_size must be a whole number >= 1, got 0"),
    (dict(hidden_size=-32), CONFIG, "hidden_size must be a whole number >= 1, got -32"),
    (dict(hidden_size=True), CONFIG, "hidden_size must be a whole number >= 1, got True"),
    (dict(hidden_size={}), CONFIG, "hidden_size must be a whole number >= 1"),
    (dict(hidden_size=33), "E_MODEL_WEIGHTS", r"has the shape .* in the weights of .*, but .* in its config\.json"),
    (dict(intermediate_size=10**8), LARGE, "describes .* parameters"),
    (dict(intermediate_size="x"), CONFIG, "intermediate_size must be"),
    (dict(num_hidden_layers=10**6), LARGE, "num_hidden_layers is 1,000,000; the limit is 1,000"),
    (dict(num_hidden_layers=900), LARGE, "asks for 900 layers .* but the weights have only"),
    (dict(num_hidden_layers=-1), CONFIG, "num_hidden_layers must be a whole number >= 0, got -1"),
    (dict(num_hidden_layers="3"), CONFIG, "num_hidden_layers must be a whole number >= 0, got '3'"),
    (dict(image_size=100_000_000), LARGE, "describes .* parameters"),
    (dict(image_size=0), CONFIG, "image_size must be a whole number >= 1, got 0"),
    (dict(image_size="32"), CONFIG, "image_size must be a whole number >= 1"),
    (dict(image_size=[]), CONFIG, r"image_size must be a whole number >= 1, got \[\]"),
    (dict(patch_size=0), CONFIG, "patch_size must be a whole number >= 1, got 0"),
    (dict(num_channels=-1), CONFIG, "num_channels must be a whole number >= 1, got -1"),
    (dict(num_attention_heads=0), CONFIG, "num_attention_heads must be"),
    (dict(model_type=["vit"]), CONFIG, r"model_type must be a name, got \['vit'\]"),
    (dict(model_type={"a": 1}), CONFIG, "model_type must be a name"),
    (dict(model_type=7), CONFIG, "model_type must be a name, got 7"),
    (dict(model_type="x" * 100_000), UNSUPPORTED, "has the model_type"),
    (dict(architectures={"0": "ViTForImageClassification"}), CONFIG, "architectures must be a list of names"),
    (dict(architectures="ViTForImageClassification"), CONFIG, "architectures must be a list of names"),
    (dict(architectures=[None]), CONFIG, "architectures must be a list of names"),
    (dict(architectures=[["ViTForImageClassification"]]), CONFIG, "architectures must be a list of names"),
    (dict(architectures=["__class__"]), UNSUPPORTED, "has the architecture __class__"),
    (dict(id2label=["a", "b"]), CONFIG, "id2label must be an object from numbers to names"),
    (dict(id2label={"a": "cat"}), CONFIG, "id2label must be an object"),
    (dict(id2label={"0": ["cat"]}), CONFIG, "id2label must be an object"),
    (dict(id2label="cat"), CONFIG, "id2label must be an object"),
    (dict(label2id=[1, 2]), CONFIG, "label2id must be an object from names to numbers"),
    (dict(dtype="load"), CONFIG, "dtype must be one of float64"),
    (dict(dtype=["float32"]), CONFIG, "dtype must be one of float64"),
    (dict(layer_norm_eps=NAN), CONFIG, "layer_norm_eps must be a number, got nan"),
    (dict(hidden_act="no such function"), CONFIG, "cannot build ViTForImageClassification|does not describe"),
    (dict(hidden_act=["gelu"]), CONFIG, "cannot build ViTForImageClassification|does not describe"),
    (dict(vision_config={"num_hidden_layers": 10**9}), LARGE, "num_hidden_layers is 1,000,000,000"),
]  # fmt: skip

HOSTILE_PROCESSORS = [
    (dict(size={"height": 20_000, "width": 20_000}), LARGE, "size asks for images of 400,000,000 pixels; the limit is"),
    (dict(size=20_000), LARGE, "size asks for images of 400,000,000 pixels; the limit is 25,000,000"),
    (dict(size=[10**8, 10**8]), LARGE, "size asks for images of"),
    (dict(size={"shortest_edge": 20_000}), LARGE, "shortest_edge of size is 20,000; the limit is 2,048"),
    (dict(size={"height": 10**15, "width": 1}), LARGE, "height is 1,000,000,000,000,000; the limit is"),
    (dict(crop_size={"height": 30_000, "width": 30_000}), LARGE, "crop_size asks for images of 900,000,000 pixels"),
    (dict(size=0), CONFIG, "size must be a whole number >= 1, or an object with height and width"),
    (dict(size={"height": 0, "width": 32}), CONFIG, "size must be a whole number >= 1"),
    (dict(size={"height": -32, "width": -32}), CONFIG, "size must be a whole number >= 1"),
    (dict(size={"height": "32", "width": 32}), CONFIG, "size must be a whole number >= 1"),
    (dict(size="32"), CONFIG, "size must be a whole number >= 1, or .*, got '32'"),
    (dict(size={}), CONFIG, "size must be a whole number >= 1"),
    (dict(size={"depth": 3}), CONFIG, "size must be a whole number >= 1"),
    (dict(size={"height": 32}), CONFIG, "size must be a whole number >= 1, or an object with height and width"),
    (dict(resample="bilinear"), CONFIG, "resample must be a number from 0 to 5 .*, got 'bilinear'"),
    (dict(resample=99), CONFIG, "resample must be a number from 0 to 5"),
    (dict(image_mean=[0.5]*2), CONFIG, "image_mean must be one number for each of the 3 channels"),
    (dict(image_mean=[0.5, NAN, 0.5]), CONFIG, "image_mean must be a number"),
    (dict(image_mean=[0.5, INFINITY, 0.5]), CONFIG, "image_mean must be one number for each"),
    (dict(image_mean="grey"), CONFIG, "image_mean must be one number"),
    (dict(image_mean=[]), CONFIG, "image_mean must be one number"),
    (dict(image_std=[0, 0, 0]), CONFIG, "image_std must be numbers > 0"),
    (dict(image_std={"r": 1}), CONFIG, "image_std must be one number"),
    (dict(rescale_factor="1/255"), CONFIG, "rescale_factor must be a number > 0, got '1/255'"),
    (dict(rescale_factor=0), CONFIG, "rescale_factor must be a number > 0, got 0"),
    (dict(do_resize="yes"), CONFIG, "do_resize must be true or false, got 'yes'"),
    (dict(do_normalize=[1]), CONFIG, "do_normalize must be true or false"),
    (dict(crop_pct=1e-9), CONFIG, "crop_pct must be a number from 0.1 to 1"),
    (dict(image_processor_type=["ViTImageProcessor"]), CONFIG, "image_processor_type must be a name"),
    (dict(image_processor_type="NoSuchProcessor"), CONFIG, "The image processor in .* could not be loaded"),
]  # fmt: skip


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def refuse_at_once(folder: Path, code: str, message: str) -> None:
    began, before = time.monotonic(), peak_megabytes()
    with pytest.raises(WhyformerError, match=message) as raised:
        whyformer.open(folder)
    assert raised.value.code == code and code in CODES
    assert len(str(raised.value)) < 700
    assert time.monotonic() - began < 60  # does not hang; it takes a fraction of a second
    assert peak_megabytes() - before < 200


@pytest.mark.parametrize(("changes", "code", "message"), HOSTILE_CONFIGS)
def test_hostile_configs(vit, changes, code, message):
    change_json(vit / "config.json", changes)
    refuse_at_once(vit, code, message)


@pytest.mark.parametrize(("changes", "code", "message"), HOSTILE_PROCESSORS)
def test_hostile_preprocessors(vit, changes, code, message):
    change_json(vit / "preprocessor_config.json", changes)
    refuse_at_once(vit, code, message)


@pytest.mark.parametrize(
    "contents", ["{", "[]", "7", '{"size": ' + "[" * 5000 + "]" * 5000 + "}", "\xff", " " * 10**7 + "{}"]
)
@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json"])
def test_files_that_are_no_object(vit, file, contents):
    (vit / file).write_text(contents, encoding="latin-1")
    refuse_at_once(vit, CONFIG, f"{file} (is not valid JSON|must contain an object|is nested|has 10,000,002 bytes)")


def test_deep_nesting(vit):
    deep = {"a": 1}
    for _ in range(30):
        deep = {"a": [deep]}
    change_json(vit / "config.json", deep)
    refuse_at_once(vit, CONFIG, r"config\.json is nested more than 20 levels deep")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_the_worst_ones_in_a_process_with_little_memory(tmp_path):
    """With half a GB of address space above what the libraries need, the error is still the named one."""
    worst = [
        ("config.json", HOSTILE_CONFIGS[0][0]),
        ("config.json", dict(hidden_size=8_000_000)),
        ("preprocessor_config.json", HOSTILE_PROCESSORS[0][0]),
    ]
    for number, (file, changes) in enumerate(worst):
        folder = shutil.copytree(DEMO_MODELS / "untrained-vit", tmp_path / str(number))
        change_json(folder / file, changes)
    code = (
        "import sys, resource, torch, transformers, whyformer\n"
        "whyformer.open('demo/untrained-vit')\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29),) * 2)\n"
        "for folder in '012':\n"
        "    try: whyformer.open(sys.argv[1] + '/' + folder)\n"
        "    except whyformer.WhyformerError as error: print(error.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.stdout == f"{LARGE}\n" * 3, done.stderr[-500:]


def test_tables_that_no_weight_file_limits(vit, monkeypatch):
    """Masks and positions that a model computes from its config."""
    bert = shutil.copytree(DEMO_MODELS / "untrained-bert", vit.parent / "bert")
    monkeypatch.setattr(checkpoint, "MAX_BUFFER_BYTES", 100)
    refuse_at_once(bert, LARGE, "bytes of tables besides its weights; the limit is 100")


def test_a_model_of_too_many_parts(vit, monkeypatch):
    monkeypatch.setattr(checkpoint.BuildLimit, "__init__", lambda self, tensors: setattr(self, "left", 10))
    refuse_at_once(vit, LARGE, "far more parts than the [0-9]+ tensors of the weights")
    assert torch.is_grad_enabled()


def test_special_files_in_a_model_folder_do_not_block(vit):
    os.mkfifo(vit / "generation_config.json")
    with pytest.raises(IncompleteModel, match=r"generation_config\.json in .* is not a regular file"):
        whyformer.open(vit)


def test_an_index_leads_nowhere_else(vit):
    index = vit / "model.safetensors.index.json"
    for target in ("../other.safetensors", "/etc/passwd", "nothing.safetensors", "sub/x.safetensors"):
        index.write_text(json.dumps({"weight_map": {"a": target}}))
        with pytest.raises(IncompleteModel, match=r"names the file .*, which is not in the folder"):
            whyformer.open(vit)
    index.write_text(json.dumps({"weight_map": [1]}))
    with pytest.raises(IncompleteModel, match="has no weight_map from tensors to files"):
        whyformer.open(vit)


def test_sizes_as_they_occur_are_accepted(vit):
    for changes in (
        dict(size=32),
        dict(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}, do_center_crop=True, resample=3),
        dict(image_mean=[0.5, 0.4, 0.3], image_std=[1, 1, 1], rescale_factor=1),
    ):
        change_json(vit / "preprocessor_config.json", changes)
        model = whyformer.open(vit)
        assert model.encode(Image.new("RGB", (40, 50))).inputs["pixel_values"].shape == (1, 3, 32, 32)
