"""Targets of models that find objects: a query's class, or a side of its box."""

from functools import cache

import pytest
import torch
import transformers as hf

import whyformer as why
from whyformer import targets
from whyformer.errors import TargetError

PIXELS = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@cache
def make_finder():
    """Four queries and three classes of objects; the fourth logit means that there is none."""
    torch.manual_seed(0)
    config = hf.YolosConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=[16, 16],
        patch_size=8, num_detection_tokens=4, num_labels=3,
    )  # fmt: skip
    module = hf.YolosForObjectDetection(config).eval()
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return module


def explain(target=None):
    return why.explain(why.open(make_finder()), {"pixel_values": PIXELS}, "attnlrp", target=target)


def run():
    with torch.no_grad():
        return make_finder()(PIXELS)


def test_the_surest_query_is_explained_without_a_target():
    e, chances = explain(), run().logits.softmax(-1)[..., :-1]
    for row, target in enumerate(e.targets):
        query, label = divmod(int(chances[row].argmax()), 3)
        assert target.label == f"LABEL_{label} at query {query}"
        assert target.score == pytest.approx(run().logits[row, query, label].item(), rel=1e-5)
        assert target.probability == pytest.approx(chances[row].max().item(), rel=1e-5)


def test_a_class_is_that_of_the_query_that_is_surest_of_it():
    by_name, by_target = explain("LABEL_2"), explain(targets.Query(label=2))
    query = int(run().logits[0].softmax(-1)[:, 2].argmax())
    assert by_name.targets[0] == by_target.targets[0]
    assert by_name.targets[0].spec == f"query:{query}=#2"


@pytest.mark.parametrize(("side", "index"), [("x", 0), ("height", 3)])
def test_a_side_of_a_box(side, index):
    e = explain(targets.Query(1, side=side))
    assert e.targets[0].score == pytest.approx(run().pred_boxes[0, 1, index].item(), rel=1e-5)
    assert bool(e.scores.any())
    again = explain(targets.parse(e.targets[0].spec))
    assert torch.equal(again.scores[0], e.scores[0])


def test_what_there_is_not_is_refused():
    with pytest.raises(TargetError, match=r"There is no query 9. Queries are 0 to 3"):
        explain(targets.Query(9))
    with pytest.raises(TargetError, match=r"There is no class 3"):
        explain(targets.Query(0, 3))
    with pytest.raises(TargetError, match=r"no side 'depth'. Sides are: x, y, width, height"):
        explain(targets.Query(0, side="depth"))
    with pytest.raises(TargetError, match=r"Frame needs .*, but YolosForObjectDetection answers a class and a box"):
        explain(targets.Frame(0))
