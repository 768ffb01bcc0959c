"""Noise through every verdict that has a test: at most 6 % of the results may say something, however few examples."""

import numpy as np
import pytest
from judge.planted_rows import plant_table
from summary.bulk_folder import text_row

from whyformer._audit.report.summary import summarise_mean, test_groups
from whyformer._audit.report.verdict import compare_ranking
from whyformer._judge.order import MIN_EXAMPLES, compare_pairs
from whyformer._judge.verdict import list_verdict
from whyformer._runs.parts import BulkRow
from whyformer._summary.finding import Finding, judge_findings, measure_effect
from whyformer._summary.moves import compare_answers, compare_evidence, make_run_item

SIZES = (2, 3, 5, 10, 40)
MOST = 0.06
test_groups.__test__ = False  # a function of the library, not a test

SHAPES = {
    "normal": lambda random, size: random.normal(size=size),
    "heavy tails": lambda random, size: random.standard_t(2, size=size),
    "skew": lambda random, size: random.lognormal(0, 1.5, size=size),
    "right or wrong": lambda random, size: random.integers(2, size=size).astype(float),
    "rare hits": lambda random, size: (random.random(size) < 0.1).astype(float),
}
at_every_size = pytest.mark.parametrize("count", SIZES)


def rate(says_something, tries):
    """The share of tries, each with its own generator, in which the verdict says something."""
    return np.mean([says_something(np.random.default_rng([7, seed])) for seed in range(tries)])


@at_every_size
@pytest.mark.parametrize("shape", SHAPES)
def test_a_published_order(shape, count):
    def says(random):
        values = {name: SHAPES[shape](random, count) for name in "ab"}
        (pair,) = compare_pairs([("a", "b")], values, "higher")
        return pair.verdict != "undecided"

    assert rate(says, 1000) <= (MOST if count >= MIN_EXAMPLES else 0)


@at_every_size
def test_a_published_order_in_a_figure_of_the_whole_data_set(count):
    """Hits over pixels, as in pixel accuracy: images are of different size and difficulty."""

    def says(random):
        sizes, easy = random.lognormal(0, 1, count), random.random(count)
        values = {name: np.stack([sizes * (easy + random.random(count)) / 2, sizes], 1) for name in "ab"}
        (pair,) = compare_pairs([("a", "b")], values, "higher", lambda parts: parts[:, 0].sum() / parts[:, 1].sum())
        return pair.verdict != "undecided"

    assert rate(says, 1000) <= (MOST if count >= MIN_EXAMPLES else 0)


@at_every_size
@pytest.mark.parametrize("shape", ["normal", "rare hits"])
def test_judge(tmp_path_factory, shape, count):
    """Four methods, two controls, two metrics; benchmarks/judge_noise.py has more shapes of larger tables."""
    names = ("attnlrp", "libragrad", "rollout", "saliency", "chance", "last_words")

    def says(random):
        metrics = {
            metric: {name: SHAPES[shape](random, count).tolist() for name in names}
            for metric in ("comprehensiveness", "sufficiency")
        }
        table = plant_table(tmp_path_factory.mktemp("noise"), metrics, kind="texts")
        return list_verdict(table)[0].startswith("On this data use")

    assert rate(says, 50) <= MOST


@at_every_size
@pytest.mark.parametrize("shape", ["normal", "heavy tails", "skew"])
def test_the_agreement_of_an_audit(shape, count):
    def says(random):
        signs = 1 - 2 * random.integers(2, size=count)
        tau = summarise_mean((np.tanh(0.3 * SHAPES[shape](random, count)) * signs).tolist())
        return "significant" not in compare_ranking(tau)

    assert rate(says, 1000) <= MOST


@at_every_size
def test_the_classes_of_an_audit(count):
    def says(random):
        p = test_groups([random.lognormal(size=count).tolist() for _ in range(4)])
        return p is not None and p < 0.05

    assert rate(says, 1000) <= MOST


def draw_items(random, count):
    """Texts with random evidence, predictions and labels."""
    rows = []
    for n in range(count):
        row = text_row(f"{n}", n, ["a", "b", "c", "d"], random.random(4).tolist(), target=int(random.integers(2)))
        rows.append(BulkRow(**{**row, "label": f"class {random.integers(2)}"}))
    return {row.id: make_run_item(row) for row in rows}


@at_every_size
@pytest.mark.parametrize("is_paired", [True, False])
def test_compare_runs(count, is_paired):
    def says(random):
        one, other = draw_items(random, count), draw_items(random, count)
        shared = sorted(one) if is_paired else []
        answers = [change.adjusted_p < 0.05 for change in compare_answers(one, other, shared, 0)]
        return any(answers) or any(move.is_certain for move in compare_evidence(one, other, shared, 100, 0))

    assert rate(says, 100) <= MOST


@at_every_size
@pytest.mark.parametrize("shape", ["normal", "right or wrong"])
def test_bulk_summary(shape, count):
    """Four kinds of evidence, hidden and inserted, beside control evidence that does as much."""

    def says(random):
        effect = lambda: measure_effect(SHAPES[shape](random, count), SHAPES[shape](random, count), 0)  # noqa: E731
        findings = [
            Finding("cat", 0, "words", f"the word {n}", 40, hiding=effect(), inserting=effect()) for n in range(4)
        ]
        return any(one.is_used for one in judge_findings(findings))

    assert rate(says, 50) <= MOST
