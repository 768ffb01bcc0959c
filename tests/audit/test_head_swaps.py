"""Swapped heads: the answers are those of the model, and the page is one safe file that shows them."""

import json
import re
import shutil
import subprocess
from base64 import b64encode
from dataclasses import replace
from functools import partial
from hashlib import sha256

import html5lib
import pytest
import torch
from audit.known import deciding, sentences
from conftest import animal
from tiny_text import wordpiece
from typer.testing import CliRunner

import whyformer as why
from whyformer._audit import audit, head_swaps, swap_heads
from whyformer._audit.checks.adversarial import Candidates
from whyformer._audit.checks.attention_choice import AttentionChoice
from whyformer._audit.checks.audited_attention import AuditedAttention, EachHead
from whyformer._audit.checks.head_swapper import SEARCH
from whyformer._audit.examples import AuditExamples
from whyformer._audit.head_swaps import choose_blocks
from whyformer._audit.report.head_page import SCRIPT, make_head_page
from whyformer._engine.record import record
from whyformer._engine.run.intervene import Intervention
from whyformer.cli import app
from whyformer.errors import InputError
from whyformer.show import report

EVIL = "</script><script>alert(1)</script>"
TEXTS = ["the film is good", "not bad ! " + EVIL]


@pytest.fixture(scope="module")
def model():
    return why.Model(animal("bert").module, EVIL, "text", labels=(EVIL, "b", "c", "d"), tokenizer=wordpiece())


@pytest.fixture(scope="module")
def swaps(model):
    return swap_heads(model, TEXTS, steps=3)


def test_every_head_of_every_block_is_swapped(swaps):
    assert swaps.blocks == (0, 1, 2) and len(swaps) == 2
    for example in swaps.examples:
        for heads in example["heads"]:
            assert len(heads) == 3
            for number, one in enumerate(heads):
                kinds = [swap["kind"] for swap in one["swaps"]]
                others = [f"head {other}" for other in range(3) if other != number]
                assert [kind for kind in kinds if kind != "adversarial"] == ["uniform", "permuted", *others]
                assert sum(one["observed"]) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("block", "head"), [(0, 1), (2, 2)])
def test_the_answers_are_those_of_the_model(model, swaps, block, head):
    """Written out: an intervention that replaces the head in the rows the output depends on, with a whole run."""
    encoded = model.encode(TEXTS)
    own = record(model, encoded, target=0, keep={"attention"})["attention"][block]
    mask = encoded.token_mask[:, None, :].expand(own[:, head].shape).to(own)
    for kind, new in (("uniform", mask / mask.sum(-1, keepdim=True)), ("head 0", own[:, 0])):
        changed = own.clone()
        changed[:, head] = new
        given = Intervention(attention=lambda site, _, b=block, c=changed: c if site == b else None)
        logits = record(model, encoded, target=0, keep=set(), intervention=given).logits
        for i, example in enumerate(swaps.examples):
            swap = next(s for s in example["heads"][block][head]["swaps"] if s["kind"] == kind)
            expected = logits[i].softmax(-1)[example["classes"]]
            assert swap["after"] == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_model_with_one_head_has_no_other_head():
    made = swap_heads(deciding(), sentences(2), steps=2)
    kinds = {swap["kind"] for example in made.examples for swap in example["heads"][0][0]["swaps"]}
    assert {"uniform", "permuted"} <= kinds <= {"uniform", "permuted", "adversarial"}
    example = made.examples[0]
    uniform = example["heads"][0][0]["swaps"][0]
    mean = torch.tensor(-6 / 8)  # one word of +1 and seven of -1
    expected = torch.stack([-mean, mean]).softmax(0)
    assert uniform["after"][0] == pytest.approx(float(expected[example["classes"][0]]), abs=1e-6)


def test_many_heads_are_bounded(monkeypatch, model):
    assert choose_blocks([4, 4, 4]) == (0, 1, 2)
    monkeypatch.setattr(head_swaps, "MOST_HEADS", 6)
    monkeypatch.setattr(head_swaps, "SEARCHED_HEADS", 3)
    assert choose_blocks([3, 3, 3]) == (1, 2) and choose_blocks([9]) == (0,)
    made = swap_heads(model, TEXTS[:1], steps=1)
    assert made.blocks == (1, 2) and "Of 3 blocks, 2 are shown" in made.notes[0]
    assert "searched for in block 2 alone" in made.notes[1]
    assert not any(swap["kind"] == "adversarial" for one in made.examples[0]["heads"][0] for swap in one["swaps"])


