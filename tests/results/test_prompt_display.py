"""Explanations and generations of prompts: they know the regions, save a page of them, and load again."""

import json
from dataclasses import replace

import pytest
import torch
from tiny_prompts import decoder, make_prompt

import whyformer as why
from whyformer._engine.targets.target import Target
from whyformer._model.encoded import EncodedBatch
from whyformer._plain.tokens import NamedTokens, Pieces
from whyformer.results import generation
from whyformer.results.explanation import Explanation
from whyformer.show import prompt_view
from whyformer.show.prompt_view import view_panel
from whyformer.show.terminal import Screen

REGIONS = (
    NamedTokens("system", "system", 0, 2),
    NamedTokens("user", "user", 2, 3),
    NamedTokens("answer", "answer", 3, 5),
)


def explain_prompt(left: int = 0, right: int = 0) -> Explanation:
    """Two regions, an answer, and padding on both sides."""
    words = ["be", "kind", "hi", "hello", "you"]
    starts = [0, 3, 8, 11, 17]
    spans = [(start, start + len(word)) for start, word in zip(starts, words, strict=True)]
    pad = lambda row, fill: (*[fill] * left, *row, *[fill] * right)  # noqa: E731
    regions = tuple(replace(r, start=r.start + left, stop=r.stop + left) for r in REGIONS)
    padding = pad([False] * 5, True)
    pieces = Pieces(pad(words, ""), (False,) * len(padding), padding, pad(spans, None), " ".join(words), None, regions)
    scores = torch.tensor([pad([1.0, 2.0, -1.0, 0.5, 0.0], 0.0)], dtype=torch.double)
    return Explanation(
        scores, (pieces,), (Target(-1, "'hello you'", 2.0),), ("be kind hi hello you",), "attnlrp", {}, "tiny", {},
        class_specific=True, signed=True,
    )  # fmt: skip


@pytest.mark.parametrize(("left", "right"), [(0, 0), (2, 0), (0, 3)], ids=["none", "left", "right"])
def test_padding_is_not_shown(left, right):
    view = view_panel(explain_prompt(left, right).panels()[0])
    assert view.pieces.pieces == ("be", "kind", "hi", "hello", "you")
    assert view.scores.tolist() == [1.0, 2.0, -1.0, 0.5, 0.0]
    assert [(section.name, section.start, section.stop) for section in view.sections] == [
        (region.name, region.start, region.stop) for region in REGIONS
    ]
    assert view.cell_shares == pytest.approx([3 / 4.5, -1 / 4.5, 0.5 / 4.5])


def test_a_prompt_saves_as_a_page_with_regions(tmp_path):
    explain_prompt().save(tmp_path / "why.html")
    page = (tmp_path / "why.html").read_text()
    assert 'id="region-1"' in page and "explain_generation()" in page
    both = replace(explain_prompt(), tokens=explain_prompt().tokens * 2, targets=explain_prompt().targets * 2,
                   names=("a", "b"), scores=explain_prompt().scores.repeat(2, 1))  # fmt: skip
    both.save(tmp_path / "both.html")
    assert 'id="region-1"' not in (tmp_path / "both.html").read_text()


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_regions_are_saved_and_loaded(tmp_path, suffix):
    e = explain_prompt(1, 1)
    e.save(tmp_path / f"why{suffix}")
    assert why.load(tmp_path / f"why{suffix}").tokens == e.tokens


def test_files_of_earlier_versions_have_no_regions(tmp_path):
    explain_prompt().save(tmp_path / "why.json")
    saved = json.loads((tmp_path / "why.json").read_text())
    tokens = find_tokens(saved)
    del tokens[0]["regions"]
    (tmp_path / "old.json").write_text(json.dumps(saved))
    assert why.load(tmp_path / "old.json").tokens[0].regions == ()


@pytest.mark.parametrize("change", [{"stop": 99}, {"start": -1}, {"start": "0"}, {"name": 3}], ids=str)
def test_damaged_regions_are_refused(tmp_path, change):
    explain_prompt().save(tmp_path / "why.json")
    saved = json.loads((tmp_path / "why.json").read_text())
    find_tokens(saved)[0]["regions"][1].update(change)
    (tmp_path / "bad.json").write_text(json.dumps(saved))
    with pytest.raises(why.WhyformerError, match=r"bad\.json"):
        why.load(tmp_path / "bad.json")


