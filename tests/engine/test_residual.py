"""The residual stream: the parts of a block add up to its output in every family; other blocks are refused."""

import pytest
import torch
import transformers as hf
from conftest import FAMILIES, TEXT, HandmadeGPT, animal
from torch.testing import assert_close

import whyformer as why
from whyformer._engine.capture.residual import LinearNorm
from whyformer._engine.record import record
from whyformer.errors import UnsupportedModel

torch.set_num_threads(1)

POST_NORM = {"bert", "roberta", "distilbert", "electra", "albert", "encoder"}
KEEP = {"attention", "projected", "residual", "middle", "update", "norms", "hidden"}


def record_stream(module, inputs, keep=KEEP):
    model = why.open(module)
    return record(model, model.encode(inputs), keep=keep)


def difference_rank(found, wanted):
    """The rank of the difference of two states, up to one vector that is the same for all tokens."""
    away = (wanted - found).flatten(0, 1)
    return int((torch.linalg.svdvals(away - away[:1]) > 1e-9).sum())


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_parts_of_a_block_add_up(name, kernel):
    """x + sum_j A_ij v_j W_O is the middle state up to a bias, which a norm after it scales token by token.

    The middle plus the update is the output, up to the bias of a norm.
    """
    it = animal(name, kernel)
    held = record_stream(it.module, it.inputs)
    for layer, mixing in enumerate(held["attention"]):
        state = held["residual"][layer] + torch.einsum("bhqk,bhkc->bqc", mixing, held["projected"][layer])
        middle, norms, left = held["middle"][layer], held["norms"][layer], held["hidden"][layer + 1]
        end = middle + held["update"][layer]
        assert_close(held["residual"][layer], held["hidden"][layer])
        assert len(norms) == 2 * (name in POST_NORM)
        if norms:
            state, end = (n.apply_unscaled(t) * n.scale[..., None] for n, t in zip(norms, (state, end), strict=True))
        assert difference_rank(state, middle) == (name in POST_NORM)
        assert difference_rank(end, left) == 0
        if not norms:
            assert_close(end, left)


def test_a_scale_per_channel_is_part_of_the_projection():
    """DINOv2 multiplies the attention output by a vector before adding it."""
    it = animal("dinov2")
    layer = it.module.dinov2_with_registers.encoder.layer[0]
    weight = layer.attention.o_proj.weight * layer.layer_scale1.lambda1[:, None]
    held = record_stream(it.module, it.inputs, {"value", "projected"})
    expected = torch.einsum("bhkc,shc->bhks", held["value"][0], weight.unflatten(1, (3, 8)))
    assert_close(held["projected"][0], expected.detach())


def test_a_norm_as_a_linear_map_by_hand():
    """(1, 3) has mean 2; centred (-1, 1); times the gain (2, 1)."""
    gain, vectors = torch.tensor([2.0, 1.0]), torch.tensor([1.0, 3.0])
    assert_close(LinearNorm(torch.ones(1, 1), gain, is_centred=True).apply_unscaled(vectors), torch.tensor([-2.0, 1.0]))
    assert_close(LinearNorm(torch.ones(1, 1), None, is_centred=False).apply_unscaled(vectors), vectors)


def test_heads_can_be_selected():
    it = animal("vit")
    once = why.explain(why.open(it.module), it.inputs, "norm_analysis", heads=[0])
    assert not torch.allclose(once.scores, why.explain(why.open(it.module), it.inputs, "norm_analysis").scores)


# --- blocks of another build ------------------------------------------------------------------------------------------


def parallel():
    """GPT-NeoX adds attention and MLP at once."""
    config = hf.GPTNeoXConfig(**TEXT | {"num_labels": 2}, use_parallel_residual=True)
    return hf.GPTNeoXForCausalLM(config)


class Squared(torch.nn.Linear):
    """A projection that is not linear."""

    def forward(self, x):
        return super().forward(x).square()


def squared():
    module = HandmadeGPT()
    module.h[1].attn.c_proj = Squared(24, 24)
    return module


class Gated(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x * x.sigmoid())


def gated():
    module = HandmadeGPT()
    module.h[1].attn.c_proj = Gated(24, 24)
    return module


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (parallel, "is not added to the input of the block"),
        (squared, "goes through square before it is added to the state"),
        (gated, "is used in several places"),
    ],
)
def test_other_blocks_are_refused_on_access(make, message):
    """Only on access: other methods in the same run continue."""
    torch.manual_seed(0)
    module, ids = make().double().eval(), torch.tensor([[5, 6, 7, 8]])
    held = record_stream(module, ids, {"attention", "projected"})
    with pytest.raises(
        UnsupportedModel, match=f"The output of the attention in .* {message}. Methods that decompose blocks"
    ):
        held["projected"][1]
    assert held["attention"][1].isfinite().all()
    with pytest.raises(UnsupportedModel, match=message):
        why.explain(why.open(module), ids, "globenc")
