"""The command line: the same verbs as in Python, errors in one line, and exit codes."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from whyformer import cli
from whyformer._model.loading.opening import _find_demo_folder
from whyformer.cli import destination, gathering, options, parsing, running
from whyformer.methods._registry import METHODS
from whyformer.results.comparison import Comparison
from whyformer.results.explanation import load


def run(*arguments: str, code: int = 0) -> str:
    """The standard output of the command; for an error, its stderr."""
    result = CliRunner().invoke(cli.app, list(arguments))
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stderr if code else result.stdout


def error_of(*arguments: str, code: int) -> str:
    message = run(*arguments, code=code)
    assert re.match(r"error\[E_[A-Z_]+\]: ", message)
    assert message.count("\n") == 1
    return message


@pytest.fixture(scope="session")
def image_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "cat.png"
    Image.radial_gradient("L").convert("RGB").save(path)
    return str(path)


@pytest.fixture(scope="session")
def text_model(tmp_path_factory):
    """A folder with a tiny BERT and its tokenizer, one word a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "bad", "film", "not", ","]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    torch.manual_seed(0)
    labels = {"negative": 0, "positive": 1, "7": 2}
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, id2label={i: label for label, i in labels.items()}, label2id=labels,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    return str(folder)


# --- verbs ------------------------------------------------------------------------------------------------------------


def test_the_help_lists_the_verbs():
    output = run("--help")
    for verb in ("explain", "compare", "inspect", "generate", "methods", "demo"):
        assert verb in output
    assert run("--help") == output == run("-h")


def test_the_version():
    assert run("--version").startswith("whyformer ")


def test_methods_are_listed():
    output = run("methods")
    assert all(name in output for name in METHODS)
    rows = {row["name"]: row for row in json.loads(run("methods", "--json"))}
    assert set(rows) == set(METHODS)
    assert rows["rollout"]["class_specific"] is False
    assert rows["lrp"]["cost"] == "forward + relevance"
    assert rows["lrp"]["settings"] == {"own": "keep"}


def test_explains_an_image_with_the_bundled_model(image_file):
    output = run("explain", image_file)
    assert output.startswith("cat.png: ")
    assert "by gamma_attribution" in output.split("\n")[0]


def test_health_and_precision(text_model):
    output = run("explain", "not a bad film", "-M", text_model, "-m", "lrp", "--health", "--precision", "float64")
    assert "Relevance totals balance" in output
    assert "Rounding does not change the order of the top 5 scores" in output
    fields = json.loads(run("explain", "a film", "-M", text_model, "-m", "lrp", "--precision", "float64", "--json"))
    assert fields["settings"]["precision"] == "float64"
    assert "rounding estimate" in fields["details"]


@pytest.mark.parametrize("option", [("--health",), ("--precision", "float64")])
def test_health_and_precision_are_for_one_method(text_model, option):
    output = run("explain", "a film", "-M", text_model, "-m", "lrp", "-m", "rollout", *option, code=2)
    assert f"{option[0]} cannot be combined with several methods" in output


def test_an_unknown_precision_is_refused(text_model):
    output = run("explain", "a film", "-M", text_model, "-m", "lrp", "--precision", "half", code=2)
    assert "precision must be one of 'float32', 'float64'" in output


def test_explains_a_text(text_model):
    output = run("explain", "not a bad film", "-M", text_model, "-m", "attcat", "-t", "positive")
    assert output.startswith("positive (")
    assert re.findall(r"^ +[+-][\d.e-]+(?: [+-]+)? +(\w+)$", output, re.MULTILINE) == ["not", "a", "bad", "film"]


def test_several_inputs_with_a_target_for_each(text_model):
    output = run("explain", "a film", "not good", "-M", text_model, "-t", "positive", "-t", "0", "--json")
    fields = json.loads(output)
    assert [target["label"] for target in fields["targets"]] == ["positive", "negative"]
    assert fields["names"] == ["a film", "not good"]


def test_a_number_is_a_label_if_there_is_one_and_an_index_otherwise(text_model):
    fields = json.loads(run("explain", "a film", "-M", text_model, "-t", "7", "--versus", "1", "--json"))
    assert (fields["targets"][0]["index"], fields["targets"][0]["versus"]) == (2, 1)


