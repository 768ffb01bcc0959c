"""The tables of Jain & Wallace: published numbers, ours beside them, and which orders agree."""

import json

import numpy as np
import pytest
from scipy import stats

import whyformer as why
from whyformer.data import read
from whyformer.errors import InputError, ModelNotFound
from whyformer_papers import DOCUMENTS, Request, run_document
from whyformer_papers.jain_wallace import make_cell
from whyformer_papers.jain_wallace_beside import BesideTable, measure_each_head
from whyformer_papers.jain_wallace_cells import (
    EARLIER,
    EARLIER_FILE,
    MEASURED_FILE,
    CellGroup,
    ModelCell,
    group_cells,
    read_cells,
    summarise_cell,
)
from whyformer_papers.jain_wallace_figures import draw_jain_wallace
from whyformer_papers.jain_wallace_models import list_readers, open_reader
from whyformer_papers.jain_wallace_published import ADVERSARIAL, CORRELATIONS, PERMUTATION
from whyformer_papers.jain_wallace_rows import PAIRS, JainWallaceRows, collect_jain_wallace_rows
from whyformer_papers.jain_wallace_tables import compare_tables, format_median, order_by_seeds, order_values
from whyformer_papers.jain_wallace_tasks import DATA_SETS, generate_task
from whyformer_papers.published_numbers import Spread

LABELS = ("negative", "positive")


def make_rows(count=60, seed=0, shift=0.0, labels=LABELS):
    rng = np.random.default_rng(seed)
    columns = {
        "predicted": rng.integers(0, len(labels), count).astype(float),
        "label": rng.integers(0, len(labels), count).astype(float),
        "tokens": np.full(count, 9.0),
        "permuted": rng.uniform(0, 0.5, count),
        "jsd": np.where(rng.random(count) < 0.5, rng.uniform(0.4, 0.69, count), np.nan),
        "attainable": np.full(count, 0.69),
        "largest": rng.uniform(0, 1, count),
    }
    for pair in PAIRS:
        columns[f"{pair}_tau"] = np.clip(rng.normal(0.3 + shift, 0.2, count), -1, 1)
        columns[f"{pair}_p"] = rng.uniform(0, 0.2, count)
        columns[f"{pair}_top_k"] = rng.uniform(0, 1, count)
    columns["gradient_tau"][3] = np.nan  # undefined for one example
    return JainWallaceRows(labels, columns)


# --- the published numbers --------------------------------------------------------------------------------------------


def test_the_published_numbers_that_the_text_of_the_paper_is_about():
    sst = CORRELATIONS["bilstm", "additive"].rows["SST"]
    assert sst == (Spread(0.35, 0.21, 0.49), Spread(0.29, 0.19, 0.36), Spread(0.66, 0.16, 0.91), 0.784, 0.808, 0.902)
    assert CORRELATIONS["average", "dot"].rows["bAbI 2"][1] == Spread(0.89, 0.07, 1.0)
    assert PERMUTATION.rows["Diabetes, class 1"] == (0.77, 0.77, 0.77, 0.79)
    assert ADVERSARIAL.rows["SNLI, class 1"] == (0.38, 0.39, 0.16)


def test_the_published_tables_are_complete():
    """17 data sets in each of the six tables; classes in the first; every correlation is one."""
    names = [name for name in CORRELATIONS["bilstm", "additive"].rows if "class" not in name]
    assert len(names) == 17 and len(CORRELATIONS["bilstm", "additive"].rows) == 42
    for table in CORRELATIONS.values():
        assert [name for name in table.rows if "class" not in name] == names
        for row in table.rows.values():
            for cell in row:
                if isinstance(cell, Spread):
                    assert -1 <= cell.mean <= 1 and 0 <= cell.deviation <= 0.35 and 0 <= cell.share <= 1
                else:
                    assert cell is None or 0 < cell <= 1
    assert len(PERMUTATION.rows) == len(ADVERSARIAL.rows) == 21
    assert set(PERMUTATION.rows) == set(ADVERSARIAL.rows) <= set(CORRELATIONS["bilstm", "additive"].rows)


# --- our numbers ------------------------------------------------------------------------------------------------------


