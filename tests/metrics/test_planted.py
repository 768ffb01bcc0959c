"""Planted orderings: on 50 cases with known truth the perfect map beats a random one, and that the inverted one.

A case is a small data set, as metrics are used: the mean (or the figure made of parts) of its examples is compared. All
cases are measured in one batch and then told apart. Without a model the truth is a linear bag of units; with one it is
a transformer whose words add up to its logit.
"""

import pytest
import torch
from combined_values import combine_values
from fake_probe import FakeProbe, explanation, picture, text
from fake_rerun import FakeRerun
from torch import Tensor, nn

import whyformer as why
import whyformer.metrics
from whyformer._engine.record import record
from whyformer._plain.tokens import Pieces
from whyformer.metrics._registry import METRICS, Rationale, choose_metric, measure

CASES = 50
FAITHFUL = [name for name, one in METRICS.items() if one.kind == "faithfulness"]
TEXTUAL = [name for name in FAITHFUL if METRICS[name].only != "images"]
LOCAL = [name for name, one in METRICS.items() if one.kind == "localisation" and one.needs_truth == "mask"]
PLAUSIBLE = [name for name, one in METRICS.items() if one.kind == "plausibility"]
FEW = {"samples": 24, "fractions": (0.1, 0.3, 0.5, 0.7, 0.9)}  # quick enough to be asked of a model


def numbers(*shape, seed):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def figures(name, given, one, **settings):
    """[case]: the metric's figure of each case, so that higher is better."""
    chosen = choose_metric(name, settings)
    found = measure(chosen, {**given, "explanation": one})
    assert not found.value.isnan().any()
    values = found.value.chunk(CASES)
    parts = found.parts.chunk(CASES) if found.parts is not None else [None] * CASES
    sign = 1 if chosen.metric.better == "higher" else -1
    return torch.tensor([sign * combine_values(chosen.metric, v, p) for v, p in zip(values, parts, strict=True)])


def assert_in_order(name, given, perfect, chance, inverted, **settings):
    best, middle, worst = (figures(name, given, one, **settings) for one in (perfect, chance, inverted))
    assert len(best) == CASES
    assert (best > middle).all() and (middle > worst).all()


def effects_of(cases, units):
    """[example unit] of positive effects, a few of them large; the bias makes half of them decide the answer."""
    effects = numbers(cases, units, seed=0) ** 2
    return effects, -effects.sum(1) / 2, torch.zeros(cases, dtype=torch.long)


@pytest.mark.parametrize("name", FAITHFUL)
def test_faithfulness_to_patches(name):
    effects, bias, label = effects_of(CASES * (3 if name == "road" else 8), 16)  # road solves equations
    probe = FakeProbe(effects, grid=(4, 4), side=2, bias=bias)
    if name == "road":  # the effect is in bright pixels: a flat image would have nothing to remove
        bright = effects.reshape(-1, 1, 4, 4).repeat_interleave(2, 2).repeat_interleave(2, 3)
        probe.encoded.inputs["pixel_values"].copy_(bright)
    settings = {"per": "patch"} if "per" in METRICS[name].settings else {}
    settings |= {"fractions": (0.4,)} if name == "road" else {}
    maps = (picture(m, 4, 4) for m in (effects, numbers(*effects.shape, seed=1), -effects))
    assert_in_order(name, {"probe": probe, "label": label}, *maps, **settings)


@pytest.mark.parametrize("name", TEXTUAL)
def test_faithfulness_to_tokens(name):
    effects, bias, label = effects_of(CASES * 8, 12)
    probe = FakeProbe(effects, bias=bias)
    maps = (text(m) for m in (effects, numbers(*effects.shape, seed=1), -effects))
    assert_in_order(name, {"probe": probe, "label": label}, *maps)


@pytest.mark.parametrize("name", ["positive_perturbation", "negative_perturbation", "deletion", "insertion", "saco"])
def test_faithfulness_to_pixels(name):
    """A map of pixels, on which every pixel has an effect of its own."""
    effects, bias, label = effects_of(CASES * 8, 64)
    probe = FakeProbe(effects, grid=(8, 8), bias=bias)
    maps = (
        picture(torch.zeros(len(m), 16), 4, 4, pixels=m.reshape(-1, 8, 8))
        for m in (effects, numbers(*effects.shape, seed=1), -effects)
    )
    assert_in_order(name, {"probe": probe, "label": label}, *maps)


@pytest.mark.parametrize("name", LOCAL)
def test_localisation(name):
    """A box of patches is the object; maps are 1 on it and 0 elsewhere, random, and 0 on it and 1 elsewhere."""
    examples = 24 if name == "pointing_game" else 10  # that one is 0 or 1
    truth = torch.zeros(CASES * examples, 6, 6, dtype=torch.float64)
    for one, (top, left) in zip(truth, (numbers(len(truth), 2, seed=0) * 3).long().tolist(), strict=True):
        one[top : top + 4, left : left + 4] = 1
    masks = [one.repeat_interleave(2, 0).repeat_interleave(2, 1).long() for one in truth]
    flat = truth.flatten(1)
    maps = (picture(m, 6, 6) for m in (flat, numbers(*flat.shape, seed=1), 1 - flat))
    assert_in_order(name, {"mask": masks}, *maps)


