"""Every code of an error is explained in docs/errors.md and used in the source; each cause given there leads to it."""

import ast
import json
import os
import re
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from transformers import BertConfig, BertForMaskedLM
from typer.testing import CliRunner

import whyformer as why
from whyformer._bulk.engine import make_lost_error
from whyformer._bulk.pool import ProcessPool
from whyformer._bulk.queue import ShardTask
from whyformer._bulk.ray_engine import import_ray
from whyformer._bulk.stopping import StopRequest
from whyformer._engine.capture.query_tiles import QueryTiles
from whyformer._engine.tracing import tiles
from whyformer._page.problems import PAGE_CODES
from whyformer._plain import archive
from whyformer._runs.lock import lock_folder
from whyformer._runs.store import JSON_LINES, ShardStore
from whyformer.cli import app
from whyformer.cli.shell import describe_error
from whyformer.errors import CODES, EXIT_STATUSES, WhyformerError, find_exit_code

SOURCE = Path(why.__file__).parent
PAGE = (Path(__file__).parents[1] / "docs" / "errors.md").read_text("utf-8")

Cause = tuple[str, Callable[[Path], Any]]  # a sentence of docs/errors.md, and what makes it happen in an empty folder


# --- things to go wrong with ------------------------------------------------------------------------------------------


@cache
def open_once(name: str) -> why.Model:
    return why.open(name)


def explain_image(image: Any, **more: Any) -> why.Explanation:
    return why.explain(open_once("demo/untrained-vit"), image, "rollout", **more)


def explain_text(text: Any, **more: Any) -> why.Explanation:
    return why.explain(open_once("demo/sentiment"), text, "rollout", **more)


def explain_ids(**tensors: torch.Tensor) -> why.Explanation:
    return why.explain(open_once("demo/untrained-bert"), tensors, "rollout")


def record_attention() -> why.Capture:
    model = open_once("demo/sentiment")
    return why.record(model, model.encode("a film"), keep={"attention"})


def make_image() -> Image.Image:
    return Image.new("RGB", (20, 30), "red")


def save_image(path: Path, image: Image.Image) -> Path:
    image.save(path)
    return path


