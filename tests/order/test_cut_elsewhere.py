"""Vision models that crop, frame or turn the image before they cut patches, written as a stranger would."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import whyformer as why

STEPS = {
    "centre crop": lambda x: x[:, :, 4:28, 4:44],
    "frame": lambda x: F.pad(x, (4, 4, 4, 4)),
    "turned": lambda x: x.transpose(2, 3),
    "as given": lambda x: x,
    "border at the end": lambda x: F.pad(x, (0, 8, 0, 8)),
    "mirrored": lambda x: x.flip(3),
    "corner crop": lambda x: x[:, :, :24, :40],
}


class Vision(nn.Module):
    def __init__(self, step):
        super().__init__()
        self.step, self.cut = step, nn.Conv2d(3, 16, 8, 8)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, pixels):
        return self.head(self.blocks(self.cut(self.step(pixels)).flatten(2).transpose(1, 2)).mean(1))


def explain(name, method="leave_one_out"):
    torch.manual_seed(0)
    model, image = Vision(STEPS[name]).eval(), torch.randn(1, 3, 32, 48)
    return model, image, why.explain(model, image, method, target=1, fill="zero")


@pytest.mark.parametrize("name", ["centre crop", "frame", "turned", "border at the end"])
def test_patches_that_are_cut_elsewhere_are_noted(name):
    _, _, found = explain(name)
    assert [note for note in found.notes if "crops, turns or frames the image" in note]


@pytest.mark.parametrize("name", ["as given", "mirrored", "corner crop"])
def test_patches_that_begin_at_the_first_pixel_are_right_without_a_note(name):
    model, image, found = explain(name)
    assert found.notes == ()
    grid = found.map()
    for row, column in [(0, 0), (1, 3), (2, 4)]:
        without = image.clone()
        without[:, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 0
        with torch.no_grad():
            by_hand = (model(image) - model(without))[0, 1]
        assert torch.isclose(grid[row, column].float(), by_hand, atol=1e-5)
