"""The command line: the same verbs, errors in one line, exit codes that say whose fault it is."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from whyformer import cli
from whyformer.cli import parsing
from whyformer.methods._registry import METHODS
from whyformer.results.comparison import Comparison
from whyformer.results.explanation import load


def run(*arguments: str, code: int = 0) -> str:
    """What the command prints; for an error, what it says on stderr."""
    result = CliRunner().invoke(cli.app, list(arguments))
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stderr if code else result.stdout


def error_of(*arguments: str, code: int) -> str:
    said = run(*arguments, code=code)
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


@pytest.fixture(scope="session")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures") / "cat.png"
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


def test_without_a_verb_it_shows_the_verbs():
    said = run()
    for verb in ("explain", "compare", "methods", "demo"):
        assert verb in said
    assert run("--help") == said == run("-h")


def test_the_version():
    assert run("--version").startswith("whyformer ")


def test_methods_are_listed():
    said = run("methods")
    assert all(name in said for name in METHODS)
    rows = {row["name"]: row for row in json.loads(run("methods", "--json"))}
    assert set(rows) == set(METHODS)
    assert rows["rollout"]["class_specific"] is False
    assert rows["lrp"]["cost"] == "forward + relevance"
    assert rows["lrp"]["settings"] == {"own": "keep"}


def test_a_picture_is_explained_by_the_model_that_ships(picture):
    said = run("explain", picture)
    assert said.startswith("cat.png: ")
    assert "by transformer_attribution" in said.split("\n")[0]


def test_a_text_is_explained(text_model):
    said = run("explain", "not a bad film", "-M", text_model, "-m", "attcat", "-t", "positive")
    assert said.startswith("positive (")
    assert [line.split()[-1] for line in said.strip().split("\n")[2:6]] == ["not", "a", "bad", "film"]


def test_several_inputs_are_a_batch_with_a_target_for_each(text_model):
    said = run("explain", "a film", "not good", "-M", text_model, "-t", "positive", "-t", "0", "--json")
    held = json.loads(said)
    assert [target["label"] for target in held["targets"]] == ["positive", "negative"]
    assert held["names"] == ["a film", "not good"]


def test_a_number_is_a_label_if_there_is_one_and_an_index_otherwise(text_model):
    held = json.loads(run("explain", "a film", "-M", text_model, "-t", "7", "--versus", "1", "--json"))
    assert (held["targets"][0]["index"], held["targets"][0]["versus"]) == (2, 1)


def test_settings_reach_the_method(text_model):
    asked = ("-m", "rollout", "-s", "preset=released", "-s", "start=1")
    held = json.loads(run("explain", "a film", "-M", text_model, *asked, "--json"))
    assert (held["settings"]["preset"], held["settings"]["start"]) == ("released", 1)


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
def test_results_are_saved(picture, tmp_path, suffix):
    out = tmp_path / f"e{suffix}"
    run("explain", picture, "-m", "rollout", "-o", str(out))
    assert out.stat().st_size > 0
    if suffix in (".safetensors", ".json"):
        assert load(out).method == "rollout"


def test_json_can_be_loaded_again(picture, tmp_path):
    (tmp_path / "e.json").write_text(run("explain", picture, "-m", "rollout", "--json"))
    assert load(tmp_path / "e.json").names == ("cat.png",)


def test_methods_are_compared(picture, tmp_path):
    out = tmp_path / "c.json"
    said = run("compare", picture, "-m", "rollout", "-m", "chance", "-o", str(out))
    assert "rollout" in said
    assert "agreement" in said
    assert Comparison.load(out).labels == ("rollout", "chance")


def test_quick_methods_are_compared_unless_told_otherwise(text_model):
    held = json.loads(run("compare", "a good film", "-M", text_model, "--json"))
    quick = {name for name, method in METHODS.items() if method.is_quick}
    assert set(held["explanations"]) | set(held["failures"]) == quick < set(METHODS)


def test_a_model_without_a_tokenizer_takes_tensors_from_a_file(tmp_path):
    ids = tmp_path / "ids.safetensors"
    save_file({"input_ids": torch.tensor([[5, 9, 7]])}, ids)
    said = run("explain", str(ids), "-M", "demo/untrained-bert", "-m", "attcat")
    assert [line.split()[-1] for line in said.strip().split("\n")[1:]] == ["5", "9", "7"]


def test_the_demo_explains_what_ships_and_says_what_to_try_next(tmp_path):
    said = run("demo", "-o", str(tmp_path / "tour.html"))
    assert [f"{n}. demo/{name}" in said for n, name in enumerate(("pets", "sentiment", "shapes", "decoder"), 1)] == [
        True
    ] * 4
    assert said.count("\n  whyformer ") == 3
    page = (tmp_path / "tour.html").read_text()
    assert page.count("<section ") == 4
    assert "http:" not in page and "https:" not in page
    assert "<script" not in page


def test_the_demo_writes_a_page_and_nothing_else(tmp_path):
    assert "Names that end in .html" in error_of("demo", "-o", str(tmp_path / "tour.pdf"), code=3)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--frobnicate"], "No such option: --frobnicate"),
        (["explian"], "No such command 'explian'"),
        (["write"], "Missing argument"),
        (["explain", "x", "-m", "rolout"], "No method 'rolout'. Did you mean 'rollout'?"),
        (["compare", "x", "-m", "rolout"], "No method 'rolout'"),
        (["compare", "x", "-m", "rollout", "-m", "rollout"], "rollout is named twice"),
        (["explain", "x", "-s", "start"], "'start' is not a setting. Write NAME=VALUE"),
        (["explain", "x", "-s", "target=1"], "target is not a setting of a method"),
        (["explain", "x", "-s", "strat=1"], "transformer_attribution has no setting 'strat'. Did you mean 'start'?"),
        (["explain", "x", "-s", "recipe=x"], "No recipe 'x'"),
    ],
)
def test_wrong_usage_is_told_before_a_model_is_opened(arguments, message, monkeypatch):
    monkeypatch.setattr(parsing, "open_quietly", lambda name: pytest.fail("the model was opened"))
    assert message in error_of(*arguments, code=2)


def test_an_ending_nobody_knows_is_told_before_a_model_is_opened(monkeypatch):
    monkeypatch.setattr(parsing, "open_quietly", lambda name: pytest.fail("the model was opened"))
    assert "Cannot tell the format of 'e.gif'" in error_of("explain", "x", "-o", "e.gif", code=3)
    assert "Cannot tell the format of 'c.docx'" in error_of("compare", "x", "-o", "c.docx", code=3)


def test_the_input_is_never_overwritten(picture):
    before = Path(picture).read_bytes()
    assert "would overwrite it" in error_of("explain", picture, "-o", picture, code=3)
    assert Path(picture).read_bytes() == before


def test_wrong_targets(picture):
    assert "There is no class" in error_of("explain", picture, "-t", "-1", code=2)
    assert "There is no class 'tabby'" in error_of("explain", picture, "-t", "tabby", code=2)
    assert "target has 2 entries for 1 examples" in error_of("explain", picture, "-t", "1", "-t", "2", code=2)


def test_wrong_inputs(picture, text_model, tmp_path):
    error_of("explain", str(tmp_path / "gone.png"), code=3)
    (tmp_path / "no.png").write_text("hello")
    error_of("explain", str(tmp_path / "no.png"), code=3)
    assert "empty" in error_of("explain", " ", "-M", text_model, code=3)
    assert "so it takes tensors" in error_of("explain", "hello", "-M", "demo/untrained-bert", code=3)
    (tmp_path / "no.safetensors").write_text("hello")
    bert = ("-M", "demo/untrained-bert")
    assert "is no safetensors file" in error_of("explain", str(tmp_path / "no.safetensors"), *bert, code=3)
    assert "Cannot read" in error_of("explain", str(tmp_path / "gone.safetensors"), *bert, code=3)


def test_wrong_models(tmp_path):
    error_of("explain", "x", "-M", str(tmp_path), code=4)
    assert "No demo model 'demo/x'" in error_of("explain", "x", "-M", "demo/x", code=4)


def test_a_result_that_cannot_be_saved_is_still_shown(picture, tmp_path):
    result = CliRunner().invoke(cli.app, ["explain", picture, "-m", "rollout", "-o", str(tmp_path / "no" / "e.json")])
    assert result.exit_code == 3
    assert "by rollout" in result.stdout
    assert "error: Cannot write" in result.stderr


def test_nothing_in_an_error_can_steer_the_terminal(tmp_path):
    said = error_of("explain", str(tmp_path / "\x1b[2J\r\ngone\u202e.png"), code=3)
    assert "\x1b" not in said
    assert "\u202e" not in said


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "error: interrupted"),
        (MemoryError(), 5, "error: out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate ..."), 5, "error: out of memory on the device"),
        (ZeroDivisionError("oops"), 1, "error: unexpected ZeroDivisionError: oops (--debug shows where)"),
    ],
)
def test_what_nobody_expects(monkeypatch, error, code, message):
    def fails(name):
        raise error

    monkeypatch.setattr(parsing, "open_quietly", fails)
    assert message in run("explain", "x", code=code)


def test_debug_shows_where_an_error_comes_from(monkeypatch):
    def fails(name):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(parsing, "open_quietly", fails)
    result = CliRunner().invoke(cli.app, ["explain", "x", "--debug"])
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "in fails" in result.stderr


# --- as a process -----------------------------------------------------------------------------------------------------


def test_nothing_heavy_is_imported_before_a_command_runs():
    trees = [ast.parse(file.read_text()) for file in Path(cli.__file__).parent.glob("*.py")]
    at_the_top = {
        name.split(".")[0] if not name.startswith("whyformer") else name
        for tree in trees
        for node in tree.body
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [node.module] if isinstance(node, ast.ImportFrom) else []
        )
    }  # fmt: skip
    ours = {name for name in at_the_top if name.startswith("whyformer")}
    assert at_the_top - set(sys.stdlib_module_names) - ours == {"typer"}
    assert not {name for name in ours if not name.startswith("whyformer.cli")} - {
        "whyformer.errors",
        "whyformer._plain.progress",
        "whyformer.show.visible",
    }


def process(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2]), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "whyformer.cli", *arguments]
    return subprocess.run(command, env=environment, stdout=stdout, stderr=subprocess.PIPE, timeout=120)


def test_as_a_process_only_the_answer_is_on_standard_output(picture):
    done = process("explain", picture, "-m", "rollout", "--json")
    assert done.stderr == b""
    assert done.returncode == 0
    assert json.loads(done.stdout)["method"] == "rollout"


def test_a_terminal_that_knows_only_ascii_still_gets_an_answer(text_model):
    result = CliRunner(charset="ascii").invoke(cli.app, ["explain", "schön film", "-M", text_model, "-m", "rollout"])
    assert result.exit_code == 0
    assert r"sch\xf6n" in result.stdout


def test_a_reader_that_leaves_early_is_not_complained_about():
    """`whyformer methods | head -1`: the pipe is closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    done = process("methods", stdout=writing)
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 1


