"""Hybrids: a token that decides the answer is found wherever recurrences stand, and blocks are counted right.

In each model, token 7 decides class 1. It stands at the first place; recurrences, convolutions or attention carry it to
the place where the answer is read. Leave-one-out, which only runs the model, and the default must both put it first.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whyformer as why

WIDTH = 16
IDS = torch.tensor([[7, 3, 4, 5, 6, 8, 9]])


class Sums(nn.Module):
    """A block whose state adds up all before: a linear recurrence in parallel form."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.cumsum(1)


class Steps(nn.Module):
    """A recurrence that runs token by token."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.full((WIDTH,), 2.0))

    def find_gate(self, x: Tensor) -> Tensor:
        return torch.ones_like(x)

    def forward(self, x: Tensor) -> Tensor:
        gate, state, states = self.find_gate(x), torch.zeros_like(x[:, 0]), []
        for place in range(x.size(1)):
            state = self.decay.sigmoid() * state + gate[:, place] * x[:, place]
            states.append(state)
        return x + torch.stack(states, 1)


class GatedSteps(Steps):
    """The same with a gate that is open by half whatever the token is: relevance rules give most to its bias."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def find_gate(self, x: Tensor) -> Tensor:
        return self.gate(self.norm(x)).sigmoid()


class Convolution(nn.Module):
    """Each token gets those up to six places before it."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(WIDTH, WIDTH, 7, groups=WIDTH, bias=False)
        nn.init.constant_(self.mix.weight, 0.7)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(F.pad(x.mT, (6, 0))).mT


class LinearAttention(nn.Module):
    """Queries times the sum of keys times values, without a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        keys = F.elu(self.keys(x)) + 1
        weights = torch.tril(keys @ keys.mT)
        return x + weights / weights.sum(-1, keepdim=True) @ x * 3


