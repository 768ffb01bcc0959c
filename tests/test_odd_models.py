"""Models that are not a chain of self-attention over one sequence: refused with a clear error, never stacked."""

import pytest
import torch
from torch import Tensor, nn

import whyformer as why
from whyformer.errors import UnsupportedModel
from whyformer.methods._registry import METHODS

ON_ATTENTION = sorted(name for name, m in METHODS.items() if any(need.startswith("attention") for need in m.needs))
INPUT = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def explain_odd(module: nn.Module, method: str) -> why.Explanation:
    return why.explain(why.open(module.double().eval()), INPUT, method, target=0)


class Attention(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if memory is not None:
            _, k, v = self.qkv(memory).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = Attention(), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.norm(x))


class Chain(nn.Module):
    """Two blocks, with something between them and something at the end."""

    def __init__(self, between=lambda x: x, pool=lambda x: x.mean(1)) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(16, 3)
        self.between, self.pool = between, pool

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.blocks
        return self.head(self.pool(second(self.between(first(x)))))


class TwoTowers(nn.Module):
    """The second tower attends to the first, and both have the same length."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.one, self.other, self.cross = Block(), Block(), Attention()
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        memory, query = self.one(x), self.other(x)
        return self.head((query + self.cross(query, memory)).mean(1))


@pytest.mark.parametrize("method", ON_ATTENTION)
def test_a_second_tower_is_refused(method):
    with pytest.raises(UnsupportedModel, match="is not self-attention over one sequence"):
        explain_odd(TwoTowers(), method)


@pytest.mark.parametrize("method", ON_ATTENTION)
def test_reordered_tokens_are_refused(method):
    with pytest.raises(UnsupportedModel, match=r"the order of the tokens has changed|does not continue where"):
        explain_odd(Chain(between=lambda x: x.flip(1)), method)


def test_an_encoder_with_a_decoder_has_scores_for_both():
    from transformers import T5Config, T5ForConditionalGeneration

    module = T5ForConditionalGeneration(T5Config(vocab_size=20, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2))
    model = why.open(module.eval())
    inputs = {"input_ids": torch.tensor([[3, 4, 1]]), "decoder_input_ids": torch.tensor([[0, 5]])}
    for method in ("rollout", "lrp", "saliency"):
        assert why.explain(model, inputs, method).streams == {"source": slice(0, 3), "prefix": slice(3, 5)}


def test_a_weighted_mean_reads_tokens_by_their_weights():
    weights = torch.arange(1.0, 7, dtype=torch.float64)[None, :, None]
    module = Chain(pool=lambda x: (x * weights).sum(1) / weights.sum(1))
    capture = why.record(model := why.open(module.double().eval()), model.encode(INPUT), keep={"readout"}, target=0)
    assert capture["readout"][0].tolist() == pytest.approx([j / 21 for j in range(1, 7)])


def test_weights_of_both_signs_are_no_readout():
    weights = torch.tensor([1.0, -1, 2, -2, 3, 1], dtype=torch.float64)[None, :, None]
    module = Chain(pool=lambda x: (x * weights).sum(1))
    with pytest.raises(UnsupportedModel, match="At which tokens the answer is read"):
        explain_odd(module, "rollout")
    told = why.explain(why.open(module.double().eval(), readout="mean"), INPUT, "rollout", target=0)
    assert told.scores.shape == (2, 6)


def test_a_handmade_norm_before_the_mean_is_still_a_plain_mean():
    module = Chain(pool=lambda x: ((x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)).mean(1))
    capture = why.record(model := why.open(module.double().eval()), model.encode(INPUT), keep={"readout"}, target=0)
    assert capture["readout"][0].tolist() == pytest.approx([1 / 6] * 6)


class NoBlockModule(nn.Module):
    """The residual is added outside of every module: a module's input is not the output of the one before."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList([Attention(), Attention()])
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x.mean(1))


class BlockModules(NoBlockModule):
    """The same with the residual inside a module."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual(layer) for layer in self.layers)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Residual(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x)


@pytest.mark.parametrize("method", ["cat", "attcat", "transformer_attribution", "value_zeroing", "libragrad"])
def test_blocks_that_are_no_modules_give_the_same_scores(method):
    scores = [explain_odd(module, method).scores for module in (NoBlockModule(), BlockModules())]
    torch.testing.assert_close(*scores)


class Gated(NoBlockModule):
    """A state that is a mixture: no addition of attention to a state that it was computed from."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.lerp(x, layer(x), 0.3)
        return self.head(x.mean(1))


class Mixture(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return torch.lerp(x, self.layer(x), 0.3)


class GatedModules(Gated):
    """The same with each mixture in a module, whose input is the state."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Mixture(layer) for layer in self.layers)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


@pytest.mark.parametrize("method", ["attcat", "generic_attention", "rollout"])
def test_states_that_all_of_the_answer_passes_are_boundaries(method):
    scores = [explain_odd(module, method).scores for module in (Gated(), GatedModules())]
    torch.testing.assert_close(*scores)


class TwoPaths(Gated):
    """The input reaches the answer past every state, so none is a boundary."""

    def forward(self, x: Tensor) -> Tensor:
        given = x
        for layer in self.layers:
            x = torch.lerp(x, layer(x), 0.3)
        return self.head(x.mean(1)) + self.head(given.mean(1))


@pytest.mark.parametrize("method", ["cat", "attcat"])
def test_a_model_without_boundaries_is_refused_where_states_are_needed(method):
    with pytest.raises(UnsupportedModel, match=r"whole block with its residual.* such as generic_attention or rollout"):
        explain_odd(TwoPaths(), method)
    for other in ("generic_attention", "rollout"):
        assert explain_odd(TwoPaths(), other).scores.isfinite().all()


class LooseWeight(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.loose = [nn.Parameter(torch.full((16,), 1.5, dtype=torch.float64))]  # torch does not find it in a list

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.loose[0])


def test_a_weight_in_a_list_absorbs_no_relevance():
    recipe = why.make_recipe("chefer")
    model = why.open(LooseWeight().double().eval())
    capture = why.record(
        model, model.encode(INPUT), keep={"input_relevance"}, recipes=[recipe], track_absorbed=True, target=0
    )
    total = capture.get("input_relevance", recipe).flatten(1).sum(1) + sum(a.amount for a in capture.absorbed[recipe])
    assert total.tolist() == pytest.approx([1, 1], abs=1e-9)


def test_a_weight_out_of_reach_is_refused():
    scale = torch.full((16,), 1.5, dtype=torch.float64, requires_grad=True)
    with pytest.raises(UnsupportedModel, match="that belongs to no module requires a gradient"):
        explain_odd(Chain(pool=lambda x: (x * scale).mean(1)), "lrp")


class Several(Chain):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x), x


def test_a_note_names_the_explained_tensor_of_several():
    (note,) = explain_odd(Several(), "rollout").notes
    assert note == "The model returned 2 tensors; the first, of shape [2, 3], is explained."
    assert explain_odd(Chain(), "rollout").notes == ()
