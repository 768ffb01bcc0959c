"""Citations as text, page, table and JSON; a damaged file is refused."""

import csv
import json
from dataclasses import replace
from io import StringIO

import pytest
import torch

import whyformer as why
from whyformer._engine.targets.target import Target
from whyformer._plain.tokens import Pieces
from whyformer.errors import InputError
from whyformer.results.citations import (
    Citation,
    Citations,
    Claim,
    ClaimReading,
    Mark,
    Quotation,
    State,
    Values,
)
from whyformer.show.terminal import Screen

EVIL = "<script>alert(1)</script> =1+1 \x1b[31m"


def make_claim(**more):
    values = {"passage 2": Values(0.75, 0.25, 0.5, 0.125, (6.0, -2.0, 4.0, -4.0))}
    states = {"passage 2": State(("tea",), ("salt",)), "passage 1": State((), ("tea", "salt"))}
    facts = dict(
        text="tea and salt [1]", kind="claim", how="one", rests_on=("passage 2",), also=("passage 1",), effect=10.0,
        values=values, states=states, marks=(Mark("[1]", 1, "passage 1", "right"),), written="I do not know.",
        quotations=(Quotation("left in May", "passage 1", "in part"),), by_log_p=ClaimReading("one", ("passage 2",)),
    )  # fmt: skip
    return Claim(**facts | more)


def made(**more):
    pieces = Pieces(("a", "b", "c", "d"), (False,) * 4, (False,) * 4, ((0, 1), (1, 2), (2, 3), (3, 4)), "abcd")
    regions = (why.Region("prompt", "other", 0, 3, "abc", (0, 3)),)
    facts = dict(
        prompt=why.Prompt((1, 2, 3, 4), pieces, 3, regions),
        citations=(
            Citation("passage 2", "passage", 1, 2, EVIL, score=2.0, share=0.5, role="rests on"),
            Citation("passage 1", "passage", 0, 1, "a", score=0.5, share=0.125, role="also"),
        ),
        target=Target(-1, "'d'", 1.5),
        scores=torch.tensor([0.5, 2.0, -1.5, 0.0], dtype=torch.float64),
        rest=-1.5,
        log_probability=-0.25,
        log_odds=1.25,
        method="ablations",
        settings={},
        model="tiny",
        versions={"torch": "2"},
        claim=make_claim(),
        sentences=(make_claim(),),
        spent={"forward": 9.0, "cost": 8.5},
        notes=("A note.",),
        apart=(Citation("question", "question", 2, 3, f"why? {EVIL}", score=-1.5, share=-0.375),),
    )
    return Citations(**facts | more)


def test_the_answer_is_told_in_lines_with_the_numbers_that_decide():
    lines = made().describe()
    assert lines[0] == "tea and salt [1] [1]"
    assert lines[1] == "The answer rests on passage 2, also passage 1."
    assert lines[2].startswith("Its probability per token: 0.75 with all sources, 0.25 without passage 2, 0.5 with it")
    assert lines[3] == "In summed log-odds: 6.0, -2.0, 4.0, -4.0. Half of the effect of 10.0 decides."
    assert lines[4] == 'Without passage 2: "I do not know."'
    assert lines[5].startswith("Of its words, passage 2 contains tea; it lacks salt.")
    assert lines[6:] == ["[1] is right.", '"left in May" is found in part in passage 1.']
    plain = make_claim(marks=(), quotations=())
    assert len(made(claim=plain, sentences=(plain,)).describe()) == 6
    text = made().render(Screen(width=120, colours=None))
    assert "\x1b" not in text and "A note." in text


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (dict(how="any of", rests_on=("a", "b", "c"), also=()), "rests on any of a, b and c"),
        (dict(how="together", rests_on=("a", "b"), also=()), "rests on a and b together"),
        (dict(how="several", rests_on=(), also=("a",)), "rests on several sources, also a"),
        (
            dict(how="hardly any", rests_on=(), also=(), against=("a",)),
            "hardly rests on any source; a speaks against it",
        ),
        (dict(how="against", rests_on=(), also=(), against=("a",)), "is made less likely by a"),
        (dict(how="", rests_on=(), also=()), "was not measured: nothing was left out"),
        (dict(kind="abstention", how=""), "is no claim (abstention)"),
        (dict(kind="unfinished", how=""), "is no claim (unfinished)"),
        (
            dict(also=(), around=(ClaimReading("one", ("passage 2",)), ClaimReading("several", ()))),
            "rests on passage 2 (borderline: rests on several sources)",
        ),
    ],
)  # fmt: skip
def test_readings_in_words(claim, words):
    assert str(make_claim(**claim)) == words


