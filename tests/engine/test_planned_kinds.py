"""Planned runs of encoders, decoders and image models: served once they were tried, and what the full engine gives."""

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from conftest import FAMILIES, build
from torch import Tensor, nn

import whyformer as why
from whyformer import targets
from whyformer._engine.plan import facts, runner
from whyformer.errors import TargetError

METHODS = (
    "libragrad", "attnlrp", "cp_lrp", "gradient_x_input", "saliency", "attcat", "cat", "grads", "attgrads",
    "generic_attention", "rollout", "raw_attention", "lrp_gamma", "gamma_attribution",
)  # fmt: skip
# Families whose batches no plan serves, with the reason
MOVED = "the model changes the order of tokens or examples"  # of a batch, as far as is known of a class of one's own
UNPLANNED = {"encoder": MOVED, "encoder_token_first": MOVED, "gpt": MOVED}
CALLS = 4  # the full engine; a plan is learnt and tried; tried on another input; planned
ONE = {"input_ids": torch.tensor([[5, 6, 7, 8, 9, 10, 11]])}


def make_inputs(family, call: int) -> dict[str, Tensor]:
    """Other values at each call; texts of other lengths too, with padding."""
    generator = torch.Generator().manual_seed(call)
    if "pixel_values" in family.inputs:
        pixels = family.inputs["pixel_values"]
        return {"pixel_values": torch.randn(pixels.shape, generator=generator, dtype=pixels.dtype)}
    name = "idx" if "idx" in family.inputs else "input_ids"
    ids = torch.randint(5, 40, (3, 7 + call), generator=generator)
    if name == "idx":
        return {"idx": ids}
    mask = torch.arange(7 + call)[None] < torch.tensor([7 + call, 5, 3])[:, None]
    padding = 1 if family.name == "roberta" else 0
    return {"input_ids": torch.where(mask, ids, padding), "attention_mask": mask.long()}


def explain_in_full(module: nn.Module, inputs, method: str, **options) -> why.Explanation:
    with why.engine(plan=False, replay=False):
        return why.explain(module, inputs, method, **options)


def explain_by_plan(module: nn.Module, inputs, method: str, **options) -> why.Explanation:
    """The last of as many calls as it takes to learn a plan and to try it."""
    return [why.explain(module, inputs, method, **options) for _ in range(CALLS)][-1]


def assert_same(ours: why.Explanation, theirs: why.Explanation) -> None:
    most = float(theirs.scores.abs().max())
    assert float((ours.scores - theirs.scores).abs().max()) <= 1e-10 * most
    assert (ours.notes, ours.tokens, set(ours.details)) == (theirs.notes, theirs.tokens, set(theirs.details))
    assert [one.label for one in ours.targets] == [one.label for one in theirs.targets]


@pytest.mark.parametrize("method", METHODS)
def test_every_family_is_served_with_the_scores_of_the_full_engine(family, method):
    try:
        explain_in_full(family.module, family.inputs, method)
    except why.errors.WhyformerError:
        pytest.skip("the full engine refuses it too")
    for call in range(CALLS):
        ours = why.explain(family.module, make_inputs(family, call), method)
        assert_same(ours, explain_in_full(family.module, make_inputs(family, call), method))
    expected = UNPLANNED.get(family.name)
    if expected is None:
        assert ours.engine.name == "plan", ours.engine
    else:
        assert expected in ours.engine.reasons["plan"]


def test_the_first_call_of_each_kind_is_compared_and_later_ones_are_not():
    module = build("bert")
    alone, padded = make_inputs_of("bert", 1), make_inputs_of("bert", 3)
    names = []
    for inputs in (alone, alone, alone, alone, padded, padded, padded, padded, alone, padded):
        names.append(why.explain(module, inputs, "gradient_x_input").engine.name)
    assert names == ["full", "full", "full", "plan", "full", "full", "full", "plan", "plan", "plan"]
    by_target = [why.explain(module, alone, "gradient_x_input", target=2).engine.name for _ in range(2)]
    assert by_target == ["full", "plan"]


def make_inputs_of(name: str, batch: int) -> dict[str, Tensor]:
    ids = torch.randint(5, 40, (batch, 8), generator=torch.Generator().manual_seed(batch))
    mask = torch.arange(8)[None] < torch.tensor([8, 6, 4][:batch])[:, None]
    return {"input_ids": torch.where(mask, ids, 0), "attention_mask": mask.long()}


@pytest.mark.parametrize(
    "target",
    [2, lambda out: out.logits[:, 0] - out.logits[:, 1].square(), targets.LogProbability(1)],
    ids=["class", "function", "log-probability"],
)
def test_every_kind_of_target_is_served(target):
    module = build("bert")
    ours = explain_by_plan(module, ONE, "libragrad", target=target)
    assert ours.engine.name == "plan"
    assert_same(ours, explain_in_full(module, ONE, "libragrad", target=target))


