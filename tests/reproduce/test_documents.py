"""The documents of `whyformer reproduce`: their names, published numbers, and the command."""

from html import unescape

import pytest
from PIL import Image
from typer.testing import CliRunner

from whyformer._model.loading import open as opened
from whyformer.cli import app
from whyformer.data import read
from whyformer.errors import InputError, ModelError
from whyformer.show.terminal import Screen
from whyformer_papers import DOCUMENTS, Request, find_document, run_document
from whyformer_papers.chefer import explain_two_classes, join_images, rerun_two_classes
from whyformer_papers.documents import list_documents
from whyformer_papers.paper_tables import PAPER_TABLES
from whyformer_papers.published_numbers import Source, Spread
from whyformer_papers.published_table import PublishedTable

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
    assert f"Source: {table.source}." in str(table) and table.title in unescape(table.to_html())


@pytest.mark.parametrize("name", DOCUMENTS)
def test_bundled_models_run_on_the_device_that_is_asked_for(name):
    with pytest.raises(ModelError, match="The device 'nowhere' is not available"):
        list(DOCUMENTS[name].run(Request(device="nowhere")))


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


# Typed again from the source, column by column.
TABLE_1 = """rollout 53.1 - 20.05 - | raw attention 45.55 - 23.99 - | GradCAM 41.52 42.02 34.06 33.56
LRP 43.49 43.49 41.94 41.93 | partial LRP 50.49 50.49 19.64 19.64 | ours 54.16 55.04 17.03 16.04"""
TABLE_2 = """ours 79.70 86.03 61.95 | partial LRP 76.31 84.67 57.94 | LRP 51.09 55.68 32.89 | GradCAM 64.44 71.60 40.82
raw attention 67.84 80.24 46.37 | rollout 73.54 84.76 55.42"""
TABLE_3 = """ours 79.70 86.03 61.95 17.03 54.16 | block 1 only 60.30 73.63 39.06 27.33 37.42
last block only 78.32 85.25 59.93 18.01 52.43 | without the gradient 77.66 85.66 59.88 18.23 52.88"""
FIGURE = """rollout .0033 .0384 .1088 | LRP .0122 .0600 .1216 | GradCAM .0178 .0824 .1536
raw attention .0309 .1157 .2129
partial LRP .0339 .1393 .2425 | ours .0358 .1484 .2501"""


def parse_transcription(text):
    rows = {}
    for row in text.replace("\n", " | ").split(" | "):
        words = row.split()
        numbers = [w for w in words if w[0] in ".-" or (w[0].isdigit() and "." in w)]
        name = " ".join(words[: len(words) - len(numbers)])
        rows[name] = tuple(None if w == "-" else float(w) for w in numbers)
    return rows


@pytest.mark.parametrize(("start", "text"), [("Table 1: ", TABLE_1), ("Table 2: ", TABLE_2), ("Table 3: ", TABLE_3)])
def test_the_tables_of_chefer_beside_a_second_transcription(start, text):
    table = find_published("chefer", start)
    assert table.source == Source.PAPER and dict(table.rows) == parse_transcription(text)


def test_token_f1_beside_a_second_transcription():
    table = find_published("chefer", "token-F1")
    assert table.source == Source.RERUN and len(table.columns) == 16
    assert {name: (row[0], row[5], row[15]) for name, row in table.rows.items()} == parse_transcription(FIGURE)
    assert all(list(row) == sorted(row) for row in table.rows.values())  # F1 rises with k up to 80


def test_how_many_numbers_are_published():
    counts = {name: document.count_numbers() for name, document in DOCUMENTS.items()}
    # Table 1: 20, Table 2: 18, Table 3: 20, token-F1: 96, two reruns: 10 and 6; two logs: 16 and 4
    assert counts["chefer"] == 20 + 18 + 20 + 96 + 10 + 6
    assert (counts["attcat"], counts["sawaki-murata"], counts["abnar-zuidema"]) == (3, 0, 20)


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
    assert len(pairs) == 15 and all(pair.verdict == "undecided" and pair.count == 3 for pair in pairs)


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
    from whyformer_papers.reproduction import reproduce

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


def test_printed_spreads_keep_the_digits_of_the_paper():
    assert str(Spread(0.2, 0.2, 0.3)) == "0.20±0.20 (0.30)" and str(Spread(0.117, 0.21)) == "0.117±0.210"


@pytest.mark.parametrize("table", DOCUMENTS["jain-wallace"].published[:6], ids=lambda table: table.title)
def test_no_heading_of_the_widest_tables_is_cut_on_a_narrow_screen(table):
    shown = table.render(Screen(width=80, colours=None))
    assert shown.count("leave-one-out") == 2 and "AUC" in shown and "…" not in shown


def test_the_list_of_documents_is_indented_where_it_is_wrapped():
    lines = list_documents(Screen(width=60, colours=None)).splitlines()
    names = {*DOCUMENTS, ""}
    assert all(line in names or line.startswith("  ") for line in lines[: lines.index("abnar-zuidema") + 4])


def test_two_images_of_two_classes_become_a_mosaic():
    red, blue = (Image.new("RGB", size, colour) for size, colour in (((40, 30), "red"), ((20, 60), "blue")))
    mosaic = join_images(red, blue)
    assert mosaic.size == (20, 20)
    assert [mosaic.getpixel(at) for at in ((2, 10), (17, 10))] == [(255, 0, 0), (0, 0, 255)]
    section = next(rerun_two_classes(Request(read("demo/shapes", limit=6), opened("demo/shapes"))))
    asked = [next(iter(comparison)).targets[0].label for comparison in section.result]
    assert asked == ["square", "ring"]  # the first image, and the first of another class
