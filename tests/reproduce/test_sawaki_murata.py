"""What Sawaki & Murata say in words, measured: values that converge, and what each rule and head covers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import whyformer as why
from whyformer._engine import record
from whyformer.demo import shapes
from whyformer.methods.redistribution import RULES
from whyformer_papers.rule_cover import forget_training, measure_cover, measure_rule_cover
from whyformer_papers.value_convergence import (
    cosine_of_pairs,
    measure_value_convergence,
    pair_at_random,
    pair_neighbours,
)


@pytest.fixture(scope="module")
def model():
    return why.open("demo/shapes")


def test_neighbours_share_a_side():
    pairs = {tuple(pair) for pair in pair_neighbours(2, 3).T.tolist()}
    assert pairs == {(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)}
    first, second = pair_at_random(9, seed=3)
    assert first.tolist() == list(range(9)) and not (first == second).any()


def test_cosines_of_pairs_by_hand():
    """Less their mean (1, 0), the values are (1, 0), (-1, 0), (0, 1) and (0, -1)."""
    value = torch.tensor([[[2.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, -1.0]]])
    assert cosine_of_pairs(value, torch.tensor([[0], [1]])) == pytest.approx(-1)
    assert cosine_of_pairs(value, torch.tensor([[0, 0], [1, 2]])) == pytest.approx(-0.5)


def test_layers_and_heads_written_slowly(model):
    images = [Image.fromarray(picture) for picture in shapes.generate(2, seed=5).images]
    found = measure_value_convergence(model, images)
    slow = 0.0
    for image in images:
        capture = record(model, model.encode(image), keep={"projected", "hidden"})
        end = capture["hidden"][-1][0, 0]
        patches = range(1, capture["hidden"][0].size(1))
        written = capture["projected"][1][0, 2]
        cosines = [float(written[j] @ end / written[j].norm() / end.norm()) for j in patches]
        slow += sum(cosines) / len(cosines) / len(images)
    assert float(found.to_end[1, 2]) == pytest.approx(slow, abs=1e-5)
    rows = found.outline().rows
    assert len(rows) == 1 + len(found.states)
    assert rows[2][3] == f"{float(found.to_end[1].mean()):+.2f}"
    assert found.draw().alt and found.draw_heads().alt


def test_covered_and_precise_by_hand(model):
    image = Image.fromarray(shapes.generate(1, seed=5).images[0])
    explained = why.explain(model, image, "rollout")
    mask = np.zeros(image.size, dtype=np.int8)
    mask[: mask.shape[0] // 2] = 1
    flat = torch.zeros_like(explained.scores)
    flat[:, : flat.size(1) // 2] = 1  # the upper half of the patches
    covered, precise = measure_cover(replace(explained, scores=flat, pixels=None), mask)
    assert covered == pytest.approx(1, abs=0.05) and precise == pytest.approx(1, abs=0.05)
    covered, precise = measure_cover(replace(explained, scores=-flat, pixels=None), mask)
    assert covered == pytest.approx(0, abs=0.05) and precise == pytest.approx(0, abs=0.05)


def test_the_untrained_twin_is_another_model_and_the_trained_one_is_untouched(model):
    before = {name: weight.clone() for name, weight in model.module.state_dict().items()}
    twin = forget_training(model)
    assert any(not torch.equal(before[name], weight) for name, weight in twin.module.state_dict().items())
    assert all(torch.equal(before[name], weight) for name, weight in model.module.state_dict().items())
    again = forget_training(model)
    pairs = zip(twin.module.state_dict().values(), again.module.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_row_for_each_rule_trained_and_untrained(model):
    made = measure_rule_cover(model, why.data.read("demo/shapes", limit=2))
    rows = made.outline().rows
    wanted = [f"{which}, rule ({rule})" for which in ("trained", "untrained") for rule in RULES]
    assert [row[0] for row in rows[1:]] == wanted
    assert len(made.describe_orders()) == 3
    assert all(0 <= share <= 1 for found in made.values.values() for share in found.flatten())
