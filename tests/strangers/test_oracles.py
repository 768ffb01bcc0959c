"""The oracles themselves: plain models are right by them, and what is wrong is called so."""

import random
from dataclasses import replace

import pytest
import torch
from strangers.draft import draw_draft
from strangers.kinds import EVERY
from strangers.oracle import Oracle, content
from strangers.outcome import NAMED, NEEDLESS, RAW, RIGHT, SILENT, ask

from whyformer.errors import UnsupportedModel

ASKED = (None, "attnlrp", "rollout", "gradient_x_input", "leave_one_out")


def plain(modality: str, seed: int = 0) -> Oracle:
    return Oracle(draw_draft(random.Random(seed), modality))


@pytest.mark.parametrize("modality", EVERY)
def test_a_plain_model_is_right_without_a_note(modality):
    oracle = plain(modality)
    assert {ask(oracle, method, {}).kind for method in ASKED} == {RIGHT}


@pytest.mark.parametrize("method", ASKED)
def test_scores_at_the_wrong_tokens_are_silently_wrong_unless_a_note_names_it(method, monkeypatch):
    oracle = plain("ids")
    asked = oracle.explain

    def answer_reversed(*args, notes=(), **settings):
        e = asked(*args, **settings)
        return replace(e, scores=e.scores.flip(1), notes=notes)

    monkeypatch.setattr(oracle, "explain", answer_reversed)
    assert ask(oracle, method, {}).kind == SILENT
    oracle.rules.names.append("order of the tokens")
    monkeypatch.setattr(
        oracle, "explain", lambda *a, **s: answer_reversed(*a, notes=("The order of the tokens?",), **s)
    )
    assert ask(oracle, method, {}).kind == NAMED


@pytest.mark.parametrize(("error", "kind"), [(UnsupportedModel("No."), NEEDLESS), (RuntimeError("No."), RAW)])
def test_a_plain_model_that_is_refused_is_refused_without_need(error, kind, monkeypatch):
    oracle = plain("series")

    def refuse(*args, **settings):
        raise error

    monkeypatch.setattr(oracle, "explain", refuse)
    assert ask(oracle, "rollout", {}).kind == kind


def test_shapley_values_sum_to_what_all_tokens_change():
    oracle = plain("ids")
    (scores,) = oracle.kernel_shap(0)
    given = {name: tensor[:1] for name, tensor in oracle.draft.strange.given.items()}
    (empty,) = oracle.remove(given, range(oracle.length))
    (value,) = oracle.values("score")
    with torch.no_grad():
        assert float(scores.sum()) == pytest.approx(value(given) - value(empty))


@pytest.mark.parametrize("modality", EVERY)
def test_the_planted_token_changes_the_answer_most_in_most_models(modality):
    oracles = [plain(modality, seed) for seed in range(10)]
    decided = [oracle.is_decided(row) for oracle in oracles for row in range(oracle.draft.batch)]
    assert sum(decided) > len(decided) / 2


def test_special_tokens_are_no_content():
    oracle = plain("image", seed=2)
    assert len(content(oracle.explain("rollout"), 0)) == 16