# --- what is typed as INPUT -------------------------------------------------------------------------------------------


def test_nothing_typed_explains_the_sample_that_ships():
    assert run("explain").startswith("cat.jpg: Bengal (")
    assert run("explain", "-M", "demo/sentiment", "-m", "rollout").startswith("positive (")
    assert "keys" in run("explain", "-M", "demo/decoder", "-m", "rollout")


@pytest.fixture
def pictures(tmp_path, picture):
    for name in ("b.png", "a.jpg", "notes.txt"):
        (tmp_path / name).write_bytes(Path(picture).read_bytes())
    return tmp_path


def names_in(said: str) -> list[str]:
    return json.loads(said)["names"]


def test_a_folder_and_a_pattern_stand_for_the_files_in_them(pictures):
    explain = ("explain", "-M", "demo/untrained-vit", "-m", "rollout", "--json")
    assert names_in(run(*explain, str(pictures))) == ["a.jpg", "b.png"]
    assert names_in(run(*explain, f"{pictures}/*.png", f"{pictures}/a.jpg")) == ["b.png", "a.jpg"]
    assert "No file is called like" in error_of(*explain, f"{pictures}/*.gif", code=3)
    (pictures / "empty").mkdir()
    assert "There is no file that ends in .png" in error_of(*explain, f"{pictures}/empty", code=3)