def test_one_share_per_source():
    """The table, the region on the page and the view say the same, whatever else the prompt has."""
    one = made()
    view = one.view()
    shares = {cell.name: share for cell, share in zip(view.cells, view.cell_shares, strict=True)}
    assert {name: shares[name] for name in ("passage 1", "passage 2", "question")} == pytest.approx(
        {part.name: part.share for part in (*one, *one.apart)}
    )
    assert "+50.0 %" in Citations.formats[".html"](one).decode()


@pytest.mark.parametrize(("name", "word"), [("how", "supported"), ("kind", "verdict")])
def test_words_that_no_version_says_are_refused(tmp_path, name, word):
    made().save(tmp_path / "c.json")
    saved = json.loads((tmp_path / "c.json").read_text())
    (tmp_path / "c.json").write_text(json.dumps({**saved, "claim": {**saved["claim"], name: word}}))
    with pytest.raises(InputError, match="is damaged"):
        Citations.load(tmp_path / "c.json")


def test_the_page_escapes_what_it_shows():
    page = Citations.formats[".html"](made()).decode()
    assert "<script>alert" not in page and "&lt;script&gt;" in page and "\x1b" not in page
    assert "rests on" in page and "<script>alert" not in made().to_html()


def test_the_csv_has_a_row_for_each_source():
    rows = list(csv.DictReader(StringIO(Citations.formats[".csv"](made()).decode())))
    assert [row["name"] for row in rows] == ["passage 2", "passage 1"]
    assert (rows[0]["rank"], rows[0]["score"], rows[0]["without"]) == ("1", "2.0", "0.25")
    assert (rows[0]["role"], rows[1]["role"], rows[1]["without"]) == ("rests on", "also", "")


def test_json_comes_back(tmp_path):
    unmeasured = Claim("d", "claim", "")
    for one in (made(), made(claim=unmeasured, sentences=(unmeasured,))):
        one.save(tmp_path / "c.json")
        back = Citations.load(tmp_path / "c.json")
        assert back.citations == one.citations and back.prompt == one.prompt and back.claim == one.claim
        assert torch.equal(back.scores, one.scores) and back.target == one.target and str(back) == str(one)


def test_the_json_is_as_documented(tmp_path):
    made().save(tmp_path / "c.json")
    saved = json.loads((tmp_path / "c.json").read_text())
    assert saved["kind"] == "citations"
    assert saved["citations"][0] == {
        "name": "passage 2", "kind": "passage", "start": 1, "stop": 2, "text": EVIL, "score": 2.0, "share": 0.5,
        "role": "rests on", "copies": [], "characters": None, "id": None, "metadata": {},
    }  # fmt: skip
    claim = saved["claim"]
    assert (claim["how"], claim["rests_on"], claim["written"]) == ("one", ["passage 2"], "I do not know.")
    assert claim["values"]["passage 2"] == {
        "with_all": 0.75, "without": 0.25, "alone": 0.5, "with_none": 0.125, "log_odds": [6.0, -2.0, 4.0, -4.0],
    }  # fmt: skip
    assert "writer" not in claim


@pytest.mark.parametrize(
    "damage",
    [
        {"citations": []},
        {"scores": {"dtype": "float64", "shape": [1], "data": [0.0]}},
        {"prompt": None},
        {"log_odds": "much"},
        {"claim": None},
    ],
    ids=["no citations", "other scores", "no prompt", "no number", "no claim"],
)
def test_a_damaged_file_is_refused(tmp_path, damage):
    made().save(tmp_path / "c.json")
    saved = json.loads((tmp_path / "c.json").read_text())
    (tmp_path / "c.json").write_text(json.dumps(saved | damage))
    with pytest.raises(InputError, match=r"c\.json"):
        Citations.load(tmp_path / "c.json")


def test_a_file_cannot_name_what_is_called(tmp_path):
    """`instead` calls a function that cite() has put there."""
    made(claim=make_claim(written=None)).save(tmp_path / "c.json")
    saved = json.loads((tmp_path / "c.json").read_text())
    saved["claim"]["writer"] = "print"
    (tmp_path / "c.json").write_text(json.dumps(saved))
    assert Citations.load(tmp_path / "c.json").claim.instead is None


def test_unknown_words_are_refused(tmp_path):
    one = made()
    for more in ({"citations": (replace(one[0], role="perhaps"),)}, {"claim": make_claim(how="perhaps")}):
        made(**more).save(tmp_path / "c.json")
        with pytest.raises(InputError):
            Citations.load(tmp_path / "c.json")
