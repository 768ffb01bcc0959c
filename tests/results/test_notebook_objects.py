"""What a notebook shows: short representations, escaped HTML, tables, axes, errors of two lines."""

import re
import sys
import types

import matplotlib as mpl
import pytest
import tiny_text
from attack.every_result import RESULTS, audit_once, judge_named
from matplotlib.figure import Figure

import whyformer as why
from whyformer.errors import InputError, TargetError
from whyformer.show.chips import get_piece_text

mpl.use("agg")
WORD = "<b>&word"


@pytest.fixture(scope="module")
def model():
    return why.open(tiny_text.bert(), tokenizer=tiny_text.wordpiece(), labels=["negative", WORD, "positive"])


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    return judge_named(WORD, tmp_path_factory.mktemp("judged"))


def list_shown(model):
    e = why.explain(model, "a film", "rollout", target=WORD)
    prompt_model = why.open(tiny_text.gpt2(), tokenizer=tiny_text.byte_pairs())
    prompt = why.Prompt.from_text(prompt_model, f"the film {WORD}", " is")
    citation = why.Citation("one", "passage", 0, 3, WORD, score=1.0, share=0.5, role="rests on")
    return {"model": model, "methods": why.METHODS, "metrics": why.METRICS, "method": why.METHODS["rollout"],
            "target": e.targets[0], "prompt": prompt, "citation": citation}  # fmt: skip


def test_representations_are_one_short_line_and_html_is_escaped(model):
    for name, shown in list_shown(model).items():
        line = repr(shown)
        assert "\n" not in line and (len(line) < 160 or name in ("methods", "metrics")), line
        html = shown._repr_html_()
        assert "<table" in html and "<b>" not in html, name


def test_a_model_is_a_line(model):
    name = "BertForSequenceClassification"
    assert re.fullmatch(rf"<Model {name}: {name}, takes texts, 3 classes, [\d.]+ k parameters>", repr(model))


def test_a_model_that_does_not_classify_has_no_classes():
    language_model = why.open("demo/decoder")
    assert language_model.labels == ("LABEL_0", "LABEL_1")  # which transformers makes up
    assert "classes" not in repr(language_model) + language_model._repr_html_()


def test_a_bulk_run_is_a_line_a_card_and_a_data_frame(model, tmp_path, monkeypatch):
    run = why.bulk(model, ["a film", "the film"], "rollout", out=tmp_path / "run")
    assert repr(run) == f"<BulkRun of 2 items by rollout in {tmp_path / 'run'}>" and "<table" in run._repr_html_()
    assert len(run.to_pandas()) == len(run.records()) == 2
    monkeypatch.setattr("whyformer.results.result.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install pandas"):
        run.to_pandas()


def test_a_judgement_and_its_table_are_short(judged):
    assert "\n" not in repr(judged) and len(repr(judged)) < 400
    assert repr(judged.table).startswith("<Table of") and "<b>" not in judged.table._repr_html_()


@pytest.mark.parametrize("kind", RESULTS)
def test_every_result_is_a_table_and_a_data_frame(kind):
    result = RESULTS[kind](WORD)
    records, frame = result.records(), result.to_pandas()
    assert records and [*frame.columns] == [*records[0]] and len(frame) == len(records)


def test_judgements_and_audits_are_data_frames(judged):
    assert len(judged.to_pandas()) == len(judged.table.lines) == len(judged.table.to_pandas())
    audit = audit_once()
    assert len(audit.to_pandas()) == len(audit.rows) and "\n" not in repr(audit)


@pytest.mark.parametrize("kind", ["text", "image", "comparison", "classes", "attention"])
def test_a_result_draws_into_axes_and_returns_them(kind):
    axes = Figure().subplots()
    assert RESULTS[kind]("word").plot(ax=axes) is axes
    assert axes.patches or axes.images


def test_a_judgement_draws_means_with_intervals(judged):
    axes = Figure().subplots()
    judged.plot(ax=axes)
    assert len(axes.get_yticklabels()) == len({line.method for line in judged.table.lines if line.mean == line.mean})


def test_without_axes_the_current_ones_are_drawn_into():
    from matplotlib import pyplot

    assert RESULTS["text"]("word").plot() is pyplot.gca()
    pyplot.close("all")


def test_a_result_without_a_figure_says_so():
    with pytest.raises(InputError, match="A Diagnosis has no figure"):
        RESULTS["diagnosis"]("word").plot(ax=Figure().subplots())


def test_show_prints_outside_of_a_notebook(capsys):
    RESULTS["text"]("word").show()
    assert "word" in capsys.readouterr().out


def test_show_displays_in_a_notebook(monkeypatch):
    shown = []
    shell = types.SimpleNamespace(kernel=object())
    display = types.SimpleNamespace(display=shown.append)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell, display=display))
    result = RESULTS["text"]("word")
    result.show()
    assert shown == [result]


def test_an_error_in_a_notebook_is_two_lines(model):
    with pytest.raises(TargetError) as raised:
        why.explain(model, "a film", target="nothing")
    first, second = raised.value._render_traceback_()
    assert first.startswith("TargetError[E_TARGET]: ") and "\n" not in first
    assert second == 'in: why.explain(model, "a film", target="nothing")'


def test_blanks_are_signs_and_no_pieces_of_a_tokenizer():
    model = why.open(tiny_text.gpt2(), tokenizer=tiny_text.byte_pairs())
    e = why.explain(model, "the film\n  is\tgood", "rollout")
    shown = [get_piece_text(e.tokens[0], i) for i in range(len(e.tokens[0]))]
    assert "⏎" in shown and not any(sign in text for text in [*shown, str(e)] for sign in "ĊĠĉ")
