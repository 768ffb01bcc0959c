"""Whether a source states a claim: a comparison of words, and the judgement of a checker, beside what it rests on."""

import pytest
from tiny_prompts import PASSAGES, decoder, make_prompt

import whyformer as why
from whyformer._cite.states import compare_words, open_checker
from whyformer.errors import InputError
from whyformer.results.citations import Claim, State


@pytest.mark.parametrize(
    ("claim", "source", "contains", "lacks"),
    [
        ("The Aurora carries tea.", "the aurora CARRIES tea.", ("Aurora", "carries", "tea"), ()),
        ("It left in 1998 with 1,200 tons.", "In 1998 it left.", ("left", "1998"), ("1,200", "tons")),
        ("Anna's ship [1] sails.", "Anna sails a ship.", ("Anna's", "ship", "sails"), ()),
        ("tea", "tea tea", ("tea",), ()),
        ("It opens in May.", "The fair opens in June.", ("opens",), ("May",)),
        ("It is.", "It is.", (), ()),
    ],
)
def test_the_words_that_a_source_contains_and_lacks(claim, source, contains, lacks):
    assert compare_words(claim, source, None) == State(contains, lacks)


def test_the_four_cases():
    stated, not_stated = State(("tea",), ()), State((), ("tea",))
    states = {"a": stated, "b": stated, "c": not_stated, "d": not_stated}
    claim = Claim("tea", "claim", "together", ("a", "c"), states=states)
    assert claim.find_case("a") == "rests on it and it states it"
    assert claim.find_case("b") == "states it but the model did not need it"
    assert claim.find_case("c") == "rests on it though it does not state it"
    assert claim.find_case("d") == "neither"
    opposed = Claim("tea", "claim", "against", (), also=("a", "c"), against=("d",), states=states)
    assert opposed.find_case("a") == "states it but the model did not need it" and opposed.find_case("c") == "neither"


def test_a_judgement_goes_before_the_comparison_of_words():
    assert not State(("tea",), (), judged=False).is_stated and State((), ("tea",), judged=True).is_stated
    assert not State((), ()).is_stated


def test_a_function_judges_every_source():
    asked = []

    def check(source, claim):
        asked.append((source, claim))
        return 0.75 if "mess" in source else False

    cited = why.cite(decoder(), make_prompt(" good."), checker=check)
    assert [source for source, _ in asked] == PASSAGES and {claim for _, claim in asked} == {"good."}
    states = cited.claim.states
    assert [states[f"passage {n}"].judged for n in (1, 2, 3, 4)] == [False, False, True, False]
    assert states["passage 3"].probability == 0.75 and "by the checker, in passage 3" in " ".join(str(cited).split())


@pytest.mark.parametrize("answer", [7, "yes", None, float("nan")])
def test_what_a_function_may_return(answer):
    with pytest.raises(InputError, match="must return True, False or a probability"):
        why.cite(decoder(), make_prompt(" good."), checker=lambda source, claim: answer)


def test_a_model_of_two_texts_judges_by_the_label_that_says_so():
    check = open_checker("demo/entailment")
    premise = "the lamp is still old. today it looks wet."
    assert check(premise, "the lamp is wet.") > 0.9 > 0.1 > check(premise, "the lamp is dry.")


def test_a_model_whose_labels_do_not_say_it_is_refused_with_a_way_out():
    with pytest.raises(InputError, match=r"labels are .*Pass a function instead"):
        why.cite(decoder(), make_prompt(" good."), checker="demo/sentiment")
