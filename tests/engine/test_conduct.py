"""How a model behaves, seen once: at random, with rows that touch each other, with gradients of its own making."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whyformer as why
from whyformer._engine.probe import conduct
from whyformer._engine.run.model_memory import learnt

WIDTH = 12
IDS = torch.tensor([[3, 9, 17, 5, 22, 8], [11, 2, 30, 7, 19, 4], [6, 1, 14, 25, 33, 12]])
VECTORS = torch.randn(3, 6, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Change = Callable[[Tensor], Tensor]


class Encoder(nn.Module):
    """early: done to the embeddings, middle: to the states after the blocks, late: to their mean."""

    def __init__(self, early: Change | None = None, middle: Change | None = None, late: Change | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(40, WIDTH), nn.Linear(WIDTH, 3)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 24, dropout=0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.changes = [change or (lambda x: x) for change in (early, middle, late)]

    def forward(self, input_ids: Tensor | None = None, vectors: Tensor | None = None) -> Tensor:
        early, middle, late = self.changes
        states = early(self.table(input_ids) if vectors is None else vectors)
        return self.head(late(middle(self.blocks(states)).mean(1)))


def build(**changes: Change) -> nn.Module:
    return Encoder(**changes).double().eval()


def explain(module: nn.Module, method: str, inputs: dict[str, Tensor] | None = None, **more: object) -> why.Explanation:
    return why.explain(module, {"input_ids": IDS[:1]} if inputs is None else inputs, method, target=1, **more)


def leave_out_by_hand(module: nn.Module, ids: Tensor) -> Tensor:
    """Of one example; every variant is a batch of its own."""
    whole = module(ids)[0, 1]
    return torch.stack([whole - module(torch.where(torch.arange(ids.size(1)) == k, 0, ids))[0, 1] for k in range(6)])


def give_places(states: Tensor, places: int) -> Tensor:
    """Experts with a capacity: only the first tokens of the whole batch find a place, the others stay as they are."""
    flat = states.flatten(0, 1)
    chosen = (flat.sum(-1) > 0).nonzero()[:, 0][:places]
    return flat.index_add(0, chosen, flat[chosen].tanh()).view_as(states)


TOUCHING: dict[str, dict[str, Change]] = {
    "z-score": {"late": lambda p: (p - p.mean()) / p.std()},
    "largest of the batch": {"late": lambda p: p / p.abs().max()},
    "softmax over the batch": {"late": lambda p: p * p.softmax(0)},
    "capacity": {"middle": lambda x: give_places(x, 4)},
    "statistics of the batch": {"middle": lambda x: F.batch_norm(x.mT, None, None, training=True).mT},
}


@pytest.mark.parametrize("kind", TOUCHING)
def test_rows_that_touch_each_other_are_run_alone(kind):
    module = build(**TOUCHING[kind])
    wanted = torch.stack([leave_out_by_hand(module, IDS[row : row + 1]) for row in range(3)]).detach()
    for rows in (IDS[:1], IDS):
        found = explain(build(**TOUCHING[kind]), "leave_one_out", {"input_ids": rows})
        torch.testing.assert_close(found.scores, wanted[: len(rows)], check_dtype=False)
        assert "depends on the others in its batch" in found.notes[0]
    alone = [explain(module, "attnlrp", {"input_ids": IDS[row : row + 1]}).scores for row in range(3)]
    torch.testing.assert_close(explain(module, "attnlrp", {"input_ids": IDS}).scores, torch.cat(alone))


RANDOM: dict[str, dict[str, Change]] = {
    "noise": {"early": lambda x: x + 0.1 * torch.randn_like(x)},
    "dropout": {"late": lambda p: F.dropout(p, 0.5, training=True)},
    "a token left out": {"middle": lambda x: x[:, torch.randperm(x.size(1))[:5]]},
}


@pytest.mark.parametrize("kind", RANDOM)
def test_what_is_random_is_said_by_every_verb(kind):
    module = build(**RANDOM[kind])
    notes = (
        explain(module, "leave_one_out").notes,
        why.compare(module, {"input_ids": IDS}, ["chance", "saliency"]).notes,
    )
    assert all(any("answers at random: two equal calls differ by" in note for note in some) for some in notes)


@pytest.mark.parametrize("kind", ["dropout", "noise"])
def test_relevance_of_what_is_random_is_that_of_the_numbers_drawn(kind):
    """For one draw, that is a model with these numbers as constants."""
    early = {"dropout": lambda x: F.dropout(x, 0.3, training=True), "noise": RANDOM["noise"]["early"]}[kind]
    found = explain(build(early=early), "attnlrp", samples=3)
    assert found.scores.any() and all("reads the token ids" not in note for note in found.notes)


class Turned(torch.autograd.Function):
    """Gradient reversal."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def weaken_gradient(x: Tensor) -> Tensor:
    return 0.2 * x + (0.8 * x).detach()


def round_straight_through(x: Tensor) -> Tensor:
    return x + ((4 * x).round() / 4 - x).detach()


OTHER_GRADIENTS: dict[str, tuple[dict[str, Change], str]] = {
    "reversed": ({"early": Turned.apply}, "-1 times"),
    "reversed late": ({"late": Turned.apply}, "-1 times"),
    "scaled": ({"early": weaken_gradient}, "5 times"),
    "straight through": ({"middle": round_straight_through}, "times what they say"),
}


