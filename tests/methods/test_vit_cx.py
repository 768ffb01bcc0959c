"""ViT-CX: feature maps as masks."""

import pytest
import torch
import torch.nn.functional as F
from conftest import animal
from games import Game, additive_game
from torch.testing import assert_close

import whyformer as why
from whyformer._plain.fingerprint import fingerprint_tensor
from whyformer._plain.random_generator import make_generator
from whyformer.errors import MethodError
from whyformer.methods import vit_cx
from whyformer.methods.vit_cx import enlarge_masks, make_feature_maps, merge_feature_maps, scale_feature_maps


def test_maps_go_from_0_to_1():
    assert scale_feature_maps(torch.tensor([[1.0, 3.0, 2.0], [5.0, 5.0, 5.0]])).tolist() == [[0, 1, 0.5], [1, 1, 1]]
    maps = make_feature_maps(torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).double())
    assert maps.shape == (4, 7)
    assert maps.amin(1).tolist() == [0] * 4 and maps.amax(1).tolist() == [1] * 4


def test_maps_that_are_alike_become_one():
    """The first two point the same way; their sum, from 0 to 1 again, is that way too."""
    maps = torch.tensor([[0, 0.5, 1.0], [0, 0.5, 1.0], [1.0, 0, 0]]).double()
    found = merge_feature_maps(maps, 0.1, 100)
    assert sorted(found.tolist()) == [[0, 0.5, 1], [1, 0, 0]]
    assert len(merge_feature_maps(maps, 0.1, 1)) == 1


def test_complete_linkage_keeps_the_farthest_two_within_the_distance():
    """A chain: neighbours are near, the ends are not, so not all three become one."""
    angles = torch.tensor([0.0, 0.4, 0.8]).double()
    maps = torch.stack([angles.cos(), angles.sin()], 1)
    near, far = 1 - torch.cos(torch.tensor(0.4)), 1 - torch.cos(torch.tensor(0.8))
    assert len(merge_feature_maps(maps, float(near + far) / 2, 100)) == 2


def test_the_definition_written_slowly():
    vit, pixels = animal("vit").module, animal("vit").inputs["pixel_values"][1:2]
    model = why.open(vit)
    e = why.explain(model, pixels, "vit_cx", target=1, budget=5, seed=2)
    hidden = why.record(model, model.encode(pixels), target=1, keep={"hidden"})["hidden"]
    before_last = F.layer_norm(hidden[2][0, 1:], (24,))  # three blocks, so boundary 2 enters the last; no CLS
    maps = torch.stack([(c - c.min()) / (c.max() - c.min()) for c in before_last.T])
    masks = enlarge_masks(merge_feature_maps(maps, 0.1, 5), (4, 4), (16, 16))
    assert len(masks) == 5 == e.details["masks"].item()
    total, cover = torch.zeros(16, 16).double(), torch.zeros(16, 16).double()

    def p(picture):
        with torch.no_grad():
            return vit(picture).logits.softmax(-1)[0, 1]

    for i, mask in enumerate(masks):
        generator = make_generator(2, fingerprint_tensor(pixels[0].float()) * 1_000_003 + i)
        noise = 0.1 * pixels.std() * torch.randn(3, 16, 16, dtype=torch.float64, generator=generator)
        effect = p(pixels * mask + noise * (1 - mask)) - p(pixels + noise * (1 - mask)) + p(pixels)
        total += effect * mask
        cover += mask
    assert_close(e.pixels[0], total / cover)


def test_masks_are_made_as_large_as_the_picture():
    masks = enlarge_masks(torch.eye(4).double(), (2, 2), (4, 4))
    assert masks.shape == (4, 4, 4)
    assert masks[0, 0, 0] == 1 and masks[0, 3, 3] == 0


def test_costs_two_forwards_a_mask_and_keeps_to_the_budget():
    e = why.explain(animal("vit").module, animal("vit").inputs, "vit_cx", target=0, budget=3)
    assert e.details["masks"].tolist() == [3, 3, 3]
    assert e.spent["forward"] == 1 + 1 + 6


def test_refuses_a_text_and_a_picture_without_patches():
    with pytest.raises(MethodError, match="the input is a text"):
        why.explain(animal("bert").module, animal("bert").inputs, "vit_cx")
    with pytest.raises(MethodError, match="patches of this image are unknown"):
        vit_cx([torch.zeros(1, 1, 1)] * 2, Game(additive_game([1.0]), 1, is_image=True))
    with pytest.raises(MethodError, match="distance must be a number from 0 to 1, got 2"):
        vit_cx([torch.zeros(1, 1, 1)] * 2, Game(additive_game([1.0]), 1, is_image=True), distance=2)