def test_scaled_embeddings_are_the_input_that_is_multiplied():
    """Gemma multiplies its embeddings by a number after the table: gradient x input is of what comes after that."""
    settings = dict(vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
    torch.manual_seed(0)
    module = hf.GemmaForCausalLM(hf.GemmaConfig(**settings, head_dim=12, num_key_value_heads=1)).double().eval()
    ours = explain_by_plan(module, ONE, "gradient_x_input")
    assert ours.engine.name == "plan"
    assert_same(ours, explain_in_full(module, ONE, "gradient_x_input"))


class TwoAnswers(nn.Module):
    """Returns logits and, beside them, states that the logits do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head, self.other = nn.Embedding(60, 8), nn.Linear(8, 3), nn.Linear(8, 8)

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        x = self.words(input_ids)
        x = x + F.scaled_dot_product_attention(x, x, x)
        return {"logits": self.head(x.mean(1)), "states": self.other(x).tanh().mean(1)}


def test_what_is_returned_beside_the_logits_has_a_gradient_too():
    module = TwoAnswers().double().eval()
    target = lambda out: out["states"][:, 0]  # noqa: E731
    why.explain(module, ONE, "gradient_x_input")  # the plan is learnt with another target
    explain_by_plan(module, ONE, "gradient_x_input")
    ours = explain_by_plan(module, ONE, "gradient_x_input", target=target)
    assert ours.engine.name == "plan"
    assert_same(ours, explain_in_full(module, ONE, "gradient_x_input", target=target))


class AddsPositionsInPlace(TwoAnswers):
    """`x += positions` after the embedding, as in Nystromformer."""

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        x = self.words(input_ids)
        x += torch.linspace(0, 1, input_ids.size(1), dtype=x.dtype)[:, None]
        x = F.layer_norm(x, (8,)) + F.scaled_dot_product_attention(x, x, x)
        return {"logits": self.head(x.mean(1))}


@pytest.mark.parametrize("method", ["gradient_x_input", "lrp_gamma"])
def test_positions_that_are_added_in_place_belong_to_the_input(method):
    module = AddsPositionsInPlace().double().eval()
    ours = explain_by_plan(module, ONE, method)
    assert ours.engine.name == "plan"
    assert_same(ours, explain_in_full(module, ONE, method))


class ReadsGlobal(TwoAnswers):
    """`globals()` of its file: one that its forward uses, one that counts calls, as in a notebook."""

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        x = self.words(input_ids) * USED
        return {"logits": self.head((x + F.scaled_dot_product_attention(x, x, x)).mean(1))}


USED, COUNTED = 2.0, 0


def test_globals_that_the_code_does_not_use_may_change(monkeypatch):
    module = ReadsGlobal().double().eval()
    for call in range(CALLS):
        monkeypatch.setitem(globals(), "COUNTED", call)
        ours = why.explain(module, ONE, "gradient_x_input")
    assert ours.engine.name == "plan"
    monkeypatch.setitem(globals(), "USED", 3.0)
    ours = why.explain(module, ONE, "gradient_x_input")
    assert_same(ours, explain_in_full(module, ONE, "gradient_x_input"))


# --- when the full engine keeps a call --------------------------------------------------------------------------------


def test_attention_that_differs_is_found_by_the_trial(monkeypatch):
    read = facts.AttentionStep.read

    def read_wrongly(self, operation, result):
        site = read(self, operation, result)
        site.scale *= 1.01
        return site

    monkeypatch.setattr(facts.AttentionStep, "read", read_wrongly)
    module = build("bert")
    ours = explain_by_plan(module, ONE, "rollout")
    assert ours.engine.reasons["plan"] == "a run by the plan gives other attention"
    assert_same(ours, explain_in_full(module, ONE, "rollout"))


def test_a_readout_that_differs_is_found_by_the_trial(monkeypatch):
    monkeypatch.setattr(
        facts.ModelFacts,
        "find_readout",
        lambda self, layout: facts.READOUTS["last position"](layout.mask, layout.special),
    )
    ours = explain_by_plan(build("bert"), ONE, "rollout")
    assert ours.engine.reasons["plan"].endswith("the answer is read at other tokens than when the plan was learnt")


class Pooled(nn.Module):
    """Reads the token with the largest id: where the answer is read depends on the input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(60, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        x = x + F.scaled_dot_product_attention(x, x, x)
        return self.head(x[torch.arange(len(x)), input_ids.argmax(1)])


def test_a_readout_that_depends_on_the_input_is_not_learnt():
    module = Pooled().double().eval()
    first, last = torch.tensor([[50, 6, 7, 8]]), torch.tensor([[5, 6, 7, 51]])
    for ids in (first, first, first, last, first, last):
        ours = why.explain(module, {"input_ids": ids}, "rollout")
        assert_same(ours, explain_in_full(module, {"input_ids": ids}, "rollout"))


class Branching(nn.Module):
    """Takes another way where an id is large."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(60, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        x = x + F.scaled_dot_product_attention(x, x, x)
        return self.head((x.tanh() if int(input_ids.max()) > 30 else x.square()).mean(1))


@pytest.mark.parametrize("method", ["gradient_x_input", "libragrad", "rollout"])
def test_an_input_that_takes_another_way_is_explained_all_the_same(method):
    module = Branching().double().eval()
    small, large = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[5, 6, 7, 51, 9]])
    for ids in (small, small, small, small, large, small, large, large, small, large):
        ours = why.explain(module, {"input_ids": ids}, method)
        assert_same(ours, explain_in_full(module, {"input_ids": ids}, method))


class Restless(Branching):
    """Takes another way at every call."""

    calls = 0

    def forward(self, input_ids: Tensor) -> Tensor:
        Restless.calls += 1
        x = self.words(input_ids)
        x = x + F.scaled_dot_product_attention(x, x, x)
        return self.head((x.tanh() if Restless.calls % 2 else (x * 2).tanh() / 2).mean(1))


@pytest.mark.parametrize("method", ["gradient_x_input", "libragrad", "rollout"])
def test_a_model_that_differs_from_its_plan_at_once_is_explained_by_the_full_engine(method):
    module = Restless().double().eval()
    for _ in range(2 * CALLS):
        assert why.explain(module, ONE, method).engine.name == "full"


class Overwriting(Branching):
    """Writes over what autograd keeps: the engine that runs writes out of place explains it all the same."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        x = (x + F.scaled_dot_product_attention(x, x, x)).sigmoid()
        x.mul_(2)
        return self.head(x.mean(1))


@pytest.mark.parametrize("method", ["gradient_x_input", "rollout"])
def test_a_write_over_what_the_backward_pass_needs_is_found_by_the_trial_and_not_tried_again(monkeypatch, method):
    module = Overwriting().double().eval()
    why.explain(module, ONE, method), why.explain(module, ONE, method)
    monkeypatch.setattr(runner, "run_planned", lambda *_, **__: pytest.fail("a planned run was started"))
    ours = why.explain(module, ONE, method)
    assert "inplace operation" in ours.engine.reasons["plan"]
    assert_same(ours, explain_in_full(module, ONE, method))


def test_whatever_fails_in_a_planned_run_leaves_the_call_to_the_full_engine(monkeypatch):
    module = build("bert")
    explain_by_plan(module, ONE, "rollout")
    monkeypatch.setattr(runner, "run_planned", lambda *_, **__: {}["no such key"])
    ours = why.explain(module, ONE, "rollout")
    assert ours.engine.reasons["plan"].startswith("a planned run failed with KeyError")
    assert_same(ours, explain_in_full(module, ONE, "rollout"))


def test_a_wrong_target_does_not_spoil_the_plan():
    module = build("bert")
    why.explain(module, ONE, "gradient_x_input")
    with pytest.raises(TargetError):
        why.explain(module, ONE, "gradient_x_input", target="no such class")
    assert explain_by_plan(module, ONE, "gradient_x_input").engine.name == "plan"


@pytest.mark.parametrize("name", ["vit", "bert"])
def test_weights_of_16_bits_are_left_to_the_full_engine_which_computes_in_32(name):
    module = build(name).to(torch.bfloat16)
    inputs = {"pixel_values": torch.randn(1, 3, 16, 16, dtype=torch.bfloat16)} if name == "vit" else ONE
    ours = explain_by_plan(module, inputs, "libragrad")
    assert "16 bits" in ours.engine.reasons["plan"]
    assert torch.equal(ours.scores, explain_in_full(module, inputs, "libragrad").scores)


def test_too_few_tokens_teach_nothing():
    module, short = build("bert"), {"input_ids": torch.tensor([[5, 6]])}
    reasons = [why.explain(module, short, "rollout").engine.reasons["plan"] for _ in range(3)]
    assert reasons == [runner.NOT_LEARNT, runner.TOO_FEW, runner.TOO_FEW]
    assert explain_by_plan(module, ONE, "rollout").engine.name == "plan"


def test_planned_runs_count_one_forward_and_one_backward():
    spent = explain_by_plan(build("bert"), ONE, "libragrad", target=0, versus=1).spent
    assert spent == {"forward": 1.0, "relevance": 1.0}


def test_all_families_are_tried():
    assert set(UNPLANNED) <= set(FAMILIES)
