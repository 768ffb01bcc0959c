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
from whyformer.results.citations import Citation, Citations, Faithfulness, TopDrop
from whyformer.show.terminal import Screen

EVIL = "<script>alert(1)</script> =1+1 \x1b[31m"


def made(**more):
    pieces = Pieces(("a", "b", "c", "d"), (False,) * 4, (False,) * 4, ((0, 1), (1, 2), (2, 3), (3, 4)), "abcd")
    regions = (why.Region("prompt", "other", 0, 3, "abc", (0, 3)),)
    facts = dict(
        prompt=why.Prompt((1, 2, 3, 4), pieces, 3, regions),
        citations=(
            Citation("passage 2", "passage", 1, 2, EVIL, 2.0, 0.5, 3.25, "supported"),
            Citation("passage 1", "passage", 0, 1, "a", 0.5, 0.125, -0.125, None, is_control=True),
        ),
        target=Target(-1, "'d'", 1.5),
        scores=torch.tensor([0.5, 2.0, -1.5, 0.0], dtype=torch.float64),
        rest=-1.5,
        log_probability=-0.25,
        margin=0.75,
        together=None,
        faithfulness=Faithfulness(0.5, (-0.6, 0.625), 32, 0, (TopDrop(1, 3.25, 1.0, (0.5, 1.5), 8),)),
        method="libragrad",
        settings={"recipe": "libra"},
        model="tiny",
        versions={"torch": "2"},
        spent={"forward": 9.0, "relevance": 1.0},
        notes=("A note.",),
        apart=(Citation("question", "question", 2, 3, f"why? {EVIL}", -1.5, -0.375),),
        log_odds=1.25,
    )
    return Citations(**facts | more)


def test_the_table_in_a_terminal():
    text = made().render(Screen(width=120, colours=None))
    assert "passage 2" in text and "supported" in text and "+3.25" in text and "(control)" in text
    assert (
        "drop by more than 0.75" in text
        and "Not a source, never left out: question -38 %" in text
        and "score 0.50 over 32 random ablations" in text
    )
    assert "random scores: -0.60 to 0.62 (95 %)" in text or "random scores: -0.60 to 0.63 (95 %)" in text
    assert "fall by 3.25; without random ones by 1.00 (0.50 to 1.50)" in " ".join(text.split())
    assert "\x1b" not in text and "A note." in text and "Not a source, never left out: question -38 %" in text


def test_what_is_inside_chance_is_called_so():
    inside = Faithfulness(0.5, (-0.6, 0.625), 32, 0, (TopDrop(1, 0.25, 1.0, (0.5, 1.5), 8),))
    outside = Faithfulness(0.75, (-0.6, 0.625), 32, 0, (TopDrop(1, 3.25, 1.0, (0.5, 1.5), 8),))
    for found, times in ((inside, 1), (outside, 0)):
        text = " ".join(made(faithfulness=found).render(Screen(width=120, colours=None)).split())
        assert text.count("no better than chance") == times and text.count("no more than by chance") == times
        page = Citations.formats[".html"](made(faithfulness=found)).decode()
        assert page.count("(no better than chance)") == 2 * times


def test_one_share_per_source():
    """The table, the region on the page and the view say the same, whatever else the prompt has."""
    one = made()
    view = one.view()
    shares = {cell.name: share for cell, share in zip(view.cells, view.cell_shares, strict=True)}
    assert {name: shares[name] for name in ("passage 1", "passage 2", "question")} == pytest.approx(
        {part.name: part.share for part in (*one, *one.apart)}
    )
    assert "+50.0 %" in Citations.formats[".html"](one).decode()


def test_files_of_earlier_versions_are_read(tmp_path):
    made().save(tmp_path / "c.json")
    saved = json.loads((tmp_path / "c.json").read_text())
    del saved["apart"], saved["log_odds"]
    (tmp_path / "c.json").write_text(json.dumps(saved))
    back = Citations.load(tmp_path / "c.json")
    assert back.apart == () and back.log_odds is None and back.citations == made().citations and str(back)


def test_a_score_that_is_undefined_is_said_to_be():
    nan = float("nan")
    found = made(faithfulness=Faithfulness(nan, (nan, nan), 8, 0))
    assert "No linear datamodelling score" in found.render(Screen(width=200, colours=None))


def test_the_page_escapes_what_it_shows():
    page = Citations.formats[".html"](made()).decode()
    assert "<script>alert" not in page and "&lt;script&gt;" in page and "\x1b" not in page
    assert "supported" in page and "<script>alert" not in made().to_html()


def test_the_csv_has_a_row_for_each_source():
    rows = list(csv.DictReader(StringIO(Citations.formats[".csv"](made()).decode())))
    assert [row["name"] for row in rows] == ["passage 2", "passage 1"]
    assert (rows[0]["rank"], rows[0]["score"], rows[0]["drop"]) == ("1", "2.0", "3.25")
    assert (rows[0]["control"], rows[1]["control"], rows[1]["verdict"]) == ("no", "yes", "")


def test_json_comes_back(tmp_path):
    for one in (made(), made(faithfulness=None, margin=None)):
        one.save(tmp_path / "c.json")
        back = Citations.load(tmp_path / "c.json")
        assert back.citations == one.citations and back.prompt == one.prompt and back.faithfulness == one.faithfulness
        assert torch.equal(back.scores, one.scores) and back.target == one.target and str(back) == str(one)


def test_an_undefined_score_comes_back_from_json(tmp_path):
    nan = float("nan")
    made(faithfulness=Faithfulness(nan, (nan, nan), 8, 0)).save(tmp_path / "c.json")
    found = Citations.load(tmp_path / "c.json").faithfulness
    assert found.lds != found.lds and found.chance[0] != found.chance[0] and found.samples == 8


def test_the_json_is_as_documented(tmp_path):
    made().save(tmp_path / "c.json")
    saved = json.loads((tmp_path / "c.json").read_text())
    assert saved["kind"] == "citations"
    assert saved["citations"][0] == {
        "name": "passage 2", "kind": "passage", "start": 1, "stop": 2, "text": EVIL, "score": 2.0, "share": 0.5,
        "drop": 3.25, "verdict": "supported", "is_control": False, "id": None, "metadata": {},
    }  # fmt: skip
    assert saved["faithfulness"]["drops"][0] == {
        "size": 1, "drop": 3.25, "chance": 1.0, "interval": [0.5, 1.5], "draws": 8,
    }  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [
        {"citations": []},
        {"scores": {"dtype": "float64", "shape": [1], "data": [0.0]}},
        {"prompt": None},
        {"margin": "much"},
    ],
    ids=["no citations", "other scores", "no prompt", "no number"],
)
def test_a_damaged_file_is_refused(tmp_path, damage):
    made().save(tmp_path / "c.json")
    saved = json.loads((tmp_path / "c.json").read_text())
    (tmp_path / "c.json").write_text(json.dumps(saved | damage))
    with pytest.raises(InputError, match=r"c\.json"):
        Citations.load(tmp_path / "c.json")


def test_an_unknown_verdict_is_refused(tmp_path):
    one = made()
    made(citations=(replace(one[0], verdict="perhaps"),)).save(tmp_path / "c.json")
    with pytest.raises(InputError):
        Citations.load(tmp_path / "c.json")
