"""AtMan: attention suppressed inside the model, against a model whose scores are changed by hand."""

import pytest
import torch
from conftest import TEXT_FAMILIES, animal
from games import Game, additive_game
from torch.testing import assert_close

import whyformer as why
from whyformer._engine.record import record
from whyformer.errors import MethodError
from whyformer.methods import atman
from whyformer.methods.atman import embedding_similarities


def said_by_hand(module, ids, factors, preset="released"):
    """The log-probabilities after the last token, every score multiplied by 1 - factors[key] before the mask.

    As released, scores count from the lowest of their row, future keys included.
    """
    x = module.wte(ids) + module.wpe(torch.arange(len(ids)))
    for block in module.h:
        part = block.attn
        y = block.ln_1(x)
        query, key, value = (t.unflatten(-1, (part.heads, -1)).transpose(0, 1) for t in part.c_attn(y).split(24, -1))
        scores = (query @ key.mT) / 8**0.5
        if preset == "released":
            scores = scores - scores.min(-1, keepdim=True).values
        scores = scores * (1 - factors)
        scores = scores.masked_fill(torch.ones(len(ids), len(ids)).triu(1).bool(), -torch.inf)
        x = x + part.c_proj((scores.softmax(-1) @ value).transpose(0, 1).flatten(1))
        h = block.up(block.ln_2(x))
        x = x + block.down(0.5 * h * (1 + torch.tanh(0.7978845608 * (h + 0.044715 * h**3))))
    return module.lm_head(module.ln_f(x))[-1].log_softmax(-1)


@pytest.mark.parametrize("preset", ["released", "paper"])
@pytest.mark.parametrize("suppression", [0.9, 0.3, 1.0])
@torch.no_grad()
def test_the_definition_written_slowly(suppression, preset):
    module, ids = animal("gpt").module, animal("gpt").inputs["idx"][0]
    settings = {"suppression": suppression, "similarity": 2.0, "preset": preset}
    found = why.explain(module, ids[None], "atman", target=7, **settings).scores[0]
    before = said_by_hand(module, ids, torch.zeros(9), preset)[7]
    for j in range(9):
        after = said_by_hand(module, ids, suppression * torch.eye(9)[j].double(), preset)[7]
        assert_close(found[j], before - after, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("preset", "has_positions"), [("released", False), ("paper", True)])
@torch.no_grad()
def test_tokens_that_are_alike_go_down_together(preset, has_positions):
    """The less alike the less; below the similarity not at all. As released, alike are words, wherever they are."""
    module, ids = animal("gpt").module, torch.tensor([4, 9, 4, 11, 4, 9])
    found = why.explain(module, ids[None], "atman", target=7, similarity=0.3, preset=preset).scores[0]
    embedded = module.wte(ids) + (module.wpe(torch.arange(6)) if has_positions else 0)
    before = said_by_hand(module, ids, torch.zeros(6), preset)[7]
    together = 0
    for j in range(6):
        cosine = torch.cosine_similarity(embedded[j], embedded, dim=-1)
        factors = torch.where(cosine >= 0.3, 0.9 * cosine, 0.0)
        together += int((factors > 0).sum()) - 1
        assert_close(found[j], before - said_by_hand(module, ids, factors, preset)[7], rtol=1e-8, atol=1e-12)
    assert together > (0 if has_positions else 7)  # one word is there 3 times, another twice


def test_presets_differ_in_their_similarity_too():
    module, ids = animal("gpt").module, animal("gpt").inputs["idx"][:1]
    for preset, similarity in (("released", 0.6), ("paper", 0.7)):
        plain, given = (
            why.explain(module, ids, "atman", target=7, preset=preset, **how).scores
            for how in ({}, {"similarity": similarity, "suppression": 0.9})
        )
        assert torch.equal(plain, given)


def test_a_score_is_the_change_of_the_logit():
    """Two classes: the difference of their two changes is that of a contrast."""
    module, ids = animal("gpt").module, animal("gpt").inputs["idx"][:1]
    one, other = (why.explain(module, ids, "atman", target=t, of="score").scores for t in (7, 3))
    contrast = why.explain(module, ids, "atman", target=7, versus=3, of="score").scores
    assert_close(contrast, one - other)


def test_special_tokens_and_padding_are_no_neighbours():
    bert = animal("bert")
    model = why.open(bert.module)
    probe = record(model, model.encode(bert.inputs), target=0, keep={"probe"})["probe"]
    like = embedding_similarities(probe, -1.0, "states")  # all are alike enough
    assert like[1, :6, :6].abs().min() > 0
    assert not like[1, :6, 6:].any() and not like[1, 6:, :6].any()
    assert_close(like.diagonal(dim1=1, dim2=2), torch.ones(3, 9).double())


@pytest.mark.parametrize("preset", ["released", "paper"])
def test_nothing_turned_down_changes_nothing(preset):
    """Up to rounding: other processors put a chunk of rows together in another order, and a row is shifted."""
    it = animal("bert")
    scores = why.explain(it.module, it.inputs, "atman", suppression=0.0, preset=preset).scores
    assert_close(scores, torch.zeros_like(scores), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [(name, "sdpa") for name in TEXT_FAMILIES] + [(name, "eager") for name in ("bert", "electra", "gpt2", "llama")],
)
@pytest.mark.parametrize("preset", ["released", "paper"])
def test_what_a_mask_has_shut_off_stays_shut_off(name, kernel, preset):
    """Scores made 0 everywhere must not open a mask: padding and what comes later stay unseen."""
    it = animal(name, kernel)
    how = {"target": 0, "suppression": 1.0, "preset": preset}
    e = why.explain(it.module, it.inputs, "atman", **how)
    for i in (1, 2):
        alone = why.explain(it.module, it.alone(i), "atman", **how).scores[0]
        assert_close(e.scores[i, : len(alone)], alone, rtol=1e-9, atol=1e-9 if kernel == "sdpa" else 1e-6)


def test_a_contrast_is_one_class_against_the_other():
    bert, ids = animal("bert").module, animal("bert").inputs["input_ids"][:1]
    e = why.explain(bert, {"input_ids": ids}, "atman", target=0, versus=3, similarity=2.0).scores
    one, other = (why.explain(bert, {"input_ids": ids}, "atman", target=t, similarity=2.0).scores for t in (0, 3))
    assert not torch.equal(e, one)
    same_sign = (e * (one - other)).sum() / (e.norm() * (one - other).norm())
    assert same_sign > 0.99  # log p against the other has the sign of the difference


def test_settings_are_checked():
    game = Game(additive_game([1.0]), 1, is_image=True)
    with pytest.raises(MethodError, match=r"suppression must be a number from 0 to 1, got 1\.5"):
        atman(game, suppression=1.5)
    with pytest.raises(MethodError, match="patches of this image are unknown"):
        atman(game)
