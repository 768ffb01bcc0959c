"""Relevance of one token: the same scores with less work, and no more than that."""

import pytest
import torch
from conftest import FAMILIES
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, ViTConfig, ViTForImageClassification

import whyformer as why
from whyformer._engine.relevance import calls, one_token
from whyformer._engine.relevance.one_token import OneToken, find_token, mark, token_of


def explain_both_ways(monkeypatch, model, inputs, method, **settings):
    monkeypatch.setattr(one_token, "IS_USED", False)
    plain = why.explain(model, inputs, method, **settings)
    monkeypatch.setattr(one_token, "IS_USED", True)
    return plain, why.explain(model, inputs, method, **settings)


def make_vit(layers=2, **more):
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=8, patch_size=4, hidden_size=8, num_attention_heads=2, num_hidden_layers=layers, intermediate_size=16
    )
    return ViTForImageClassification(config).eval().double()


IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("method", ["transformer_attribution", "gamma_attribution", "lrp", "lrp_epsilon", "attnlrp"])
def test_scores_are_the_same(monkeypatch, method):
    model = make_vit()
    plain, quick = explain_both_ways(monkeypatch, model, IMAGES, method)
    for one, other in zip(plain, quick, strict=True):
        a, b = torch.as_tensor(one.scores), torch.as_tensor(other.scores)
        assert float((a - b).abs().max()) <= 1e-9 * float(a.abs().max())


def test_conservation_is_the_same(monkeypatch):
    plain, quick = explain_both_ways(monkeypatch, make_vit(), IMAGES[:1], "lrp", health=True)
    assert quick.health.is_conserved
    torch.testing.assert_close(quick.health.relevance, plain.health.relevance)
    torch.testing.assert_close(quick.health.absorbed, plain.health.absorbed)


@pytest.mark.parametrize("recipe", ["chefer", "gamma"])
def test_the_mlp_of_the_last_block_sees_one_token(monkeypatch, recipe):
    """And that of the block before all of them."""
    seen = []
    rule = calls.OperationCall.apply_rule

    def watch(self, arriving):
        if self.kind == "linear":
            seen.append((self.place, arriving.shape[1]))
        return rule(self, arriving)

    monkeypatch.setattr(calls.OperationCall, "apply_rule", watch)
    method = {"chefer": "transformer_attribution", "gamma": "gamma_attribution"}[recipe]
    why.explain(make_vit(), IMAGES[:1], method)
    mlp = {place: tokens for place, tokens in seen if "intermediate" in place or "mlp" in place or "output" in place}
    assert 1 in mlp.values() and 5 in mlp.values()
    assert all(tokens == 5 for place, tokens in mlp.items() if ".0." in place)


class Mixer(nn.Module):
    """What is picked is a mean over tokens: the norm in between sees all of them."""

    def __init__(self):
        super().__init__()
        self.encoder = make_vit().vit
        self.norm = nn.LayerNorm((5, 8), dtype=torch.float64)
        self.head = nn.Linear(8, 2, dtype=torch.float64)

    def forward(self, pixel_values):
        return self.head(self.norm(self.encoder(pixel_values=pixel_values).last_hidden_state)[:, 0])


@pytest.mark.parametrize("method", ["transformer_attribution", "gamma_attribution"])
def test_a_norm_over_all_tokens_is_not_taken_for_one_of_each(monkeypatch, method):
    torch.manual_seed(0)
    plain, quick = explain_both_ways(monkeypatch, why.open(Mixer().eval()), IMAGES[:1], method)
    torch.testing.assert_close(torch.as_tensor(quick.scores), torch.as_tensor(plain.scores), rtol=1e-9, atol=1e-12)


def test_a_tensor_that_was_added_to_is_no_longer_marked():
    share = mark(torch.zeros(2, 5, 8), OneToken(1, 0))
    assert token_of(share) == OneToken(1, 0)
    share.add_(1)
    assert token_of(share) is None
    assert token_of(torch.zeros(2)) is None


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ((slice(None), 0), OneToken(1, 0)),
        ((slice(None), -1), OneToken(1, 4)),
        ((slice(None), 2, slice(None)), OneToken(1, 2)),
        (0, None),  # an example
        ((slice(None), slice(None), 3), None),  # a channel
        ((slice(None), slice(0, 1)), None),
        ((slice(None), 0, 0), None),
        ((slice(None), None, 0), None),
        ((..., 0, slice(None)), None),
    ],
    ids=str,
)
def test_finds_the_token_that_an_index_picks(index, expected):
    assert find_token(index, (3, 5, 8)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("method", ["transformer_attribution", "gamma_attribution", "lrp"])
@pytest.mark.parametrize("name", FAMILIES)
def test_scores_are_the_same_in_every_family(monkeypatch, zoo, name, method):
    animal = zoo(name)
    try:
        plain, quick = explain_both_ways(monkeypatch, animal.module, animal.inputs, method)
    except why.WhyformerError as refusal:
        pytest.skip(str(refusal))
    for one, other in zip(plain, quick, strict=True):
        a, b = torch.as_tensor(one.scores), torch.as_tensor(other.scores)
        assert float((a - b).abs().max()) <= 1e-8 * float(a.abs().max())


def test_padded_texts_in_a_batch(monkeypatch):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=40, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, num_labels=2
    )
    model = BertForSequenceClassification(config).eval().double()
    ids = torch.randint(1, 40, (2, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": mask}
    plain, quick = explain_both_ways(monkeypatch, model, inputs, "transformer_attribution")
    for one, other in zip(plain, quick, strict=True):
        torch.testing.assert_close(torch.as_tensor(other.scores), torch.as_tensor(one.scores), rtol=1e-9, atol=1e-12)
