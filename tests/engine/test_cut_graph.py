"""Models that switch gradients off, checkpoint or detach: the scores are those of the same model without that."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import whyformer as why

IDS = torch.randint(1, 50, (2, 7), generator=torch.Generator().manual_seed(0))
METHODS = ["attnlrp", "transformer_attribution", "attcat", "gradient_x_input"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.wide, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.gelu(self.wide(x)))


def run_block(block: nn.Module, x: Tensor) -> Tensor:
    return block(x)


def switch_off(block: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return block(x)


@torch.no_grad()
def switch_off_by_decorator(block: nn.Module, x: Tensor) -> Tensor:
    return block(x)


def infer(block: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return block(x)


def detach(block: nn.Module, x: Tensor) -> Tensor:
    return block(x).detach()


def checkpoint_once(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False)


def checkpoint_again(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=True)


class Classifier(nn.Module):
    """Two blocks, each run as `run` says, and a head."""

    def __init__(self, run=run_block, last=None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(50, 16), nn.Parameter(torch.randn(7, 16))
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(16, 3)
        self.run, self.last = run, last or run

    def forward(self, input_ids: Tensor) -> Tensor:
        first, second = self.blocks
        x = self.run(first, self.words(input_ids) + self.places)
        return self.head(self.last(second, x).mean(1))


def explain(module: nn.Module, method: str) -> why.Explanation:
    return why.explain(module.double().eval(), IDS, method, target=1)


CUTS = {
    "no_grad": Classifier(switch_off),
    "no_grad, decorator": Classifier(switch_off_by_decorator),
    "no_grad, first block": Classifier(switch_off, run_block),
    "inference mode": Classifier(infer),
    "detach": Classifier(detach),
    "checkpoint": Classifier(checkpoint_once),
    "checkpoint, reentrant": Classifier(checkpoint_again),
}


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cut", CUTS)
def test_scores_are_those_of_the_same_model_without_cuts(cut, method):
    module, wanted = CUTS[cut], explain(Classifier(), method)
    before = module.double()(IDS).detach()
    for _ in range(3):  # the third run may be a replay
        found = explain(module, method)
        torch.testing.assert_close(found.scores, wanted.scores)
    assert torch.equal(module(IDS), before)
    assert [target.score for target in found.targets] == pytest.approx(before[:, 1].tolist())


@pytest.mark.parametrize(("cut", "words"), [("no_grad", "switches gradients off"), ("detach", "calls detach()")])
def test_a_note_says_what_was_ignored(cut, words):
    assert any(words in note for note in explain(CUTS[cut], "attnlrp").notes)
    assert not any(words in note for note in explain(CUTS["checkpoint"], "attnlrp").notes)


class StopsOnePath(Classifier):
    """A detached state beside one with a gradient: the model means it."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids) + self.places
        for block in self.blocks:
            x = block(x) + 0.5 * x.detach()
        return self.head(x.mean(1))


def test_a_detached_path_beside_another_stays_cut():
    module = StopsOnePath().double().eval()
    words = module.words(IDS).detach().requires_grad_()
    hook = module.words.register_forward_hook(lambda *_: words)
    module(IDS)[:, 1].sum().backward()
    hook.remove()
    found = explain(module, "gradient_x_input")
    torch.testing.assert_close(found.scores, (words * words.grad).sum(-1).detach())
    assert found.notes[0].startswith("The gradients of this model's code are not those of what it computes")
