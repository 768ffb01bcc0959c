"""judge() from end to end: files are identical after any kill and resume; report and command line."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import tiny_text
import torch
from html5lib import HTMLParser
from judge.bench_parts import BRIGHTNESS, FIRST_SCORE, PICKY, SHARE, pictures, tiny
from typer.testing import CliRunner

from whyformer._explain.method_call import label_methods
from whyformer._judge import finalist, judge
from whyformer._judge.bench import Bench
from whyformer._model.loading import open as opened
from whyformer._runs.choice import choose_default_metrics
from whyformer.cli import app
from whyformer.data import Data, Example
from whyformer.errors import InputError, MethodError, MetricError, OutputError, ResourceError, TargetError
from whyformer.methods._registry import METHODS
from whyformer.metrics import parameter_randomisation
from whyformer.results.result import Result
from whyformer.show.terminal import Screen

METHODS_OF_IT = (BRIGHTNESS, PICKY, "rollout", "transformer_attribution")


def judge_all(out, **more):
    settings = (
        dict(methods=METHODS_OF_IT, metrics=[FIRST_SCORE, positive()], out=out, batch_size=2, report=False) | more
    )
    return judge(tiny(), pictures(7), **settings)


def positive():
    from whyformer.metrics.perturbation import positive_perturbation

    return partial(positive_perturbation, fill="zero", per="patch")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the lock."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run that was never interrupted."""
    folder = tmp_path_factory.mktemp("undisturbed")
    judge_all(folder)
    return folder


@pytest.fixture
def finished(undisturbed, tmp_path):
    """A copy of it."""
    return shutil.copytree(undisturbed, tmp_path / "finished")


# --- the table --------------------------------------------------------------------------------------------------------


def test_controls_are_always_rows_and_the_files_are_there(tmp_path):
    judgement = judge(tiny(), pictures(7), [PICKY, "rollout"], FIRST_SCORE, out=tmp_path / "run")
    assert judgement.plan.methods == ("picky", "rollout", "chance", "centre_blob", "random_pixels")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        ".lock", "plan.json", "rows", "table.csv", "table.txt", "problems.txt", "report.html",
    }  # fmt: skip
    text = str(judgement)
    assert judgement.verdict in " ".join(text.split())
    assert "failed" in " ".join(judgement.cautions) and judgement.failed > 0
    assert all(name in text for name in ("picky", "rollout", "chance", "centre_blob"))
    assert judgement.table.descriptions["first_score"] in " ".join(text.split())


def test_without_a_folder_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    judgement = judge(tiny(), pictures(2), "rollout", FIRST_SCORE)
    assert judgement.folder is None and not list(tmp_path.iterdir())
    judgement.save(tmp_path / "table.md")
    assert "| chance |" in (tmp_path / "table.md").read_text()


def test_a_judgement_is_a_result(tmp_path):
    judgement = judge(tiny(), pictures(3), [PICKY, "rollout"], [FIRST_SCORE, positive()])
    assert isinstance(judgement, Result)
    text = parsed(f"<!doctype html><title>x</title>{judgement.to_html()}")
    assert all(part in text for part in (judgement.verdict, "first_score (higher is better)", "rollout", "95 %"))
    assert judgement._repr_html_() == judgement.to_html()
    for suffix in judgement.formats:
        judgement.save(tmp_path / f"table{suffix}")
    assert (tmp_path / "table.csv").read_text() == judgement.table.to_csv()
    assert judgement.verdict in " ".join((tmp_path / "table.txt").read_text().split())
    with pytest.raises(InputError, match=r"Supported suffixes: \.csv, \.md, \.txt"):
        judgement.save(tmp_path / "table.docx")


def test_a_second_run_makes_no_row_again(finished, monkeypatch):
    before = contents(finished)
    monkeypatch.setattr(Bench, "make_shard", lambda *_: pytest.fail("a row was made again"))
    judge_all(finished)
    assert contents(finished) == before


def test_a_damaged_shard_is_made_again(finished):
    before = contents(finished)
    (finished / "rows" / "000002.parquet").write_bytes(b"PAR1")
    (finished / "rows" / "000003.parquet").unlink()
    judge_all(finished)
    assert contents(finished) == before