def test_bad_settings_are_refused(model):
    for given, message in (({"limit": 33}, "limit must be <= 32"), ({"steps": 0}, "steps must be >= 1")):
        with pytest.raises(InputError, match=message):
            swap_heads(model, TEXTS, **given)


def test_text_json_and_notebook(swaps, tmp_path):
    swaps.save(tmp_path / "heads.json")
    fields = json.loads((tmp_path / "heads.json").read_text())
    assert fields["kind"] == "head swaps" and fields["examples"][0]["before"] == swaps.examples[0]["before"]
    assert "uniform: " in str(swaps) and "<script" not in swaps.to_html()
    swaps.save(tmp_path / "heads.txt")


def test_the_page_is_safe(swaps):
    """One script, allowed by its hash; the data cannot end its element; nothing is fetched."""
    page = make_head_page(swaps)
    digest = b64encode(sha256(SCRIPT.encode()).digest()).decode()
    assert f"script-src &#x27;sha256-{digest}&#x27;" in page and "default-src &#x27;none&#x27;" in page
    assert page.count("<script") == 2 and "alert(1)" in page and "<script>alert" not in page
    assert "http://" not in page and "https://" not in page and "innerHTML" not in SCRIPT
    html5lib.HTMLParser(strict=True).parse(page)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page).group(1))
    assert data["examples"][0]["labels"] and EVIL in [*data["examples"][0]["labels"], *data["examples"][1]["labels"]]


def test_a_script_that_ends_its_element_is_refused():
    with pytest.raises(ValueError, match="must not contain"):
        report.make_page("t", [], script="'</script>'", data={})
    assert "script-src" not in report.make_page("t", [])


def test_the_audit_saves_the_page(model, tmp_path, monkeypatch):
    monkeypatch.setattr("whyformer._audit.auditor.swap_examples", partial(head_swaps.swap_examples, steps=1))
    with pytest.raises(InputError, match=r"swap_limit=1 needs a folder for the page\. Pass out=, or call swap_heads"):
        audit(model, TEXTS, tests=["shape"], swap_limit=1)
    audit(model, TEXTS, tests=["shape"], swap_limit=1, out=tmp_path / "run")
    assert "What if this head" in (tmp_path / "run" / "heads.html").read_text()
    run = CliRunner().invoke(app, ["audit", "a text", "--swap-limit", "2"])
    assert run.exit_code == 2 and "--swap-limit saves a page, so it needs a folder: add -o FOLDER." in run.stderr


@pytest.mark.slow
def test_the_page_in_a_browser(swaps, tmp_path):
    """A browser shows the state in the address, and the model's answers for it."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed")
    page = tmp_path / "heads.html"
    swaps.save(page)
    swap = next(s for s in swaps.examples[1]["heads"][2][1]["swaps"] if s["kind"] == "head 0")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom"]
    shown = subprocess.run(
        [browser, *options, f"file://{page}#example=1&block=2&head=1&swap=head+0"],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    assert "Observed: block 2, head 1" in shown and "Replaced by weights of head 0" in shown
    assert f"{swap['after'][0]:.3f} after" in shown and 'aria-pressed="true"' in shown
    assert shown.count("<mark") >= 8 and "<script>alert" not in shown


def test_heads_searched_together_are_those_searched_alone(model):
    """All heads of a block at once find what a search for one head of one example finds."""
    replay = AuditExamples(model, TEXTS, [None] * 2, [1] * 2).replay([0, 1], [1])
    search = replace(SEARCH, steps=4, candidates=2, tolerance=1.0, selection=1.0)
    each = EachHead(replay, 1)
    together = Candidates(each, list(range(6)), search, 0)
    results = list(together.search_all())
    for example, head in ((0, 2), (1, 0)):
        alone = Candidates(AuditedAttention(replay, AttentionChoice((1,), head)), [example], search, 0)
        expected = next(alone.search_all())
        place = 3 * example + head
        assert results[place]["jsd"] == pytest.approx(expected["jsd"], abs=1e-5)
        assert results[place]["tvd"] == pytest.approx(expected["tvd"], abs=1e-5)
        torch.testing.assert_close(together.take_found(place)[1], alone.take_found(example)[1], atol=1e-5, rtol=0)