def test_texts_from_files_and_folders(tmp_path, text_model, monkeypatch):
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
    assert names_in(run(*explain, "film")) == ["film"]  # a folder without texts is a word like any other


def piped(given: str | bytes, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli.app, list(arguments), input=given)
    assert result.exit_code == code, result.output
    return result.stderr if code else result.stdout


def test_standard_input_holds_one_input_a_line(text_model, picture):
    explain = ("explain", "-", "-m", "rollout", "--json")
    assert names_in(piped("a good film\n\nnot bad\n", *explain, "-M", text_model)) == ["a good film", "not bad"]
    assert names_in(piped(f"{picture}\n", *explain, "-M", "demo/untrained-vit")) == ["cat.png"]
    assert "Standard input is empty" in piped("\n", *explain, "-M", text_model, code=3)
    assert "not UTF-8 at byte 0" in piped(b"\xff\xfe", *explain, "-M", text_model, code=3)


def test_standard_input_may_be_a_picture(picture):
    explain = ("explain", "-", "-m", "rollout", "--json", "-M", "demo/untrained-vit")
    assert names_in(piped(Path(picture).read_bytes(), *explain)) == ["picture 0"]
    assert "neither a list of paths nor a picture" in piped(b"\x89nothing", *explain, code=3)


def test_many_inputs_are_explained_some_at_a_time(text_model, monkeypatch):
    texts = ["a good film", "not bad", "a bad , bad film"] * 2
    together = json.loads(run("explain", *texts, "-M", text_model, "-m", "rollout", "--json"))
    monkeypatch.setattr(parsing, "BATCH", 2)
    apart = json.loads(run("explain", *texts, "-M", text_model, "-m", "rollout", "--json"))
    assert apart["names"] == together["names"]
    torch.testing.assert_close(torch.tensor(apart["scores"]["data"]), torch.tensor(together["scores"]["data"]))
    compared = run("compare", *texts, "-M", text_model, "-m", "rollout", "-m", "chance", "--json")
    assert len(json.loads(compared)["explanations"]["rollout"]["names"]) == 6