def test_settings_reach_the_method(text_model):
    asked = ("-m", "rollout", "-s", "preset=released", "-s", "start=1")
    fields = json.loads(run("explain", "a film", "-M", text_model, *asked, "--json"))
    assert (fields["settings"]["preset"], fields["settings"]["start"]) == ("released", 1)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1", 1),
        ("-0.5", -0.5),
        ("true", True),
        ("False", False),
        ("none", None),
        ("zero", "zero"),
        ("[1, 2]", [1, 2]),
        ("", ""),
    ],
)
def test_values_of_settings(word, value):
    assert parsing.parse_settings([f"name={word}"]) == {"name": value}


@pytest.mark.parametrize("suffix", [".safetensors", ".json", ".png", ".txt"])
def test_saves_results(image_file, tmp_path, suffix):
    out = tmp_path / f"e{suffix}"
    run("explain", image_file, "-m", "rollout", "-o", str(out))
    assert out.stat().st_size > 0
    if suffix in (".safetensors", ".json"):
        assert load(out).method == "rollout"


def test_printed_json_can_be_loaded(image_file, tmp_path):
    (tmp_path / "e.json").write_text(run("explain", image_file, "-m", "rollout", "--json"))
    assert load(tmp_path / "e.json").names == ("cat.png",)


def test_compares_methods(image_file, tmp_path):
    out = tmp_path / "c.json"
    output = run("compare", image_file, "-m", "rollout", "-m", "chance", "-o", str(out))
    assert "rollout" in output
    assert "agreement" in output
    assert Comparison.load(out).labels == ("rollout", "chance")


def test_compares_six_methods_by_default_and_all_quick_ones_if_asked(text_model):
    fields = json.loads(run("compare", "a good film", "-M", text_model, "--json"))
    assert len(fields["explanations"]) == 6
    fields = json.loads(run("compare", "a good film", "-M", text_model, "--json", "--all"))
    quick = {name for name, method in METHODS.items() if method.is_quick}
    assert set(fields["explanations"]) | set(fields["failures"]) == quick < set(METHODS)
    assert "Leave it out, or leave out -m" in error_of("compare", "a film", "--all", "-m", "rollout", code=2)


def test_methods_with_settings_are_compared(text_model):
    fields = json.loads(
        run("compare", "a good film", "-M", text_model, "-m", "rollout(start=1)", "-m", "rollout", "--json")
    )
    assert [one["settings"]["start"] for one in fields["explanations"].values()] == [1, None]


def test_documents_and_published_numbers_are_printed_as_json():
    assert {"chefer", "attcat"} <= {one["name"] for one in json.loads(run("reproduce", "--json"))}
    tables = json.loads(run("reproduce", "chefer", "--published", "--json"))["tables"]
    assert tables[0]["rows"][0]["negative, predicted"] == "53.1"


def test_a_model_without_a_tokenizer_takes_tensors_from_a_file(tmp_path):
    ids = tmp_path / "ids.safetensors"
    save_file({"input_ids": torch.tensor([[5, 9, 7]])}, ids)
    output = run("explain", str(ids), "-M", "demo/untrained-bert", "-m", "attcat")
    assert re.findall(r"^ +[+-][\d.e-]+(?: [+-]+)? +(\w+)$", output, re.MULTILINE) == ["5", "9", "7"]


def test_the_demo_explains_the_bundled_models_and_suggests_commands(tmp_path):
    output = run("demo", "-o", str(tmp_path / "tour.html"))
    assert [f"{n}. demo/{name}" in output for n, name in enumerate(("pets", "sentiment", "shapes", "decoder"), 1)] == [
        True
    ] * 4
    assert output.count("\n  whyformer ") == 3
    page = (tmp_path / "tour.html").read_text()
    assert page.count("<section ") == 4
    assert "http:" not in page and "https:" not in page
    assert "<script" not in page