@pytest.mark.parametrize("case", range(CASES))
def test_localisation_without_masks(case):
    """The grid game, one batch per case: the perfect map is where the grid shows the image's own colour."""
    colours = torch.randperm(50, generator=torch.Generator().manual_seed(case))[:8].double() + 1
    pictures = colours[:, None, None, None].expand(-1, 1, 8, 8).clone()
    targets = tuple(why.Target(index=i, label=str(i), score=0.0) for i in range(8))
    e = picture(torch.zeros(8, 64), 8, 8, targets=targets)

    def own(inputs, of, **_):
        return (inputs[:, 0].round() == colours[of][:, None, None]).double().flatten(1)

    makers = (own, lambda inputs, **_: numbers(len(inputs), 64, seed=case), lambda **given: 1 - own(**given))
    chosen = choose_metric("grid_pointing_game")
    given = ({"explanation": e, "rerun": FakeRerun(e, pictures, make)} for make in makers)
    best, middle, worst = (measure(chosen, one).value.mean() for one in given)
    assert best > middle > worst


@pytest.mark.parametrize("name", PLAUSIBLE)
def test_plausibility(name):
    """Texts of 20 words with a marked run of five."""
    spans = tuple((5 * i, 5 * i + 4) for i in range(20))
    tokens = Pieces(("word",) * 20, (False,) * 20, (False,) * 20, spans, " ".join(["word"] * 20))
    truth = torch.zeros(CASES * 4, 20, dtype=torch.float64)
    for one, start in zip(truth, (numbers(len(truth), seed=0) * 16).long().tolist(), strict=True):
        one[start : start + 5] = 1
    marks = [Rationale(one.long().tolist()) for one in truth]
    maps = [explanation(m, (tokens,) * len(m)) for m in (truth, numbers(*truth.shape, seed=1), -truth)]
    if name == "iou_f1":  # whole runs: noise seldom finds one, and sometimes none in a case
        best, middle, worst = (figures(name, {"rationale": marks}, one) for one in maps)
        assert (best == 1).all() and (middle < 0.7).all() and (worst == 0).all() and middle.mean() > 0
    else:
        few = {"k": 5} if name == "answer_tokens" else {}  # all 20 tokens of a text are in its top 20
        assert_in_order(name, {"rationale": marks}, *maps, **few)


# --- through a real model ---------------------------------------------------------------------------------------------


class Bag(nn.Module):
    """A transformer of which only the skip connections carry anything: its logit is the sum of its words' effects."""

    def __init__(self, effects: Tensor, bias: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(effects), 2, _weight=torch.stack([effects, torch.zeros_like(effects)], 1))
        self.query, self.value = nn.Linear(2, 2), nn.Linear(2, 2)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)
        self.bias = bias

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids)
        scores = (self.query(x) @ x.transpose(-1, -2)).masked_fill(~attention_mask[:, None, :].bool(), -1e9)
        x = x + scores.softmax(-1) @ self.value(x)
        logit = (x[..., 0] * attention_mask).sum(1) + self.bias
        return torch.stack([logit, torch.zeros_like(logit)], -1)


@pytest.fixture(scope="module")
def bag():
    """A probe on 50 cases of six texts of 8 to 12 words, and the effects of their words."""
    effects = numbers(60, seed=0) ** 2
    effects[0] = 0  # padding
    ids = (numbers(CASES * 6, 12, seed=1) * 59).long() + 1
    mask = torch.arange(12)[None] < 8 + (numbers(CASES * 6, 1, seed=2) * 5).long()
    ids = torch.where(mask, ids, 0)
    model = why.open(Bag(effects, bias=-1.5).double())
    encoded = model.encode({"input_ids": ids, "attention_mask": mask.long()})
    return record(model, encoded, target=0, keep={"probe"})["probe"], effects[ids]


@pytest.mark.parametrize("name", TEXTUAL)
def test_faithfulness_through_a_model(name, bag):
    probe, truth = bag
    settings = {key: value for key, value in FEW.items() if key in METRICS[name].settings}
    maps = (explanation(m, probe.tokens) for m in (truth, numbers(*truth.shape, seed=3), -truth))
    label = torch.zeros(len(truth), dtype=torch.long)
    assert_in_order(name, {"probe": probe, "label": label}, *maps, **settings)


def test_the_model_adds_up_as_it_says(bag):
    probe, truth = bag
    torch.testing.assert_close(probe.before.score, truth.sum(1) - 1.5)
    keep = torch.ones(1, 12, dtype=torch.bool)
    keep[0, 3] = False
    for fill in ("delete", "pad"):
        gone = probe.keep_only(keep, torch.tensor([0]), fill).score
        torch.testing.assert_close(gone, truth[:1].sum(1) - 1.5 - truth[:1, 3])
