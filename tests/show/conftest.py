"""Explanations to draw, and a model whose attention is known."""

import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import CLIPImageProcessor, ViTImageProcessor

from whyformer._model.loading import open as open_model
from whyformer._model.model import Model
from whyformer.results.explanation import Explanation

sys.path.append(str(Path(__file__).parent))
from sample_explanations import explain_text

SIDE, PATCH = 96, 12  # of the input of the hand-made model: 8 x 8 patches


class Reddest(nn.Module):
    """Attention goes to the reddest patch alone, so one patch decides the prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 2, PATCH, PATCH, bias=False)
        self.head = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.cut.weight.zero_()
            self.cut.weight[0, 0] = 1 / PATCH**2  # how red
            self.cut.weight[0, 1] = -1 / PATCH**2
            self.cut.weight[1] = 0.1 / PATCH**2
            self.head.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))

    def forward(self, pixel_values: Tensor) -> Tensor:
        tokens = self.cut(pixel_values).flatten(2).transpose(1, 2)
        red = 12 * tokens[..., :1]
        attention = (red.new_ones(red.shape) @ red.transpose(1, 2)).softmax(-1)
        return self.head((attention @ tokens).mean(1))


def processor(kind: str) -> object:
    sizes = {
        "squeezed": ViTImageProcessor(size={"height": SIDE, "width": SIDE}),
        "cropped": CLIPImageProcessor(size={"shortest_edge": 112}, crop_size={"height": SIDE, "width": SIDE}),
        "shortest": CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}),
    }
    return sizes[kind]


@pytest.fixture(scope="session")
def model_by_hand():
    @cache
    def make(kind: str) -> Model:
        return open_model(Reddest().eval(), processor=processor(kind), labels=["red", "other"])

    return make


@pytest.fixture
def text_explanation() -> Explanation:
    return explain_text("not a good\nfilm", [(0, 3), (4, 5), (6, 8), (8, 10), (11, 15)], [-1.0, 0.0, 0.5, 1.0, 0.25])
