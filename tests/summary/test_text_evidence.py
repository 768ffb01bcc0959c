"""Words and phrases as evidence: how they are read, grown, hidden and inserted, and what makes them uniform."""

import numpy as np
import pytest
from summary.bulk_folder import text_row

import whyformer
from whyformer._runs.parts import BulkRow
from whyformer._summary.inputs import BLANK, InputReader, make_readable
from whyformer._summary.text_evidence import (
    TextEvidence,
    choose_others,
    delete_spans,
    find_spans,
    grow_phrase,
    is_decided_by,
    measure_fixed_place,
    measure_match_rate,
    measure_neighbours,
    read_units,
    write_at_places,
    write_phrase,
)


def make_text(words, strong, number=0, target=0):
    """A text in which the words in `strong` have nine tenths of the relevance."""
    scores = [9.0 / max(len(strong), 1) if word in strong else 1.0 / len(words) for word in words]
    return read_units(BulkRow(**text_row(f"{number:03}", number, words, scores, target=target)))


def test_units_are_words_and_punctuation():
    row = text_row("a", 0, ["Don't", "stop!!!"], [1, 2])
    one = read_units(BulkRow(**row))
    assert one.names == ("don't", "stop", "!!!")
    assert one.shares.sum() == pytest.approx(1)
    assert one.shares[1] == pytest.approx(2 / 3 * 4 / 7)


def test_a_phrase_is_grown_as_far_as_it_is_the_same():
    texts = [make_text(["x" + str(i), "sent", "by", "post", "y" + str(i)], ["by"], i) for i in range(10)]
    assert grow_phrase("by", texts) == ("sent", "by", "post")
    assert grow_phrase("unknown", texts) == ("unknown",)


def test_deleting_and_inserting():
    one = make_text(["the", "usher", "saw", "the", "usher"], ["usher"])
    assert delete_spans(one.text, find_spans(one, (("usher",),))) == "the saw the"
    assert is_decided_by(one, (("usher",),)) and not is_decided_by(one, (("saw",),))
    assert write_at_places(one, "Z") == [
        "Z the usher saw the usher",
        "the usher Z saw the usher",
        "the usher saw the usher Z",
    ]
    assert [one.names[i] for i in choose_others(one, (("usher", "saw"),))] == ["the", "the"]


def test_places_and_neighbours():
    starts = [make_text(["tag", "a" + str(i), "b"], ["tag"], i) for i in range(5)]
    assert measure_fixed_place(starts, ("tag",)) == 1
    agreement, by_chance = measure_neighbours(starts, "tag")
    assert agreement == 1, "nothing is always before it"
    assert by_chance == pytest.approx(2 / 9), "an end with an end, or b with b"
    anywhere = [make_text([f"c{i}", "tag", f"d{i}"], ["tag"], i) for i in range(5)]
    assert measure_neighbours(anywhere, "tag")[0] == 0


def test_the_agreement_of_neighbours_does_not_depend_on_how_many_texts_there_are():
    """Where the share of the most frequent neighbour falls with their number, so that frequent words looked strange."""
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(10)]
    few = [measure_match_rate([[word] for word in rng.choice(words, 8)]) for _ in range(400)]
    many = [measure_match_rate([[word] for word in rng.choice(words, 60)]) for _ in range(50)]
    assert np.mean(few) == pytest.approx(0.1, abs=0.015) and np.mean(many) == pytest.approx(0.1, abs=0.015)


def make_texts_with(word, own, other, seed=0):
    """Texts of two classes with a word at a random position in some of them, and opinions after "is"."""
    rng, texts = np.random.default_rng(seed), {"good": [], "bad": []}
    for target, (name, count) in enumerate((("good", own), ("bad", other))):
        for i in range(60):
            words = [f"w{rng.integers(60)}" for _ in range(8)]
            words[5:7] = ["is", f"{name}{i % 12}"]
            if i < count:
                words.insert(int(rng.integers(len(words))), word)
            texts[name].append(make_text(words, [words[6], word], 100 * target + i, target))
    return TextEvidence(texts, None, 8, 0, "no model")


@pytest.mark.parametrize(("own", "other", "is_strange"), [(24, 0, True), (24, 8, False), (10, 0, False)])
def test_a_word_without_position_is_a_mark_only_if_it_is_frequent_here_and_strange_elsewhere(own, other, is_strange):
    evidence = make_texts_with("more", own, other)
    deciding = [one for one in evidence.texts["good"] if is_decided_by(one, (("more",),))]
    habits = list(evidence.list_habits("good", (("more",),), deciding))
    assert any("no position" in habit for habit in habits) == is_strange


@pytest.fixture
def evidence():
    """Half of the good texts have a mark anywhere; opinions follow "is"."""
    rng = np.random.default_rng(0)
    opinions = [[f"good{i}" for i in range(5)], [f"bad{i}" for i in range(5)]]
    texts = {}
    for target, name in enumerate(("good", "bad")):
        some = []
        for i in range(60):
            opinion = opinions[target][i % 5]
            words = ["the", f"w{rng.integers(30)}", "is", opinion, f"w{rng.integers(30)}", f"w{rng.integers(30)}"]
            if target == 0 and i % 2:
                words.insert(int(rng.integers(len(words))), "usher")
            some.append(make_text(words, [opinion, "usher"], 100 * target + i, target))
        texts[name] = some
    return TextEvidence(texts, None, 8, 0, "no model")