def test_the_numbers_of_a_cell_again_in_numpy():
    """Means, spreads, shares and medians, from the columns alone."""
    rows = make_rows()
    columns, numbers = rows.columns, summarise_cell(rows)
    for name, at in (("overall", columns["predicted"] > -1), ("0", columns["predicted"] == 0)):
        tau, p = columns["gradient_tau"][at], columns["gradient_p"][at]
        p, tau = p[~np.isnan(tau)], tau[~np.isnan(tau)]
        expected = [tau.mean(), np.sqrt(((tau - tau.mean()) ** 2).mean()), (p <= 0.05).mean(), len(tau)]
        np.testing.assert_allclose(numbers["tau"]["gradient"][name], expected, atol=5.1e-5)
        jsd = columns["jsd"][at & ~np.isnan(columns["jsd"])]
        expected = [jsd.mean(), np.median(jsd), (jsd >= 0.525).mean(), (jsd / 0.69).mean(), len(jsd)]
        np.testing.assert_allclose(numbers["found"][name], expected, atol=5.1e-5)
        for place, low in enumerate((0, 0.25, 0.5, 0.75)):
            moved = columns["permuted"][at & (columns["largest"] >= low) & (columns["largest"] < low + 0.25)]
            np.testing.assert_allclose(
                numbers["permuted"][name][place + 1], [np.median(moved), len(moved)], atol=5.1e-5
            )
    assert numbers["accuracy"] == round(float((columns["predicted"] == columns["label"]).mean()), 4)


def test_rows_survive_a_file():
    rows = make_rows()
    again = JainWallaceRows.from_fields(json.loads(json.dumps(rows.to_fields())))
    assert again.labels == rows.labels
    for name, column in rows.columns.items():
        np.testing.assert_allclose(again.columns[name], column, atol=1e-6)


def test_rows_are_those_of_the_audit():
    model = open_reader("babi-1")
    examples = generate_task("babi-1")["test"][:3]
    found = why.audit(model, examples, tests=["agreement", "replacement"], kinds=["permutation"], samples=4)
    rows = collect_jain_wallace_rows(found)
    agreement = {row["example"]: row for row in found.rows if row["test"] == "agreement"}
    for i in range(3):
        pair = agreement[i]["pairs"]["attention ~ gradient, attention held"]
        assert rows.columns["gradient_tau"][i] == pytest.approx(pair["tau"])
        assert rows.columns["gradient_top_k"][i] == pytest.approx(pair["top_k"])
    assert rows.accuracy == found.summary["answers"]["accuracy"]["mean"] and np.isnan(rows.columns["jsd"]).all()


def test_tau_of_a_reader_is_over_the_text_alone():
    """Kendall's tau, computed here from the model itself: attention and |gradient . word vector|, text tokens only."""
    import torch

    model = open_reader("babi-1")
    example = generate_task("babi-1")["test"][0]
    rows = collect_jain_wallace_rows(why.audit(model, [example], tests=["agreement"]))
    inputs, module = model.encode([example[0]]).inputs, model.module
    words = module.embedding(inputs["input_ids"]).detach().requires_grad_()
    is_text = inputs["token_type_ids"] == 0
    hidden, question = module.encoder(words, is_text), module.question(words, ~is_text)
    attention = module.attention(hidden, is_text, question).detach()
    joined = (module.of_text((attention @ hidden)[:, 0]) + module.of_question(question)).tanh()
    probability = module.answer(joined).softmax(-1).max()
    (gradient,) = torch.autograd.grad(probability, words)
    importance = (gradient * words).sum(-1).abs()[is_text]
    tau = stats.kendalltau(attention[0, 0][is_text[0]].numpy(), importance.detach().numpy()).statistic
    assert rows.columns["gradient_tau"][0] == pytest.approx(tau, abs=0.02)  # float32: nearly equal weights may swap


def test_seeds_are_combined():
    cells = [ModelCell("sst2", "bilstm", "additive", seed, summarise_cell(make_rows(seed=seed))) for seed in range(3)]
    other = ModelCell("sst2", "bilstm", "additive", 0, summarise_cell(make_rows(shift=0.5)), suffix="other")
    groups = group_cells([*cells, other])
    assert list(groups) == [("SST", ("bilstm", "additive"))]
    group = groups["SST", ("bilstm", "additive")]
    means = [cell.numbers["tau"]["gradient"]["overall"][0] for cell in cells]
    assert len(group.cells) == 3 and group.mean("tau", "gradient", "overall", 0) == pytest.approx(np.mean(means))
    assert group.mean("f1") is None and CellGroup(cells[:1]).read("found", "9", 0) == []


