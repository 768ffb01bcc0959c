"""What the search finds is kept, is what was measured, and is shown escaped beside the observed attention."""

import json
from itertools import product

import html5lib
import numpy as np
import pytest
import torch
from audit.known import Reader, deciding, idle, sentences
from conftest import animal
from tiny_text import wordpiece

import whyformer as why
from whyformer._audit import Audit, audit
from whyformer._audit.checks import adversarial, found_attention
from whyformer._audit.report import found_views
from whyformer.errors import InputError
from whyformer.show.terminal import Screen

EVIL = "<script>alert(1)</script>"
SEARCH = {"tests": ["adversarial"], "steps": 40}


@pytest.fixture(scope="module")
def found():
    """One query over words, all of the same value: other attention is found for every sentence."""
    return audit(idle(), [(words, 0) for words in sentences(4)], **SEARCH)


@pytest.fixture(scope="module")
def of_texts():
    module = animal("bert").module.float()
    model = why.Model(module, EVIL, "text", labels=(EVIL, "b", "c", "d"), tokenizer=wordpiece())
    texts = ["the film is good", "not good", "the film is not bad ! a bad film"]
    try:
        return audit(model, texts, **SEARCH)
    finally:
        module.double()


def distance(p, q):
    """JSD in numpy, by the definition."""
    p, q = np.asarray(p), np.asarray(q)
    middle = (p + q) / 2
    part = lambda a: sum(x * np.log(x / m) for x, m in zip(a, middle, strict=True) if x > 0)  # noqa: E731
    return (part(p) + part(q)) / 2


def test_the_distance_is_that_of_what_is_kept(found):
    """With one head and one query the kept distributions are all there is."""
    for row in found.of("adversarial", "block 0"):
        kept = row["found"]
        assert sum(kept["other"]) == pytest.approx(1, abs=1e-5)
        assert distance(kept["observed"], kept["other"]) == pytest.approx(row["jsd"], abs=1e-4)
        moved = sum(abs(a - b) for a, b in zip(kept["before"], kept["after"], strict=True)) / 2
        assert moved == pytest.approx(0, abs=1e-5)
        assert found_views.FoundPair(row, None).tvd <= 0.01


def test_the_kept_weights_give_the_kept_answer():
    """The definition: the mean value of the words, weighted by the other attention."""
    values = torch.linspace(-0.2, 0.2, 10)
    words = sentences(2)
    made = audit(why.open(Reader(torch.zeros(10), values)), words, tests=["adversarial"], preset="released", steps=60)
    for row in made.of("adversarial", "block 0"):
        kept = row["found"]
        mean = float((torch.tensor(kept["other"]) * values[words[row["example"]]]).sum())
        expected = torch.tensor([-mean, mean]).softmax(0)
        assert kept["after"] == pytest.approx(expected[kept["classes"]].tolist(), abs=1e-5)
        assert kept["after"] != pytest.approx(kept["before"], abs=1e-5)


def test_nothing_is_kept_where_nothing_was_found(monkeypatch):
    made = audit(deciding(), sentences(2), tests=["adversarial"], steps=1)
    for row in made.of("adversarial", "block 0"):
        assert ("found" in row) == (row["kept"] > 0)
    monkeypatch.setattr(found_attention, "MOST_TOKENS", 3)
    assert not any("found" in row for row in audit(idle(), sentences(2), **SEARCH).rows)


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr("whyformer._audit.checks.MOST_EXAMPLES", 3)
    monkeypatch.setattr(adversarial, "MOST_AT_ONCE", 2)
    made = audit(idle(), sentences(6), **SEARCH)
    assert sum("found" in row for row in made.of("adversarial", "block 0")) == 3


def test_special_tokens_and_text_are_kept_without_padding(of_texts):
    rows = {row["example"]: row for row in of_texts.of("adversarial", "block 2, mean of heads")}
    kept = rows[1]["found"]
    assert kept["pieces"] == ["[CLS]", "not", "good", "[SEP]"] and kept["text"] == "not good"
    assert len(kept["observed"]) == len(kept["other"]) == 4 and kept["special"] == [True, False, False, True]


