"""Leave-one-out, occlusion, LIME and both forms of KernelSHAP agree with captum, with numbers stored by make_*.py.

The regressions are compared on the same samples, which neither library drew.
"""

import json
from pathlib import Path

import pytest
import torch
from oracles import small_models

import whyformer as why
from whyformer.methods._answers import read_clean_answers
from whyformer.methods._players import ask_coalitions, players_of
from whyformer.methods.kernel_shap import solve_shapley_values
from whyformer.methods.lime import fit_ridge, weigh_samples

SAID = json.loads(Path(__file__).with_name("captum_perturbations.json").read_text())["scores"]
NAMES = ["leave_one_out", "occlusion", "shapley", "lime", "kernel_shap"]
FILL = {"pictures": "zero", "words": "pad"}
both_kinds = pytest.mark.parametrize("kind", ["pictures", "words"])


def said(kind, name):
    return torch.tensor(SAID[kind][name], dtype=torch.double)


def assert_same(found, wanted, tolerance):
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= tolerance * wanted.abs().max()


@both_kinds
def test_ablation_is_leave_one_out(kind):
    module, inputs = getattr(small_models, kind)()
    e = why.explain(why.open(module), inputs, "leave_one_out", target=small_models.TARGETS, fill=FILL[kind])
    assert_same(e.scores, said(kind, "leave_one_out"), 1e-10)


@both_kinds
def test_occlusion_is_captums_shared_among_what_is_covered(kind):
    module, inputs = getattr(small_models, kind)()
    size = {"pictures": 1, "words": 2}[kind]
    e = why.explain(
        why.open(module), inputs, "occlusion", target=small_models.TARGETS, fill=FILL[kind], size=size, stride=1
    )
    assert_same(e.scores * size, said(kind, "occlusion"), 1e-6)  # captum counts in float32


@both_kinds
def test_all_coalitions_give_the_shapley_values(kind):
    module, inputs = getattr(small_models, kind)()
    e = why.explain(why.open(module), inputs, "kernel_shap", target=small_models.TARGETS, fill=FILL[kind])
    assert_same(e.scores, said(kind, "shapley"), 1e-5)  # captum adds up 720 orders in float32


@both_kinds
@pytest.mark.parametrize("name", ["lime", "kernel_shap"])
def test_the_same_samples_give_the_same_weights(kind, name):
    module, inputs = getattr(small_models, kind)()
    model = why.open(module)
    probe = why.record(model, model.encode(inputs), target=small_models.TARGETS, keep={"probe"})["probe"]
    team = players_of(probe, None)
    drawn = small_models.samples(team[0].count)
    with_none = torch.cat([torch.zeros_like(drawn[:1]), drawn])
    answers = ask_coalitions(probe, team, [with_none] * 2, fill=FILL[kind])
    if name == "lime":
        found = [fit_ridge(drawn, weigh_samples(drawn, 0.25), answer[1:], 1.0)[0] for answer in answers]
    else:
        found = [
            solve_shapley_values(drawn, torch.ones(len(drawn)), answer[1:] - answer[0], full - answer[0])
            for answer, full in zip(answers, read_clean_answers(probe, "score"), strict=True)
        ]
    assert_same(torch.stack(found), said(kind, name), 1e-6)


def test_all_that_is_stored_is_compared():
    assert all(sorted(methods) == sorted(NAMES) for methods in SAID.values())
