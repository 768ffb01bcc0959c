"""Reasoning hops: relevance that lands on generated tokens is sent on from their own logits."""

import json
import math
from itertools import pairwise

import pytest
import torch
from conftest import animal
from torch import nn

import whyformer as why
from whyformer import targets
from whyformer._explain import hops as hops_module
from whyformer._explain.hops import KEPT, PassedOn, PredictedTokens, find_steps, share_within_steps
from whyformer.errors import InputError, MethodError, TargetError

LINEAR_CALLS = [  # every recipe that sends slopes
    ("attnlrp", {}),
    ("cp_lrp", {}),
    ("lrp_gamma", {}),
    ("attnlrp", {"recipe": "libra"}),
    ("attnlrp", {"recipe": "pa_lrp"}),
]
WEIGHTS = [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25, 0.25, 0.5, 0], [0.25, 0.25, 0.25, 0.25]]  # query, key
TABLE = [[8, 6, 12], [-4, -6, 0], [8, 18, 0]]  # logit, token; the mean of the logits is 4, 6 and 4


class FixedAttention(nn.Module):
    """Attention that depends on positions only, then one linear layer: every relevance is known.

    The logit of v at position p is the sum over j of weight[p, j] * table[v, token j].
    """

    def __init__(self, weights: list[list[float]], table: list[list[float]]) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(torch.eye(len(table), dtype=torch.float64))
        self.head = nn.Linear(len(table), len(table), bias=False, dtype=torch.float64)
        self.head.weight.data = torch.tensor(table, dtype=torch.float64)
        self.scores = torch.tensor(weights, dtype=torch.float64).log()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        states = self.embed(input_ids)
        length = input_ids.size(1)
        weights = self.scores[:length, :length].expand(len(input_ids), -1, -1).softmax(-1)
        return self.head(weights @ states)


