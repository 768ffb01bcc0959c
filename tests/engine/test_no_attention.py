"""Models without attention: state spaces, recurrences, Fourier transforms. Scores against the same sums by hand."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import whyformer as why
from whyformer.errors import NoAttention

WIDTH, LENGTH = 8, 6
IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])


class Decay(nn.Module):
    """h_t = a h_{t-1} + x_t with a rate that depends on the token: a = exp(A dt), as in Mamba."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.step = nn.Parameter(-torch.rand(WIDTH)), nn.Linear(WIDTH, WIDTH)

    def decays(self, x: Tensor) -> Tensor:
        return torch.exp(self.rate * nn.functional.softplus(self.step(x)))

    def forward(self, x: Tensor) -> Tensor:
        decays, state, states = self.decays(x), torch.zeros_like(x[:, 0]), []
        for token in range(x.size(1)):
            state = decays[:, token] * state + x[:, token]
            states.append(state)
        return torch.stack(states, 1)


class Recurrent(nn.Module):
    """One recurrence, read at the last token: by hand, a sum over tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.mix, self.head = nn.Embedding(12, WIDTH), Decay(), nn.Linear(WIDTH, 3)
        self.double().eval()

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.mix(self.table(input_ids))[:, -1])


class Bidirectional(nn.Module):
    """Predicts a token at every position from the mean of all."""

    def __init__(self, *, is_causal: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head, self.is_causal = nn.Embedding(12, WIDTH), nn.Linear(WIDTH, 12), is_causal

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.table(input_ids)
        counts = torch.arange(1, x.size(1) + 1)[:, None]
        return self.head(x.cumsum(1) / counts if self.is_causal else x + x.mean(1, keepdim=True))


def sum_by_hand(model: Recurrent, target: int) -> Tensor:
    """Each token's share of the logit, with the decays that it met held constant."""
    x = model.table(IDS)
    decays = model.mix.decays(x)
    kept = torch.stack([decays[:, token + 1 :].prod(1) for token in range(LENGTH)], 1)
    return (x * kept * model.head.weight[target]).sum(-1).detach()


@pytest.mark.parametrize("method", [None, "libragrad", "attnlrp"])
def test_relevance_is_the_sum_over_tokens(method):
    """Also far from the answer: halved at every step, the first token would have 1/32 of it."""
    model = Recurrent()
    e = why.explain(model, {"input_ids": IDS}, method, target=1)
    torch.testing.assert_close(e.scores, sum_by_hand(model, 1))


def test_gradient_x_input_is_that_of_autograd():
    model = Recurrent()
    x = model.table(IDS).detach().requires_grad_()
    model.head(model.mix(x)[:, -1])[:, 1].sum().backward()
    e = why.explain(model, {"input_ids": IDS}, "gradient_x_input", target=1)
    torch.testing.assert_close(e.scores, (x * x.grad).sum(-1).detach())


def test_leave_one_out_is_a_loop():
    model = Recurrent()
    e = why.explain(model, {"input_ids": IDS}, "leave_one_out", target=1, fill="delete")
    with torch.no_grad():
        before = model(IDS)[:, 1]
        without = [model(torch.cat([IDS[:, :i], IDS[:, i + 1 :]], 1))[:, 1] for i in range(LENGTH)]
    torch.testing.assert_close(e.scores, before[:, None] - torch.stack(without, 1))


@pytest.mark.parametrize("method", ["rollout", "raw_attention", "gamma_attribution", "attcat"])
def test_methods_on_attention_name_others_that_work(method):
    model = Recurrent()
    with pytest.raises(NoAttention, match=r"does not exist\. Methods that work here: attnlrp") as raised:
        why.explain(model, {"input_ids": IDS}, method, target=1)
    for name in str(raised.value).rpartition(": ")[2].rstrip(".").split(", "):
        assert why.explain(model, {"input_ids": IDS}, name, target=1).scores.any()


@pytest.mark.parametrize("is_causal", [True, False])
def test_the_answer_is_the_next_token_only_if_no_token_sees_a_later_one(is_causal):
    model = Bidirectional(is_causal=is_causal).eval()
    if is_causal:
        assert why.explain(model, {"input_ids": IDS}).targets[0].index == int(model(IDS)[0, -1].argmax())
    else:
        with pytest.raises(why.errors.TargetError, match="mask"):
            why.explain(model, {"input_ids": IDS})


def test_a_reversed_text_is_scored_in_its_own_order():
    class Reversed(Recurrent):
        def forward(self, input_ids: Tensor) -> Tensor:
            return super().forward(input_ids.flip(1))

    plain, turned = Recurrent(), Reversed()
    for method in ("attnlrp", "leave_one_out"):
        a = why.explain(plain, {"input_ids": IDS}, method, target=1).scores
        b = why.explain(turned, {"input_ids": IDS.flip(1)}, method, target=1).scores
        torch.testing.assert_close(a, b.flip(1))


@pytest.mark.filterwarnings("ignore")
def test_mamba_conserves_what_it_sends():
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    config = MambaConfig(vocab_size=12, hidden_size=16, num_hidden_layers=3, state_size=4, use_cache=False)
    model = MambaForCausalLM(config).double().eval()
    e = why.explain(model, {"input_ids": IDS}, "attnlrp", target=1, health=True)
    missing = (e.health.sent - e.health.arrived - e.health.absorbed.sum(1)).abs() / e.health.scale
    assert float(missing.max()) < 1e-6  # the scan is in float32 whatever the weights are
    torch.testing.assert_close(e.scores.sum(1), e.health.arrived)


def test_libragrad_of_a_convolutional_network_is_the_relevance_of_its_pixels():
    """Without biases all of the logit is at the pixels."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 4, stride=4, bias=False), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.ReLU())
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3, bias=False)).double().eval()
    e = why.explain(why.open(module), torch.randn(2, 3, 16, 16, dtype=torch.double), "libragrad")
    assert e.pixels.shape == (2, 16, 16)
    assert_close(e.pixels.sum((1, 2)), torch.tensor([target.score for target in e.targets], dtype=torch.double))
    assert any("no blocks of tokens" in note for note in e.notes)


class Copies(nn.Module):
    """Two copies of the state beside each other, [copy batch token channel], as hyper connections keep them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(12, WIDTH), nn.Linear(WIDTH, 3)
        self.layers = nn.ModuleList(TwoCopies() for _ in range(2))
        self.double().eval()

    def forward(self, input_ids: Tensor) -> Tensor:
        x = torch.stack([self.table(input_ids)] * 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.sum(0).mean(1))


class TwoCopies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(0)
        return x + self.attention(mean, mean, mean, need_weights=False)[0]


def test_states_with_copies_of_the_stream_are_summed_over_them():
    module, states = Copies(), []
    hook = lambda _, args: states.append(args[0]) or args[0].retain_grad()  # noqa: E731
    handles = [layer.register_forward_pre_hook(hook) for layer in module.layers]
    module(IDS)[:, 1].sum().backward()
    [handle.remove() for handle in handles]
    by_hand = sum((state * state.grad).sum((0, -1)) for state in states).detach()
    module.zero_grad(set_to_none=True)
    assert_close(why.explain(why.open(module), {"input_ids": IDS}, "cat", target=1).scores.double(), by_hand)