def test_another_plan_is_refused(finished):
    with pytest.raises(OutputError, match="another judgement: batch differ"):
        judge_all(finished, batch_size=4)


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        (dict(methods=[]), MethodError, "There are no methods to judge"),
        (dict(methods=["rolout"]), MethodError, "Did you mean 'rollout'"),
        (dict(metrics=[]), MetricError, "metrics is empty"),
        (dict(metrics=["aopcc"]), MetricError, "No metric 'aopcc'"),
        (dict(metrics=[FIRST_SCORE, FIRST_SCORE]), MetricError, "first_score is named twice"),
        (dict(target="banana"), TargetError, "There is no class 'banana'"),
        (dict(target=4), TargetError, "There is no class 4"),
        (dict(target=[0, 1]), TargetError, "one class for all examples"),
    ],
)
def test_what_cannot_be_judged(tmp_path, more, error, message):
    with pytest.raises(error, match=message):
        judge_all(tmp_path, **more)


def test_warns_about_labels_that_the_model_does_not_know():
    data = [*pictures(2).examples, Example("odd", pictures(3).examples[2].content, label="banana")]
    judgement = judge(tiny(), Data("three", tuple(data)), "rollout", FIRST_SCORE, target="label")
    assert "1 example with a label that is none of the model's classes." in judgement.cautions
    assert "1 example without a known label: the predicted class was explained." in judgement.cautions
    assert not any("label that is none" in one for one in judge(tiny(), pictures(2), "rollout", FIRST_SCORE).cautions)


def test_a_metric_for_another_kind_of_input():
    model = opened(tiny_text.bert(), tokenizer=tiny_text.wordpiece())
    with pytest.raises(InputError, match="mean_iou is for images"):
        judge(model, ["the film"], "rollout", "mean_iou")


def test_empty_data():
    with pytest.raises(InputError, match="no example in the list"):
        judge(tiny(), [])


def test_the_usual_metrics_fit_what_is_known():
    model = opened(tiny_text.bert(), tokenizer=tiny_text.wordpiece())
    bare, marked = Data("x", (Example("a", "film"),)), Data("x", (Example("a", "film", 0, rationale=((0, 4),)),))
    assert list(choose_default_metrics(model, bare)) == ["comprehensiveness", "sufficiency"]
    usual = ["comprehensiveness", "sufficiency", "token_f1(k='marked')", "auprc"]
    assert list(choose_default_metrics(model, marked)) == usual  # as many words as people marked


WEIGHTS_AT_ONCE = partial(parameter_randomisation, stages=1)


def test_the_recommended_method_is_tested_for_class_and_weights(tmp_path):
    """The numbers are the means of both metrics on a few examples, and are kept beside the rows."""
    texts = [
        f"{word} {thing}" for word in ("a good", "a bad", "an awful", "a superb") for thing in ("film", "plot", "cast")
    ]
    made = judge("demo/sentiment", texts, ["libragrad", "rollout"], "comprehensiveness", out=tmp_path / "run")
    assert made.finalist is not None and made.verdict.startswith(f"On this data use {made.finalist.method}")
    again = judge("demo/sentiment", texts, made.finalist.method, ["class_swap", WEIGHTS_AT_ONCE])
    for line, (mean, low, high) in zip(
        (again.table.of(metric)[0] for metric in again.table.metrics), made.finalist.correlations.values(), strict=True
    ):
        own = next(one for one in again.table.of(line.metric) if one.method == made.finalist.method)
        assert mean == pytest.approx(own.mean, abs=1e-6) and low <= mean <= high
    assert (tmp_path / "run" / "finalist" / "rows").is_dir()
    assert f"{next(iter(made.finalist.correlations.values()))[0]:.2f}" in made.verdict


