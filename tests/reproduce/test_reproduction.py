"""Published tables next to ours: the papers' numbers, reproduce() on tiny models, and the command line."""

import pytest
import tiny_text
import torch
from PIL import Image
from typer.testing import CliRunner

from whyformer._engine.record import record
from whyformer._engine.relevance.recipes import make_recipe
from whyformer._explain.explain import explain
from whyformer._model.loading import open as opened
from whyformer.cli import app
from whyformer.data import Data, Example
from whyformer.errors import InputError
from whyformer.methods._registry import METHODS
from whyformer.metrics._registry import METRICS, choose_metric
from whyformer.results.result import Result
from whyformer_papers.paper_tables import PAPER_TABLES
from whyformer_papers.reproduction import (
    PaperCell,
    Reproduction,
    format_paper_cell,
    reproduce,
)


def test_published_numbers_that_a_reader_can_look_up():
    assert PAPER_TABLES["chefer-perturbation"].published["ours"] == (54.16, 55.04, 17.03, 16.04)
    assert PAPER_TABLES["chefer-segmentation"].published["rollout"][:3] == (73.54, 84.76, 55.42)
    assert PAPER_TABLES["chefer-ablation"].published["block 1 only"][2] == 39.06
    assert PAPER_TABLES["eraser-movies"].published["raw attention"][5] == 0.1157  # k = 30
    assert not PAPER_TABLES["attcat"].published


@pytest.mark.parametrize("table", PAPER_TABLES.values(), ids=list(PAPER_TABLES))
def test_every_table_names_methods_and_metrics_that_are_there(table):
    for name, settings in table.methods.values():
        from whyformer._explain.method_call import choose_method as choose_method

        choose_method(METHODS[name], settings)
    for column in table.columns:
        choose_metric(METRICS[column.metric[0]], column.metric[1])
    for row, numbers in table.published.items():
        assert row in table.methods and len(numbers) == len(table.columns)


FIGURE_1 = {  # of the paper on AttCAT; a attention, g its gradient, r its relevance: [layer head query key]
    "raw attention": lambda a, g, r: a[-1].mean(0)[0],
    "Grads": lambda a, g, r: g[-1].mean(0)[0],
    "AttGrads": lambda a, g, r: (a * g).sum(0).mean(0)[0],
    "partial LRP": lambda a, g, r: r[-1].clamp(min=0).mean(0)[0],
    "rollout": lambda a, g, r: multiply_layers(a.mean(1)),
    "TransAtt": lambda a, g, r: multiply_layers((g * r).clamp(min=0).mean(1)),
}


def multiply_layers(matrices):
    """The row of CLS of (I + last) ... (I + second)(I + first), its sum scaled to 1."""
    product = torch.eye(matrices.shape[-1], dtype=matrices.dtype)
    for matrix in matrices:
        product = (torch.eye(len(matrix), dtype=matrix.dtype) + matrix) @ product
    return product[0] / product[0].sum()


@pytest.mark.parametrize("row", FIGURE_1)
def test_the_rows_of_attcat_are_those_of_the_figure(row):
    model = opened(tiny_text.bert(), tokenizer=tiny_text.wordpiece())
    encoded = model.encode("the film is not good")
    name, settings = PAPER_TABLES["attcat"].methods[row]
    recipe = make_recipe("chefer")
    sites = ("attention", "attention_grad", "attention_relevance")
    capture = record(model, encoded, keep=set(sites), target=2, recipes=[recipe])
    parts = [torch.stack([layer[0] for layer in capture.get(site, recipe)]) for site in sites]
    scores = explain(model, encoded, name, target=2, **settings).scores[0]
    scores = scores / scores.sum() if row in ("rollout", "TransAtt") else scores
    torch.testing.assert_close(scores, FIGURE_1[row](*parts))


