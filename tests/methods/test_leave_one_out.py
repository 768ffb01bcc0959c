"""Leave-one-out: the model asked without each token, against the model asked by hand."""

import pytest
import tiny_text
import torch
from conftest import animal
from games import PICTURES, TEXTS, WORTH, WORTH_OF_PICTURES, WORTH_OF_TEXTS, AddsPatches, AddsWords, Game
from torch.testing import assert_close

import whyformer as why
from whyformer.errors import MethodError
from whyformer.methods import leave_one_out


def test_by_hand():
    """Two that only count together, and one that counts against."""
    game = Game(lambda there: 3.0 * ({0, 1} <= there) - 1.0 * (2 in there), 4)
    assert leave_one_out(game).tolist() == [[3, 3, -1, 0]]
    assert leave_one_out(game, absolute=True).tolist() == [[3, 3, 1, 0]]
    assert game.rows_asked == 8


def test_probability_by_hand():
    game = Game(lambda there: float(len(there)), 2)
    drop = torch.sigmoid(torch.tensor(2.0).double()) - torch.sigmoid(torch.tensor(1.0).double())
    assert_close(leave_one_out(game, of="probability"), drop.expand(1, 2))


def test_of_a_sum_is_each_part():
    assert_close(why.explain(AddsWords(WORTH), TEXTS, "leave_one_out", target=0).scores, WORTH_OF_TEXTS)
    assert_close(why.explain(AddsWords(WORTH), TEXTS, "leave_one_out", target=1).scores, -2 * WORTH_OF_TEXTS)
    assert_close(why.explain(AddsPatches(), PICTURES, "leave_one_out", target=0).scores, WORTH_OF_PICTURES)


@pytest.mark.parametrize("fill", ["pad", "delete", "drop"])
def test_the_definition_written_slowly(fill):
    """One example, one token, one call at a time; deleting and dropping by hand."""
    bert, ids = animal("bert").module, animal("bert").inputs["input_ids"][1:2, :6]
    found = why.explain(bert, {"input_ids": ids}, "leave_one_out", target=1, fill=fill).scores[0]
    with torch.no_grad():
        before = bert(ids).logits[0, 1]
        for j in range(6):
            if fill == "delete":
                after = bert(torch.cat([ids[:, :j], ids[:, j + 1 :]], 1)).logits[0, 1]
            else:
                mask = torch.ones_like(ids)
                mask[0, j] = 0
                left = ids * mask if fill == "pad" else ids
                after = bert(left, attention_mask=mask).logits[0, 1]
            if fill != "drop" or j > 0:  # the answer is read at token 0, which does not look at itself then
                assert_close(found[j], before - after, rtol=1e-9, atol=1e-12)


def test_jain_and_wallace_delete_and_take_the_distance_of_probabilities():
    bert, ids = animal("bert").module, animal("bert").inputs["input_ids"][:1]
    found = why.explain(bert, {"input_ids": ids}, "leave_one_out", target=2, preset="jain_wallace")
    with torch.no_grad():
        shorter = torch.cat([torch.cat([ids[:, :j], ids[:, j + 1 :]], 1) for j in range(9)])
        wanted = (bert(ids).logits.softmax(-1)[:, 2] - bert(shorter).logits.softmax(-1)[:, 2]).abs()
    assert_close(found.scores[0], wanted)
    kept = why.explain(bert, {"input_ids": ids}, "leave_one_out", target=2, preset="jain_wallace", absolute=False)
    assert_close(kept.scores.abs(), found.scores)
    assert kept.scores.min() < 0


def test_a_contrast_is_the_difference():
    bert, inputs = animal("bert").module, animal("bert").inputs
    one, other = (why.explain(bert, inputs, "leave_one_out", target=t).scores for t in (0, 3))
    both = why.explain(bert, inputs, "leave_one_out", target=0, versus=3).scores
    assert_close(both, one - other, rtol=1e-9, atol=1e-12)


def test_special_tokens_stay_and_words_go_together():
    model = why.open(tiny_text.bert(), tokenizer=tiny_text.wordpiece())
    e = why.explain(model, "the film is good!", "leave_one_out", target=0)
    assert [score == 0 for score in e.scores[0].tolist()] == list(e.tokens[0].special)
    words = why.explain(model, "the film is good!", "leave_one_out", target=0, units="word")
    assert words.spent["forward"] == 1 + 1 + 4  # the run, the text as it is, four words
    assert len(words.words().scores[0].unique()) == 5


def test_costs_one_forward_a_token():
    e = why.explain(AddsWords(WORTH), TEXTS, "leave_one_out", target=0)
    assert e.spent["forward"] == 1 + 1 + (5 + 3) / 2


def test_settings_are_checked():
    game = Game(lambda there: 1.0, 2)
    with pytest.raises(MethodError, match=r"preset must be one of .*; got 'jain'"):
        leave_one_out(game, preset="jain")
    with pytest.raises(MethodError, match=r"absolute must be one of .*; got 2"):
        leave_one_out(game, absolute=2)


def build_deberta(version):
    import transformers as hf

    torch.manual_seed(0)
    sizes = dict(vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48)
    relative = dict(relative_attention=True, pos_att_type=["p2c", "c2p"], initializer_range=0.3, num_labels=3)
    config, model = {
        1: (hf.DebertaConfig, hf.DebertaForSequenceClassification),
        2: (hf.DebertaV2Config, hf.DebertaV2ForSequenceClassification),
    }[version]
    return model(config(max_position_embeddings=32, **sizes, **relative)).double().eval()


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is")  # transformers uses it for DeBERTa
@pytest.mark.parametrize("method", ["leave_one_out", "occlusion", "kernel_shap"])
@pytest.mark.parametrize("version", [1, 2])
def test_padding_changes_nothing_in_deberta(version, method):
    """A masked token of DeBERTa attends to all others alike, padding included; here the answer is read at one."""
    module = build_deberta(version)
    mask = torch.arange(9)[None] < torch.tensor([9, 5, 7])[:, None]
    ids = torch.where(mask, torch.randint(5, 50, (3, 9), generator=torch.Generator().manual_seed(0)), 0)
    settings = {"budget": 16} if method == "kernel_shap" else {}
    together = why.explain(module, {"input_ids": ids, "attention_mask": mask.long()}, method, target=1, **settings)
    for i, length in enumerate((9, 5, 7)):
        alone = why.explain(module, {"input_ids": ids[i : i + 1, :length]}, method, target=1, **settings)
        torch.testing.assert_close(together.scores[i : i + 1, :length], alone.scores, rtol=1e-10, atol=1e-12)
        assert not together.scores[i, length:].any()
