"""Verdicts on answers: the rule by hand, their sentences, what an effort costs, and files."""

from types import SimpleNamespace

import pytest
from tiny_prompts import PASSAGES, decoder, make_prompt

import whyformer as why
from whyformer._cite.calibration import CHECKED, FAST, Calibration, judge_support
from whyformer._cite.effort import EFFORTS, describe_effort
from whyformer._cite.run import join_support, name_source_verdict
from whyformer.demo import sources
from whyformer.errors import InputError
from whyformer.results.citations import Support
from whyformer.targets import Answer


def test_the_rule_by_hand():
    rule = Calibration(-1.0, {"certainty": 0.5, "share": 2.0}, {"certainty": 2.0, "share": 0.5})
    for certainty in (2.0, 99.0):  # more of it says no more
        assert rule.estimate_support({"certainty": certainty, "share": 0.0, "need": 99.0}) == pytest.approx(0.5)
    assert [judge_support(p, False) for p in (0.9, 0.7, 0.5, 0.3)] == [*["supported"] * 2, "undecided", "not supported"]
    assert judge_support(0.1, True) == "contradicted" and judge_support(0.9, True) == "supported"
    assert rule.estimate_support({"certainty": -1e9, "share": 0.0}) < 1e-200


@pytest.mark.parametrize("rule", [FAST, CHECKED], ids=["fast", "checked"])
def test_no_feature_speaks_against_support(rule):
    assert min(rule.coefficients.values()) >= 0 and {*rule.most} == {*rule.coefficients}


@pytest.mark.parametrize(
    ("verdict", "named", "how", "against", "wording"),
    [
        ("supported", ("passage 1",), "one", (), "supported by passage 1"),
        ("supported", ("passage 1", "passage 2"), "either", (), "supported by either of passage 1 and passage 2"),
        ("supported", ("passage 1", "passage 2"), "together", (), "supported by passage 1 and passage 2 together"),
        ("supported", ("a", "b", "c"), "either", (), "supported by any of a, b and c"),
        ("supported", ("a",), "one", ("b", "c"), "supported by a, contradicted by b and c"),
        ("not supported", (), "", (), "not supported by any source"),
        ("contradicted", (), "", ("passage 3",), "contradicted by passage 3"),
        ("undecided", ("passage 1",), "one", (), "undecided"),
    ],
)
def test_verdicts_in_words(verdict, named, how, against, wording):
    assert str(Support("tea", verdict, named, how, against, 0.5, 1.0)) == wording


@pytest.mark.parametrize("effort", EFFORTS)
def test_an_effort_spends_no_more_than_it_says(effort):
    cited = why.cite(decoder(), make_prompt(" good"), by=PASSAGES, effort=effort)
    assert cited.spent["cost"] <= EFFORTS[effort].count_forwards()
    assert cited.spent["relevance"] == (1 if effort == "fast" else 2)  # the second one: of what it would rather say
    assert (cited.faithfulness is not None) == (effort == "thorough") and (cited.margin is None) == (effort == "fast")


def test_the_cost_is_said_beforehand():
    assert [EFFORTS[name].count_forwards() for name in ("fast", "checked", "thorough")] == [3, 12, 139]
    assert "at most 12 forwards" in describe_effort("checked") and "at most 36" in describe_effort("checked", 2)
    with pytest.raises(InputError, match="effort must be one of fast, checked, thorough, got 'hard'"):
        why.cite(decoder(), make_prompt(), effort="hard")


def test_an_answer_is_supported_as_well_as_its_worst_sentence():
    whole = Support("a. b.", "supported", ("passage 1",), "one", (), 0.99, 9.0)
    first = Support("a.", "supported", ("passage 1",), "one", (), 0.98, 8.0)
    second = Support("b.", "supported", ("passage 2", "passage 1"), "either", (), 0.9, 7.0)
    assert join_support(whole, []) == whole
    both = join_support(whole, [first, second])
    assert (str(both), both.probability) == ("supported by passage 1 and passage 2", 0.9)
    made_up = Support("b.", "not supported", (), "", (), 0.1, 0.2)
    assert join_support(whole, [first, made_up]).verdict == "not supported"
    opposed = Support("b.", "contradicted", (), "", ("passage 3",), 0.2, 0.2)
    assert str(join_support(whole, [made_up, opposed])) == "contradicted by passage 3"


def test_each_sentence_of_the_shipped_reader_names_its_own_passage():
    model = why.open("demo/sources")
    asked = sources.generate(1, 5, world="valley", kind="sentences", passages=8)[0]
    cited = why.cite(model, why.generate(model, asked.text, max_new_tokens=40))
    truth = {f"passage {1 + claim.support[0][0]}" for claim in asked.claims}
    assert [one.sources for one in cited.sentences] == [(f"passage {1 + one.support[0][0]}",) for one in asked.claims]
    assert cited.support.verdict == "supported" and set(cited.support.sources) == truth
    assert {one.name for one in cited if one.verdict == "supported"} == truth


@pytest.mark.parametrize("former", ["verify", "samples"])
def test_former_options_say_what_replaced_them(former):
    with pytest.raises(InputError, match=f"no option {former}: effort= says"):
        why.cite(decoder(), make_prompt(" good"), by=PASSAGES, **{former: 3})


