"""AttCAT rerun: its columns, what is said about the order, its figures, and the numbers recomputed in numpy."""

import numpy as np
import pytest
from tiny_text import bert, wordpiece, wordpiece_pairs

import whyformer as why
from whyformer import TextPair
from whyformer._judge.order import compare_pairs
from whyformer.data import read
from whyformer.show.terminal import Screen
from whyformer_papers import Request, find_document, run_document
from whyformer_papers.attcat import adapt_table, choose_shown
from whyformer_papers.generated import make_entailment_examples
from whyformer_papers.paper_tables import PAPER_TABLES
from whyformer_papers.published_order import rank_pairs

TEXTS = [
    ("the film is not good , not good at all ! a bad film", 0),
    ("a good film , not bad at all , the film is good !", 2),
]


@pytest.fixture(scope="module")
def model():
    return why.open(bert(max_position_embeddings=40), tokenizer=wordpiece())


@pytest.fixture(scope="module")
def made(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("attcat")
    return run_document(find_document("attcat"), Request(read(TEXTS), model, folder)), folder


def find_section(made, name):
    return next(section.result for section in made[0].sections if section.name == name)


def test_the_sections_and_their_files(made):
    document, folder = made
    names = [section.name for section in document.sections]
    figures = ["attcat-aopc", "attcat-log-odds", "attcat-tau", "attcat-heat-map"]
    assert names == ["attcat", "attcat-gradients", "attcat-stability", *figures]
    assert document.failed == 0
    tables = {"attcat.csv", "attcat-gradients.csv", "attcat-stability.csv"}
    wanted = {*tables, "report.html", *(f"{name}.png" for name in figures)}
    assert wanted <= {path.name for path in folder.iterdir()}


def test_the_paper_has_no_numbers_and_puts_attcat_first(made):
    table = made[0].sections[0].result
    assert all(cell.published is None for cell in table.cells.values())
    assert table._text_rows()[0][0] == "measured"
    for column in table.table.columns:
        pairs = table.orders[column.name]
        assert {pair.better for pair in pairs} <= {"AttCAT"} and len(pairs) <= 7
    said = " ".join(str(made[0]).split())
    assert "AOPC, padded (higher is better)" in said and "published pairs" in said
    assert "The paper's numbers were not available" in said


def test_gradients_of_the_input_are_measured_on_the_same_examples(made):
    """The rows that both tables have agree; what a token gathers is another map than what it receives."""
    whole, gradients = (made[0].sections[i].result for i in (0, 1))
    for column in gradients.table.columns:
        for method in ("CAT", "AttCAT"):
            assert gradients.cells[method, column.name] == whole.cells[method, column.name]
    columns = [column.name for column in gradients.table.columns]
    read = [[gradients.cells[name, column].measured for column in columns] for name in gradients.table.methods]
    assert np.isfinite(read).all() and len({tuple(row) for row in read}) == len(read)


def test_the_difference_of_a_pair_is_that_of_the_table(made):
    """The order of AttCAT and rollout is the difference of the two means, with the sign of the metric."""
    table = made[0].sections[0].result
    for column, sign in (("AOPC, deleted", 1), ("log-odds, padded", -1)):
        pair = next(p for p in table.orders[column] if p.worse == "rollout")
        means = [table.cells[name, column].measured for name in ("AttCAT", "rollout")]
        assert pair.difference == pytest.approx(sign * (means[0] - means[1]), abs=1e-9)


def test_a_first_method_without_numbers_is_ranked_before_each_other():
    values = {"AttCAT": np.array([3.0, 2.0] * 6), "a": np.array([1.0, 1.0] * 6), "b": np.array([5.0, 6.0] * 6)}
    pairs = compare_pairs(rank_pairs({"AttCAT": 1.0, "a": 0.0, "b": 0.0}), values, "higher")
    assert [(p.better, p.worse, p.verdict) for p in pairs] == [("AttCAT", "a", "holds"), ("AttCAT", "b", "reversed")]


def test_three_classes_get_the_rivals_of_mnli(model):
    columns = {c.name: c.metric for c in adapt_table(PAPER_TABLES["attcat"], read(TEXTS), model).columns}
    assert columns["tau, released"] == ("class_discrimination", {"preset": "released", "other": (1, 0, 1)})
    assert columns["tau"] == ("class_discrimination", {}) and "answer tokens in the top 20" not in columns


def test_evidence_adds_the_measure_of_squad(model):
    table = adapt_table(PAPER_TABLES["attcat"], make_entailment_examples(3), model)
    assert [column.name for column in table.columns[-2:]] == [
        "answer tokens in the top 20", "share of them in the top 5"
    ]  # fmt: skip


def test_the_steps_of_the_figure_are_the_curves_of_the_table(made):
    """The mean of the nine steps is the number in the table."""
    table = made[0].sections[0].result
    axes = find_section(made, "attcat-aopc").draw().figure.axes[0]
    lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    for name in ("AttCAT", "rollout"):
        assert len(lines[name]) == 9
        assert np.mean(lines[name]) == pytest.approx(table.cells[name, "AOPC, deleted"].measured, abs=1e-6)


def test_the_text_of_the_heat_map_is_neither_short_nor_long(model):
    data = read([("good film", 2), ("the film is good " * 2 + "a bad film is bad !", 2), (TEXTS[0][0], None)])
    assert choose_shown(data, model) is data.examples[1]
    assert choose_shown(read([("good film", 2)]), model) is None


@pytest.mark.slow
def test_images_get_the_columns_that_images_can_have(tmp_path):
    from whyformer_papers.generated import make_shape_examples

    model = why.open("demo/shapes")
    made = run_document(find_document("attcat"), Request(make_shape_examples(2), model, tmp_path))
    table, _, maps = (section.result for section in made.sections)
    assert [column.name for column in table.table.columns] == ["AOPC", "log-odds", "tau", "mass in the object"]
    assert made.failed == 0 and maps.labels[-1] == "AttCAT"


# --- the heat map -----------------------------------------------------------------------------------------------------


def test_a_row_for_each_method_and_a_column_for_each_token(model):
    comparison = why.compare(model, TEXTS[0][0], ["attcat", "rollout"], target=0)
    figure = comparison.draw_tokens().figure
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["attcat", "rollout"]
    tokens = [tick.get_text() for tick in axes.get_xticklabels()]
    assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]" and len(tokens) == axes.images[0].get_array().shape[1]