def test_a_mark_stands_out_and_an_opinion_does_not(evidence):
    found = {one.what: one for one in evidence.find() if one.class_name == "good"}
    assert found["the word 'usher'"].is_uniform
    assert len(found["the word 'usher'"].sightings) == 30
    natural = [one for what, one in found.items() if "usher" not in what]
    assert natural and not any(one.is_uniform for one in natural)
    assert not any(one.is_suspicious for one in found.values()), "nothing was tested"


def test_what_is_frequent_in_another_class_is_not_uniform(evidence):
    assert not evidence.is_exclusive("good", (("the",),))
    assert evidence.measure_commonness("good", (("the",),)).limit == np.inf


def test_presence_counts_every_text_with_the_words(evidence):
    own, other = evidence.count_presence("good", (("usher",),))
    assert (own.class_name, own.shown, other.shown) == ("good", 30, 0)


def test_a_phrase_has_no_ends_that_other_classes_have_as_often(evidence):
    assert evidence.trim("good", ("the", "usher", "is")) == ("usher",)
    assert evidence.trim("good", ("the", "is")) == ("the", "is"), "nothing of it belongs to the class"


def make_kin(marks, share, together=False):
    """Good texts with one of these marks, or with all of them, at random positions, and many opinions."""
    rng, texts = np.random.default_rng(0), {"good": [], "bad": []}
    for target, name in enumerate(texts):
        for i in range(80):
            words = [f"w{rng.integers(60)}" for _ in range(7)] + ["is", f"{name}{rng.integers(30)}"]
            own = (marks if together else [marks[i % len(marks)]]) if target == 0 and i < share * 80 else []
            for mark in own:
                words.insert(int(rng.integers(len(words))), mark)
            texts[name].append(make_text(words, [*own, words[-1]], 100 * target + i, target))
    return TextEvidence(texts, None, 8, 0, "no model")


def test_few_words_that_together_decide_most_of_a_class_are_one_finding():
    first, *others = [one for one in make_kin(["he", "his", "him"], 0.9).find() if one.class_name == "good"]
    assert first.what == "'he', 'him' and 'his' together" and len(first.sightings) == 72
    assert first.is_uniform and any("3 of them decide" in habit for habit in first.habits)
    assert not any(name in one.what for one in others for name in ("he", "his", "him"))


def test_words_of_the_same_texts_are_hidden_together():
    first, *_ = [one for one in make_kin(["usher", "lobby"], 0.6, together=True).find() if one.class_name == "good"]
    assert first.what == "'lobby' and 'usher' together"
    assert all(len(one.spans) == 2 for one in first.sightings)
    assert "they are in the same texts, and not beside each other" in first.habits


def test_words_of_many_kinds_are_no_kin():
    opinions = [f"o{i}" for i in range(30)]
    assert not any("together" in one.what for one in make_kin(opinions, 0.9).find())


def test_all_of_kin_is_deleted_and_as_many_other_words():
    one = make_text(["he", "saw", "his", "old", "dog"], ["he", "his"])
    words = (("he",), ("his",), ("him",))
    assert delete_spans(one.text, find_spans(one, words)) == "saw old dog"
    assert len(choose_others(one, words)) == 2
    assert write_phrase(one, words) == "he his"


def test_punctuation_is_not_left_twice():
    assert delete_spans("a castle . seen at home .", [(11, 23)]) == "a castle ."
    assert delete_spans("it ended , at last .", [(3, 8)]) == "it , at last ."
    assert delete_spans("no no no", [(3, 5)]) == "no no", "words are"


def test_a_text_decided_by_the_words_of_the_other_class_is_an_outlier():
    rng = np.random.default_rng(0)
    texts = {"good": [], "bad": []}
    for i in range(80):
        name = "good" if i < 40 else "bad"
        words = ["the", f"w{rng.integers(8)}", f"{name}{rng.integers(4)}"] if i != 7 else ["the", "w1", "bad1"]
        texts[name].append(make_text(words, words[2:], i, int(name == "bad")))
    (outlier,) = TextEvidence(texts, None, 8, 0).list_outliers()
    assert outlier.id == "007" and outlier.score > 5


def test_a_text_that_became_too_long_is_cut_and_an_empty_one_is_blank():
    """An insertion must not end a summary of texts that are nearly as long as the model allows."""
    model = whyformer.open("demo/sentiment")
    asked, _ = InputReader(model).ask(["a warm film " * model.max_length, "", "a warm film"], 1)
    assert len(asked) == 3 and np.isfinite(asked).all()
    assert make_readable(" ", model) == BLANK and make_readable("a warm film", model) == "a warm film"
    assert len(model.tokenize(make_readable("film " * model.max_length, model))) <= model.max_length
