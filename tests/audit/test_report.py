"""The report is one self-contained page with everything escaped; the sentences of the verdict; the command line."""

from html import escape
from itertools import product

import html5lib
import pytest
from audit.known import deciding, sentences
from typer.testing import CliRunner

import whyformer as why
from whyformer._audit import Audit, audit
from whyformer._audit.checks.agreement import DELETED
from whyformer._audit.report import page as pages
from whyformer._audit.report.limits import TEST_LIMITS
from whyformer._audit.report.summary import average_f1
from whyformer._audit.report.verdict import (
    describe_attention_tests,
    format_percent,
    interpret_change,
    name_in_sentence,
    write_audit_headline,
)
from whyformer.cli import app
from whyformer.show.terminal import Screen

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def found():
    data = [(words, i % 2) for i, words in enumerate(sentences(24))]
    model = deciding()
    named = why.Model(model.module, EVIL, labels=(EVIL, "yes"))
    return audit(named, data, samples=6, search_limit=3, steps=4, checkpoints=[model])


def test_the_page_has_no_script_and_makes_no_request(found):
    page = found.formats[".html"](found).decode()
    assert "<script" not in page and "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
    assert "&lt;script&gt;" in page
    html5lib.HTMLParser(strict=True).parse(page)


def test_every_test_has_charts_and_limits(found):
    page = found.formats[".html"](found).decode()
    for test in ("agreement", "replacement", "adversarial", "seeds", "diagnostic", "shape"):
        assert escape(TEST_LIMITS[test]) in page, test
    assert page.count("<svg") >= 7 and "Kendall" in page and "By class and largest weight" in page


def test_one_sentence_by_hand():
    kind = {
        "change": {"median": 0.02, "low": 0.01, "high": 0.03, "n": 9},
        "tvd": {"median": 0.02},
        "flips": {"mean": 0.005},
        "accuracy": {"before": 0.9, "after": 0.895, "f1": "macro", "f1_before": 0.9, "f1_after": 0.88},
        "classes": {},
    }
    (one,) = describe_attention_tests(
        "block 11, mean of heads", {"replacement": {"kinds": {"permutation": kind}, "undefined": 0}}
    )
    assert one.text == (
        "Permuting the weights of block 11 changes the predicted probability by 0.02 (median): on this data the "
        "answers slightly depend on the order of these weights."
    )
    assert one.evidence == (
        "0.02 [0.01, 0.03]; n = 9; TVD 0.02; the prediction changes in 0.5 % of the permutations; "
        "accuracy 90.0 % before, 89.5 % after, macro F1 0.900 before, 0.880 after"
    )


def test_differences_between_classes_are_reported():
    """As published for two clinical data sets: an average would hide them."""
    group = lambda median: {"change": {"median": median, "n": 50}}  # noqa: E731
    kind = {
        "change": {"median": 0.2, "low": 0.1, "high": 0.3, "n": 100}, "tvd": {"median": 0.2}, "flips": {"mean": 0.1},
        "accuracy": None, "classes": {"no": group(0.06), "yes": group(0.77)},
        "classes_p": 0.001,
    }  # fmt: skip
    made = describe_attention_tests("block 0", {"replacement": {"kinds": {"permutation": kind}, "undefined": 0}})
    expected = "Classes differ: permuting block 0 matters more for the predicted class 'yes' than for 'no'."
    assert made[1].text == expected and made[1].evidence == (
        "median change 0.77 against 0.06; Kruskal-Wallis test of all classes, p = 0.001"
    )
    by_chance = {"replacement": {"kinds": {"permutation": {**kind, "classes_p": 0.2}}, "undefined": 0}}
    assert len(describe_attention_tests("block 0", by_chance)) == 1