def make_prompt(name: str, generated: int = 4) -> tuple[why.Model, why.Prompt]:
    """A model of the zoo, and a prompt of 6 tokens with what it generates greedily."""
    model = why.open(animal(name).module)
    ids = animal(name).inputs["input_ids"][0, :6].tolist()
    start = len(ids)
    with torch.no_grad():
        for _ in range(generated):
            ids.append(int(model.module(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return model, why.Prompt.from_tokens(model, ids[:start], ids[start:])


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_two_hops_by_hand():
    """Prompt: tokens 0, 1; generated: 2, 0. The last one is explained.

    Hop 0: its logit over the mean at position 2 is 1/4 * (8 - 4) for token 0, 1/4 * (6 - 6) for token 1, 1/2 * (12 - 4)
    for token 2, which is generated: 1 + 0 + 4 = 5.
    Hop 1: token 2 received 4. Its logit over the mean at position 1 is 1/2 * (8 - 4) for token 0 and 1/2 * (18 - 6) for
    token 1: 2 + 6 = 8. So token 0 gets 4 * 2/8 = 1 and token 1 gets 4 * 6/8 = 3.
    """
    model = why.open(FixedAttention(WEIGHTS, TABLE))
    prompt = why.Prompt.from_tokens(model, [0, 1], [2, 0])
    h = why.trace_reasoning(model, prompt, select=-1)
    assert len(h) == 2
    torch.testing.assert_close(h[0].scores, torch.tensor([1.0, 0, 4, 0], dtype=torch.float64))
    torch.testing.assert_close(h[1].scores, torch.tensor([1.0, 3, 0, 0], dtype=torch.float64))
    assert [hop.received for hop in h] == pytest.approx([5, 4])
    assert [hop.to_prompt for hop in h] == pytest.approx([1, 4])
    assert [hop.to_generated for hop in h] == pytest.approx([4, 0])
    assert [hop.absorbed for hop in h] == pytest.approx([0, 0], abs=1e-12)
    torch.testing.assert_close(h.total, torch.tensor([2.0, 3, 0, 0], dtype=torch.float64))
    assert h[1].sent_by == pytest.approx({2: 4.0})
    assert h.left == 0


def test_a_step_sends_together_by_hand(monkeypatch):
    """Prompt: token 0; generated: 1, 2 (one step), then 0, which is explained.

    Hop 0, position 2: 1/4 * (8 - 4) = 1 at token 0, 1/4 * 0 at token 1, 1/2 * (12 - 4) = 4 at token 2. The step has
    received 4, and each of its two tokens sends 2. Token 1 was predicted at position 0 from token 0 with -4 - 4 = -8:
    it was not chosen and keeps its 2. Token 2 sends 2 * 2/8 to token 0 and 2 * 6/8 to token 1, which is of its step.
    Hop 2: 1.5 are left for the step, again halved: .75 are kept, .75 * 2/8 goes to token 0 and .75 * 6/8 to token 1.
    """
    monkeypatch.setattr(hops_module, "find_steps", lambda prompt: [[1, 2], [3]])
    model = why.open(FixedAttention(WEIGHTS, TABLE))
    prompt = why.Prompt.from_tokens(model, [0], [1, 2, 0])
    h = why.trace_reasoning(model, prompt, select=-1, hops=2)
    torch.testing.assert_close(h[0].scores, torch.tensor([1.0, 0, 4, 0], dtype=torch.float64))
    assert h[1].sent_by == pytest.approx({1: 2.0, 2: 2.0}) and h[1].received == 4
    torch.testing.assert_close(h[1].scores, torch.tensor([0.5, 1.5, 0, 0], dtype=torch.float64))
    torch.testing.assert_close(h[2].scores, torch.tensor([0.1875, 0.5625, 0, 0], dtype=torch.float64))
    assert [hop.absorbed for hop in h] == pytest.approx([0, 2, 0.75])


def test_steps_of_a_text():
    """They end with a sentence, a semicolon and a line; every token is in one."""
    model = why.open("demo/reader")
    answer = " Anna left. The ship carries tea; it left in May.\nSo Oslo"
    prompt = why.Prompt.from_text(model, "The Aurora left.", answer=answer)
    steps = find_steps(prompt)
    assert [token for step in steps for token in step] == [*prompt.answer]
    spans = [(prompt.pieces.spans[step[0]][0], prompt.pieces.spans[step[-1]][1]) for step in steps]
    texts = [prompt.text[start:stop].strip() for start, stop in spans]
    assert texts == ["Anna left.", "The ship carries tea;", "it left in May.", "So Oslo"]


def test_what_is_written_after_the_target_sends_nothing():
    assert share_within_steps({3: 1.0, 4: 2.0, 6: 5.0}, [[3, 4, 5], [6, 7]], 6) == {3: 1.0, 4: 1.0, 5: 1.0, 6: 5.0}
    assert share_within_steps({0: 1.0}, [[0], [1]], 1) == {}


def test_a_token_that_the_model_would_not_choose_keeps_what_it_received():
    """As above, but token 2 has the smallest logit at position 1: nothing explains why it is there."""
    model = why.open(FixedAttention(WEIGHTS, [[8, 6, 12], [8, 18, 0], [-4, -6, 0]]))
    prompt = why.Prompt.from_tokens(model, [0, 1], [2, 0])
    h = why.trace_reasoning(model, prompt, select=-1, health=True)
    assert (h[1].received, h[1].to_prompt, h[1].to_generated) == (4, 0, 0)
    assert h[1].absorbed == 4 and h[1].absorbed_by[KEPT] == pytest.approx(4)


# --- the definition, written slowly -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_hop_is_the_sum_over_generated_tokens_of_their_explanations(name):
    """Each generated token explained alone: its logit over the mean logit, scaled to what the token received."""
    model, prompt = make_prompt(name)
    h = why.trace_reasoning(model, prompt, select=-1)
    expected = torch.zeros(len(prompt), dtype=torch.float64)
    for token in prompt.answer:

        def over_the_mean(out, token=token):
            return out.logits[:, token - 1, prompt.ids[token]] - out.logits[:, token - 1].mean(-1)

        alone = why.explain(model, prompt, "cp_lrp", target=over_the_mean)
        expected += float(h[0].scores[token]) * alone.scores[0].double() / alone.targets[0].score
    torch.testing.assert_close(h[1].scores, expected)


# --- properties -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize(("method", "settings"), LINEAR_CALLS, ids=lambda value: repr(value))
def test_every_hop_passes_on_or_absorbs_what_it_received(name, method, settings):
    """The absorbed relevance is measured at every operation, not taken from the difference."""
    model, prompt = make_prompt(name)
    h = why.trace_reasoning(model, prompt, method, select=-1, health=True, **settings)
    assert len(h) > 2
    for hop in h:
        passed = hop.to_prompt + hop.to_generated
        assert hop.received == pytest.approx(passed + sum(hop.absorbed_by.values()), abs=1e-6 * h[0].magnitude)
        assert abs(hop.unaccounted) < 1e-6 * h[0].magnitude
    for before, after in pairwise(h):
        assert after.received == pytest.approx(before.to_generated) == pytest.approx(sum(after.sent_by.values()))
    assert h.score == pytest.approx(float(h.total.sum()) + h.absorbed)


def test_hop_0_is_the_explanation_of_the_target():
    model, prompt = make_prompt("llama")

    def over_the_mean(out):
        rows = out.logits[:, 5:9]  # they predict the answer, tokens 6 to 9
        return rows.gather(2, torch.tensor(prompt.answer_ids)[None, :, None]).sum((1, 2)) - rows.mean(-1).sum(1)

    for given, same in (
        ({}, over_the_mean),
        ({"target": targets.Answer([0, 2], score="logp")}, targets.Answer([0, 2], score="logp")),
    ):
        h = why.trace_reasoning(model, prompt, hops=0, **given)
        torch.testing.assert_close(h[0].explanation.scores, why.explain(model, prompt, "cp_lrp", target=same).scores)
        assert len(h) == 1


def test_some_tokens_of_the_answer_can_be_selected():
    model, prompt = make_prompt("llama")
    parts = [why.trace_reasoning(model, prompt, select=one, hops=0)[0] for one in (0, [-1, 1], 2)]
    whole = why.trace_reasoning(model, prompt, hops=0)[0]
    torch.testing.assert_close(whole.scores, sum(part.scores for part in parts))
    assert whole.received == pytest.approx(sum(part.received for part in parts))
    with pytest.raises(TargetError, match="no token 7 in the answer"):
        why.trace_reasoning(model, prompt, select=7)
    with pytest.raises(InputError, match="select= or target=, not both"):
        why.trace_reasoning(model, prompt, select=0, target=targets.Answer(0))


def test_relevance_moves_to_the_left_until_nothing_is_left():
    """In hop h the last h + 1 generated tokens receive nothing, so the hops end."""
    model, prompt = make_prompt("llama", generated=5)
    h = why.trace_reasoning(model, prompt, select=-1, hops=50)
    for number, hop in enumerate(h):
        assert not hop.scores[len(prompt) - 1 - number :].any()
    assert len(h) <= 5 and h.left < 0.01


def test_hops_end_at_the_given_number():
    model, prompt = make_prompt("llama")
    h = why.trace_reasoning(model, prompt, select=-1, hops=1)
    assert len(h) == 2 and h.left > 0.01
    assert h.spent["relevance"] == 2


def test_a_constant_added_to_all_logits_changes_nothing():
    """Softmax does not see it, so the model predicts the same."""

    class Shifted(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.inner(input_ids) - 100.0

    plain = FixedAttention(WEIGHTS, TABLE)
    found = []
    for module in (plain, Shifted(plain)):
        model = why.open(module)
        found.append(why.trace_reasoning(model, why.Prompt.from_tokens(model, [0, 1], [2, 0]), select=-1))
    for number in (0, 1):
        torch.testing.assert_close(found[0][number].scores, found[1][number].scores)


def test_the_score_of_a_hop_is_what_is_sent():
    """Its value is the sum of what the chosen tokens received; a token below the mean sends nothing."""
    score = PassedOn(PredictedTokens(nn.Identity(), (1, 2), (0, 1), length=3), (3.0, -2.0))
    logits = torch.tensor([[[5.0, 1.0, 0.0], [5.0, 5.0, 0.0], [0.0, 0.0, 0.0]]])
    assert float(score(logits)) == 1.0
    below = torch.tensor([[[5.0, 1.0, 0.0], [5.0, -4.0, 0.0], [0.0, 0.0, 0.0]]])
    assert float(score(below)) == 3.0
    after_others = torch.cat([torch.randn(1, 4, 3), logits], dim=1)  # prompt tuning, which trace_reasoning refuses
    with pytest.raises(TargetError, match="logits for every token"):
        score(after_others)


def test_low_precision_logits_are_summed_in_float32():
    """The mean of many logits in bfloat16 would be rounded at every step."""
    logits = torch.full((1, 2, 4096), 7.0, dtype=torch.bfloat16)
    logits[0, 0, 5] = 20.0
    preference, _ = PredictedTokens(nn.Identity(), (1,), (5,), length=2).read_preferences(logits)
    assert float(preference) == pytest.approx(13 - 13 / 4096, abs=1e-5)


# --- regions ----------------------------------------------------------------------------------------------------------


def test_regions_by_hand():
    model = why.open(FixedAttention(WEIGHTS, TABLE))
    prompt = why.Prompt.from_tokens(model, [0, 1], [2, 0])
    regions = tuple(why.Region(f"token {i}", "passage", i, i + 1, str(i)) for i in (0, 1))
    h = why.trace_reasoning(model, prompt, select=-1)
    h = type(h)(h.hops, prompt, regions)
    torch.testing.assert_close(h.matrix(), torch.tensor([[1.0, 0], [1, 3]], dtype=torch.float64))
    torch.testing.assert_close(h.shares(), torch.tensor([[0.2, 0], [0.25, 0.75]], dtype=torch.float64))
    assert h.by_region() == pytest.approx({"token 1": 3.0, "token 0": 2.0})
    assert list(h.by_region()) == ["token 1", "token 0"]
    same = tuple(why.Region("user", "user", i, i + 1, str(i)) for i in (0, 1))
    assert type(h)(h.hops, prompt, same).by_region() == pytest.approx({"user (2)": 3.0, "user (1)": 2.0})


# --- contract ---------------------------------------------------------------------------------------------------------


def test_leaves_the_model_unchanged():
    model, prompt = make_prompt("llama")
    before = {name: weight.clone() for name, weight in model.module.state_dict().items()}
    why.trace_reasoning(model, prompt, select=-1)
    assert all(torch.equal(weight, before[name]) for name, weight in model.module.state_dict().items())
    assert all(weight.grad is None for weight in model.module.parameters())


def test_files_have_every_hop(tmp_path):
    h = why.trace_reasoning(*make_prompt("llama"), select=-1, health=True)
    h.save(tmp_path / "hops.json")
    stored = json.loads((tmp_path / "hops.json").read_text())
    assert stored["kind"] == "hops" and len(stored["hops"]) == len(h)
    assert stored["hops"][1]["scores"] == h[1].scores.tolist()
    for hop in stored["hops"]:
        assert math.isclose(hop["received"], hop["to_prompt"] + hop["to_generated"] + hop["absorbed"])
    h.save(tmp_path / "hops.csv")
    rows = (tmp_path / "hops.csv").read_text().splitlines()
    assert len(rows) == 1 + len(h) * 10 and rows[0] == "hop,place,token,region,generated,sent,score"
    h.save(tmp_path / "hops.svg")
    assert "<svg" in (tmp_path / "hops.svg").read_text()
    h.save(tmp_path / "hops.txt")
    assert "to generated" in (tmp_path / "hops.txt").read_text()


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["rollout", "gradient_x_input", "libragrad", "lrp", "pa_lrp"])
def test_refuses_methods_whose_relevance_does_not_add_up(method):
    model, prompt = make_prompt("llama")
    with pytest.raises(MethodError, match=f"{method} .*Use one of: attnlrp, cp_lrp, lrp_gamma"):
        why.trace_reasoning(model, prompt, method)


def test_refuses_a_recipe_that_sends_relevance():
    model, prompt = make_prompt("llama")
    with pytest.raises(MethodError, match="attnlrp with this recipe"):
        why.trace_reasoning(model, prompt, "attnlrp", recipe="epsilon")


@pytest.mark.parametrize("hops", [-1, 1.5, True, "2"], ids=repr)
def test_refuses_what_is_no_number_of_hops(hops):
    with pytest.raises(InputError, match="hops must be"):
        why.trace_reasoning(*make_prompt("llama"), hops=hops)


def test_refuses_a_prompt_without_an_answer():
    model, prompt = make_prompt("llama")
    with pytest.raises(InputError, match="no answer, so there are no generated tokens"):
        why.trace_reasoning(model, prompt.without_answer())
    with pytest.raises(InputError, match="has its answer already"):
        why.trace_reasoning(model, prompt, answer="47")
    with pytest.raises(InputError, match="must be a text, a Prompt or a list of messages, got int"):
        why.trace_reasoning(model, 5)
    assert len(why.trace_reasoning(model, why.generate(model, prompt.without_answer(), max_new_tokens=3), hops=1)) == 2


def test_refuses_a_model_without_logits_for_every_token():
    model = why.open(animal("bert").module)
    prompt = why.Prompt.from_tokens(model, [5, 6, 7], [8, 9])
    with pytest.raises(TargetError, match="returns logits for every token"):
        why.trace_reasoning(model, prompt)
