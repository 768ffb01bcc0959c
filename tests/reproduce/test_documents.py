"""The documents of `whyformer reproduce`: their names, published numbers, and the command."""

import pytest
from typer.testing import CliRunner

from whyformer._judge.paper_tables import PAPER_TABLES, Source
from whyformer._model.loading import open as opened
from whyformer._reproduce import DOCUMENTS, Request, find_document, run_document
from whyformer._reproduce.chefer import explain_two_classes
from whyformer._reproduce.published_table import PublishedTable, Spread
from whyformer.cli import app
from whyformer.data import read
from whyformer.errors import InputError

ALL_TABLES = [table for document in DOCUMENTS.values() for table in document.published]


def run(*arguments):
    return CliRunner().invoke(app, ["reproduce", *arguments])


def find_published(document, start):
    (table,) = (table for table in DOCUMENTS[document].published if start in table.title)
    return table


@pytest.mark.parametrize("table", ALL_TABLES, ids=[table.title for table in ALL_TABLES])
def test_every_published_table_is_complete_and_says_its_source(table):
    assert table.source in list(Source) and list(table.numbers())
    assert all(len(row) == len(table.columns) for row in table.rows.values())
    assert f"Source: {table.source}." in str(table) and table.title.split(":")[0].split()[0] in table.to_html()


def test_a_table_with_a_short_row_is_refused():
    with pytest.raises(ValueError, match="has 1 of 2 numbers"):
        PublishedTable("t", Source.PAPER, ("a", "b"), {"x": (1.0,)})


def test_numbers_are_printed_as_in_the_paper():
    table = PublishedTable("t", Source.FILES, ("a", "b", "c"), {"x": (Spread(0.35, 0.21, 0.49), None, 0.5)})
    assert table.text_rows() == [["", "a", "b", "c"], ["x", "0.35±0.21 (0.49)", "–", "0.5"]]
    assert list(table.numbers()) == [0.35, 0.21, 0.49, 0.5]


def test_the_rerun_of_table_1_beside_its_second_transcription():
    """Typed again from the source, in another order."""
    rerun = find_published("chefer", "Table 1, run again")
    assert rerun.source == Source.RERUN
    assert {name: row[1] for name, row in rerun.rows.items()} == {
        "rollout": 25.17, "partial LRP": 26.88, "GradCAM": 39.95, "LRP": 41.02, "ours": 23.39,
    }  # fmt: skip
    assert sorted(row[0] for row in rerun.rows.values()) == [43.57, 48.47, 51.59, 53.76, 55.40]


def test_attcat_quotes_nobody_but_a_third_party():
    document = DOCUMENTS["attcat"]
    assert [table.source for table in document.published] == [Source.RERUN]
    assert "No number of the paper itself was available" in document.remark
    assert document.published[0].rows == {"IMDB": (0.644, 0.198), "Yelp": (None, 0.346)}


def test_every_table_of_judge_belongs_to_a_document():
    single = {name for document in DOCUMENTS.values() for name in (*document.tables, document.name)}
    assert set(PAPER_TABLES) <= single


def test_the_command_lists_what_there_is():
    listed = run()
    assert listed.exit_code == 0
    for name in (*DOCUMENTS, "chefer-segmentation"):
        assert name in listed.stdout


def test_the_command_prints_published_numbers_and_runs_nothing():
    printed = run("chefer", "--published")
    assert printed.exit_code == 0
    for part in ("Source: paper.", "Source: third-party rerun.", "61.95", "0.2501", "23.39"):
        assert part in printed.stdout
    assert "No number of the paper itself" in " ".join(run("attcat", "--published").stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cheffer"], "Did you mean 'chefer'"),
        (["chefer", "-M", "demo/shapes"], "Name DATA for demo/shapes as well"),
        (["eraser-movies"], "needs DATA and -M"),
        (["attcat", "-M", "demo/sentiment"], "Name DATA for demo/sentiment as well"),
    ],
)
def test_what_the_command_refuses(arguments, message):
    refused = run(*arguments)
    assert refused.exit_code in (2, 3) and message in refused.stderr


def test_data_without_a_model_are_refused():
    with pytest.raises(InputError, match="Name a model with -M"):
        run_document(find_document("chefer"), Request(data=read("demo/shapes", limit=2)))


def test_a_single_table_runs_on_generated_scenes(tmp_path):
    made = run_document(find_document("chefer-segmentation"), Request(limit=3, out=tmp_path))
    (section,) = made.sections
    assert section.name == "chefer-segmentation" and made.failed == 0
    assert "published pairs" in " ".join(str(made).split())
    assert {"chefer-segmentation.csv", "chefer-segmentation.md", "report.html"} <= {p.name for p in tmp_path.iterdir()}
    assert "mIoU" in (tmp_path / "report.html").read_text()
    pairs = section.result.orders["mIoU"]
    assert len(pairs) == 15 and all(pair.low <= pair.difference <= pair.high for pair in pairs)


def test_the_figure_of_two_classes_marks_the_object_asked_for():
    grid = explain_two_classes(opened("demo/shapes"))
    assert grid.labels == ("rollout", "raw attention", "GradCAM", "LRP", "partial LRP", "ours")
    heart, ring = (comparison["ours"] for comparison in grid)
    assert (heart.targets[0].label, ring.targets[0].label) == ("heart", "ring")
    assert heart.top(1)[0][0] == (3, 8) and ring.top(1)[0][0] == (8, 3)  # as in the README
    same = [comparison["rollout"].scores for comparison in grid]
    assert (same[0] == same[1]).all()


@pytest.mark.slow
def test_claims_in_words_become_orders_of_the_rules(tmp_path):
    from whyformer._judge.published import reproduce

    data = read("demo/shapes", limit=3)
    made = reproduce("sawaki-murata-rules", data, opened("demo/shapes"))
    pairs = made.orders["mIoU"]
    assert [(pair.better, pair.worse) for pair in pairs] == list(PAPER_TABLES["sawaki-murata-rules"].claims)
    cells = {row: made.cells[row, "mIoU"].measured for row in ("rule (i)", "rule (ii)")}
    assert 100 * pairs[0].difference == pytest.approx(cells["rule (ii)"] - cells["rule (i)"], abs=1e-9)
    assert any(line.startswith("mIoU (higher is better): rule (ii) over rule (i) ") for line in made.sentences)


@pytest.mark.slow
def test_the_figure_of_heads_and_rules_from_the_command_line(tmp_path):
    from whyformer.demo.tour import CAT

    made = run("sawaki-murata", str(CAT), "-M", "demo/pets", "-o", str(tmp_path / "figures"))
    assert made.exit_code == 0, made.output
    assert "rule (iv)" in made.stdout and (tmp_path / "figures" / "heads-and-rules.png").stat().st_size > 10_000
