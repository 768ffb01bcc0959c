"""Other attention with the same output, on models where it is known whether there is any."""

import pytest
import torch
from audit.known import deciding, idle, sentences
from conftest import animal

import whyformer as why
from whyformer._audit.checks.adversarial import PRESETS, Candidates, choose_search, divide_examples
from whyformer._audit.checks.attention_choice import choose_attention
from whyformer._audit.checks.audited_attention import AuditedAttention
from whyformer._audit.checks.distance import jsd
from whyformer._audit.reruns import AttentionReplay
from whyformer.errors import MethodError


def audit_attention(model, inputs, attention="last"):
    replay = AttentionReplay(model, model.encode(inputs), range(8))
    return AuditedAttention(replay, choose_attention(attention, replay.heads)[0])


def search_adversarial(audited, search, seed=0):
    """The result for each example of the batch; None where no weight can be moved."""
    results = {}
    for part in divide_examples(audited, search):
        results |= dict(zip(part, Candidates(audited, part, search, seed).search_all(), strict=True))
    return [results.get(i) for i in range(audited.replay.batch)]


def test_where_attention_cannot_matter_the_search_reaches_the_farthest():
    """At least 95 % of max over j of JSD(one-hot at j, attention)."""
    for one in search_adversarial(audit_attention(idle(), sentences(4)), choose_search("paper")):
        assert one["kept"] == 5 and one["jsd"] >= 0.95 * one["attainable"]


def test_where_attention_decides_the_search_finds_none():
    for one in search_adversarial(audit_attention(deciding(), sentences(4)), choose_search("paper", steps=150)):
        assert one["jsd"] < 0.05


def test_candidates_that_change_the_output_are_dropped():
    """After one step candidates are still random; those that move the output beyond the tolerance do not count."""
    for one in search_adversarial(audit_attention(deciding(), sentences(3)), choose_search("paper", steps=1)):
        assert one["kept"] == sum(tvd <= 0.01 for tvd in one["tvd"])
        assert one["jsd"] == max([0.0] + [a for a, t in zip(one["apart"], one["tvd"], strict=True) if t <= 0.01])


def test_presets_are_those_of_the_paper_and_of_the_released_code():
    paper, released = PRESETS["paper"], PRESETS["released"]
    assert (paper.candidates, paper.steps, paper.rate, paper.weight, paper.start) == (5, 500, 0.01, 500, 3)
    assert (paper.tolerance, paper.selection, paper.squares) == (0.01, 0.01, False)
    assert (released.tolerance, released.selection, released.squares) == (0.01, 0.05, True)
    with pytest.raises(MethodError, match=r"There is no preset 'best'\. Available: paper, released\."):
        choose_search("best")
    with pytest.raises(MethodError, match="steps must be a whole number from 1 to 1000000, got 0"):
        choose_search("paper", steps=0)


def test_the_search_starts_elsewhere_in_every_block():
    it = animal("bert")
    audited = audit_attention(why.open(it.module), it.inputs, "rollout")
    made = Candidates(audited, [0, 1], choose_search("paper"), seed=0)
    starts = list(made.logits.values())
    assert len(starts) > 1 and starts[0].shape == starts[1].shape and not torch.equal(starts[0], starts[1])


def test_the_loss_is_that_of_the_paper():
    """Written out slowly for one example: pairs among the candidates, both weightings."""
    audited = audit_attention(idle(), sentences(1))
    for preset, share in (("paper", 1 / 20), ("released", 1 / 25)):
        made = Candidates(audited, [0], choose_search(preset), seed=0)
        weights = made.compute_weights()
        rows = weights[0][:, 0, 0]
        slow = sum(jsd(rows[i], rows[j]) for i in range(5) for j in range(5) if i != j) * share
        assert made._mean_mutual_distance(weights).item() == pytest.approx(slow.item())
        assert made.measure_distance(weights, made.own)[2].item() == pytest.approx(
            jsd(rows[2], audited.own_weights(0)[0, 0, 0]).item()
        )


def test_an_example_does_not_depend_on_its_batch():
    model, search = why.open(animal("bert").module), choose_search("paper", steps=8)
    together = search_adversarial(audit_attention(model, animal("bert").inputs, 1), search)
    alone = search_adversarial(audit_attention(model, animal("bert").alone(2), 1), search)[0]
    assert alone["apart"] == pytest.approx(together[2]["apart"], abs=1e-6)
    assert alone["attainable"] == pytest.approx(together[2]["attainable"], abs=1e-9)


def test_heads_are_searched_jointly_and_one_by_one():
    model, search = why.open(animal("bert").module), choose_search("paper", steps=3)
    joint = audit_attention(model, animal("bert").inputs, 1)
    assert Candidates(joint, [0], search, 0).logits[1].shape == (5, 3, 9, 9)
    single = audit_attention(model, animal("bert").inputs, (1, 0))
    assert Candidates(single, [0], search, 0).logits[1].shape == (5, 1, 9, 9)
    both = search_adversarial(audit_attention(model, animal("bert").inputs, "rollout"), search)
    assert len(both) == 3 and all(len(one["apart"]) == 5 for one in both)


def test_more_steps_go_farther():
    """If the output cannot change, every step moves the candidates farther away."""
    audited = audit_attention(idle(), sentences(2))
    early, late = (search_adversarial(audited, choose_search("paper", steps=steps)) for steps in (1, 100))
    assert all(min(b["apart"]) > min(a["apart"]) for a, b in zip(early, late, strict=True))


def test_one_token_has_no_other_attention():
    assert search_adversarial(audit_attention(deciding(), [torch.tensor([3])]), choose_search("paper")) == [None]