@pytest.mark.parametrize("kind", OTHER_GRADIENTS)
def test_gradients_that_are_not_those_of_the_function_are_noted(kind):
    changes, size = OTHER_GRADIENTS[kind]
    found = explain(build(**changes), "gradient_x_input", {"vectors": VECTORS})
    assert found.notes[0].startswith("The gradients of this model's code") and size in found.notes[0]
    assert explain(build(**changes), "integrated_gradients", {"vectors": VECTORS}, steps=3).notes == found.notes
    assert not explain(build(**changes), "leave_one_out", {"vectors": VECTORS}).notes


PLAIN: dict[str, dict[str, Change]] = {
    "nothing": {},
    "kinks": {"late": lambda p: p.relu().clamp(max=1)},
    "a choice": {"late": lambda p: p * (1 + p.argmax(-1, keepdim=True))},
    "running statistics": {"late": nn.BatchNorm1d(WIDTH).double().eval()},
    "dropout that is off": {"middle": nn.Dropout(0.5).eval()},
    "statistics of a token": {"middle": nn.LayerNorm(WIDTH).double()},
}


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
@pytest.mark.parametrize("rows", [1, 3])
def test_nothing_is_said_of_other_models(kind, precision, rows):
    module = build(**PLAIN[kind]).to(precision)
    for change in module.changes:
        change.to(precision) if isinstance(change, nn.Module) else None
    for inputs in ({"input_ids": IDS[:rows]}, {"vectors": VECTORS[:rows].to(precision)}):
        assert not explain(module, "gradient_x_input", inputs).notes


@pytest.mark.parametrize(("changes", "most"), [({}, 1), (TOUCHING["z-score"], 3), (RANDOM["noise"], 3)])
def test_it_takes_at_most_three_forwards_and_none_later(monkeypatch, changes, most):
    calls = []
    found = conduct.find_conduct

    def find(*given: object, **facts: bool) -> conduct.Conduct:
        forward = Encoder.forward
        monkeypatch.setattr(Encoder, "forward", lambda *own, **more: calls.append(1) or forward(*own, **more))
        result = found(*given, **facts)
        monkeypatch.setattr(Encoder, "forward", forward)
        return result

    monkeypatch.setattr(conduct, "find_conduct", find)
    module = build(**changes)
    explain(module, "gradient_x_input")
    assert 0 < len(calls) <= most
    spent = len(calls)
    explain(module, "leave_one_out")
    explain(module, "gradient_x_input", {"input_ids": IDS})
    assert len(calls) == spent


@pytest.mark.parametrize("method", ["leave_one_out", "gradient_x_input"])
def test_samples_are_the_mean_over_seeds_and_leave_the_callers_random_state(method):
    module, before = build(**RANDOM["noise"]), torch.get_rng_state()
    explain(module, method, samples=4)  # what is found out about a model once draws, too
    found = explain(module, method, samples=4)
    assert torch.equal(found.scores, explain(module, method, samples=4).scores)
    assert found.settings["samples"] == 4 and found.details["deviation"].max() > 0
    torch.set_rng_state(before)
    with torch.random.fork_rng():
        runs = []
        for seed in range(4):
            torch.manual_seed(seed)
            runs.append(explain(module, method).scores)
    torch.testing.assert_close(found.scores, torch.stack(runs).mean(0))


def test_samples_of_a_model_that_is_not_random_are_its_scores():
    module = build()
    found = explain(module, "attnlrp", samples=3)
    torch.testing.assert_close(found.scores, explain(module, "attnlrp").scores)
    with pytest.raises(why.errors.MethodError, match="whole number >= 1"):
        explain(module, "attnlrp", samples=0)


def test_judge_says_that_a_model_answers_at_random():
    examples = [why.data.Example(f"{row}", {"input_ids": IDS[row : row + 1]}) for row in range(3)]
    data = why.data.Data("ids", tuple(examples))
    said = [why.judge(build(**changes), data, ["saliency"], ["aopc"]).cautions for changes in (RANDOM["noise"], {})]
    assert [any("answers at random" in caution for caution in some) for some in said] == [True, False]


EXITS: dict[str, Change] = {  # no example that is tried changes what they do for the whole batch
    "cut off": lambda p: p / p.clamp(max=0.01).amax(),
    "early exit": lambda p: p if float(p.detach().max()) > 0.01 else 2 * p,
}


@pytest.mark.parametrize("kind", EXITS)
def test_rules_for_a_whole_batch_are_noticed_by_what_they_read(kind):
    module = build(late=EXITS[kind])
    e = explain(module, "leave_one_out")
    torch.testing.assert_close(e.scores[0], leave_out_by_hand(module, IDS[:1]).detach(), check_dtype=False)
    assert learnt(module).runs_alone
    assert any("reads all examples of a batch together" in note for note in e.notes)


def test_a_model_that_answers_one_example_at_a_time():
    """Whatever it is given, the first row is answered."""
    module = build(early=lambda x: x[:1])
    found = explain(module, "leave_one_out").scores[0]
    torch.testing.assert_close(found, leave_out_by_hand(module, IDS[:1]).detach(), check_dtype=False)


def test_chance_is_chance_even_if_two_calls_agree(monkeypatch):
    """Numbers were drawn, and few of them may be the same ones twice."""
    module = build(late=lambda p: F.dropout(p, 0.3, training=True))
    monkeypatch.setattr(conduct, "run_plain", lambda shadow, first: torch.ones(1, 3, dtype=torch.float64))
    assert explain(module, "gradient_x_input").notes[0].startswith(conduct.AT_RANDOM)