def test_rationales_on_a_tiny_model(tmp_path):
    model = opened(tiny_text.bert(), tokenizer=tiny_text.wordpiece())
    texts = (("the film is not good", 0, (12, 15)), ("a good film !", 2, (2, 6)), ("the film is bad", 0, (12, 15)))
    data = Data("reviews", tuple(Example(t, t, label, rationale=(span,)) for t, label, span in texts))
    made = reproduce("eraser-movies", data, model, out=tmp_path)
    said = str(made)
    assert "third-party rerun" in " ".join(said.split())
    assert made.cells["ours", "k = 5"].published == 0.0358
    assert 0 < made.cells["ours", "k = 5"].measured <= 1
    assert sum("rank correlation of the orders" in line for line in made.sentences) == 16
    head, first, *_ = (tmp_path / "eraser-movies.csv").read_text().splitlines()
    assert head == "method,column,published,measured,low,high" and first.startswith("rollout,k = 5,0.0033,")
    assert (tmp_path / "label" / "rows").is_dir()
    assert made.to_markdown().startswith("| published / measured | rollout |")
    assert isinstance(made, Result) and "k = 80" in made.to_html()
    made.save(tmp_path / "table.md")
    assert (tmp_path / "table.md").read_text() == made.to_markdown()


def test_perturbation_for_the_predicted_and_the_labelled_class():
    model = opened("demo/untrained-vit")
    photos = [Example(f"{i}", Image.effect_noise((32, 32), 80 + i).convert("RGB"), label=i % 2) for i in range(3)]
    made = reproduce("chefer-perturbation", Data("noise", tuple(photos)), model)
    assert set(made.judgements) == {"predicted", "label"}
    assert all(cell.measured == cell.measured for cell in made.cells.values())
    assert made.cells["rollout", "negative, target"].published is None
    assert [one.target for one in made.judgements["label"].rows.examples()] == [0, 1, 0]


def test_one_column_by_hand():
    """Our order is the reverse of the paper's: rank correlation -1, and another best method."""
    table = PAPER_TABLES["chefer-segmentation"]
    cells = {
        (row, column.name): PaperCell(published, -(published or 0), 0.0, 0.0)
        for row, numbers in table.published.items()
        for column, published in zip(table.columns, numbers, strict=True)
    }
    unpublished = "raw attention, all layers"
    cells |= {(unpublished, column.name): PaperCell(None, 99.0, 0.0, 0.0) for column in table.columns}
    said = Reproduction(table, "m", "d", 3, cells, {}).sentences
    order = "best is ours there, LRP here; rank correlation of the orders -1.00."
    assert said[0] == f"pixel accuracy (higher is better): {order}"
    assert format_paper_cell(PaperCell(None, 1.5, 0, 0)) == "- / 1.5"


@pytest.mark.parametrize(
    ("name", "model", "message"),
    [
        ("chefer-segmentaton", None, "Did you mean 'chefer-segmentation'"),
        ("attcat", None, "Pass model= to name a model"),
    ],
)
def test_what_cannot_be_reproduced(name, model, message):
    with pytest.raises(InputError, match=message):
        reproduce(name, ["x"], model)


def test_the_command(tmp_path):
    (tmp_path / "a.tsv").write_text("a gorgeous , witty and seductive film about nothing at all\t1\nan awful film\t0\n")
    result = CliRunner().invoke(app, ["reproduce", "attcat", str(tmp_path / "a.tsv"), "-M", "demo/sentiment"])
    assert result.exit_code == 0, result.output
    assert "AttCAT" in result.output and "no numbers available" in " ".join(result.output.split())
    wrong = CliRunner().invoke(app, ["reproduce", "attcatt", str(tmp_path / "a.tsv"), "-M", "demo/sentiment"])
    assert wrong.exit_code == 2 and "Did you mean 'attcat'" in wrong.output


def test_failed_rows_show_in_the_exit_code(tmp_path):
    (tmp_path / "a.csv").write_text("file,label,mask\nnothing.png,cat,mask.png\n")
    result = CliRunner().invoke(app, ["reproduce", "chefer-segmentation", str(tmp_path / "a.csv"), "-M", "demo/pets"])
    assert result.exit_code == 6, result.output