def test_wording_of_numbers():
    assert [interpret_change(x, 0.01) for x in (0.0, 0.05, 0.2, 0.5)] == [
        f"on this data the answers {word} depend on the order of these weights"
        for word in ("hardly", "slightly", "noticeably", "strongly")
    ]
    assert interpret_change(0.0, 0.17).endswith("for most examples, but some predictions change with them")
    assert name_in_sentence("block 3, head 2") == "head 2 of block 3" and name_in_sentence("rollout") == "the rollout"
    assert format_percent(None) == "undefined" and format_percent(0.034) == "3.4 %" and format_percent(0.5) == "50 %"
    assert write_audit_headline("block 1", {}) == "Block 1: nothing could be measured."


def test_many_heads_become_a_table(found, monkeypatch):
    """Beyond the limit, each attention is only a row."""
    monkeypatch.setattr(pages, "MAX_SECTIONS", 1)
    names = tuple(f"block 0, head {i}" for i in range(3))
    rows = [{**row, "attention": name} if row["attention"] else row for row in found.rows for name in names]
    many = Audit(tuple(rows), names, ("",) * 3, "m", "d", None, found.settings, {})
    page = many.formats[".html"](many).decode()
    assert "and 2 more" in page and page.count("Side by side") >= 1


def test_a_headline_by_hand():
    found = {
        "replacement": {"kinds": {"permutation": {"change": {"median": 0.01}, "flips": {"mean": 0.14}}}},
        "adversarial": {"of_attainable": {"mean": 0.73}},
        "agreement": {f"attention ~ {DELETED}": {"tau": {"mean": -0.4, "low": -0.5, "high": -0.3, "n": 40}}},
    }
    assert write_audit_headline("block 3, mean of heads", found) == (
        "Block 3, mean of heads: permuting its weights hardly changes most answers (median change of the probability "
        "0.01), though 14 % of the permutations change the prediction; very different attention weights give the "
        "same answers (distance 0.73 of at most 1); its ranking of tokens runs moderately the other way from that by "
        "leave-one-out (tau -0.40, 95 % -0.50 to -0.30, n = 40)."
    )


SHARES, NONES, CHANGES, TAUS = (0.0, 0.2, 0.49, 0.5, 0.9), (0.0, 0.3, 1.0), (0.0, 0.05, 0.5), (None, -0.4, 0.8)
CONTRADICTS_LIMITS = ("only similar", "similar to the model's own", "unused", "not used", "depend on these weights")


@pytest.mark.parametrize("none", NONES)
@pytest.mark.parametrize("share", SHARES)
def test_headline_and_limits_agree_whatever_was_found(share, none):
    """A search that found nothing says so, and claims nothing about the weights it did not try."""
    share = 0.0 if none == 1 else share
    mean = lambda value: {"mean": value, "low": None, "high": None, "n": 10}  # noqa: E731
    found = {
        "adversarial": {"jsd": mean(0.693 * share), "of_attainable": mean(share), "none": none},
        "seeds": {"jsd": mean(0.1), "tvd": mean(0.1), "checkpoints": 2},
    }
    for change, tau in product(CHANGES, TAUS):
        permutation = {
            "change": {"median": change, "low": None, "high": None, "n": 10}, "flips": mean(0.1), "accuracy": None,
            "tvd": {"median": 0.1}, "classes": {}, "classes_p": None,
        }  # fmt: skip
        found["replacement"] = {"undefined": 0, "kinds": {"permutation": permutation}}
        found["agreement"] = {} if tau is None else {f"attention ~ {DELETED}": {"tau": mean(tau)}}
        headline = write_audit_headline("block 1", found)
        sentences = describe_attention_tests("block 1", {**found, "agreement": {}})
        said = " ".join([headline, *(sentence.text for sentence in sentences)])
        assert not [words for words in CONTRADICTS_LIMITS if words in said]
        assert ("very different attention weights give" in said) == (share >= 0.5)
        assert ("found no very different attention weights" in said) == (share < 0.5 and none < 1)
        assert ("found no other attention weights" in said) == (none == 1)
        assert ("for 30 % of the examples" in headline) == (none == 0.3 and share >= 0.5)
        assert ("than that of other seeds" in said) == (none < 1)
        assert "distance" in headline or none == 1
    assert "A search that finds nothing does not prove that there is nothing." in TEST_LIMITS["adversarial"]