def test_the_demo_only_writes_html(tmp_path):
    assert "Supported suffixes: .html" in error_of("demo", "-o", str(tmp_path / "tour.pdf"), code=2)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--frobnicate"], "No such option: --frobnicate"),
        (["explian"], "No such command 'explian'"),
        (["generate"], "A prompt is one text, --prompt FILE or --messages FILE, got nothing"),
        (["explain", "x", "-m", "rolout"], "No method 'rolout'. Did you mean 'rollout'?"),
        (["compare", "x", "-m", "rolout"], "No method 'rolout'"),
        (["compare", "x", "-m", "rollout", "-m", "rollout"], "rollout is listed twice"),
        (["explain", "x", "-s", "start"], "'start' is not a setting. Write NAME=VALUE"),
        (["explain", "x", "-s", "target=1"], "target is not a setting of a method"),
        (["explain", "x", "-s", "strat=1"], "gamma_attribution has no setting 'strat'. Did you mean 'start'?"),
        (["explain", "x", "-s", "recipe=x"], "No recipe 'x'"),
    ],
)
def test_wrong_usage_is_reported_before_a_model_is_opened(arguments, message, monkeypatch):
    monkeypatch.setattr(running, "open_quietly", lambda *_: pytest.fail("the model was opened"))
    assert message in error_of(*arguments, code=2)


def test_an_unknown_suffix_is_reported_before_a_model_is_opened(monkeypatch):
    monkeypatch.setattr(running, "open_quietly", lambda *_: pytest.fail("the model was opened"))
    assert "Unknown file format: 'e.gif'" in error_of("explain", "x", "-o", "e.gif", code=2)
    assert "Unknown file format: 'c.docx'" in error_of("compare", "x", "-o", "c.docx", code=2)


def test_the_input_is_never_overwritten(image_file):
    before = Path(image_file).read_bytes()
    assert "would overwrite the input" in error_of("explain", image_file, "-o", image_file, code=4)
    assert Path(image_file).read_bytes() == before


def test_wrong_targets(image_file):
    assert "There is no class" in error_of("explain", image_file, "-t", "-1", code=2)
    assert "There is no class 'tabby'" in error_of("explain", image_file, "-t", "tabby", code=2)
    assert "target has 2 entries for 1 examples" in error_of("explain", image_file, "-t", "1", "-t", "2", code=2)


def test_wrong_inputs(image_file, text_model, tmp_path):
    error_of("explain", str(tmp_path / "gone.png"), code=3)
    (tmp_path / "no.png").write_text("hello")
    error_of("explain", str(tmp_path / "no.png"), code=3)
    assert "empty" in error_of("explain", " ", "-M", text_model, code=3)
    assert "so it needs tensors" in error_of("explain", "hello", "-M", "demo/untrained-bert", code=3)
    (tmp_path / "no.safetensors").write_text("hello")
    bert = ("-M", "demo/untrained-bert")
    assert "is not a safetensors file" in error_of("explain", str(tmp_path / "no.safetensors"), *bert, code=3)
    assert "Cannot read" in error_of("explain", str(tmp_path / "gone.safetensors"), *bert, code=3)


def test_wrong_models(tmp_path):
    error_of("explain", "x", "-M", str(tmp_path), code=4)
    assert "No demo model 'demo/x'" in error_of("explain", "x", "-M", "demo/x", code=4)


def test_a_result_that_cannot_be_saved_is_still_printed(image_file, tmp_path, monkeypatch):
    """The folder was there when the command began."""
    monkeypatch.setattr(destination, "check_out_file", lambda *_: None)
    result = CliRunner().invoke(
        cli.app, ["explain", image_file, "-m", "rollout", "-o", str(tmp_path / "no" / "e.json")]
    )
    assert result.exit_code == 4
    assert "by rollout" in result.stdout
    assert "Cannot write" in result.stderr


def test_errors_contain_no_control_characters(tmp_path):
    output = error_of("explain", str(tmp_path / "\x1b[2J\r\ngone\u202e.png"), code=3)
    assert "\x1b" not in output
    assert "\u202e" not in output


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "error[E_INTERRUPTED]: interrupted"),
        (MemoryError(), 5, "error[E_MEMORY]: out of memory"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate ..."),
            5,
            "error[E_MEMORY]: out of memory on the device",
        ),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."),
            5,
            "error[E_MEMORY]: out of memory;",
        ),
        (ZeroDivisionError("oops"), 1, "error[E_INTERNAL]: unexpected ZeroDivisionError: oops (--debug shows where)"),
    ],
)
def test_unexpected_errors(monkeypatch, error, code, message):
    def fails(*_):
        raise error

    monkeypatch.setattr(running, "open_quietly", fails)
    assert message in run("explain", "x", code=code)


