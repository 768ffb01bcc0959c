"""The limit on tokens is what a model can run: rotary positions are computed for any length, learned ones are not."""

import pytest
import torch
import transformers as hf

import whyformer as why
from whyformer.errors import InputError

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 20}
LONG = [1.0, 2.0, 2.0, 4.0]
ROPES = {
    "default": ({}, 16),
    "linear": ({"factor": 2.0}, 32),
    "yarn": ({"factor": 4.0, "original_max_position_embeddings": 16}, 64),
    "dynamic": ({"factor": 2.0}, None),
    "longrope": (
        {"short_factor": [1.0] * 4, "long_factor": LONG, "factor": 4.0, "original_max_position_embeddings": 8},
        32,
    ),
    "llama3": (
        {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
        64,
    ),
}
IDS = torch.arange(200)[None] % 19 + 1


def build(kind: str, config: type = hf.LlamaConfig, model: type = hf.LlamaForCausalLM, **more) -> torch.nn.Module:
    torch.manual_seed(0)
    rope = {"rope_theta": 10000.0, "rope_type": kind, **ROPES[kind][0]}
    made = config(**SIZES, max_position_embeddings=16, rope_parameters=rope, pad_token_id=0, **more)
    return model(made).double().eval()


@pytest.mark.parametrize("by_plan", [False, True])
@pytest.mark.parametrize("kind", ROPES)
def test_rotary_models_run_beyond_their_trained_length(kind, by_plan):
    module, trained = build(kind), ROPES[kind][1]
    model = why.open(module)
    assert (model.max_length, model.trained_length) == (None, trained)
    with torch.no_grad():
        logits = module(IDS, use_cache=False).logits[0, -1]
    with why.engine(plan=by_plan):
        e = why.explain(model, {"input_ids": IDS}, "attnlrp")
        short = why.explain(model, {"input_ids": IDS[:, :12]}, "attnlrp")  # the model goes back to its first rotations
    assert e.scores.shape == (1, 200) and e.targets[0].score == pytest.approx(float(logits.max()), rel=1e-5)
    assert [note for note in e.notes if "was made for" in note] == (
        []
        if trained is None
        else [
            f"The input has 200 tokens; LlamaForCausalLM was made for {trained} and computes positions beyond. Its "
            "answers may be poor there, and scores explain those answers."
        ]
    )
    assert not any("was made for" in note for note in short.notes)
    with torch.no_grad():
        again = module(IDS[:, :12], use_cache=False).logits[0, -1]
    assert short.targets[0].score == pytest.approx(float(again.max()), rel=1e-5)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_planned_run_rotates_by_the_length_of_its_own_input(kind):
    """Not by that of the short input that the plan was made from."""
    module = build(kind)
    for length in (200, 12, 100):
        scores = []
        for by_plan in (True, False):
            with why.engine(plan=by_plan):
                scores.append(why.explain(module, {"input_ids": IDS[:, :length]}, "attnlrp").scores)
        assert torch.allclose(*scores, rtol=1e-4, atol=1e-6 * float(scores[1].abs().max()))


def test_sliding_windows_are_no_limit():
    module = build("default", hf.MistralConfig, hf.MistralForCausalLM, num_key_value_heads=1, sliding_window=8)
    with torch.no_grad():
        logits = module(IDS, use_cache=False).logits[0, -1]
    for by_plan in (True, False):
        with why.engine(plan=by_plan):
            e = why.explain(module, {"input_ids": IDS}, "attnlrp")
        assert e.targets[0].score == pytest.approx(float(logits.max()), rel=1e-5)
        assert not bool(e.scores[0, :-15].any())  # two layers, each of which sees eight tokens
        assert bool(e.scores[0, -15:].all())


def test_learned_positions_are_a_limit():
    torch.manual_seed(0)
    config = hf.GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=16, vocab_size=20)
    model = why.open(hf.GPT2LMHeadModel(config).eval())
    assert model.max_length == model.trained_length == 16
    with pytest.raises(InputError, match="is 200 tokens long; GPT2LMHeadModel accepts at most 16") as error:
        why.explain(model, {"input_ids": IDS}, "attnlrp")
    assert error.value.code == "E_TXT_TOO_LONG"


def test_rotations_from_a_table_are_a_limit():
    torch.manual_seed(0)
    config = hf.GPTJConfig(n_embd=16, n_layer=1, n_head=2, n_positions=16, rotary_dim=4, vocab_size=20)
    assert why.open(hf.GPTJForCausalLM(config).eval()).max_length == 16
