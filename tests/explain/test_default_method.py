"""Without a method, explain() takes the one that was measured best for the kind of input."""

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import whyformer as why
from whyformer._explain.default_method import DEFAULT_METHODS, IMAGE_METHOD, TEXT_METHOD
from whyformer.cli import app
from whyformer.errors import UnsupportedModel
from whyformer.methods._registry import METHODS


@pytest.mark.parametrize(
    ("model", "given", "method"),
    [
        ("demo/untrained-vit", torch.zeros(1, 3, 32, 32), IMAGE_METHOD),
        ("demo/agreement", "the keys to the cabinet ___ old", TEXT_METHOD),
        ("demo/decoder", "the keys to the cabinet", TEXT_METHOD),
    ],
)
def test_the_default_follows_the_kind_of_input(model, given, method):
    opened = why.open(model)
    if isinstance(given, torch.Tensor):
        given = torch.rand(1, 3, *[opened.module.config.image_size] * 2, generator=torch.Generator().manual_seed(0))
    assert why.explain(opened, given).method == method


class Sensor(nn.Module):
    """A classifier of sequences of numbers, neither images nor texts."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


def test_a_sequence_of_numbers_is_explained_like_a_text():
    torch.manual_seed(0)
    assert why.explain(Sensor().eval(), torch.randn(2, 5, 8)).method == TEXT_METHOD


class WithoutBlocks(nn.Module):
    """Attention without a skip connection, written into forward(): no module is a block, and there is no stream."""

    def __init__(self):
        super().__init__()
        self.embed, self.joint, self.head = nn.Embedding(20, 16), nn.Linear(16, 48), nn.Linear(16, 3)

    def forward(self, ids):
        x = self.embed(ids)
        query, key, value = self.joint(x).chunk(3, -1)
        return self.head(((query @ key.mT / 4).softmax(-1) @ value)[:, 0])


def test_a_model_without_blocks_is_explained_by_the_stand_in_with_a_note():
    torch.manual_seed(0)
    model, ids = WithoutBlocks().eval(), torch.arange(6)[None]
    e = why.explain(model, ids)
    assert e.method == "attnlrp"
    assert any(
        note.startswith("attnlrp was used, since libragrad, the default, does not work here") for note in e.notes
    )
    assert torch.equal(e.scores, why.explain(model, ids, "attnlrp").scores)
    with pytest.raises(UnsupportedModel, match=r"[Nn]o block"):
        why.explain(model, ids, "libragrad")


def test_a_named_method_is_taken_as_it_is():
    assert why.explain("demo/agreement", "the keys ___ old", "rollout").method == "rollout"


def test_generation_and_classes_use_the_same_defaults():
    generated = why.explain_generation("demo/decoder", "the keys to the cabinet", max_new_tokens=2)
    assert {step.method for step in generated} == {TEXT_METHOD}
    grid = why.explain_classes("demo/agreement", "the keys ___ old", classes=1)
    assert next(iter(grid[0].explanations)) == TEXT_METHOD


def test_defaults_depend_on_the_class_and_take_at_most_one_pass_of_each_kind():
    for name in DEFAULT_METHODS.values():
        assert METHODS[name].class_specific and METHODS[name].is_quick


def test_the_list_of_methods_marks_the_defaults():
    listed = json.loads(CliRunner().invoke(app, ["methods", "--json"]).stdout)
    marked = {row["name"]: row["default_for"] for row in listed if row["default_for"]}
    assert marked == {IMAGE_METHOD: ["images"], TEXT_METHOD: ["texts"]}
