"""Single operations that models use: max pooling, unfolding, transposed convolutions, own functions, two embeddings."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whyformer as why
from whyformer.errors import UnknownOperation

IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])
STATES = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class OwnGelu(torch.autograd.Function):
    """GELU as BLOOM writes it."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x * 0.5 * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        (x,) = context.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(F.gelu(x, approximate="tanh").sum(), x)
        return grad * slope


class OwnCube(torch.autograd.Function):
    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        return grad * 3 * context.saved_tensors[0] ** 2


class OwnSoftmax(torch.autograd.Function):
    """A function that keeps its result, as DeBERTa's and SEW-D's do."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        result = x.softmax(-1)
        context.save_for_backward(result)
        return result

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        (result,) = context.saved_tensors
        return result * (grad - (grad * result).sum(-1, keepdim=True))


class Attending(nn.Module):
    """One block of attention, then an operation, then a head over the mean."""

    def __init__(self, operate: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head, self.operate = nn.Linear(8, 3), operate
        self.weight = nn.Parameter(torch.randn(8, 8, 2, 1))
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.operate(self, self.block(x)))


def unfold_fold(_: Attending, x: Tensor) -> Tensor:
    columns = F.unfold(x.mT.unsqueeze(-1), (3, 1), padding=(1, 0))  # [batch, 8 * 3, token]
    return columns.unflatten(1, (8, 3)).sum(2).mean(-1)


def unfold_by_hand(_: Attending, x: Tensor) -> Tensor:
    around = F.pad(x, (0, 0, 1, 1))
    return (around[:, :-2] + around[:, 1:-1] + around[:, 2:]).mean(1)


def pool_largest(_: Attending, x: Tensor) -> Tensor:
    return F.max_pool1d(x.mT, 2).mean(-1)


def pool_largest_by_hand(_: Attending, x: Tensor) -> Tensor:
    return x.unflatten(1, (-1, 2)).amax(2).mean(1)


def upscale(model: Attending, x: Tensor) -> Tensor:
    return F.conv_transpose2d(x.mT.unsqueeze(-1), model.weight, stride=(2, 1)).mean((2, 3))


def upscale_by_hand(model: Attending, x: Tensor) -> Tensor:
    weight = model.weight[..., 0]  # [in out 2]: every token becomes two
    return torch.cat([x @ weight[..., 0], x @ weight[..., 1]], 1).mean(1)


PAIRS = {
    "unfold": (unfold_fold, unfold_by_hand),
    "max pool": (pool_largest, pool_largest_by_hand),
    "transposed convolution": (upscale, upscale_by_hand),
    "own gelu": (lambda _, x: OwnGelu.apply(x).mean(1), lambda _, x: F.gelu(x, approximate="tanh").mean(1)),
}


@pytest.mark.parametrize("method", ["libragrad", "attnlrp", "gradient_x_input"])
@pytest.mark.parametrize("pair", PAIRS)
def test_an_operation_scores_as_the_same_by_hand(pair, method):
    ours, by_hand = (why.explain(Attending(one), {"x": STATES}, method, target=1).scores for one in PAIRS[pair])
    torch.testing.assert_close(ours, by_hand)


def test_an_own_function_that_is_no_known_activation_is_refused():
    with pytest.raises(UnknownOperation, match="OwnCube, a torch"):
        why.explain(Attending(lambda _, x: OwnCube.apply(x).mean(1)), {"x": STATES}, "attnlrp", target=1)


class PerLayer(nn.Module):
    """A second embedding of the same tokens, as in Gemma 3n: used before the first one, or after it."""

    def __init__(self, *, is_early: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.later, self.project = nn.Embedding(12, 8), nn.Embedding(12, 4), nn.Linear(4, 8)
        self.block, self.head = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 3)
        self.is_early = is_early
        self.double().eval()

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.table(input_ids)
        more = self.project(self.later(input_ids)) if self.is_early else None
        x = self.block(x)
        return self.head((x + (self.project(self.later(input_ids)) if more is None else more)).mean(1))

    def go_on(self, x: Tensor, more: Tensor) -> Tensor:
        return self.head((self.block(x) + more).mean(1))


@pytest.mark.parametrize("is_early", [True, False])
def test_a_second_embedding_is_constant_and_noted(is_early):
    model = PerLayer(is_early=is_early)
    x = model.table(IDS).detach().requires_grad_()
    model.go_on(x, model.project(model.later(IDS)).detach())[:, 1].sum().backward()
    e = why.explain(model, {"input_ids": IDS}, "gradient_x_input", target=1)
    torch.testing.assert_close(e.scores, (x * x.grad).sum(-1).detach())
    assert any("beside those that are explained" in note for note in e.notes)
    assert why.explain(model, {"input_ids": IDS}, "attnlrp", target=1).scores.any()


def test_a_function_that_keeps_its_result_is_no_relu_of_it():
    model = why.open(Attending(lambda _, x: OwnSoftmax.apply(x).mean(1)))
    with pytest.raises(UnknownOperation, match="OwnSoftmax"):
        why.explain(model, STATES, "attnlrp")


def test_strides_and_samples_are_linear_in_what_they_read():
    """Windows cut by as_strided (Longformer) and points read by grid_sample (deformable attention)."""

    def cut(_: Attending, x: Tensor) -> Tensor:
        x = x.contiguous()
        size, step = (1, 4, 3, 8), (48, 8, 8, 1)
        return x.as_strided(size, step).mean((1, 2))

    def sample(_: Attending, x: Tensor) -> Tensor:
        points = torch.stack([x[..., :2].tanh(), x[..., 2:4].tanh()], 1)
        return F.grid_sample(x.mT[..., None].contiguous(), points, align_corners=False).mean((2, 3))

    for operate in (cut, sample):
        health = why.explain(why.open(Attending(operate)), STATES[:1], "attnlrp", target=1, health=True).health
        assert float(health.error.max()) < 1e-9
