"""AttCAT's released protocol on a real model, recomputed in numpy: sizes in ninths, two fills, tau, rivals."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau
from tiny_text import WORDS, bert, wordpiece

import whyformer as why
from whyformer.metrics import aopc, class_discrimination, log_odds
from whyformer.metrics._registry import choose_metric, measure
from whyformer.metrics._rerun import Rerun

TEXT = "the film is not good , not good at all ! a bad film"
PAD = WORDS.index("[PAD]")


@pytest.fixture(scope="module")
def held():
    model = why.open(bert(max_position_embeddings=32), tokenizer=wordpiece())
    encoded = model.encode(TEXT)
    e = why.explain(model, encoded, "attcat", target=1)
    return model, encoded, e, why.record(model, encoded, target=1, keep={"probe"})["probe"]


def ask(model, ids):
    """The probability of class 1, from the module itself."""
    with torch.no_grad():
        return model.module(input_ids=torch.tensor([ids])).logits.softmax(-1)[0, 1].item()


def remove_in_ninths(model, encoded, scores, fill):
    """The probabilities with the top tokens deleted or replaced by padding that is attended to, as the code does."""
    ids = encoded.inputs["input_ids"][0].tolist()
    special = encoded.special_mask[0].tolist()
    order = np.argsort(-scores, kind="stable")[:-1]  # the lowest-ranked token is never removed
    order = [i for i in order if not special[i]]
    found = []
    for size in np.round(np.linspace(0, 1, 10) * len(ids)).astype(int)[1:]:
        gone = set(order[:size])
        if fill == "delete":
            found.append(ask(model, [token for i, token in enumerate(ids) if i not in gone]))
        else:
            found.append(ask(model, [PAD if i in gone else token for i, token in enumerate(ids)]))
    return np.array(found), ask(model, ids)


@pytest.mark.parametrize("fill", ["delete", "pad_token"])
def test_aopc_and_log_odds_against_numpy(held, fill):
    model, encoded, e, probe = held
    after, before = remove_in_ninths(model, encoded, e.scores[0].double().numpy(), fill)
    given = {"explanation": e, "probe": probe}
    released = measure(choose_metric(partial(aopc, preset="released", fill=fill)), given)
    assert released.value.item() == pytest.approx(np.abs(before - after).mean(), abs=1e-6)
    np.testing.assert_allclose(released.curve[0], np.abs(before - after), atol=1e-6)
    odds = measure(choose_metric(partial(log_odds, preset="released", fill=fill)), given).value.item()
    assert odds == pytest.approx(np.log(after / before).mean(), abs=1e-6)


def test_padding_that_is_attended_to_is_not_the_same_as_padding(held):
    _, _, e, probe = held
    given = {"explanation": e, "probe": probe}
    values = [
        measure(choose_metric(partial(log_odds, preset="released", fill=fill)), given).value.item()
        for fill in ("pad", "pad_token")
    ]
    assert abs(values[0] - values[1]) > 1e-3
    by_default = measure(choose_metric(partial(log_odds, preset="released")), given).value.item()
    assert by_default == values[1]


@pytest.mark.parametrize("on", ["scores", "positions"])
@pytest.mark.parametrize(("other", "rival"), [((1, 0, 1), 0), ((2, 2, 0), 2), (0, 0), ("positive", 2)], ids=str)
def test_tau_with_a_named_rival_against_scipy(held, on, other, rival):
    model, encoded, e, probe = held
    given = {"explanation": e, "probe": probe, "rerun": Rerun(model, encoded, e)}
    value = measure(choose_metric(partial(class_discrimination, other=other, on=on)), given).value.item()
    mine, theirs = (why.explain(model, encoded, "attcat", target=t).scores[0].numpy() for t in (1, rival))
    if on == "positions":
        mine, theirs = (np.argsort(-scores, kind="stable") for scores in (mine, theirs))
    else:
        content = ~np.array(e.tokens[0].special)
        mine, theirs = mine[content], theirs[content]
    assert value == pytest.approx(kendalltau(mine, theirs).statistic, abs=1e-6)


def test_its_own_class_is_no_rival(held):
    model, encoded, e, probe = held
    given = {"explanation": e, "probe": probe, "rerun": Rerun(model, encoded, e)}
    assert math.isnan(measure(choose_metric(partial(class_discrimination, other=(2, 1, 0))), given).value.item())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ((1, 0), "one class for each of the 3 classes, got 2"),
        ((1, 0, 3), "a class from 0 to 2, got 3"),
        ("great", "one of negative, neutral, positive, got 'great'"),
        (-1, "or a list with one for each class"),
        ((1, "x", 0), "or a list with one for each class"),
    ],
    ids=str,
)
def test_rivals_that_do_not_exist(held, other, message):
    model, encoded, e, probe = held
    given = {"explanation": e, "probe": probe, "rerun": Rerun(model, encoded, e)}
    with pytest.raises(why.errors.MetricError, match=message):
        measure(choose_metric(partial(class_discrimination, other=other)), given)


def test_metrics_of_the_same_variants_share_the_answers(held):
    model, encoded, e, _ = held
    probe = why.record(model, encoded, target=1, keep={"probe"})["probe"]
    given = {"explanation": e, "probe": probe}
    deleted = [partial(metric, preset="released", fill="delete") for metric in (aopc, log_odds)]
    spent = []
    for call in (*deleted, partial(aopc, preset="released", fill="pad_token")):
        measure(choose_metric(call), given)
        spent.append(probe.spent["forward"])
    assert spent[0] == spent[1] < spent[2]
    other = replace(e, scores=e.scores.flip(1))
    alone = why.record(model, encoded, target=1, keep={"probe"})["probe"]
    found = measure(choose_metric(deleted[0]), {"explanation": other, "probe": probe})
    assert found.value.equal(measure(choose_metric(deleted[0]), {"explanation": other, "probe": alone}).value)
    assert probe.spent["forward"] > spent[2]


def test_remembered_answers_of_other_weights_are_refused():
    model = why.open(bert(max_position_embeddings=32), tokenizer=wordpiece())
    e = why.explain(model, TEXT, "attcat", target=1)
    probe = why.record(model, model.encode(TEXT), target=1, keep={"probe"})["probe"]
    given = {"explanation": e, "probe": probe}
    aopc(**given)
    with torch.no_grad():
        model.module.classifier.weight.mul_(2)
    with pytest.raises(why.errors.ModelError, match="weights changed"):
        aopc(**given)
