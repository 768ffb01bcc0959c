"""Planted truth: on hand-wired models, methods find the deciding token where their theory says so, and only there."""

import re
from functools import cache
from pathlib import Path

import pytest
import torch
from planted import BLIND, CONSTRUCTIONS, FINDS, ITEMS, SENTENCES, planted

import whyformer as why
from whyformer.methods._registry import METHODS

PAGE = Path(__file__).parents[1] / "docs" / "planted.md"
COMMAND = "python benchmarks/planted_truth.py"
FEWER = 20  # items, for perturbation methods; the page measures them on all items
BUDGETS = {
    "integrated_gradients": {"steps": 16},
    "kernel_shap": {"budget": 128},
    "lime": {"budget": 128},
    "partition_shap": {"budget": 64},
}
every_construction = pytest.mark.parametrize("name", CONSTRUCTIONS)


@cache
def hit_rates(name):
    """Of the quick methods with an entry in FINDS or BLIND, on all items."""
    named = {*FINDS[name], *BLIND[name], "chance", "transformer_attribution", "rollout", "gradient_x_input"}
    it = planted(name)
    found = why.compare(it.model, it.inputs, [m for m in sorted(named & set(METHODS)) if METHODS[m].is_quick])
    return {label: it.hits(e).double().mean().item() for label, e in found.explanations.items()}


def hit_rate(name, method):
    if method not in METHODS:
        pytest.skip(f"there is no {method} yet")
    if METHODS[method].is_quick:
        return hit_rates(name)[method]
    it = planted(name, FEWER)
    return it.hits(why.explain(it.model, it.inputs, method, **BUDGETS.get(method, {}))).double().mean().item()


# --- what theory says ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "method"), [(name, method) for name in FINDS for method in FINDS[name]])
def test_a_method_finds_what_decides_where_its_theory_says_so(name, method):
    assert hit_rate(name, method) >= 0.99


@pytest.mark.parametrize(("name", "method"), [(name, method) for name in BLIND for method in BLIND[name]])
def test_a_method_does_not_find_what_its_theory_cannot_see(name, method):
    assert hit_rate(name, method) <= 0.7


@every_construction
def test_chance_does_not_find_it(name):
    assert hit_rates(name)["chance"] <= 0.25


def test_what_theory_says_is_said_once():
    assert set(FINDS) == set(BLIND) == set(SENTENCES) == set(CONSTRUCTIONS)
    for name in CONSTRUCTIONS:
        assert not set(FINDS[name]) & set(BLIND[name])


# --- the truth itself ------------------------------------------------------------------------------------------------


def answers(it, inputs):
    return [target.index for target in why.explain(it.model, inputs, "chance").targets]


def replaced(text, change, places):
    return " ".join(change(word) if place in places else word for place, word in enumerate(text.split()))


OPPOSITE = {"good": "bad", "bad": "good", "great": "awful", "awful": "great", "look": "look", "word": "word"}


def other_word(word):
    kind, number = re.fullmatch(r"([a-z]+)(\d+)", word).groups()
    return f"{OPPOSITE[kind]}{(int(number) + 7) % (30 if kind == 'word' else 5)}"


def other_digit(word):
    return word if word.endswith("?") else f"{word[0]}{(int(word[1]) + 1) % 5}"


@pytest.mark.parametrize("name", ["lookup", "minus", "bag", "recall"])
def test_the_planted_word_decides_and_no_other(name):
    it, change = planted(name), other_digit if name == "recall" else other_word
    start = 1 if name in ("lookup", "minus") else 0  # CLS is no word of the text
    planted_only = [replaced(t, change, {int(place) - start}) for t, place in zip(it.inputs, it.truth, strict=True)]
    all_others = [
        replaced(t, change, set(range(99)) - {int(place) - start}) for t, place in zip(it.inputs, it.truth, strict=True)
    ]
    before = answers(it, it.inputs)
    assert answers(it, all_others) == before
    assert all(a != b for a, b in zip(answers(it, planted_only), before, strict=True))


@pytest.mark.parametrize("name", ["spot", "courier"])
def test_the_planted_patch_decides_and_no_other(name):
    it = planted(name)
    pictures = it.inputs["pixel_values"]
    turned = pictures[:, [1, 0, 2]]  # red for green
    at = torch.nn.functional.one_hot(it.truth, 16).view(-1, 1, 4, 4).bool()
    here = at.repeat_interleave(4, 2).repeat_interleave(4, 3)
    before = answers(it, it.inputs)
    assert sorted(set(before)) == [0, 1]
    assert answers(it, {"pixel_values": torch.where(here, pictures, turned)}) == before
    assert answers(it, {"pixel_values": torch.where(here, turned, pictures)}) == [1 - answer for answer in before]


@every_construction
def test_the_planted_place_is_not_always_the_same(name):
    places = planted(name).truth.unique()
    assert len(places) >= 5
    assert len(planted(name).truth) == ITEMS


def test_a_tie_is_a_miss():
    it = planted("spot")
    e = why.explain(it.model, it.inputs, "chance")
    flat = why.Explanation(**{**vars(e), "scores": torch.ones_like(e.scores)})
    assert not it.hits(flat).any()
    right = torch.nn.functional.one_hot(it.truth, 16)
    assert it.hits(why.Explanation(**{**vars(e), "scores": right})).all()


# --- the page --------------------------------------------------------------------------------------------------------


def table():
    """method -> construction -> hit rate, None if the method does not support the model."""
    rows = [line.strip("|\n ").split("|") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip(" *`†") for cell in row] for row in rows]
    return {row[0]: dict(zip(header[1:], map(number, row[1:]), strict=True)) for row in rows}


def number(cell):
    return None if cell == "-" else float(cell.rstrip(" %†")) / 100


def test_the_page_has_every_method_and_construction():
    found = table()
    assert sorted(found) == sorted(METHODS), f"run {COMMAND}"
    assert all(list(row) == list(CONSTRUCTIONS) for row in found.values())


@pytest.mark.parametrize("method", ["transformer_attribution", "rollout", "gradient_x_input", "chance"])
def test_the_page_says_what_is_measured(method):
    for name in CONSTRUCTIONS:
        assert table()[method][name] == pytest.approx(hit_rate(name, method), abs=0.011), f"run {COMMAND}"


def test_the_page_agrees_with_theory():
    found = table()
    for name in CONSTRUCTIONS:
        assert all(found[method][name] >= 0.99 for method in FINDS[name] if method in found)
        assert all(found[method][name] <= 0.7 for method in BLIND[name] if method in found)