def test_it_survives_a_file(of_texts, tmp_path):
    of_texts.save(tmp_path / "a.json")
    again = Audit.load(tmp_path / "a.json")
    assert str(again) == str(of_texts) and again.rows == tuple(json.loads(json.dumps(of_texts.rows)))


DAMAGE = {
    "tokens": lambda kept: kept["observed"].pop(),
    "classes": lambda kept: kept["after"].pop(),
    "spans": lambda kept: kept["spans"].__setitem__(1, [2, 99]),
    "pieces": lambda kept: kept.update(pieces=None),
    "grid": lambda kept: kept.update(grid=[0, 4]),
    "type": lambda kept: kept.update(other="high"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_files_are_refused(of_texts, tmp_path, what):
    of_texts.save(tmp_path / "a.json")
    fields = json.loads((tmp_path / "a.json").read_text())
    DAMAGE[what](next(row["found"] for row in fields["rows"] if row.get("found")))
    (tmp_path / "a.json").write_text(json.dumps(fields))
    with pytest.raises(InputError, match="is not a saved audit, or the file is damaged"):
        Audit.load(tmp_path / "a.json")


def test_the_report_shows_both_and_escapes(of_texts):
    page = of_texts.formats[".html"](of_texts).decode()
    assert page.count("observed attention") >= 3 and "Side by side on the input" in page
    assert "<script" not in page and "&lt;script&gt;" in page
    html5lib.HTMLParser(strict=True).parse(page)


def test_the_terminal_shows_both(of_texts):
    plain, coloured = (of_texts.render(Screen(100, colours)) for colours in (None, "truecolor"))
    for text in (plain, coloured):
        assert "Other attention with the same answer, block 2, mean of heads:" in text
        assert text.count("other attention: ") == found_views.PRINTED_EXAMPLES
    assert "\x1b[" in coloured and "\x1b[" not in plain


def test_the_figure(of_texts, tmp_path):
    of_texts.save(tmp_path / "a.png")
    of_texts.save(tmp_path / "a.svg")
    assert "observed attention" in (tmp_path / "a.svg").read_text()
    without = audit(deciding(), sentences(2), tests=["replacement"], samples=2)
    with pytest.raises(InputError, match="There is no other attention to draw") as error:
        without.save(tmp_path / "b.png")
    assert ".txt" in str(error.value)
    without.save(tmp_path / "b.txt")  # the way out that the error names


def test_images_are_shown_as_grids(tmp_path):
    it = animal("vit")
    made = audit(
        why.open(it.module), list(it.inputs["pixel_values"]), tests=["adversarial"], steps=2, preset="released"
    )
    row = next((row for row in made.rows if row.get("found")), None)
    assert row is not None and row["found"]["grid"] == [4, 4] and len(row["found"]["observed"]) == 16
    made.save(tmp_path / "a.html")
    made.save(tmp_path / "a.png")
    made.save(tmp_path / "a.json")
    assert str(Audit.load(tmp_path / "a.json")) == str(made)


def test_a_search_that_was_interrupted_goes_on(tmp_path, monkeypatch):
    """Inside a batch: the first part is on disk, the second is searched again, with the same numbers."""
    monkeypatch.setattr(adversarial, "MOST_AT_ONCE", 2)
    data, settings = sentences(6), {"tests": ["adversarial"], "steps": 6}
    whole = audit(idle(), data, **settings)
    real, calls = adversarial.Candidates.compute_loss, []

    def stopping(self):
        calls.append(1)
        if len(calls) == 9:  # in the second part
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(adversarial.Candidates, "compute_loss", stopping)
    with pytest.raises(KeyboardInterrupt):
        audit(idle(), data, out=tmp_path, **settings)
    again = audit(idle(), data, out=tmp_path, **settings)
    assert len(calls) == 9 + 2 * 6  # the first part is not searched again
    rows = {row["example"]: row for row in whole.of("adversarial", "block 0")}
    for row, key in product(again.of("adversarial", "block 0"), ("jsd", "tvd", "apart")):
        assert row[key] == pytest.approx(rows[row["example"]][key], abs=1e-9)