def test_targets_stay_with_their_inputs(text_model, monkeypatch):
    monkeypatch.setattr(parsing, "BATCH", 2)
    said = json.loads(
        run("explain", "a", "a", "a", "-M", text_model, "-m", "lrp", "-t", "0", "-t", "1", "-t", "0", "--json")
    )
    assert [target["index"] for target in said["targets"]] == [0, 1, 0]


# --- more than one method or class ------------------------------------------------------------------------------------


def test_several_methods_are_compared(text_model, tmp_path):
    said = run("explain", "a good film", "-M", text_model, "-m", "rollout", "-m", "lrp", "-o", str(tmp_path / "c.html"))
    assert "agreement" in said
    assert (tmp_path / "c.html").read_text().startswith("<!doctype html>")
    assert "does not go with several methods" in error_of(
        "explain", "a", "-M", text_model, "-m", "rollout", "-m", "lrp", "-s", "own=keep", code=2
    )


def test_several_classes_stand_on_one_sheet(text_model, tmp_path):
    out = tmp_path / "s.svg"
    run("explain", "a good film", "-M", text_model, "-m", "lrp", "--classes", "2", "-o", str(out))
    assert out.read_text().count("Why") == 0 and out.read_text().count("film") >= 2
    assert "this model has 3" in error_of("explain", "a", "-M", text_model, "--classes", "4", code=2)
    assert "does not go with --classes" in error_of(
        "explain", "a", "-M", text_model, "--classes", "2", "-t", "0", code=2
    )


def test_words_instead_of_tokens(text_model):
    assert (
        json.loads(run("explain", "a good film", "-M", text_model, "--words", "--json"))["settings"]["words"] == "sum"
    )


def test_every_format_is_written(text_model, tmp_path):
    for suffix in ("html", "png", "svg", "pdf", "tex", "csv", "parquet", "json", "safetensors", "txt"):
        out = tmp_path / f"e.{suffix}"
        run("explain", "a good film", "-M", text_model, "-m", "rollout", "-o", str(out))
        assert out.stat().st_size > 100


# --- inside and write -------------------------------------------------------------------------------------------------


def test_looking_inside(text_model, tmp_path):
    out = tmp_path / "i.html"
    assert "layers x" in run("inside", "a good film", "-M", text_model, "-o", str(out))
    assert "relevance" in out.read_text()
    assert "One at a time" in error_of("inside", "a", "a", "-M", text_model, "-o", str(out), code=3)


def test_writing_on(tmp_path):
    out = tmp_path / "w.html"
    said = run("write", "12 + 7 =", "-n", "2", "-o", str(out))
    assert "' 19'" in said
    assert "Why &#x27; 19&#x27;?" in out.read_text()
    assert "does not write text" in error_of("write", "x", "-M", "demo/pets", code=3)
    assert "answers with classes" in error_of("write", "a film", "-M", "demo/sentiment", code=3)


def test_names_are_completed_without_waiting_for_torch():
    code = (
        "import sys; from whyformer.cli import options;"
        "print(list(options.complete_method_names('roll')), list(options.complete_model_names('demo/p')));"
        "print('torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "['rollout'] ['demo/pets']\nFalse\n"


def test_help_has_examples_and_comes_before_torch():
    code = (
        "import sys; from whyformer.cli import app\n"
        "try: app(['explain', '--help'])\nfinally: print('torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "whyformer explain cat.jpg -o cat.html" in said
    assert said.endswith("False\n")


def test_a_misspelt_file_is_not_audited_as_a_sentence():
    result = CliRunner().invoke(cli.app, ["audit", "nothing.csv"])
    assert result.exit_code == 3
    assert "there is no such file" in result.stderr


def test_a_picture_is_not_audited_as_a_sentence(picture):
    result = CliRunner().invoke(cli.app, ["audit", picture])
    assert result.exit_code == 3
    assert "is a picture, and demo/sentiment takes texts" in result.stderr


def test_a_sentence_for_a_model_of_pictures_is_told_what_it_needs():
    result = CliRunner().invoke(cli.app, ["explain", "a good film"])
    assert "a text needs a model of texts" in result.stderr


def test_a_question_in_an_error_ends_once():
    result = CliRunner().invoke(cli.app, ["explan"])
    assert "Did you mean 'explain'? See" in result.stderr
