"""Functions compiled by torch.jit.script inside a module: the scores are those of the functions as they are written."""

import warnings

import pytest
import torch
from torch import Tensor, nn

import whyformer as why

STATES = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def cap_plainly(scores: Tensor, value: float) -> Tensor:
    return (scores / value).tanh() * value


def activate_plainly(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch advises against scripting; models still do it
    cap, activate = torch.jit.script(cap_plainly), torch.jit.script(activate_plainly)


def activate_twice(x: Tensor) -> Tensor:
    return activate(activate(x))


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 3)

    def weigh(self, q: Tensor, k: Tensor) -> Tensor:
        return cap(q @ k.mT, 2.0).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            x = x + activate_twice(self.out((self.weigh(q, k) @ v).transpose(1, 2).flatten(2)))
        return self.head(x.mean(1))


class Plain(Scripted):
    def weigh(self, q: Tensor, k: Tensor) -> Tensor:
        return cap_plainly(q @ k.mT, 2.0).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            attended = self.out((self.weigh(q, k) @ v).transpose(1, 2).flatten(2))
            x = x + activate_plainly(activate_plainly(attended))
        return self.head(x.mean(1))


@pytest.mark.parametrize("method", ["attnlrp", "transformer_attribution", "attcat", "gradient_x_input", "rollout"])
def test_scores_are_those_of_the_functions_as_they_are_written(method):
    scripted, plain = Scripted().double().eval(), Plain().double().eval()
    before = dict(scripted.__dict__)
    found, wanted = (why.explain(module, STATES, method, target=1).scores for module in (scripted, plain))
    torch.testing.assert_close(found, wanted)
    assert scripted.__dict__ == before and isinstance(cap, torch.jit.ScriptFunction)