def test_the_search_that_finds_nothing_is_reported_as_such():
    """No candidate of one step keeps the answer of a model whose attention decides."""
    result = audit(deciding(), sentences(4), tests=["adversarial"], search_limit=4, steps=1)
    assert result.summary["attention"]["block 0"]["adversarial"]["none"] == 1
    assert result.headlines["block 0"] == (
        "Block 0: the search found no other attention weights that give the same answers."
    )
    (sentence,) = result.sentences["block 0"]
    assert sentence.text == (
        "At block 0, the search found no other attention weights that give practically the same answer."
    )


def test_a_notebook_shows_the_verdict(found):
    fragment = found._repr_html_()
    assert fragment.startswith("<div") and "<script" not in fragment and "<svg" not in fragment
    for sentence in (*found.sentences["block 0"], *found.sentences[""]):
        assert escape(sentence.text) in fragment


def test_text_is_wrapped_to_the_screen(found):
    narrow = found.render(Screen(60, None))
    assert max(map(len, narrow.split("\n"))) <= 60 and narrow.split() == str(found).split()


# --- the command line -------------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(app, ["audit", *arguments])


def test_the_command(tmp_path):
    file = tmp_path / "films.tsv"
    file.write_text("a gorgeous film\t1\na bad film\t0\nnot good at all\t0\n")
    out = tmp_path / "run"
    made = run(
        str(file),
        "-a",
        "last",
        "-a",
        "0:1",
        "--samples",
        "2",
        "--test",
        "replacement",
        "--test",
        "shape",
        "-o",
        str(out),
    )
    assert made.exit_code == 0, made.output
    assert "Is attention an explanation here? demo/sentiment on 3 examples of films.tsv" in made.output
    assert "head 1 of block 0" in made.output and (out / "audit.html").exists()
    assert len(Audit.load(out / "audit.json")) == 3
    again = run(
        str(file),
        "-a",
        "last",
        "-a",
        "0:1",
        "--samples",
        "3",
        "--test",
        "replacement",
        "--test",
        "shape",
        "-o",
        str(out),
    )
    assert again.exit_code == 4


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["a film", "--test", "nothing"], 2),
        (["a film", "--preset", "best"], 2),
        (["a film", "another film", "-a", "9"], 2),
        (["a film", "--samples", "0"], 2),
    ],
)
def test_errors_are_one_line(arguments, code):
    made = run(*arguments)
    assert made.exit_code == code and made.output.startswith("error[E_") and made.output.count("\n") == 1


def test_texts_can_be_arguments():
    made = run("a gorgeous film", "a bad film", "--samples", "2", "--test", "replacement", "--json")
    assert made.exit_code == 0 and '"kind": "audit"' in made.output


def test_an_interrupt_says_where_the_rows_are(monkeypatch, tmp_path):
    """On the command line, with a folder; without one there is nothing to continue."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("whyformer._audit.audit", stop)
    run = CliRunner().invoke(app, ["audit", "one text", "another text", "-o", str(tmp_path / "run")])
    assert (
        run.exit_code == 130 and f"The rows so far are in {tmp_path / 'run'}. Run the same command again" in run.stderr
    )
    assert "rows" not in CliRunner().invoke(app, ["audit", "one text", "another text"]).stderr


def test_macro_f1_by_hand():
    """Class a: 1.5 right of 2 labelled and 1.5 predicted; class b: 1 right of 1 labelled and 1.5 predicted."""
    answers = [({"a": 1}, "a"), ({"a": 2, "b": 2}, "a"), ({"b": 3}, "b")]
    assert average_f1(answers) == pytest.approx((2 * 1.5 / 3.5 + 2 * 1 / 2.5) / 2)
    assert average_f1([({"c": 1}, "a")]) == 0


def test_macro_f1_is_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    labels, predicted = [0, 1, 2, 2, 1, 0, 1], [0, 2, 2, 2, 1, 1, 3]
    found = average_f1([({str(p): 4}, str(label)) for p, label in zip(predicted, labels, strict=True)])
    assert found == pytest.approx(metrics.f1_score(labels, predicted, average="macro"))
