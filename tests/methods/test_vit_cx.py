"""ViT-CX: feature maps as masks."""

import copy

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
from whyformer.methods.vit_cx import cluster_maps, enlarge_maps, make_masks, measure_overlap, scale_maps


def overlap_of(patches):
    """Patches that are not enlarged: each covers its own pixel."""
    return torch.eye(patches, dtype=torch.float64)


def test_maps_go_from_0_to_1():
    assert scale_maps(torch.tensor([[1.0, 3.0, 2.0], [5.0, 5.0, 5.0]]), (1, 3), (1, 3)).tolist() == [
        [0, 1, 0.5],
        [1, 1, 1],
    ]
    maps = scale_maps(torch.randn(70, 6, generator=torch.Generator().manual_seed(0)).double(), (2, 3), (4, 12))
    large = enlarge_maps(maps, (2, 3), (4, 12)).flatten(1)
    assert_close(large.amin(1), torch.zeros(70).double())
    assert_close(large.amax(1), torch.ones(70).double())


def test_maps_that_are_alike_become_one():
    """The first two point the same way; their sum, from 0 to 1 again, is that way too."""
    maps = torch.tensor([[0, 0.5, 1.0], [0, 0.5, 1.0], [1.0, 0, 0]]).double()
    found = make_masks(maps, (1, 3), (1, 3), 0.1, 100)
    assert sorted(found.tolist()) == [[[0, 0.5, 1]], [[1, 0, 0]]]
    assert len(make_masks(maps, (1, 3), (1, 3), 0.1, 1)) == 1


def test_maps_are_compared_as_large_as_the_image():
    """The inner products of enlarged maps, from those of enlarged patches."""
    maps = torch.rand(5, 6, generator=torch.Generator().manual_seed(0)).double()
    large = enlarge_maps(maps, (2, 3), (8, 12)).flatten(1)
    assert_close(maps @ measure_overlap((2, 3), (8, 12)) @ maps.T, large @ large.T)


def test_complete_linkage_keeps_the_farthest_two_within_the_distance():
    """A chain: neighbours are near, the ends are not, so not all three become one."""
    angles = torch.tensor([0.0, 0.4, 0.8]).double()
    maps = torch.stack([angles.cos(), angles.sin()], 1)
    near, far = 1 - torch.cos(torch.tensor(0.4)), 1 - torch.cos(torch.tensor(0.8))
    assert len(cluster_maps(maps, overlap_of(2), float(near + far) / 2, 100).unique()) == 2


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_the_definition_written_slowly(preset):
    """With a negative gain in the norm before the last attention, which turns a map over."""
    vit, pixels = copy.deepcopy(animal("vit").module), animal("vit").inputs["pixel_values"][1:2]
    norm = next(part for path, part in vit.named_modules() if path.endswith("2.layernorm_before"))
    with torch.no_grad():
        norm.weight[3] = -1.0
    model = why.open(vit)
    e = why.explain(model, pixels, "vit_cx", target=1, budget=5, seed=2, preset=preset)
    hidden = why.record(model, model.encode(pixels), target=1, keep={"hidden"})["hidden"]
    with torch.no_grad():
        before_last = norm(hidden[2])[0, 1:]  # three blocks, so boundary 2 enters the last; no CLS
    large = F.interpolate(before_last.T.reshape(24, 1, 4, 4), size=(16, 16), mode="bilinear").flatten(1)
    large = (large - large.amin(1, keepdim=True)) / (large.amax(1, keepdim=True) - large.amin(1, keepdim=True))
    label = cluster_maps(scale_maps(before_last.T, (4, 4), (16, 16)), measure_overlap((4, 4), (16, 16)), 0.1, 5)
    masks = [sum(large[c] for c in range(24) if label[c] == k) for k in range(5)]
    masks = [((m - m.min()) / (m.max() - m.min())).reshape(16, 16) for m in masks]
    assert e.details["masks"].item() == 5
    total, cover = torch.zeros(16, 16).double(), torch.zeros(16, 16).double()

    def p(image):
        with torch.no_grad():
            return vit(image).logits.softmax(-1)[0, 1]

    for i, mask in enumerate(masks):
        generator = make_generator(2, fingerprint_tensor(pixels[0].float()) * 1_000_003 + i)
        noise = 0.1 * torch.randn(3, 16, 16, dtype=torch.float64, generator=generator)
        effect = p(pixels * mask + noise * (1 - mask)) - p(pixels + noise * (1 - mask)) + p(pixels)
        total += (effect if preset == "released" else effect.clamp(min=0)) * mask
        cover += mask
    assert_close(e.pixels[0], total / cover / (5 if preset == "released" else 1))


def test_masks_are_made_as_large_as_the_picture():
    masks = enlarge_maps(torch.eye(4).double(), (2, 2), (4, 4))
    assert masks.shape == (4, 4, 4)
    assert masks[0, 0, 0] == 1 and masks[0, 3, 3] == 0


def test_costs_two_forwards_a_mask_and_keeps_to_the_budget():
    e = why.explain(animal("vit").module, animal("vit").inputs, "vit_cx", target=0, budget=3)
    assert e.details["masks"].tolist() == [3, 3, 3]
    assert e.spent["forward"] == 1 + 1 + 6


def test_refuses_a_text_and_a_picture_without_patches():
    with pytest.raises(MethodError, match="the input is no image"):
        why.explain(animal("bert").module, animal("bert").inputs, "vit_cx")
    with pytest.raises(MethodError, match="patches of this image are unknown"):
        vit_cx([torch.zeros(1, 1, 1)] * 2, Game(additive_game([1.0]), 1, is_image=True))
    with pytest.raises(MethodError, match="distance must be a number from 0 to 1, got 2"):
        vit_cx([torch.zeros(1, 1, 1)] * 2, Game(additive_game([1.0]), 1, is_image=True), distance=2)