def test_every_sentence_has_its_verdict_and_files_keep_it(tmp_path):
    prompt = make_prompt(" good. The film is bad.")
    cited = why.cite(decoder(), prompt, by=PASSAGES)
    assert [one.text for one in cited.sentences] == ["good.", "The film is bad."]
    assert cited.support.text == "good. The film is bad."
    assert all(0 <= one.probability <= 1 for one in cited.sentences)
    alone = why.cite(decoder(), prompt, by=PASSAGES, select=Answer(1, unit="sentence"))
    assert alone.support == cited.sentences[1] and alone.sentences == (alone.support,)
    cited.save(tmp_path / "c.json")
    again = why.Citations.load(tmp_path / "c.json")
    assert again.support == cited.support and again.sentences == cited.sentences
    assert "The answer is " in str(cited) and "good.: " in str(cited)


def test_a_passage_said_twice_is_either_of():
    model = why.open("demo/reader")
    passages = ["The Aurora carries tea. It left in March.", "The Orion carries salt.", "The Iris carries wool."]
    for more, wording in (([], "supported by passage 1"), (["The Aurora is loaded with tea."], "either of passage 1")):
        text = "\n\n".join([*passages, *more, "Question: What does the Aurora carry?\nAnswer:"])
        cited = why.cite(model, text, answer=" tea")
        assert wording in str(cited.support)
    wrong = why.cite(model, "\n\n".join([*passages, "Question: What does the Aurora carry?\nAnswer:"]), answer=" salt")
    assert str(wrong.support) == "contradicted by passage 1" and not wrong.supported


@pytest.mark.parametrize("answer", ["  tea", " Tea", " TEA"])
def test_the_same_answer_in_other_tokens_is_no_contradiction(answer):
    """A log may have a blank too many. The model would rather write ' tea', which rests on the same passage."""
    passages = ["The Aurora carries tea. It left in March.", "The Orion carries salt.", "The Iris carries wool."]
    text = "\n\n".join([*passages, "Question: What does the Aurora carry?\nAnswer:"])
    cited = why.cite(why.open("demo/reader"), text, answer=answer)
    assert cited.support.verdict in ("not supported", "undecided") and not cited.support.against
    assert any("would hardly give this answer itself" in note for note in cited.notes)


def test_another_answer_that_begins_the_same_is_another_answer():
    text = "The Aurora sails under captain Rosa.\n\nThe Orion left in June.\n\nThe Orion carries salt.\n\n"
    asked = "Question: Who is the captain of the Aurora?\nAnswer:"
    assert (
        str(why.cite(why.open("demo/sources"), text + asked, answer=" Rosalie").support) == "contradicted by passage 1"
    )


def test_two_sources_are_enough_for_either_of():
    """All four ablations are known; both rows of the table say what the answer rests on."""
    stated, asked = "It is oats that Coldwater takes to town.", "Question: Which crop does Coldwater grow?\nAnswer:"
    cited = why.cite(why.open("demo/sources"), "\n\n".join([stated, stated, asked]), answer=" oats")
    assert str(cited.support) == "supported by either of passage 1 and passage 2"
    assert [one.verdict for one in cited] == ["supported", "supported"]


def test_a_word_counts_at_the_beginning_of_a_passage_too():
    """The token of the first word of a line has no blank before it."""
    rest = ["It is oats that Coldwater takes to town.", "Ashcombe spreads over 44 acres."]
    asked = "Question: Which crop does Coldwater grow?\nAnswer:"
    text = "\n\n".join(["Coldwater grows oats.", *rest, asked])
    cited = why.cite(why.open("demo/sources"), text, answer=" oats")
    assert str(cited.support) == "supported by either of passage 1 and passage 2"


def test_a_supported_answer_has_a_supporting_source_in_its_table():
    """Also where no pattern decides: the first source is named, and is not called not needed."""
    said = Support("tea", "supported", ("passage 3",), "one", (), 0.9, 9.0)
    undecided = SimpleNamespace(basis=(), against=(), drops={(2,): 9.0})
    examined = [SimpleNamespace(support=said, basis=(2,), evidence=undecided)]
    assert [name_source_verdict(source, examined) for source in (1, 2)] == [None, "supported"]
    model, found = why.open("demo/sources"), 0
    for asked in sources.generate(6, 77, kind="either", passages=8, world="upland"):
        cited = why.cite(model, asked.text, answer=f" {asked.answer}")
        assert {one.name for one in cited if one.verdict == "supported"} == set(cited.support.sources)
        found += cited.support.verdict == "supported"
    assert found == 6


def test_the_match_with_the_question_by_hand():
    """Tokens of the question: 7 is in sources 0 and 1 of 4, 8 in all, 9 in none."""
    from whyformer._cite.mention import find_asked_words, match_each, match_question

    pieces = make_prompt().pieces
    prompt = why.Prompt((7, 1, 8, 7, 2, 8, 3, 8, 4, 8, 7, 8, 9, 5), pieces, 13, ())
    sources = [why.Region(str(n), "passage", a, b, "") for n, (a, b) in enumerate([(0, 3), (3, 6), (6, 8), (8, 10)])]
    asked = find_asked_words(prompt, sources)
    assert asked.tolist() == [[True, True, False, False], [True] * 4, [False] * 4]
    assert match_question(asked, [0, 1]) == match_each(asked, [0, 1]) == pytest.approx(1)
    assert match_question(asked, [0]) == match_each(asked, [0]) == pytest.approx(0.5)
    assert match_question(asked, [2]) == pytest.approx(0)
    assert match_question(asked, [0, 2]) == pytest.approx(0.5) and match_each(asked, [0, 2]) == pytest.approx(0.5)
    assert match_question(asked[:0], [0]) == match_each(asked[:0], [0, 1]) == 0