class Matrix(nn.Module):
    """A fixed matrix of decays, times the tokens."""

    def __init__(self) -> None:
        super().__init__()
        place = torch.arange(7)
        self.register_buffer("decays", torch.tril(0.9 ** (place[:, None] - place).abs().float()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.decays @ x


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.05 * self.maps(x)


class Attending(nn.Module):
    """Causal attention and an MLP, with little effect."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.mlp = Mlp()

    def attend(self, x: Tensor) -> Tensor:
        y, length = self.norm(x), x.size(1)
        mask = torch.full((length, length), float("-inf")).triu(1)
        return 0.05 * self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x + self.attend(x))


class Parallel(Attending):
    """Attention and a recurrence beside each other, as in Falcon-H1."""

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x + self.attend(x) + x.cumsum(1))


class OneAfterTheOther(Attending):
    """A recurrence and attention in one block."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + x.cumsum(1)
        return self.mlp(x + self.attend(x))


class Hybrid(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(30, WIDTH), nn.ModuleList(blocks)
        self.head = nn.Linear(WIDTH, 3, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, -1])


class Bare(Hybrid):
    """Recurrences are written out in `forward`, in no module."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        for layer in self.layers:
            x = x + x.cumsum(1)
            x = layer(x)
        return self.head(x[:, -1])


class AfterGru(Hybrid):
    """Attention over the states of a recurrent layer, which adds nothing to the stream."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.layers[0](self.words(input_ids))
        for layer in self.layers[1:]:
            x = layer(x)
        return self.head(x[:, -1])


class Mean(nn.Module):
    """The mean of all tokens so far, without a residual."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1) / torch.arange(1, x.size(1) + 1)[:, None]


class Wrapped(Hybrid):
    """The recurrent blocks in a sequence of their own, attention elsewhere."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.below, self.above = nn.Sequential(*blocks[:-1]), blocks[-1]
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.norm(self.above(self.below(self.words(input_ids))))[:, -1])


def plant(make, *kinds: type[nn.Module]) -> nn.Module:
    """The model, in which token 7 decides class 1."""
    torch.manual_seed(0)
    module = make(*(kind() for kind in kinds)).eval()
    with torch.no_grad():
        module.words.weight.mul_(0.05)
        module.words.weight[7] += 2 * module.head.weight[1]
    return module


BEFORE = [Sums, Sums, Sums, Attending]
SHAPES = {
    "before": (Hybrid, BEFORE, 4),
    "after": (Hybrid, [Attending, Sums, Sums], 3),
    "interleaved": (Hybrid, [Sums, Attending, Sums, Attending], 4),
    "attention first": (Hybrid, [Attending, Sums, Attending, Sums], 4),
    "three to one": (Hybrid, [Sums, Sums, Sums, Attending, Sums, Sums, Sums, Attending], 8),
    "token by token": (Hybrid, [Steps, Steps, Attending], 3),
    "convolutions": (Hybrid, [Convolution, Convolution, Attending], 3),
    "linear attention": (Hybrid, [LinearAttention, LinearAttention, Attending], 3),
    "a matrix": (Hybrid, [Matrix, Matrix, Attending], 3),
    "with MLP blocks": (Hybrid, [Sums, Mlp, Sums, Mlp, Attending, Mlp], 6),
    "parallel": (Hybrid, [Parallel, Parallel, Parallel], 3),
    "in one block": (Hybrid, [OneAfterTheOther, OneAfterTheOther], 2),
    "wrapped": (Wrapped, BEFORE, 4),
    "written out": (Bare, [Attending, Attending, Attending], None),
    "no residual": (AfterGru, [Mean, Attending, Attending], 3),
}


def rank_first(module: nn.Module, method: str | None = None, **settings: object) -> tuple[int, tuple[str, ...]]:
    e = why.explain(module, {"input_ids": IDS}, method, target=1, **settings)
    return int(e.scores[0].argmax()), e.notes


@pytest.mark.parametrize("shape", SHAPES)
def test_the_deciding_token_comes_first(shape):
    make, kinds, _ = SHAPES[shape]
    module = plant(make, *kinds)
    assert rank_first(module, "leave_one_out")[0] == 0, "the model itself does not decide by this token"
    first, notes = rank_first(module)
    assert first == 0
    assert any("mix tokens without attention" in note for note in notes)


@pytest.mark.parametrize("shape", ["before", "interleaved", "parallel", "written out", "no residual"])
def test_methods_are_right_or_say_what_they_leave_out(shape):
    make, kinds, _ = SHAPES[shape]
    module = plant(make, *kinds)
    for method in ("decompx", "cat", "attcat", "rollout", "attnlrp", "value_zeroing", "atman", "generic_attention"):
        try:
            first, notes = rank_first(module, method)
        except why.errors.WhyformerError:
            continue
        assert first == 0 or notes, method  # attnlrp says nothing, so it must be right


@pytest.mark.parametrize("shape", [name for name, (_, _, blocks) in SHAPES.items() if blocks])
def test_all_blocks_are_counted(shape):
    make, kinds, blocks = SHAPES[shape]
    found = why.diagnose(plant(make, *kinds), {"input_ids": IDS}, methods=["rollout"], target=1).found["blocks"]
    attending = sum(issubclass(kind, Attending) for kind in kinds)
    assert found == (f"{blocks}" if attending == blocks else f"{blocks}, {attending} of them with attention")


def test_relevance_that_gates_absorb_is_noted():
    first, (note,) = rank_first(plant(Hybrid, GatedSteps, GatedSteps, Attending))
    assert first == 0 or "Less than half of it arrives there" in note
    assert "Less than half" not in rank_first(plant(Hybrid, Steps, Steps, Attending))[1][0]


def test_the_sum_over_blocks_is_over_all_of_them():
    """Written out for a model that is linear but for its attention, whose effect is taken away."""
    module = plant(Hybrid, Sums, Sums, Attending)
    with torch.no_grad():
        for weight in (module.layers[2].attention.out_proj.weight, module.layers[2].mlp.maps[3].weight):
            weight.zero_()
        module.layers[2].attention.out_proj.bias.zero_()
        module.layers[2].mlp.maps[3].bias.zero_()
    mixing = torch.eye(7) + torch.ones(7, 7).tril()
    first = module.words(IDS)[0].detach() @ module.head.weight[1].detach()  # what each token would add to the logit
    one, two = mixing @ first, mixing @ mixing @ first
    wanted = (mixing @ mixing)[-1] * first + mixing[-1] * one + torch.eye(7)[-1] * two
    found = why.explain(module, {"input_ids": IDS}, "libragrad", target=1, at="blocks")
    torch.testing.assert_close(found.scores[0], wanted, rtol=1e-4, atol=1e-4)
    assert "do not belong to one token each" in found.notes[0]


def test_decompx_starts_before_the_first_recurrence():
    module = plant(Hybrid, *BEFORE)
    parts = why.explain(module, {"input_ids": IDS}, "decompx", target=1)
    logit = module(IDS)[0, 1].item()
    assert float(parts.scores.sum()) == pytest.approx(logit, rel=1e-4)
    assert int(parts.scores[0].argmax()) == 0


def test_a_transformer_is_summed_over_its_blocks_as_before():
    module = plant(Hybrid, Attending, Attending)
    default = why.explain(module, {"input_ids": IDS}, target=1)
    blocks = why.explain(module, {"input_ids": IDS}, "libragrad", target=1, at="blocks")
    assert torch.equal(default.scores, blocks.scores)
    assert not default.notes and not blocks.notes


def test_an_mlp_in_a_module_of_its_own_is_half_a_block():
    """Attention and MLP, each with its residual, in turn: two blocks, as if each pair were one module."""

    class Attention(Attending):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.attend(x)

    halves, whole = plant(Hybrid, Attention, Mlp, Attention, Mlp), plant(Hybrid, Attending, Attending)
    for place in range(2):
        whole.layers[place].load_state_dict(halves.layers[2 * place].state_dict())
        whole.layers[place].mlp.load_state_dict(halves.layers[2 * place + 1].state_dict())
    whole.load_state_dict({k: v for k, v in halves.state_dict().items() if "layers" not in k}, strict=False)
    found, wanted = (why.explain(module, {"input_ids": IDS}, target=1) for module in (halves, whole))
    torch.testing.assert_close(found.scores, wanted.scores)
    assert not found.notes


@pytest.mark.parametrize("length", [40, 160])
def test_long_inputs_run_by_plan_and_give_the_same(length):
    """A classifier never has one; a language model is from 128 tokens on, and by request."""

    class Causal(Hybrid):
        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            x = self.words(input_ids)
            for layer in self.layers:
                x = layer(x)
            return x @ self.words.weight.T

    module = plant(Causal, Sums, Attending, Sums, Attending)
    ids = torch.randint(1, 30, (1, length), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with why.engine(plan=True):
        short = why.explain(module, inputs, target=3)
    with why.engine(plan=False):
        full = why.explain(module, inputs, target=3)
    torch.testing.assert_close(short.scores, full.scores, rtol=1e-3, atol=1e-4)
    assert [note for note in short.notes if "mix" in note] == [note for note in full.notes if "mix" in note] != []


def test_a_sink_that_scales_attention_is_part_of_it():
    """As in GraniteMoeSWA: the sum of the exponentials is that of the softmax."""

    class Sink(Attending):
        def attend(self, x: Tensor) -> Tensor:
            y = self.norm(x)
            scores = y @ y.mT + torch.full((7, 7), float("-inf")).triu(1)
            return scores.softmax(-1) @ y * scores.logsumexp(-1, keepdim=True).sigmoid()

    e = why.explain(plant(Hybrid, Sink, Sink), {"input_ids": IDS}, target=1)
    assert not e.notes


class Gru(nn.Module):
    """A recurrent layer of torch, which returns its last state as well."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.steps(x)[0]


def test_parts_of_a_state_are_refused_by_a_recurrent_layer_of_torch():
    with pytest.raises(why.WhyformerError, match="gru cannot be applied to parts of a state"):
        why.explain(plant(Hybrid, Attending, Gru, Attending), {"input_ids": IDS}, "decompx", target=1)