# --- tables -----------------------------------------------------------------------------------------------------------


def test_ours_stand_below_the_published_row():
    cells = [
        ModelCell("babi-1", "bilstm", "additive", s, summarise_cell(make_rows(seed=s, labels=tuple("abcdef"))))
        for s in (0, 1)
    ]
    tables = compare_tables(cells, [ModelCell("mine", "bilstm", "additive", 0, summarise_cell(make_rows()))])
    assert list(tables)[:2] == ["bilstm-additive", "bilstm-dot"] and len(tables) == 8
    rows = tables["bilstm-additive"].text_rows()
    at = next(i for i, row in enumerate(rows) if row[0] == "bAbI 1")
    assert rows[at][1:3] == ["published", "0.25±0.16 (0.55)"]
    assert rows[at + 1][1] == "ours, generated" and "[" in rows[at + 1][2]
    assert rows[-3][0] == "mine" and rows[-3][1] == "now"  # overall, and one line per class
    assert "bAbI 1" in tables["permutation"].to_markdown() and "<script" not in tables["adversarial"].to_html()


def test_an_order_holds_only_if_every_seed_agrees():
    assert order_by_seeds("a", "b", [0.5, 0.6], [0.1, 0.4]).verdict == "holds"
    assert order_by_seeds("a", "b", [0.1, 0.2], [0.3, 0.4]).verdict == "reversed"
    assert order_by_seeds("a", "b", [0.1, 0.5], [0.3, 0.4]).verdict == "undecided"
    orders = order_values({"a": 1.0, "b": 2.0, "c": 2.0, "d": 3.0}, {"a": [1.0], "b": [0.5], "c": [2.0]})
    assert [(o.higher, o.lower, o.verdict) for o in orders] == [("b", "a", "reversed"), ("c", "a", "holds")]


def test_a_seed_with_few_texts_in_a_bin_counts_little():
    """By hand: seed 0 has 1 text in a bin and seed 1 has 3; another bin has texts in seed 1 alone."""
    bins = [[[0.5, 4], [0.1, 1], [None, 0]], [[0.5, 4], [0.3, 3], [0.2, 7]]]
    group = CellGroup([ModelCell("sst2", "bilstm", "additive", s, {"permuted": {"0": bins[s]}}) for s in (0, 1)])
    assert [format_median(group, "0", place) for place in (1, 2)] == ["0.25 (n = 4)", "0.20 (n = 7)"]
    assert format_median(group, "1", 1) == "–"
    printed = CellGroup([ModelCell("sst2", "bilstm", "additive", 0, {"permuted": {"0": [[None, 0], [0.012, None]]}})])
    assert format_median(printed, "0", 1) == "0.01"


def test_names_of_trained_models_are_read():
    rows = make_rows(8)
    for name in ("sst2-cnn-dot-2", "babi-3-bilstm-additive-0", "imdb-average-additive-1-vectors"):
        cell = make_cell(name, rows)
        assert name.startswith(f"{cell.task}-{cell.encoder}-{cell.attention}-{cell.seed}") and cell.task in DATA_SETS
    assert make_cell("my-model", rows).task == "my-model"


# --- the stored run, and a run ----------------------------------------------------------------------------------------


def test_the_stored_run_has_what_the_page_says():
    groups = group_cells(read_cells(MEASURED_FILE))
    datasets = {dataset for dataset, model in groups if model == ("bilstm", "additive")}
    assert {"SST", "IMDB", *(DATA_SETS[task] for task in list_readers())} <= datasets
    for (_, model), group in groups.items():
        assert model == ("bilstm", "additive") and len({cell.seed for cell in group.cells}) == len(group.cells)
        assert group.mean("found", "overall", 0) is not None and group.mean("permuted", "overall", 0, 0) is not None
    for dataset in ("SST", "IMDB"):  # three seeds, on the same texts
        group = groups[dataset, ("bilstm", "additive")]
        assert [cell.seed for cell in group.cells] == [0, 1, 2] and len(set(group.read("examples"))) == 1
        assert {cell.numbers["epochs"] for cell in group.cells} == {8}


