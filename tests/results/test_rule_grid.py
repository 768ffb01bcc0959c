"""Heads x rules: each cell is the map of one head, the last column their mean."""

import pytest
import torch
from transformers import ViTConfig, ViTModel

from whyformer._explain.compare import compare_redistribution
from whyformer._explain.explain import explain
from whyformer._model.loading import open as opened
from whyformer.errors import InputError, MethodError


@pytest.fixture(scope="module")
def dino():
    """A model as DINO's ViTs: no head, ImageNet's size of patch, small."""
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=24, num_hidden_layers=3, num_attention_heads=6, intermediate_size=48, image_size=64, patch_size=16
    )
    return opened(ViTModel(config, add_pooling_layer=False).eval())


PIXELS = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def test_a_model_without_classes_has_one_map_per_head_and_rule(dino):
    grid = compare_redistribution(dino, PIXELS)
    assert grid.rules == ("i", "ii", "iii", "iv")
    assert grid.columns == [*(f"head {n}" for n in range(1, 7)), "mean of heads"]
    for rule in grid.rules:
        alone = explain(dino, PIXELS, "redistribution", rule=rule)
        for head in range(6):
            torch.testing.assert_close(grid.heads[rule][head].scores[0], alone.details["per_head"][0, head, 1:])
        mean = torch.stack([one.scores for one in grid.heads[rule]]).mean(0)
        torch.testing.assert_close(grid.means[rule].scores, mean)
        assert float(mean.sum() + alone.details["retained"][0]) == pytest.approx(1, abs=1e-5)


def test_saved_and_shown(dino, tmp_path):
    grid = compare_redistribution(dino, PIXELS, rules=["i", "iv"])
    assert [name for name, _ in grid.rows()] == ["rule (i)", "rule (iv)"]
    assert repr(grid) == "<RuleGrid of 6 heads by rules i, iv>" and "rule (iv)" in str(grid)
    for suffix in (".png", ".svg", ".html"):
        grid.save(tmp_path / f"rules{suffix}")
    assert "rule (iv)" in (tmp_path / "rules.html").read_text() and "head 6" in grid.to_html()


@pytest.mark.parametrize("rules", [[], "i", ["v"], ["i", 2]])
def test_only_rules_of_redistribution(dino, rules):
    with pytest.raises(MethodError, match="rules must be some of i, ii, iii, iv"):
        compare_redistribution(dino, PIXELS, rules)


def test_one_input_at_a_time(dino):
    with pytest.raises(InputError, match="takes one input, got 2"):
        compare_redistribution(dino, PIXELS.repeat(2, 1, 1, 1))