def find_tokens(saved):
    return saved["tokens"] if "tokens" in saved else saved["explanation"]["tokens"]


def test_regions_move_with_padding_on_the_left():
    encoded = EncodedBatch(
        {"input_ids": torch.zeros(2, 6)}, "input_ids", 2, ("a", "b"), regions=(REGIONS, REGIONS[:1]),
        token_mask=torch.tensor([[0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1]], dtype=torch.bool),
    )  # fmt: skip
    first, second = encoded.pieces(6)
    assert [(r.start, r.stop) for r in first.regions] == [(1, 3), (3, 4), (4, 6)]
    assert [(r.start, r.stop) for r in second.regions] == [(4, 6)]


def test_the_terminal_shows_regions_and_words():
    shown = explain_prompt().render(Screen(80, None)).splitlines()
    assert shown[2:5] == ["system                 +66.7% ++++++++++++", "user                   -22.2% ----",
                          "earlier answer tokens  +11.1% ++"]  # fmt: skip
    assert any("kind" in line and "+2" in line for line in shown[5:])


def test_words_of_a_prompt_are_an_ordinary_text():
    assert explain_prompt().words().tokens[0].regions == ()


@pytest.fixture(scope="module")
def generated():
    return why.explain_generation(decoder(), make_prompt(), method="attnlrp"), why.explain(
        decoder(), make_prompt(), "attnlrp"
    )


def test_a_generation_is_viewed_with_the_scores_of_every_token(generated):
    generation, whole = generated
    view = generation.view()
    assert view.steps.shape == (len(generation), len(view.pieces))
    for row, step in zip(view.steps, generation, strict=True):
        count = len(step.tokens[0])
        assert torch.equal(row[:count], step.scores[0].double()) and not row[count:].any()
    assert torch.allclose(view.scores, whole.scores[0].double(), atol=1e-5)
    assert view.sections[-1].kind == "answer" and view.prompt_length == generation.prompt_length


def test_a_long_generation_is_shown_once(generated, monkeypatch, tmp_path):
    g, _ = generated
    before = g.render(Screen(80, None)), g.to_html()
    g.save(tmp_path / "short.html")
    monkeypatch.setattr(generation, "MANY_SCORES", 10)
    after = g.render(Screen(80, None)), g.to_html()
    g.save(tmp_path / "long.html")
    assert "Strongest words" in after[0] and "Strongest words" not in before[0]
    assert "strongest words" in after[1] and "strongest words" not in before[1]
    assert 'id="answer-text"' in (tmp_path / "long.html").read_text()
    assert 'id="answer-text"' not in (tmp_path / "short.html").read_text()


def test_citations_are_a_page_with_the_sources_as_regions():
    found = why.cite(decoder(), make_prompt(), by="passage", effort="thorough")
    view = found.view()
    assert [one.name for one in view.regions] == [*sorted(one.name for one in found), "question"]
    for row, one in zip(view.citations, found, strict=True):
        assert view.cells[view.find_cell(row.start)].name == row.name == one.name
        assert (row.share, row.role) == (one.share, one.role)
    page = type(found).formats[".html"](found).decode()
    assert 'id="citations"' in page and found.describe()[1] in page


def test_hops_are_a_page_with_a_bar_for_each_hop():
    found = why.trace_reasoning(decoder(), make_prompt(), hops=2)
    view = found.view()
    assert torch.equal(view.scores, found.total) and len(view.hops) == len(found)
    for row in view.hops:
        sums = view.sum_cells(row.scores).sum().item()
        assert sums + row.absorbed == pytest.approx(row.received)
    page = type(found).formats[".html"](found).decode()
    assert page.count('class="stacked"') == len(found)


def test_long_prompts_are_not_printed_token_by_token(monkeypatch):
    found = why.trace_reasoning(decoder(), make_prompt(), hops=1)
    short = found.render(Screen(100, None)), found.to_html()
    monkeypatch.setattr(prompt_view, "OPEN_TOKENS", 10)
    long = found.render(Screen(100, None)), found.to_html()
    assert "Strongest words" in long[0] and "Strongest words" not in short[0]
    assert long[0].count("\n") < short[0].count("\n") and "strongest words" in long[1]