def test_debug_shows_the_traceback(monkeypatch):
    def fails(*_):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(running, "open_quietly", fails)
    result = CliRunner().invoke(cli.app, ["explain", "x", "--debug"])
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "in fails" in result.stderr


# --- as a process -----------------------------------------------------------------------------------------------------


def test_no_slow_imports_before_a_command_runs():
    trees = [ast.parse(file.read_text()) for file in Path(cli.__file__).parent.glob("*.py")]
    imported = {
        name.split(".")[0] if not name.startswith("whyformer") else name
        for tree in trees
        for node in tree.body
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [node.module] if isinstance(node, ast.ImportFrom) else []
        )
    }  # fmt: skip
    ours = {name for name in imported if name.startswith("whyformer")}
    assert imported - set(sys.stdlib_module_names) - ours == {"typer"}
    assert not {name for name in ours if not name.startswith("whyformer.cli")} - {
        "whyformer",  # its names are imported on first use
        "whyformer.errors",
        "whyformer._plain.demo_models",
        "whyformer._plain.paths",
        "whyformer._plain.progress",
        "whyformer.show.visible",
    }


def run_process(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2]), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "whyformer.cli", *arguments]
    return subprocess.run(command, env=environment, stdout=stdout, stderr=subprocess.PIPE, timeout=120)


def test_only_the_result_is_on_standard_output(image_file):
    done = run_process("explain", image_file, "-m", "rollout", "--json")
    assert done.stderr == b""
    assert done.returncode == 0
    assert json.loads(done.stdout)["method"] == "rollout"


def test_an_ascii_terminal_gets_escaped_characters(text_model):
    result = CliRunner(charset="ascii").invoke(cli.app, ["explain", "schön film", "-M", text_model, "-m", "rollout"])
    assert result.exit_code == 0
    assert r"sch\xf6n" in result.stdout