def cut_file(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def write(path: Path, contents: str | bytes) -> Path:
    path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    return path


def make_pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def command(*arguments: object) -> str:
    """The code of the error that a command ends with."""
    result = CliRunner().invoke(app, ["--json", *map(str, arguments)])
    return json.loads(result.stderr)["error"]["code"]


def make_model_folder(
    folder: Path, *, without: str = "", config: dict[str, Any] | None = None, tokenizer: bool = False
) -> Path:
    """A tiny BERT on disk; without one of its files, with other fields in config.json, or with a damaged tokenizer."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=10)
    BertForSequenceClassification(BertConfig(max_position_embeddings=8, **sizes)).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **(config or {})}))
    if without:
        (folder / without).unlink()
    if tokenizer:
        (folder / "tokenizer.json").write_text("{}")
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


def open_with_nan(folder: Path) -> why.Model:
    from safetensors.torch import load_file, save_file

    path = make_model_folder(folder) / "model.safetensors"
    weights = load_file(path)
    weights["classifier.weight"][0, 0] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})
    return why.open(folder)


class OwnAttention(nn.Module):
    """Attention with something after it."""

    def __init__(self, after: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.attention, self.after = nn.MultiheadAttention(8, 2, batch_first=True), after
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.after(x + self.attention(x, x, x)[0])[:, 0])


def explain_own(after: Callable[[torch.Tensor], torch.Tensor], method: str) -> why.Explanation:
    module = OwnAttention(after).eval()
    return why.explain(why.open(module, readout="first"), torch.ones(1, 3, 8), method)


def explain_masked(ids: torch.Tensor) -> why.Explanation:
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    return why.explain(BertForMaskedLM(config).eval(), {"input_ids": ids}, "rollout")


def explain_without_attention() -> why.Explanation:
    return why.explain(nn.Sequential(nn.Flatten(), nn.Linear(24, 2)), torch.ones(1, 3, 8), "rollout")


def save_kind(path: Path, kind: str, version: int = 2) -> Path:
    path.write_text(json.dumps({"kind": kind, "version": version}))
    return path


def write_reviews(folder: Path) -> Path:
    return write(folder / "reviews.csv", "text,label\na good film,positive\na bad film,negative\n")


def judge_twice(folder: Path) -> None:
    reviews = write_reviews(folder)
    for method in ("rollout", "attcat"):
        why.judge(open_once("demo/sentiment"), reviews, [method], ["comprehensiveness"], out=folder / "run")


def lock_twice(folder: Path) -> None:
    with lock_folder(folder), lock_folder(folder):
        pass


def write_shard_while(call: str, error: OSError | None, folder: Path) -> None:
    """Write a shard of a run while a call of the system fails, or does nothing."""

    def fail(*_: Any) -> None:
        if error is not None:
            raise error

    plan = SimpleNamespace(fingerprint="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, call, fail)
        ShardStore(folder / "rows", plan, JSON_LINES).write_rows(0, [{}])


def write_to_full_disk(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(os, "fsync", fail)
        archive.write_file(folder / "x.json", b"x")


def make_whole_without_memory() -> None:
    matrix = torch.ones(1, 2, 3, 3)
    with mock.patch.object(tiles, "find_free_memory", return_value=1):
        QueryTiles(lambda rows: matrix[..., rows, :], matrix.shape, matrix, rows=1).whole()


# --- the causes -------------------------------------------------------------------------------------------------------

CAUSES: dict[str, list[Cause]] = {
    "E_INTERNAL": [
        ("Something happened that whyformer does not expect.", lambda _: describe_error(KeyError("x"))[0]),
    ],
    "E_USAGE": [
        ("There is no such command or option.", lambda _: command("explian")),
        ("An argument is missing.", lambda _: command("generate")),
        ("Two options exclude each other.", lambda _: command("explain", "x", "--classes", "2", "--words")),
    ],
    "E_INPUT": [
        ("There is nothing to explain: the list of inputs is empty.", lambda _: explain_text([])),
        ("A batch mixes images, texts and tensors.", lambda _: explain_text(["a film", torch.ones(3)])),
        ("The data of `judge`, `audit` or `reproduce` is an empty string.", lambda _: command("judge", "")),
    ],
    "E_IMG_READ": [
        ("There is no such file.", lambda folder: explain_image(folder / "gone.png")),
        ("It is a folder, a pipe or a device.", lambda folder: explain_image(make_pipe(folder / "pipe.png"))),
    ],
    "E_IMG_FORMAT": [
        (
            "The file holds something else, whatever its suffix says.",
            lambda folder: explain_image(write(folder / "a.png", "<html>")),
        ),
        ("The file is empty.", lambda folder: explain_image(write(folder / "a.png", ""))),
    ],
    "E_IMG_BROKEN": [
        (
            "The file ends too early.",
            lambda folder: explain_image(cut_file(save_image(folder / "a.png", make_image()))),
        ),
    ],
    "E_IMG_TOO_LARGE": [
        (
            "The image has more than 25 megapixels.",
            lambda folder: explain_image(save_image(folder / "a.png", Image.new("1", (5001, 5000)))),
        ),
    ],
    "E_IMG_SHAPE": [
        (
            "One side is more than 50 times as long as the other.",
            lambda folder: explain_image(save_image(folder / "a.png", Image.new("L", (200, 2)))),
        ),
        (
            "An array is not [height, width] or [height, width, channel].",
            lambda _: explain_image(np.zeros((3, 40, 40), dtype=np.uint8)),
        ),
    ],
    "E_IMG_VALUES": [
        (
            "Pixels are NaN or infinite.",
            lambda folder: explain_image(
                save_image(folder / "a.tiff", Image.fromarray(np.full((9, 9), np.nan, dtype=np.float32)))
            ),
        ),
        (
            "An array of floating-point numbers goes beyond 0 to 1.",
            lambda _: explain_image(np.full((40, 40, 3), 255.0)),
        ),
        (
            "The pixel values of a tensor run up to 255, but the processor of the model normalises them.",
            lambda _: explain_image(torch.full((1, 3, 32, 32), 255.0)),
        ),
    ],
    "E_TXT_EMPTY": [
        ("The text is empty or consists of spaces.", lambda _: explain_text(" ")),
    ],
    "E_TXT_TOO_LONG": [
        ("The text has more than 200,000 characters.", lambda _: explain_text("a" * 200_001)),
        ("The text has more tokens than the model takes.", lambda _: explain_text("film " * 5000)),
    ],
    "E_TXT_ENCODING": [
        ("The text contains half of a surrogate pair.", lambda _: explain_text("a \ud800 film")),
        (
            "A text file is not UTF-8.",
            lambda folder: command("explain", write(folder / "a.txt", b"\xff\xfe"), "-M", "demo/sentiment"),
        ),
    ],
    "E_TXT_TYPE": [
        ("An input is a number, a dict or another thing that is not a string.", lambda _: explain_text([3])),
        (
            "A text model is given the name of an image file.",
            lambda folder: explain_text(str(save_image(folder / "a.png", make_image()))),
        ),
    ],
    "E_TENSOR": [
        ("The tensors do not have the shape that the model takes.", lambda _: explain_ids(input_ids=torch.tensor(3))),
        (
            "A model without tokenizer or processor was given no .safetensors file on the command line.",
            lambda _: command("explain", "x", "-M", "demo/untrained-bert"),
        ),
    ],
    "E_DATA": [
        ("There is no such file or folder.", lambda folder: why.data.read(folder / "gone.csv")),
        (
            "A column that was named is not there.",
            lambda folder: why.data.read(write_reviews(folder), columns={"input": "review"}),
        ),
        ("There is no example in it.", lambda folder: why.data.read(write(folder / "a.csv", "text,label\n"))),
        (
            "It can be iterated over, but is not a list of inputs: a dictionary of columns, a set, a grouped DataFrame,"
            " an open file.",
            lambda folder: why.data.read({"text": ["a good film"], "label": ["positive"]}),
        ),
    ],
    "E_ARCHIVE": [
        ("The file is no saved result, or is damaged.", lambda folder: why.load(write(folder / "a.json", "{}"))),
        ("The file holds another kind of result.", lambda folder: why.load(save_kind(folder / "a.json", "comparison"))),
        (
            "The file was written by a newer version of whyformer.",
            lambda folder: why.load(save_kind(folder / "a.json", "explanation", 99)),
        ),
    ],
    "E_MODEL": [],  # the default of ModelError, for methods, metrics and models of others
    "E_MODEL_NOT_FOUND": [
        ("There is no bundled model of that name.", lambda _: why.open("demo/nothing")),
        ("The folder has no config.json.", lambda folder: why.open(folder)),
        ("The name is neither a folder nor a possible name on the hub.", lambda _: why.open("a/b/c")),
        ("The model is not on this machine, and downloading is off.", lambda _: why.open("nobody/nothing")),
    ],
    "E_MODEL_CONFIG": [
        ("config.json is not valid JSON.", lambda folder: why.open(write(folder / "config.json", "{").parent)),
        (
            "config.json has no model_type.",
            lambda folder: why.open(make_model_folder(folder, config={"model_type": None})),
        ),
    ],
    "E_MODEL_WEIGHTS": [
        (
            "There is no .safetensors file.",
            lambda folder: why.open(make_model_folder(folder, without="model.safetensors")),
        ),
        (
            "The file is damaged.",
            lambda folder: why.open(cut_file(make_model_folder(folder) / "model.safetensors").parent),
        ),
        ("A weight is NaN or infinite.", open_with_nan),
    ],
    "E_MODEL_PICKLE": [
        (
            "The only weights are a pickle.",
            lambda folder: why.open(
                write(make_model_folder(folder, without="model.safetensors") / "pytorch_model.bin", "x").parent
            ),
        ),
        (
            "config.json asks for Python code of its own (auto_map).",
            lambda folder: why.open(make_model_folder(folder, config={"auto_map": {"AutoModel": "own.Model"}})),
        ),
    ],
    "E_MODEL_TOO_LARGE": [
        (
            "config.json asks for a huge layer, vocabulary or number of layers.",
            lambda folder: why.open(make_model_folder(folder, config={"vocab_size": 10**12})),
        ),
    ],
    "E_MODEL_TOKENIZER": [
        ("The files of the tokenizer are damaged.", lambda folder: why.open(make_model_folder(folder, tokenizer=True))),
    ],
    "E_MODEL_UNSUPPORTED": [
        ("The model has no attention that could be followed.", lambda _: explain_without_attention()),
        (
            "The folder holds an adapter without its base model.",
            lambda folder: why.open(write(folder / "adapter_config.json", "{}").parent),
        ),
    ],
    "E_MODEL_OPERATION": [
        (
            "The model uses an operation that the recipe of a relevance method has no rule for.",
            lambda _: explain_own(lambda x: torch.logcumsumexp(x, 1), "lrp"),
        ),
    ],
    "E_TARGET": [
        ("The index is not below the number of classes.", lambda _: explain_text("a film", target=99)),
        ("The model has no such label.", lambda _: explain_text("a film", target="postive")),
        ("There are more or fewer targets than inputs.", lambda _: explain_text("a film", target=[0, 1])),
        (
            "The target is for another kind of model: an entity, but the model classifies whole texts. The message "
            "lists the targets that fit.",
            lambda _: explain_text("a film", target=why.targets.Entity("film")),
        ),
        (
            "A masked language model got a text without a mask and no position.",
            lambda _: explain_masked(torch.arange(5, 9)[None]),
        ),
        (
            "A function as target does not return one differentiable number per example.",
            lambda _: explain_text("a film", target=lambda out: out.logits),
        ),
    ],
    "E_METHOD": [
        ("There is no method of that name.", lambda _: why.explain(open_once("demo/sentiment"), "a film", "rolout")),
        (
            "A method is listed twice.",
            lambda _: why.compare(open_once("demo/sentiment"), "a film", ["rollout", "rollout"]),
        ),
    ],
    "E_METRIC": [
        (
            "There is no metric of that name.",
            lambda folder: why.judge(open_once("demo/sentiment"), write_reviews(folder), ["rollout"], ["nothing"]),
        ),
    ],
    "E_OPTION": [
        ("There is no such setting.", lambda _: explain_text("a film", strat=1)),
        ("The value is out of range or of the wrong type.", lambda _: explain_text("a film", start="x")),
        ("A setting on the command line is not NAME=VALUE.", lambda _: command("explain", "x", "-s", "start")),
    ],
    "E_NOT_CAPTURED": [
        (
            "A capture is asked for a site that `keep=` did not name.",
            lambda _: record_attention()["hidden"],
        ),
    ],
    "E_NON_FINITE": [
        (
            "The model computes NaN or infinity, often in half precision.",
            lambda _: explain_own(lambda x: x * float("inf"), "rollout"),
        ),
    ],
    "E_DEVICE": [
        ("There is no such device on this machine.", lambda _: why.open("demo/sentiment", device="cuda:99")),
    ],
    "E_OUT_PATH": [
        ("The folder for the file does not exist.", lambda folder: archive.write_file(folder / "no" / "x.json", b"x")),
        (
            "The file to write is one of the inputs, or a folder.",
            lambda folder: command("explain", "x", "-o", os.fspath(make_model_folder(folder / "a.html"))),
        ),
        ("`judge` or `audit` is told to write to a file.", lambda _: command("judge", "x.csv", "-o", "report.html")),
    ],
    "E_OUT_MISMATCH": [
        ("The folder holds a run of another model, data or settings.", judge_twice),
    ],
    "E_OUT_LOCKED": [
        ("Another process is still writing to the folder.", lock_twice),
    ],
    "E_DISK": [
        (
            "The disk became read-only, or reports an input/output error, during a run.",
            partial(write_shard_while, "replace", OSError(30, "Read-only file system")),
        ),
        ("A file of a run does not read as it was written.", partial(write_shard_while, "replace", None)),
    ],
    "E_DISK_FULL": [
        ("The disk is full, or a quota is used up.", write_to_full_disk),
        (
            "Standard output goes to a full disk.",
            lambda _: describe_error(OSError(28, "No space left on device"))[0],
        ),
    ],
    "E_MEMORY": [
        ("Too many or too large inputs are explained at once.", lambda _: describe_error(MemoryError())[0]),
        (
            "The model does not fit on the device.",
            lambda _: describe_error(torch.OutOfMemoryError("CUDA out of memory"))[0],
        ),
        (
            "A method needs an attention matrix of all tokens, for which there is no memory.",
            lambda _: make_whole_without_memory(),
        ),
    ],
    "E_ENGINE": [
        ("Ray is not installed.", lambda _: import_without_ray()),
        ("The model or a method cannot be sent to another process.", lambda _: ProcessPool(lambda device: None, [])),
        ("A worker process ends before it is ready.", lambda _: start_worker_that_ends()),
    ],
    "E_WORKER": [
        (
            "The process was killed three times at the same shard of a bulk run, for example because memory ran out.",
            lambda _: make_lost_error(ShardTask(0, ()), 3).code,
        ),
    ],
    "E_INTERRUPTED": [
        ("Ctrl-C was pressed.", lambda _: describe_error(KeyboardInterrupt())[0]),
    ],
}


def import_without_ray() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ray", None)
        patch.setattr(os, "environ", dict(os.environ))
        import_ray()


def start_worker_that_ends() -> None:
    """`sys.exit` stands for a process that is killed while it opens the model."""
    list(ProcessPool(sys.exit, ["cpu"]).run(iter([ShardTask(0, ())]), StopRequest()))


def find_code(happen: Callable[[Path], Any], folder: Path) -> object:
    """The code of the error that is raised, or returned by a command."""
    try:
        return happen(folder)
    except WhyformerError as error:
        return error.code


# --- the page ---------------------------------------------------------------------------------------------------------


def read_sections() -> dict[str, str]:
    """The text of docs/errors.md about each code."""
    parts = re.split(r"^### (\w+)\n", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_code_has_a_section_in_the_order_of_the_table():
    assert list(read_sections()) == list(CODES)


@pytest.mark.parametrize("code", CODES)
def test_the_section_says_what_the_code_means_and_how_the_command_ends(code):
    assert read_sections()[code].startswith(f"\n*Exit status {find_exit_code(code)}.* {CODES[code]}")


@pytest.mark.parametrize("code", CODES)
def test_the_section_lists_the_causes_that_are_tested_here(code):
    listed = re.findall(r"^\* (.+)$", read_sections()[code], re.MULTILINE)
    assert listed == [sentence for sentence, _ in CAUSES[code]]
    assert "\n\nWhat to do: " in read_sections()[code]


@pytest.mark.parametrize(
    ("code", "sentence", "happen"),
    [
        pytest.param(code, sentence, happen, id=f"{code}: {sentence}")
        for code, causes in CAUSES.items()
        for sentence, happen in causes
    ],
)
def test_each_cause_leads_to_its_code(code, sentence, happen, tmp_path):
    assert find_code(happen, tmp_path) == code


# --- the source -------------------------------------------------------------------------------------------------------


def find_codes_in_source() -> set[str]:
    """Every code in the source: `code="E_..."`, class attributes, and what the command line makes of an exception."""
    found = set()
    for file in SOURCE.rglob("*.py"):
        tree = ast.parse(file.read_text("utf-8"))
        tables = [node for node in tree.body if isinstance(node, ast.Assign) and file.name == "errors.py"]
        ignored = {id(node) for table in tables for node in ast.walk(table)}
        found |= {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and id(node) not in ignored and re.fullmatch("E_[A-Z_]+", str(node.value))
        }
    return found


def test_every_code_in_the_source_is_in_the_table():
    assert find_codes_in_source() <= {*CODES, *PAGE_CODES}


def test_every_code_in_the_table_is_used():
    assert set(CODES) <= find_codes_in_source()


def test_every_code_has_an_exit_status():
    starts = [start for starts in EXIT_STATUSES.values() for start in starts]
    assert {code for code in CODES if not code.startswith(tuple(starts))} == {"E_INTERNAL"}
    assert not [start for start in starts if not any(code.startswith(start) for code in CODES)]
