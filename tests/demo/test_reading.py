"""The generated texts with questions: a second, slower reader finds the same answers from the evidence alone."""

from collections import Counter

import pytest

from whyformer.errors import InputError
from whyformer_papers.worlds.reading import (
    LEAVES,
    MOVES,
    PLACES,
    READING_TASKS,
    RELATIONS,
    TAKES,
    THINGS,
    TRAITS,
    VERDICTS,
    find_reading_task,
    generate_reading,
)

every_task = pytest.mark.parametrize("task", READING_TASKS)


def split_sentences(text):
    return [sentence.strip() for sentence in text.split(" . ")] if " . " in text else [text.strip()]


def follow_story(text):
    """Where every thing was, in order, by reading the sentences one after the other."""
    places, holders, paths = {}, {}, {thing: [] for thing in THINGS}
    for sentence in (part.rstrip(" .") for part in split_sentences(text)):
        words = sentence.split()
        thing = next((t for t in THINGS if t in words), None)
        if thing is None:
            assert any(move in sentence for move in MOVES)
            places[words[0]] = words[-1]
            for held, holder in holders.items():
                if holder == words[0]:
                    paths[held].append(words[-1])
        elif any(f" {take} the" in sentence for take in TAKES):
            assert thing not in holders and (not paths[thing] or paths[thing][-1] == places[words[0]])
            holders[thing] = words[0]
            paths[thing] += [] if paths[thing] else [places[words[0]]]
        else:
            assert any(f" {leave} the" in sentence for leave in LEAVES) and holders.pop(thing) == words[0]
    return places, paths


def test_the_stories_say_what_is_answered():
    for example in generate_reading("babi-1", 50):
        assert follow_story(example.text)[0][example.question.split()[2]] == example.answer
    for example in generate_reading("babi-2", 50):
        assert follow_story(example.text)[1][example.question.split()[3]][-1] == example.answer
    for example in generate_reading("babi-3", 50):
        _, _, _, thing, _, _, place, _ = example.question.split()
        assert follow_story(example.text)[1][thing][-2:] == [example.answer, place]


def test_the_evidence_alone_says_it_too():
    """One, two and three sentences of a story; the answer is in one of them."""
    for task, most in (("babi-1", 1), ("babi-2", 2), ("babi-3", 4)):
        for example in generate_reading(task, 50):
            words = example.text.split()
            evidence = [words[i] for i in example.evidence]
            assert example.answer in evidence and 1 <= evidence.count(".") <= most
    for example in generate_reading("cnn", 50):
        evidence = [example.text.split()[i] for i in example.evidence]
        verb = next(verb for verb, other in RELATIONS.items() if f" {other} " in f" {example.question} ")
        asked = next(word for word in example.question.split() if word.startswith("@entity"))
        assert verb in evidence and {asked, example.answer} <= set(evidence) and evidence.count(".") == 1


def test_premise_and_hypothesis():
    values = {value: trait for trait, known in TRAITS.items() for value in known}
    for example in generate_reading("snli", 200):
        subject = example.question.split()[1]
        asked = next(word for word in example.question.split() if word in values)
        clause = next(part.split() for part in example.text.rstrip(" .").split(" while ") if subject in part.split())
        told = next((word for word in clause if values.get(word) == values[asked]), None)
        assert example.answer == ("neutral" if told is None else "entailment" if told == asked else "contradiction")


def test_the_hypothesis_alone_says_nothing():
    examples = generate_reading("snli", 3000)
    total = Counter(example.answer for example in examples)
    for word in {word for example in examples for word in example.question.split()}:
        with_word = Counter(example.answer for example in examples if word in example.question.split())
        shares = [with_word[verdict] / total[verdict] for verdict in VERDICTS]
        assert max(shares) - min(shares) < 0.07, word


@every_task
def test_examples_differ_and_depend_on_the_seed_only(task):
    examples = generate_reading(task, 30, seed=5)
    assert len({example.pair for example in examples}) == 30
    assert examples == generate_reading(task, 30, seed=5) != generate_reading(task, 30, seed=6)
    assert {example.answer for example in examples} <= set(find_reading_task(task).answers)


def test_entities_are_anonymous():
    """No entity is the answer much more often than another."""
    counts = Counter(example.answer for example in generate_reading("cnn", 1000))
    assert len(counts) == 10 and max(counts.values()) < 150
    assert set(PLACES) == {example.answer for example in generate_reading("babi-1", 100)}


def test_what_is_not_there_is_refused():
    with pytest.raises(InputError, match=r"no reading task 'babi'.*Available: babi-1"):
        generate_reading("babi", 1)
    with pytest.raises(InputError, match="count must be"):
        generate_reading("cnn", -1)
