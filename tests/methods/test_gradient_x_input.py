"""Gradient times input."""

import pytest
import torch
from conftest import FAMILIES, animal
from torch.testing import assert_close

import whyformer as why
from whyformer import explain
from whyformer.errors import MethodError
from whyformer.methods import gradient_x_input
from whyformer.methods._registry import METHODS, describe_method
from whyformer.methods.gradient_x_input import note_cancelling_scores


def test_by_hand():
    x = torch.tensor([[[1.0, 2.0], [3.0, 0.0]]])
    grad = torch.tensor([[[0.5, -1.0], [2.0, 9.0]]])
    assert_close(gradient_x_input(x, grad), torch.tensor([[-1.5, 6.0]]))


def test_explains_a_linear_model_completely(random_capture, run):
    """y = <w, x>: the scores sum to y."""
    capture = random_capture()
    y = (capture["input"] * capture["input_grad"]).sum()
    assert_close(run("gradient_x_input", capture).sum(), y)


def test_is_the_slope_along_a_scaled_token():
    """d/dt y(x with token j times t) at t = 1, by central differences."""
    x = torch.randn(1, 3, 4, dtype=torch.double, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def score(x):
        return (x.sum(1).tanh() * torch.arange(4)).sum()

    def slope(token, step=1e-5):
        up, down = torch.ones(2, 3, 1, dtype=torch.double)
        up[token] += step
        down[token] -= step
        return (score(x * up) - score(x * down)) / (2 * step)

    (grad,) = torch.autograd.grad(score(x), x)
    slopes = torch.stack([slope(token) for token in range(3)])
    assert_close(
        gradient_x_input(x, grad)[0], slopes, rtol=1e-8, atol=1e-9
    )  # the differences are exact to step squared


def test_pixels_keep_their_place():
    x = torch.ones(2, 3, 5, 4)
    assert_close(gradient_x_input(x, 2 * x), torch.full((2, 3, 5), 8.0))


# --- at a block -------------------------------------------------------------------------------------------------------


def test_at_a_block_by_hand():
    """Boundary 1: 2 * 3 + 1 * (-1) = 5; the second token is padding."""
    x = torch.ones(1, 2, 2)
    hidden = [torch.zeros(1, 2, 2), torch.tensor([[[2.0, 1.0], [4.0, 4.0]]]), torch.full((1, 2, 2), 9.0)]
    grads = [torch.zeros(1, 2, 2), torch.tensor([[[3.0, -1.0], [1.0, 1.0]]]), torch.ones(1, 2, 2)]
    mask = torch.tensor([[True, False]])
    assert_close(gradient_x_input(x, x, hidden, grads, mask, at=1), torch.tensor([[5.0, 0.0]]))
    assert_close(gradient_x_input(x, x, hidden, grads, mask, at=-1), torch.tensor([[18.0, 0.0]]))


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2"])
def test_what_enters_the_blocks_adds_up_to_cat(name):
    it = animal(name)
    model = why.open(it.module)
    each = [why.explain(model, it.inputs, "gradient_x_input", target=0, at=block).scores for block in range(3)]
    assert_close(sum(each), why.explain(model, it.inputs, "cat", target=0).scores)


def test_behind_the_last_block_only_the_readout_counts():
    it = animal("bert")
    scores = why.explain(why.open(it.module), it.inputs, "gradient_x_input", target=0, at=-1).scores
    assert scores[:, 0].all()
    assert not scores[:, 1:].any()


def test_hidden_states_are_captured_only_if_asked_for():
    chosen = METHODS["gradient_x_input"]
    assert chosen.needs == chosen.needs_with({"at": "input"}) == ("input", "input_grad")
    assert chosen.needs_with({"at": 0}) == ("input", "input_grad", "hidden", "hidden_grad", "mask", "streams")


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (4, r"at must be between -4 and 3 for this model, got 4"),
        ("middle", r"at must be 'input' or the number of a block, got 'middle'\."),
        (1.5, r"at must be 'input' or the number of a block, got 1\.5\."),
    ],
)
def test_refuses_another_place(at, message):
    it = animal("bert")
    with pytest.raises(MethodError, match=message):
        why.explain(why.open(it.module), it.inputs, "gradient_x_input", at=at)


def test_a_default_that_no_setting_asks_for_is_refused():
    def slope(input, hidden=None, *, at="input"):
        """Nothing."""

    facts = dict(paper="", class_specific=True, signed=True, recipe=None)
    with pytest.raises(
        MethodError, match=r"slope\(\) has a default for hidden; declare in `extra_needs` when it is needed\."
    ):
        describe_method(slope, **facts)
    with pytest.raises(MethodError, match=r"slope\(\) has a default for hidden; `extra_needs` must list exactly"):
        describe_method(slope, **facts, extra_needs={"at": ("mask",)})
    assert describe_method(slope, **facts, extra_needs={"at": ("hidden",)}).needs == ("input",)


NORM_AFTER_EMBEDDING = "a norm follows the embeddings"
IDS = {"input_ids": torch.tensor([[7, 12, 33, 9, 21, 40], [8, 25, 31, 11, 5, 6]])}


def build_tiny(name, dtype):
    import transformers as hf

    torch.manual_seed(0)
    sizes = dict(vocab_size=60, hidden_size=48, num_attention_heads=3)
    special = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    builders = {
        "modernbert": lambda: hf.ModernBertForSequenceClassification(
            hf.ModernBertConfig(**sizes, **special, num_hidden_layers=3, intermediate_size=48)
        ),
        "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(**sizes | {"num_attention_heads": 4}, n_layer=3)),
    }
    return builders[name]().to(dtype).eval()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["modernbert", "bloom"])
def test_says_so_where_a_norm_follows_the_embedding(name, dtype):
    """The norm removes the scale of x, so the derivative along x is 0; at the first block it is not."""
    module = build_tiny(name, dtype)
    at_input, at_block = (explain(module, IDS, "gradient_x_input", target=3 % 2, at=at) for at in ("input", 0))
    assert at_input.scores.abs().mean() < 0.1 * at_block.scores.abs().mean() or dtype == torch.bfloat16
    others = () if dtype != torch.bfloat16 else at_block.notes  # on half precision
    (note,) = (note for note in at_input.notes if note not in others)
    assert NORM_AFTER_EMBEDDING in note and "Pass at=0" in note
    assert at_block.notes == explain(module, IDS, "saliency", target=1).notes == others


@pytest.mark.parametrize("name", FAMILIES)
def test_is_silent_elsewhere(name):
    it = animal(name)
    assert explain(it.module, it.inputs, "gradient_x_input", target=[0, 1, 2]).notes == ()


@pytest.mark.parametrize("name", ["demo/sentiment", "demo/decoder"])
def test_is_silent_on_the_bundled_text_models(name):
    texts = ["a gorgeous, witty, seductive film", "bad", "the keys to the cabinet near the doors"]
    model = why.open(name)
    for text in texts:
        assert explain(model, text, "gradient_x_input").notes == (), text


def test_a_gradient_of_zero_is_no_matter_of_norms():
    x = torch.ones(1, 2, 3)
    assert note_cancelling_scores(x, torch.zeros_like(x), at="input") == ""
    assert NORM_AFTER_EMBEDDING in note_cancelling_scores(x, torch.tensor([1.0, -1.0, 0.0]).expand(1, 2, 3), at="input")
    assert note_cancelling_scores(x[:, :, None], x[:, :, None] * 0, at="input") == ""  # pixels