def test_printed_numbers_of_the_earlier_run_stay_apart():
    """What measure.py wrote names the epoch that was kept; what was copied from a printed table cannot."""
    measured, earlier = read_cells(MEASURED_FILE), read_cells(EARLIER_FILE)
    assert all("epoch" in cell.numbers and cell.suffix != EARLIER for cell in measured)
    assert all("epoch" not in cell.numbers and cell.suffix == EARLIER for cell in earlier)
    assert set(group_cells(earlier, EARLIER)) == {("SST", model) for model in CORRELATIONS}
    shown = compare_tables([*measured, *earlier])["cnn-dot"].text_rows()
    assert [row[1] for row in shown if row[1] not in ("", "published")] == ["earlier run"]


@pytest.mark.parametrize("task", list_readers())
def test_the_readers_that_ship_answer_as_stored(task):
    """25 test texts: within four standard errors of the stored accuracy."""
    model, examples = open_reader(task), generate_task(task)["test"][:25]
    predicted = model.module(**model.encode([pair for pair, _ in examples]).inputs).argmax(-1).tolist()
    share = np.mean([model.labels[i] == answer for i, (_, answer) in zip(predicted, examples, strict=True)])
    group = group_cells(read_cells(MEASURED_FILE))[DATA_SETS[task], ("bilstm", "additive")]
    stored = group.cells[0].numbers["accuracy"]
    assert group.cells[0].seed == 0 and abs(share - stored) <= 4 * max((stored * (1 - stored) / 25) ** 0.5, 0.02)


@pytest.mark.parametrize(
    ("task", "published"), [("babi-1", 1.0), ("babi-2", 0.653), ("babi-3", 0.643), ("snli", 0.779), ("cnn", 0.644)]
)
def test_a_reader_of_each_task_ships_at_the_accuracy_of_the_authors(task, published):
    cells = group_cells(read_cells(MEASURED_FILE))[DATA_SETS[task], ("bilstm", "additive")].cells
    assert task in list_readers() and all(cell.numbers["accuracy"] > published - 0.005 for cell in cells)


def test_a_reader_that_does_not_ship_is_refused(monkeypatch):
    monkeypatch.setattr("whyformer_papers.jain_wallace_models.list_readers", lambda: ["cnn"])
    with pytest.raises(ModelNotFound, match=r"No reader for babi-1 ships\. Available: cnn\. Train one: python -m"):
        open_reader("babi-1")


def test_figures_are_those_that_there_are_values_for():
    rows = make_rows()
    assert list(draw_jain_wallace(rows, "SST")) == [
        "tau-gradient", "tau-leave-one-out", "tau-scatter", "permutation", "adversarial", "adversarial-violins",
    ]  # fmt: skip
    rows.columns["jsd"][:] = np.nan
    assert "adversarial" not in draw_jain_wallace(rows, "SST")


def test_a_model_needs_data():
    with pytest.raises(InputError, match="Name DATA"):
        run_document(DOCUMENTS["jain-wallace"], Request(model=open_reader("babi-1")))


def test_every_head_and_block_of_a_transformer_has_a_line():
    texts = [("a film to see", "positive"), ("far too long", "negative")]
    table = BesideTable({"sentiment": measure_each_head(why.open("demo/sentiment"), texts, draws=2)})
    rows = table.text_rows()
    assert rows[1][:2] == ["sentiment", "block 0, mean of heads"] and len({row[1] for row in rows[1:]}) == len(rows) - 1
    assert [row[-2:] for row in rows[1:]] == [["–", "–"]] * (len(rows) - 1)  # nothing was searched


@pytest.mark.slow
def test_a_transformer_gets_its_heads_and_a_trained_model_its_row(tmp_path):
    texts = [("a film to see", "positive"), ("far too long", "negative")]
    made = run_document(DOCUMENTS["jain-wallace"], Request(read(texts), why.open("demo/sentiment"), tmp_path))
    assert [section.name for section in made.sections] == ["heads"] and (tmp_path / "heads.md").exists()


@pytest.mark.slow
def test_it_runs_without_arguments(tmp_path):
    made = run_document(DOCUMENTS["jain-wallace"], Request(out=tmp_path, limit=3))
    text = made.render()
    assert "published orders hold" in text and "now, generated" in text
    assert (tmp_path / "bilstm-additive.md").exists() and (tmp_path / "report.html").exists()
    assert len(list(tmp_path.glob("*-permutation.svg"))) == len(list_readers()) >= 2
