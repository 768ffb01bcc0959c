"""measure_citations: the quick answer beside all subsets, on the user's own model."""

import json

import pytest
from tiny_prompts import PASSAGES, decoder, make_prompt

import whyformer as why
from whyformer._cite.agreement import Rate
from whyformer.errors import InputError


def test_the_interval_by_hand():
    """Wilson, 8 of 10: (8 + 1.9208 -+ 1.96 sqrt(1.6 + .9604)) / 13.8416."""
    low, high = Rate(8, 10).interval
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert Rate(0, 10).interval[0] == pytest.approx(0, abs=1e-12) and Rate(0, 0).interval == (0, 1)
    assert str(Rate(8, 10)) == "8 of 10, 80.0 % (49.0 to 94.3)"


def test_of_four_sources_the_quick_answer_has_all_subsets_already(tmp_path):
    prompts = [make_prompt(), make_prompt(" The film is good. It is bad. I do not know.")]
    found = why.measure_citations(decoder(), prompts)
    assert [one.text for one in found.claims] == ["good. not bad.", "The film is good.", "It is bad."]
    for one, cited in zip(found.claims, (*why.cite(decoder(), prompts[0], effort="thorough").sentences,), strict=False):
        assert one.truth in str(cited)
    assert found.forwards <= 14 + 4 and "3 claims of" in str(found)
    found.save(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["claims"][0]["text"] == "good. not bad."


def test_disagreement_is_seen(monkeypatch):
    """A quick answer that always names the last passage is wrong wherever the truth is another."""
    from whyformer._cite import measuring, run
    from whyformer._cite.dependence import Dependence

    def name_the_last(ablations, tokens, units, limit):
        found = measuring.measure_completely(ablations, tokens)
        object.__setattr__(found, "reading", Dependence("one", (len(PASSAGES) - 1,)))
        return found

    monkeypatch.setattr(run, "measure_claim", name_the_last)
    found = why.measure_citations(decoder(), [make_prompt(), make_prompt(" a film.")])
    wrong = [one for one in found.claims if not one.agrees]
    assert wrong and all(one.is_false_one for one in wrong)
    assert found.rates['"one" said wrongly'].count == len(wrong)


@pytest.mark.parametrize("prompts", ["a text", [], 7])
def test_what_is_no_list_is_refused(prompts):
    with pytest.raises(InputError, match="must be a list of prompts with answers"):
        why.measure_citations(decoder(), prompts)