def test_a_finalist_that_cannot_be_tested_keeps_the_judgement(monkeypatch):
    """Out of memory in the copy of the model: the verdict says so, and stands."""
    texts = [
        f"{word} {thing}" for word in ("a good", "a bad", "an awful", "a superb") for thing in ("film", "plot", "cast")
    ]

    def run_out(*_, **__):
        raise ResourceError("Out of memory.")

    monkeypatch.setattr(finalist, "measure_checks", run_out)
    made = judge("demo/sentiment", texts, ["libragrad", "rollout"], "comprehensiveness")
    assert made.verdict.startswith("On this data use")
    assert "Not tested for class and weights: Out of memory." in made.verdict


def test_a_large_model_is_not_copied(monkeypatch, tmp_path):
    monkeypatch.setattr(finalist, "MOST_PARAMETERS", 10)
    model = opened("demo/sentiment")
    data = Data("x", (Example("a", "a good film"), Example("b", "a bad film")))
    found = finalist.check_finalist(Bench(model, data, label_methods(["libragrad"]), {}), "libragrad", tmp_path)
    assert list(found.correlations) == ["class_swap"] and "too large" in " ".join(found.describe())


def test_quick_takes_every_method_of_one_pass():
    judgement = judge(tiny(), pictures(3), "quick", FIRST_SCORE, batch_size=3)
    quick = {name for name, one in METHODS.items() if one.is_quick}
    assert set(judgement.plan.methods) == quick | {"centre_blob", "random_pixels"}


# --- killed -----------------------------------------------------------------------------------------------------------


