"""Quantised layers whose kernels have no gradient: values of the kernel, slopes of the dequantised weight.

The packed layers imitate those of GPTQ and AWQ (groups of 4-bit codes in int32, zeros, scales; a kernel without a
gradient), whose libraries need a GPU. `tests/others/test_quantised.py` has the libraries that run on a processor.
"""

import copy

import pytest
import torch
from torch import Tensor, nn

import whyformer as why
from whyformer.errors import UnsupportedModel

IDS = torch.randint(1, 50, (2, 7), generator=torch.Generator().manual_seed(0))
SHIFTS = torch.arange(0, 32, 4)
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:torch.quantize_per"
)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(50, 16), nn.Parameter(torch.randn(7, 16))
        self.qkv, self.out, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids) + self.places
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.head(x.mean(1))


def unpack(codes: Tensor, scales: Tensor, low: Tensor) -> Tensor:
    codes = (codes[:, None] >> SHIFTS[None, :, None]) & 15
    return (codes * scales[:, None] + low[:, None]).flatten(0, 1)


KERNELS = torch.library.Library("imitated", "DEF")  # autograd knows nothing of its operation
KERNELS.define("packed_linear(Tensor x, Tensor codes, Tensor scales, Tensor low) -> Tensor")
KERNELS.impl("packed_linear", lambda x, *packed: x.detach() @ unpack(*packed), "CPU")


class PackedLinear(nn.Module):
    """4-bit codes of 8 rows of a weight in one int32, a zero and a scale for each group of 8 inputs."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.infeatures, self.bias = linear.in_features, linear.bias
        groups = linear.weight.detach().T.unflatten(0, (-1, 8))  # [group row out]
        low, high = groups.amin(1), groups.amax(1)
        scales = (high - low) / 15
        codes = ((groups - low[:, None]) / scales[:, None]).round().int().clamp(0, 15)
        self.register_buffer("qweight", (codes << SHIFTS[None, :, None]).sum(1).int())
        self.register_buffer("scales", scales)
        self.register_buffer("low", low)

    def read(self) -> Tensor:
        return unpack(self.qweight, self.scales, self.low)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.imitated.packed_linear(x, self.qweight, self.scales, self.low) + self.bias


class SquaringLinear(PackedLinear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * x.abs())


class StraightThrough(nn.Module):
    """The value of a layer, the slope of a weight."""

    def __init__(self, layer: nn.Module, weight: Tensor) -> None:
        super().__init__()
        self.layer, self.weight = [layer], weight

    def forward(self, x: Tensor) -> Tensor:
        straight = x @ self.weight.T
        return straight + (self.layer[0](x) - straight).detach()


def pack(kind: type[nn.Module]) -> nn.Module:
    module = Classifier()
    module.qkv, module.out = kind(module.qkv), kind(module.out)
    return module.eval()


def quantise_dynamically() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(Classifier(), {nn.Linear}, dtype=torch.qint8).eval()


KINDS = {
    "packed": (lambda: pack(PackedLinear), lambda layer: layer.read().T),
    "dynamic int8": (quantise_dynamically, lambda layer: layer.weight().dequantize()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_dequantised_weights_around_the_values_of_the_kernel(kind):
    make, read = KINDS[kind]
    module, twin = make(), make()
    for name in ("qkv", "out", "head"):
        layer = getattr(module, name)
        if not isinstance(layer, nn.Linear) or kind == "dynamic int8":
            setattr(twin, name, StraightThrough(layer, read(layer)))
    embed, twin.words = twin.words, nn.Identity()
    for ids in IDS.split(1):  # codes of "dynamic int8" depend on the whole batch
        logits = module(ids).detach()
        words = embed(ids).detach().requires_grad_()
        twin(words)[:, 1].sum().backward()
        found = why.explain(module, ids, "gradient_x_input", target=1)
        wanted = (words * words.grad).sum(-1).detach()
        torch.testing.assert_close(found.scores, wanted, rtol=1e-4, atol=1e-5)
        assert [target.score for target in found.targets] == pytest.approx(logits[:, 1].tolist(), rel=1e-5)
        assert torch.equal(module(ids), logits) and any("dequantised weights" in note for note in found.notes)


def test_examples_whose_codes_depend_on_the_batch_are_explained_alone():
    module = quantise_dynamically()
    together = why.explain(module, IDS, "gradient_x_input", target=1)
    alone = [why.explain(module, ids, "gradient_x_input", target=1).scores[0] for ids in IDS.split(1)]
    torch.testing.assert_close(together.scores, torch.stack(alone), rtol=1e-5, atol=1e-6)
    assert any("was run alone" in note for note in together.notes)


@pytest.mark.parametrize("kind", KINDS)
def test_relevance_is_conserved_and_every_family_answers(kind):
    module = KINDS[kind][0]()
    health = why.explain(module, IDS, "attnlrp", target=1, health=True).health
    missing = (health.sent - health.arrived - health.absorbed.sum(1)).abs() / health.scale
    assert float(missing.max()) < 1e-5
    for method in ("transformer_attribution", "attcat", "rollout", "leave_one_out"):
        assert why.explain(module, IDS, method, target=1).scores.any()


def test_copies_and_weights_are_left_alone():
    module = pack(PackedLinear)
    before = copy.deepcopy(module.state_dict()), {name: set(part.__dict__) for name, part in module.named_modules()}
    why.explain(module, IDS, "attnlrp", target=1)
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before[0].items())
    assert {name: set(part.__dict__) for name, part in module.named_modules()} == before[1]


def test_a_layer_that_is_not_linear_is_not_made_linear():
    module = pack(SquaringLinear)
    for method in ("attnlrp", "gradient_x_input"):
        with pytest.raises(UnsupportedModel, match=r"qkv calls packed_linear on quantised weights .* no gradient"):
            why.explain(module, IDS, method, target=1)
    assert why.explain(module, IDS, "leave_one_out", target=1).scores.any()