def test_the_colours_are_those_of_the_words(model):
    from whyformer.show.colours import paint_array

    e = why.explain(model, TEXTS[0][0], "attcat", target=0)
    text = e.panels()[0].scored_text
    wanted = paint_array(np.array([chip.score for chip in text.chips]), text.between, signed=True)
    drawn = why.compare(model, TEXTS[0][0], ["attcat"], target=0).draw_tokens().figure.axes[0].images[0].get_array()
    np.testing.assert_array_equal(np.asarray(drawn)[0], wanted)


def test_a_long_text_is_broken_into_bands_and_a_pair_is_divided():
    model = why.open(bert(max_position_embeddings=64, type_vocab_size=2), tokenizer=wordpiece_pairs())
    long = why.compare(model, TextPair("the film is good " * 9, "a bad film"), ["attcat"])
    figure = long.draw_tokens().figure
    assert len(figure.axes) == 2
    assert sum(len(axes.get_lines()) for axes in figure.axes) == 1  # one border between the two texts


def test_images_have_no_heat_map_of_tokens():
    comparison = why.compare("demo/shapes", np.zeros((64, 64, 3), dtype=np.uint8), ["attcat"])
    with pytest.raises(why.WhyformerError, match="for texts"):
        comparison.draw_tokens()


def test_texts_longer_than_the_model_takes_are_measured_and_not_drawn(model):
    long = [(" ".join([text] * 4), label) for text, label in TEXTS]
    assert choose_shown(read(long), model) is None
    assert choose_shown(read([*long, TEXTS[1]]), model).load() == TEXTS[1][0]


def test_nothing_of_the_table_is_cut_on_a_narrow_screen(made):
    table = made[0].sections[0].result
    shown = table.render(Screen(width=80, colours=None))
    assert "…" not in shown
    for name in ("raw attention", "AttGrads", "TransAtt"):
        assert shown.count(f"\n{name}  ") == 2  # four columns at a time