def in_a_child(work) -> int:
    """Run in a fork of this process, so that it can be killed; what it was killed by, or 0."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def die_at(point: int) -> None:
    """Kill this process at its n-th step towards a file on disk, before or after it."""
    seen = 0

    def watched(real):
        def step(*given, **more):
            nonlocal seen
            seen += 1
            if seen == point:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*given, **more)
            seen += 1
            if seen == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return step

    for name in ("fsync", "replace", "mkdir"):
        setattr(os, name, watched(getattr(os, name)))


def killed_until_done(folder: Path, points: list[int]) -> int:
    """Judge repeatedly, killed at the next of these points each time; how often it was killed."""
    kills = 0
    for point in points:
        died = in_a_child(lambda point=point: (die_at(point), judge_all(folder)))
        assert died in (0, signal.SIGKILL)
        kills += died == signal.SIGKILL
    assert in_a_child(lambda: judge_all(folder)) == 0
    return kills


def test_killed_three_times_and_resumed_gives_the_same_bytes(tmp_path, undisturbed):
    assert killed_until_done(tmp_path, [5, 7, 10]) == 3
    assert contents(tmp_path) == contents(undisturbed)


@pytest.mark.slow
def test_killed_twenty_times_and_resumed_gives_the_same_bytes(tmp_path, undisturbed):
    draw = random.Random(6)
    kills = killed_until_done(tmp_path, [draw.randint(1, 6) for _ in range(24)])
    assert kills >= 20
    assert contents(tmp_path) == contents(undisturbed)


@pytest.mark.slow
def test_killed_at_any_moment_and_resumed_gives_the_same_bytes(tmp_path, undisturbed):
    """Killed by the clock, not at a step: during a forward pass, a file or the table."""
    draw, kills = random.Random(7), 0
    for _ in range(60):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            judge_all(tmp_path)
            os._exit(0)
        time.sleep(draw.uniform(0.02, 0.5))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        kills += os.WIFSIGNALED(status)
        if kills == 20:
            break
    assert in_a_child(lambda: judge_all(tmp_path)) == 0
    assert kills >= 3
    assert contents(tmp_path) == contents(undisturbed)


# --- report -----------------------------------------------------------------------------------------------------------


def parsed(html: str):
    parser = HTMLParser(strict=False)
    tree = parser.parse(html)
    assert [code for _, code, _ in parser.errors if "doctype" not in code] == []
    return "".join(tree.itertext())


def test_the_report_shows_curves_disagreement_and_what_failed(tmp_path):
    data = pictures(5)
    named = Data("x", tuple(Example(f"<b>{one.name}</b>", one.content, one.label) for one in data.examples))
    judge(tiny(), named, [PICKY, BRIGHTNESS, "rollout"], [positive(), FIRST_SCORE], out=tmp_path, batch_size=5)
    html = (tmp_path / "report.html").read_text()
    text = parsed(html)
    assert "<b>picture" not in html and "<b>picture" in text
    for expected in (
        "Where methods disagree", "What could not be measured", "too bright for me", "Mean curves", "known weakness",
        "Controls, in grey, say nothing about the input: chance (random scores), centre_blob (the same blob",
    ):  # fmt: skip
        assert expected in text
    assert "http://" not in html.replace("http://www.w3.org", "") and "<script" not in html


def read_colours(drawing) -> dict[str, tuple[str, str]]:
    """Colour and marker by label: of the lines in a legend, or of the dots beside the labels of a ranking."""
    (axes,) = drawing.figure.axes
    legend = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
    labels = [label.get_text() for label in axes.get_yticklabels()]
    dots = {labels[int(line.get_ydata()[0])]: line for line in axes.lines if len(line.get_ydata()) == 1}
    return {label: (line.get_color(), line.get_marker()) for label, line in (legend or dots).items()}


def test_a_method_has_one_colour_in_all_charts_and_tables(tmp_path, monkeypatch):
    from whyformer.show import report
    from whyformer.show.drawing import DIM_INK, GREYS

    drawings = []
    embed = report.embed_drawing
    monkeypatch.setattr(report, "embed_drawing", lambda drawing: (drawings.append(drawing), embed(drawing))[1])
    methods = [BRIGHTNESS, "rollout", "grad_cam", "saliency", "transformer_attribution", "attnlrp", "lrp", "attcat"]
    metrics = [positive(), FIRST_SCORE, "deletion"]
    judge(tiny(), pictures(6), [*methods, "raw_attention", "libragrad"], metrics, out=tmp_path, batch_size=6)
    seen = [read_colours(drawing) for drawing in drawings]
    assert len(seen) == 5 and all(len(one) >= 7 for one in seen)  # three rankings, two charts of curves
    looks = {}
    for one in seen:
        for label, look in one.items():
            assert looks.setdefault(label, look) == look
    assert len(looks) == 13 == len(set(looks.values()))
    controls = {"chance", "centre_blob", "random_pixels"}
    assert {looks[label][0] for label in controls} == {DIM_INK, *GREYS}
    assert len({looks[label][0] for label in looks.keys() - controls}) == 8  # all colours of the palette
    html = re.sub("<wbr[^>]*>", "", (tmp_path / "report.html").read_text())  # names may wrap
    shown = re.findall(
        r'<span class="symbol" style="color:([^"]*)" aria-hidden="true">(.)</span> ?(?:<code>)?(\w+)', html
    )
    by_label = {}
    for colour, symbol, label in shown:
        assert by_label.setdefault(label, (colour, symbol)) == (colour, symbol)
    assert by_label.keys() == looks.keys() and len(set(by_label.values())) == 13
    assert by_label["chance"] == ("var(--dim)", "×")
    assert not any(colour.lower() in html.split("</style>")[1].lower() for colour in GREYS)  # all follow dark mode


def test_a_chart_of_the_report_shows_the_best_curves_only(tmp_path, monkeypatch):
    import whyformer._judge.report  # noqa: F401

    monkeypatch.setattr(sys.modules["whyformer._judge.report"], "MOST_CURVES", 1)
    judge(tiny(), pictures(5), [BRIGHTNESS, "rollout"], [positive()], out=tmp_path, batch_size=5)
    text = parsed((tmp_path / "report.html").read_text())
    assert "Mean curves of the best 1 and the controls" in text


def test_the_report_of_texts(tmp_path):
    model = opened(tiny_text.bert(), tokenizer=tiny_text.wordpiece())
    texts = [("the film is not good", 0), ("a good film !", 2), ("the film is bad", 0), ("not bad", "unheard of")]
    judgement = judge(model, texts, ["rollout", "grad_cam"], ["comprehensiveness"], out=tmp_path, batch_size=4)
    assert "film" in parsed((tmp_path / "report.html").read_text())
    assert judgement.rows.all[3, 0, 0].label == -1


def test_a_wide_screen_has_one_line_for_each_method():
    judgement = judge(tiny(), pictures(2), BRIGHTNESS, [FIRST_SCORE, SHARE])
    lines = judgement.render(Screen(width=160, colours=None)).splitlines()
    assert sum(line.startswith("brightness") for line in lines) == 2


# --- command line -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reviews")
    rows = ["text,label", "a gorgeous film,pos", "an awful film,neg", "broken", "not bad at all,pos"]
    (folder / "reviews.csv").write_text("\n".join(rows))
    return folder / "reviews.csv"


def typed(*words) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["judge", *map(str, words)])
    return result.exit_code, result.output


def test_the_command(reviews, tmp_path):
    code, said = typed(
        reviews, "-M", "demo/sentiment", "-m", "rollout", "-m", "rollout(start=1)", "-k", "comprehensiveness",
        "--class", "pos=positive", "--class", "neg=negative", "-o", tmp_path / "run",
    )  # fmt: skip
    assert code == 0, said
    assert "rollout(start=1)" in "".join(said.split()) or "rollout(start=1)" in said
    assert "report.html" in said and "1 problem in the data" in " ".join(said.split())
    assert (tmp_path / "run" / "problems.txt").read_text() == "reviews.csv:4: 1 cells under 2 columns\n"


def test_the_command_prints_json(reviews):
    code, said = typed(
        reviews, "-M", "demo/sentiment", "-m", "rollout", "-k", "comprehensiveness", "--limit", 2, "--json"
    )
    assert code == 0, said
    held = json.loads(said[said.index("{") :])
    assert {line["method"] for line in held["lines"]} == {
        "rollout", "chance", "first_words", "last_words",
    }  # fmt: skip
    assert "verdict" in held
    assert any("Only 2 examples" in one for one in held["cautions"])


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["-m", "rolout"], 2, "Did you mean 'rollout'"),
        (["-m", "rollout(1)"], 2, "is not a method with settings"),
        (["-k", "aopc(fill"], 2, "is not a metric with settings"),
        (["--class", "pos"], 2, "must be NAME=VALUE"),
        (["--column", "input=nothing"], 3, "no column 'nothing'"),
        (["--limit", "0"], 2, "number of examples must be >= 1"),
    ],
)
def test_what_is_typed_wrong(reviews, words, code, message):
    found, said = typed(reviews, "-M", "demo/sentiment", *words)
    assert found == code and message in said and "Traceback" not in said


def test_failed_rows_show_in_the_exit_code(tmp_path):
    (tmp_path / "a.csv").write_text("file,label\nnothing.png,cat\n")
    code, said = typed(tmp_path / "a.csv", "-m", "chance", "-k", "deletion")
    assert code == 6 and "there is no such file" in " ".join(said.split())


@pytest.mark.slow
def test_the_command_killed_by_the_system_goes_on(reviews, tmp_path):
    command = [
        sys.executable, "-m", "whyformer.cli", "judge", str(reviews), "-M", "demo/sentiment", "-m", "rollout", "-k",
        "comprehensiveness", "--batch", "1", "-o",
    ]  # fmt: skip
    assert subprocess.run([*command, str(tmp_path / "whole")], capture_output=True, check=False).returncode == 0
    for wait in (1.0, 4.0, 6.0):
        running = subprocess.Popen([*command, str(tmp_path / "killed")], stdout=subprocess.DEVNULL)
        time.sleep(wait)
        running.kill()
        running.wait()
    assert subprocess.run([*command, str(tmp_path / "killed")], capture_output=True, check=False).returncode == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_table_is_never_cut_or_broken_inside_a_cell(width):
    """What does not fit is left out as a column, and named."""
    films = [("a good film", "positive"), ("a bad film", "negative"), ("dull and slow", "negative")]
    judged = judge("demo/sentiment", films, ["transformer_attribution", "libragrad"], ["aopc"])
    text = judged.render(Screen(width=width, colours=None))
    assert max(map(len, text.split("\n"))) <= width and "…" not in text
    assert re.search(r"^transformer_attribution  +[0-9.]+  [0-9.]+ to [0-9.]+  3  p = [01]\.\d+", text, re.MULTILINE)
    assert ("undetermined" in text) and ("Left out to fit" in text) == (width < 120)