def test_a_closed_pipe_is_not_an_error_message():
    """`whyformer methods | head -1`: the pipe closes before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    done = run_process("methods", stdout=writing)
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 1


# --- inputs -----------------------------------------------------------------------------------------------------------


def test_without_input_it_explains_a_bundled_sample():
    assert run("explain").startswith("cat.jpg: Bengal (")
    assert run("explain", "-M", "demo/sentiment", "-m", "rollout").startswith("positive (")
    assert "keys" in run("explain", "-M", "demo/decoder", "-m", "rollout")


@pytest.fixture
def image_folder(tmp_path, image_file):
    for name in ("b.png", "a.jpg", "notes.txt"):
        (tmp_path / name).write_bytes(Path(image_file).read_bytes())
    return tmp_path


def names_in(output: str) -> list[str]:
    return json.loads(output)["names"]


def test_folders_and_patterns_expand_to_files(image_folder):
    explain = ("explain", "-M", "demo/untrained-vit", "-m", "rollout", "--json")
    assert names_in(run(*explain, str(image_folder))) == ["a.jpg", "b.png"]
    assert names_in(run(*explain, f"{image_folder}/*.png", f"{image_folder}/a.jpg")) == ["b.png", "a.jpg"]
    (image_folder / "empty").mkdir()
    explain = explain[:-1]
    assert "No file matches" in error_of(*explain, f"{image_folder}/*.gif", code=3)
    assert "contains no file with the suffix .png" in error_of(*explain, f"{image_folder}/empty", code=3)


def test_reads_texts_from_files_and_folders(tmp_path, text_model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("b.txt").write_text("a good film")
    Path("a.txt").write_text("a bad film")
    explain = ("explain", "-M", text_model, "-m", "rollout", "--json")
    assert names_in(run(*explain, "b.txt")) == ["a good film"]
    assert names_in(run(*explain, ".")) == ["a bad film", "a good film"]
    assert names_in(run(*explain, "*.txt", "is not a good film ?")) == [
        "a bad film",
        "a good film",
        "is not a good film ?",
    ]
    Path("film").mkdir()
    assert names_in(run(*explain, "film")) == ["film"]  # a folder without text files is just a word


def run_piped(given: str | bytes, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli.app, list(arguments), input=given)
    assert result.exit_code == code, result.output
    return result.stderr if code else result.stdout


def test_standard_input_has_one_input_per_line(text_model, image_file):
    explain = ("explain", "-", "-m", "rollout", "--json")
    assert names_in(run_piped("a good film\n\nnot bad\n", *explain, "-M", text_model)) == ["a good film", "not bad"]
    assert names_in(run_piped(f"{image_file}\n", *explain, "-M", "demo/untrained-vit")) == ["cat.png"]
    assert "Standard input is empty" in run_piped("\n", *explain, "-M", text_model, code=3)
    assert "not UTF-8 at byte 0" in run_piped(b"\xff\xfe", *explain, "-M", text_model, code=3)


def test_standard_input_can_be_an_image(image_file):
    explain = ("explain", "-", "-m", "rollout", "--json", "-M", "demo/untrained-vit")
    assert names_in(run_piped(Path(image_file).read_bytes(), *explain)) == ["image"]
    assert "neither a list of paths nor an image" in run_piped(b"\x89nothing", *explain, code=3)


def test_many_inputs_are_explained_in_batches(text_model, monkeypatch):
    texts = ["a good film", "not bad", "a bad , bad film"] * 2
    together = json.loads(run("explain", *texts, "-M", text_model, "-m", "rollout", "--json"))
    monkeypatch.setattr(running, "BATCH", 2)
    apart = json.loads(run("explain", *texts, "-M", text_model, "-m", "rollout", "--json"))
    assert apart["names"] == together["names"]
    torch.testing.assert_close(torch.tensor(apart["scores"]["data"]), torch.tensor(together["scores"]["data"]))
    compared = run("compare", *texts, "-M", text_model, "-m", "rollout", "-m", "chance", "--json")
    assert len(json.loads(compared)["explanations"]["rollout"]["names"]) == 6


def test_targets_stay_with_their_inputs(text_model, monkeypatch):
    monkeypatch.setattr(running, "BATCH", 2)
    fields = json.loads(
        run("explain", "a", "a", "a", "-M", text_model, "-m", "lrp", "-t", "0", "-t", "1", "-t", "0", "--json")
    )
    assert [target["index"] for target in fields["targets"]] == [0, 1, 0]


@pytest.mark.parametrize("verb", ["explain", "compare"])
def test_every_batch_gets_its_own_targets(text_model, monkeypatch, verb):
    """No two batches have the same targets, and none begins as another does."""
    monkeypatch.setattr(running, "BATCH", 2)
    texts, targets = ["a", "a good", "a bad", "good", "bad"], [0, 1, 2, 0, 1]
    aims = [word for target in targets for word in ("-t", str(target))]
    methods = ("-m", "lrp") if verb == "explain" else ("-m", "lrp", "-m", "chance")
    fields = json.loads(run(verb, *texts, "-M", text_model, *methods, *aims, "--json"))
    for explanation in [fields] if verb == "explain" else fields["explanations"].values():
        assert explanation["names"] == texts
        assert [target["index"] for target in explanation["targets"]] == targets


def test_batches_hold_every_input_once_with_its_target():
    inputs, targets = [f"text {i}" for i in range(40)], list(range(40))
    pairs = []
    for batch, aim in running.iterate_batches(inputs, {"target": targets, "versus": 7}):
        assert aim["versus"] == [7] * len(batch)
        pairs += zip(batch, aim["target"], strict=True)
    assert pairs == list(zip(inputs, targets, strict=True))


# --- more than one method or class ------------------------------------------------------------------------------------


def test_several_methods_are_compared(text_model, tmp_path):
    output = run(
        "explain", "a good film", "-M", text_model, "-m", "rollout", "-m", "lrp", "-o", str(tmp_path / "c.html")
    )
    assert "agreement" in output
    assert (tmp_path / "c.html").read_text().startswith("<!doctype html>")
    assert "cannot be combined with several methods" in error_of(
        "explain", "a", "-M", text_model, "-m", "rollout", "-m", "lrp", "-s", "own=keep", code=2
    )


def test_several_classes_in_one_figure(text_model, tmp_path):
    out = tmp_path / "s.svg"
    run("explain", "a good film", "-M", text_model, "-m", "lrp", "--classes", "2", "-o", str(out))
    assert out.read_text().count("Why") == 0 and out.read_text().count("film") >= 2
    assert "classes must be from 1 to 3" in error_of("explain", "a", "-M", text_model, "--classes", "4", code=2)
    assert "cannot be combined with --classes" in error_of(
        "explain", "a", "-M", text_model, "--classes", "2", "-t", "0", code=2
    )


def test_words_instead_of_tokens(text_model):
    assert (
        json.loads(run("explain", "a good film", "-M", text_model, "--words", "--json"))["settings"]["words"] == "sum"
    )


def test_long_texts_in_windows_by_sentence(text_model):
    long = "The film is not good. " * 40
    message = error_of("explain", long, "-M", text_model, "-m", "rollout", code=3)
    assert "error[E_TXT_TOO_LONG]" in message and "--windows" in message
    saved = json.loads(run("explain", long, "-M", text_model, "-m", "rollout", "--windows", "--sentences", "--json"))
    assert saved["settings"]["sentences"] == "sum" and "windows" in saved["details"]
    assert [piece for piece in saved["tokens"][0]["pieces"] if piece == "The film is not good."]
    shared = json.loads(run("explain", long, "-M", text_model, "-m", "rollout", "--overlap", "0", "--json"))
    assert len(shared["details"]["windows"]) == len(saved["details"]["windows"])
    message = error_of("explain", "a. b.", "-M", text_model, "--sentences", "--paragraphs", code=2)
    assert "--sentences and --paragraphs cannot be combined" in message


def test_saves_every_format(text_model, tmp_path):
    for suffix in ("html", "png", "svg", "pdf", "tex", "csv", "parquet", "json", "safetensors", "txt"):
        out = tmp_path / f"e.{suffix}"
        run("explain", "a good film", "-M", text_model, "-m", "rollout", "-o", str(out))
        assert out.stat().st_size > 100


# --- inspect and generate ---------------------------------------------------------------------------------------------


def test_inspects_attention(text_model, tmp_path):
    out = tmp_path / "i.html"
    assert "layers x" in run("inspect", "a good film", "-M", text_model, "-o", str(out))
    assert "relevance" in out.read_text()
    assert "one example at a time" in error_of("inspect", "a", "a", "-M", text_model, "-o", str(out), code=3)


def test_explains_generated_tokens(tmp_path):
    out = tmp_path / "w.html"
    output = run("generate", "12 + 7 =", "-n", "2", "-o", str(out))
    assert "' 19'" in output
    assert "Why &#x27; 19&#x27;?" in out.read_text()
    assert "it takes no texts" in error_of("generate", "x", "-M", "demo/pets", code=3)
    assert "predicts classes, not a next token" in error_of("generate", "a film", "-M", "demo/sentiment", code=3)


def test_completes_names_without_importing_torch():
    code = (
        "import sys; from whyformer.cli import options;"
        "print(list(options.complete_method_names('roll')), list(options.complete_model_names('demo/p')));"
        "print('torch' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == "['rollout'] ['demo/pets']\nFalse\n"


def test_every_model_name_that_completion_offers_can_be_opened():
    offered = list(options.complete_model_names("demo/"))
    assert "demo/reader" in offered and "demo/readers" not in offered
    assert all((_find_demo_folder(name) / "model.safetensors").is_file() for name in offered)


def test_help_has_examples_and_does_not_import_torch():
    code = (
        "import sys; from whyformer.cli import app\n"
        "try: app(['explain', '--help'])\nfinally: print('torch' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "whyformer explain cat.jpg -o cat.html" in output
    assert output.endswith("False\n")


def test_a_misspelt_file_is_not_audited_as_a_sentence():
    result = CliRunner().invoke(cli.app, ["audit", "nothing.csv"])
    assert result.exit_code == 3
    assert "there is no such file" in result.stderr


def test_a_sentence_longer_than_a_file_name_can_be_audited():
    result = CliRunner().invoke(cli.app, ["audit", "film " * 100, "--test", "shape"])
    assert result.exit_code == 0, result.output


def test_an_image_is_not_audited_as_a_sentence(image_file):
    result = CliRunner().invoke(cli.app, ["audit", image_file])
    assert result.exit_code == 3
    assert "is an image, but demo/sentiment takes texts" in result.stderr


def test_a_sentence_for_an_image_model_gets_a_hint():
    result = CliRunner().invoke(cli.app, ["explain", "a good film"])
    assert "to explain a text, use a text model" in result.stderr


def test_an_error_that_ends_in_a_question_has_no_full_stop():
    result = CliRunner().invoke(cli.app, ["explan"])
    assert "Did you mean 'explain'? See" in result.stderr


# --- files that could be read for ever --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["photos", "-M", "demo/untrained-vit"], "E_IMG_READ"),
        (["photos/pipe.png", "-M", "demo/untrained-vit"], "E_IMG_READ"),
        (["/dev/zero", "-M", "demo/untrained-vit"], "E_IMG_READ"),
        (["-", "-M", "demo/untrained-vit"], "E_IMG_READ"),
        (["notes", "-M", "demo/sentiment"], "E_INPUT"),
        (["pipe.safetensors", "-M", "demo/untrained-bert"], "E_INPUT"),
    ],
)
def test_pipes_and_devices_are_not_read(arguments, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("photos/pipe.png", "notes/pipe.txt", "pipe.safetensors"):
        Path(name).parent.mkdir(exist_ok=True)
        os.mkfifo(name)
    message = run_piped("photos/pipe.png\n", "explain", *arguments, code=3)
    assert message.startswith(f"error[{code}]: Cannot read ") and "not a regular file" in message


def test_long_standard_input_and_long_files_are_not_read_to_the_end(text_model, tmp_path, monkeypatch):
    monkeypatch.setattr(gathering, "MAX_BYTES", 1000)
    (tmp_path / "long.txt").write_text("a film\n" * 1000)
    assert "Standard input is longer than" in run_piped("a film\n" * 1000, "explain", "-", "-M", text_model, code=3)
    message = error_of("explain", str(tmp_path / "long.txt"), "-M", text_model, code=3)
    assert message.startswith("error[E_TXT_TOO_LONG]: ") and "is longer than" in message


def test_the_name_of_an_image_file_is_no_text(tmp_path, text_model, monkeypatch):
    """Whether or not there is such a file; read from a file or standard input it is a text."""
    monkeypatch.chdir(tmp_path)
    explain = ("explain", "-M", text_model, "-m", "rollout", "--json")
    for word in ("film.jpg", "photos/a.PNG"):
        message = error_of(*explain[:-1], word, code=3)
        assert "there is no such file" in message and "standard input" in message
    Image.new("RGB", (8, 8)).save("film.jpg")
    message = error_of(*explain[:-1], "film.jpg", code=3)
    assert "is the name of an image file" in message and "takes texts" in message and "demo/pets" in message
    Path("a.txt").write_text("film.jpg")
    assert names_in(run(*explain, "a.txt")) == ["film.jpg"]
    piped = CliRunner().invoke(cli.app, [*explain, "-"], input="film.jpg\n")
    assert names_in(piped.stdout) == ["film.jpg"]
    assert names_in(run(*explain, "a film.jpg")) == ["a film.jpg"]


def test_explains_a_similarity(tmp_path):
    out = tmp_path / "alike.html"
    output = run(
        "similarity", "behind the garden there is a quiet basket", "my basket is as old as your lamp", "-o", str(out)
    )
    assert output.startswith("Why alike? The cosine ")
    assert "basket  basket" in output
    assert "elsewhere" in out.read_text("utf-8")
    saved = json.loads(
        run("similarity", "my basket is as old as your lamp", "we saw a red lamp", "--matrix", "none", "--json")
    )
    assert (saved["kind"], saved["score_kind"], saved["matrix"]) == ("similarity", "cosine", None)
    assert "score must be one of" in error_of("similarity", "a", "b", "--score", "euclid", code=2)
