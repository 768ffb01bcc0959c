"""A model is the same after it was explained, whatever its forward does, and no gradient is zero without a word."""

import copy
import warnings

import pytest
import torch
from conftest import QUICK, animal, build
from torch import Tensor, nn

import whyformer as why
from whyformer._engine.run.shadow import make_shadow

INPUT = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
METHODS_OF_EACH_KIND = ["rollout", "gradient_x_input", "attnlrp", "leave_one_out"]


class Counter:
    """An object that a module keeps and its forward changes."""

    def __init__(self) -> None:
        self.calls, self.seen = 0, []


class Remembering(nn.Module):
    """Attention that reads its keys from a cache which it writes first, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.project, self.head, self.counter = nn.Linear(8, 24), nn.Linear(8, 3), Counter()
        self.register_buffer("cache", torch.zeros(16, 5, 8))
        self.plain_cache = torch.zeros(16, 5, 8, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        self.counter.calls += 1
        self.counter.seen.append(len(x))
        query, key, value = self.project(x).chunk(3, -1)
        self.cache[: len(x), : x.size(1)] = key.detach()
        self.plain_cache[: len(x), : x.size(1)].add_(value.detach())
        attention = (query @ key.mT).softmax(-1)
        return self.head((x + attention @ value).mean(1))


@pytest.mark.parametrize("method", METHODS_OF_EACH_KIND)
def test_a_forward_that_writes_into_the_model_leaves_it_as_it_was(method):
    module = Remembering().double().eval()
    why.explain(module, INPUT, method, target=0)
    assert not module.cache.any() and not module.plain_cache.any()
    assert (module.counter.calls, module.counter.seen) == (0, [])
    assert module.cache._version == 0


def test_a_forward_that_writes_into_the_model_is_explained_right():
    module = Remembering().double().eval()
    x = INPUT.clone().requires_grad_()
    copy.deepcopy(module)(x)[:, 0].sum().backward()
    found = why.explain(module, INPUT, "gradient_x_input", target=0).scores
    torch.testing.assert_close(found, (x * x.grad).sum(-1).detach())


def test_an_object_that_modules_share_is_shared_by_their_shadows():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].kept = module[1].kept = Counter()
    shadow = make_shadow(module)
    assert shadow[0].kept is shadow[1].kept is not module[0].kept


# --- weights in 8 bits ------------------------------------------------------------------------------------------------


def quantise(name: str) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces the end of this API
        return torch.ao.quantization.quantize_dynamic(build(name).float(), {nn.Linear}, dtype=torch.qint8)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_dynamic_int8_has_the_slopes_of_its_dequantised_weights():
    module, inputs = quantise("bert"), animal("bert").inputs
    with torch.no_grad():
        logits = module(**inputs).logits
    for name in ("gradient_x_input", "attnlrp", "generic_attention", "attcat", "integrated_gradients", "smooth_grad"):
        e = why.explain(module, inputs, name, target=1, **QUICK.get(name, {}))
        assert e.scores.isfinite().all() and e.scores.any()
        assert any("dequantised weights" in note for note in e.notes) or name in ("integrated_gradients", "smooth_grad")
        assert e.targets[0].score == pytest.approx(float(logits[0, 1]), rel=1e-5)
    with torch.no_grad():
        assert torch.equal(module(**inputs).logits, logits)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_dynamic_int8_works_with_methods_that_need_none():
    module, inputs = quantise("bert"), animal("bert").alone(0)
    assert why.explain(module, inputs, "rollout").scores.sum() == pytest.approx(1)
    e = why.explain(module, inputs, "leave_one_out", target=1, fill="pad")
    without = {**inputs, "attention_mask": inputs["attention_mask"].clone(), "input_ids": inputs["input_ids"].clone()}
    without["attention_mask"][0, 3] = without["input_ids"][0, 3] = 0
    with torch.no_grad():
        wanted = module(**inputs).logits[0, 1] - module(**without).logits[0, 1]
    assert float(e.scores[0, 3]) == pytest.approx(float(wanted), rel=0.2)  # inputs are rounded by the range of a batch
