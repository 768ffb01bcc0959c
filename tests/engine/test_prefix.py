"""Prefix reuse: the answers to variants whose first tokens ran once are those of the whole variants."""

import pytest
import torch
import transformers as hf
from conftest import TEXT, animal, build

import whyformer as why
from whyformer._engine.probe.batching import CALL_TOKENS
from whyformer._engine.probe.prefix import NoPrefix, cut_prefix, read_prompts, takes_cache
from whyformer._engine.record import record
from whyformer._engine.run.shadow import make_shadow

IDS = torch.randint(5, 40, (2, 14), generator=torch.Generator().manual_seed(3))
PADDED = torch.tensor([14, 11])
MASK = (torch.arange(14)[None] < PADDED[:, None]).long()


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Prompts of these tests are short: without this, their variants would all go together."""
    monkeypatch.setitem(CALL_TOKENS, "cpu", 20)


def make_decoder(name):
    if name in ("gpt2", "llama"):
        return build(name)
    torch.manual_seed(0)
    text = TEXT | {"num_attention_heads": 2}
    makers = {
        "classifier": lambda: hf.LlamaForSequenceClassification(
            hf.LlamaConfig(pad_token_id=0, num_key_value_heads=1, **text)
        ),
        "window": lambda: hf.MistralForCausalLM(hf.MistralConfig(sliding_window=20, num_key_value_heads=1, **text)),
        "narrow window": lambda: hf.MistralForCausalLM(
            hf.MistralConfig(sliding_window=6, num_key_value_heads=1, **text)
        ),
        "opt": lambda: hf.OPTForCausalLM(
            hf.OPTConfig(vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, ffn_dim=48,
                         max_position_embeddings=32, word_embed_proj_dim=24)
        ),
    }  # fmt: skip
    return makers[name]().double().eval()


class ForgetsPrefix(hf.GPT2LMHeadModel):
    """Takes a cache and does not read it."""

    def forward(self, input_ids, attention_mask=None, past_key_values=None, use_cache=None):
        mask = None if attention_mask is None else attention_mask[:, -input_ids.size(1) :]
        return super().forward(input_ids, attention_mask=mask, use_cache=use_cache)


def probe_of(module, target=(1, 2), inputs=None):
    model = why.open(module)
    encoded = model.encode({"input_ids": IDS, "attention_mask": MASK} if inputs is None else inputs)
    return record(model, encoded, target=target if callable(target) else list(target), keep={"probe"})["probe"]


def leave_one_out(lengths):
    """keep [n 14] and of [n]: every token of every prompt removed in turn, and some with a second one."""
    rows = [(example, place) for example, length in enumerate(lengths) for place in range(1, length)]
    keep = torch.ones(len(rows), 14, dtype=torch.bool)
    for row, (_, place) in enumerate(rows):
        keep[row, [place, min(place + 2 * (row % 3), 13)]] = False
    return keep, torch.tensor([example for example, _ in rows])


def ask_both_ways(module, fill, **more):
    """The answers with whole variants and with reused prefixes, and what the second took."""
    keep, of = leave_one_out(PADDED)
    with why.engine(reuse_prefix=False):
        whole = probe_of(module, **more).keep_only(keep, of, fill)
    probe = probe_of(module, **more)
    return whole, probe.keep_only(keep, of, fill), probe.spent


@pytest.mark.parametrize("fill", ["pad", "delete"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "classifier", "window", "opt"])
def test_answers_are_those_of_whole_variants(name, fill):
    whole, tails, spent = ask_both_ways(make_decoder(name), fill)
    for wanted, found in zip(vars(whole).values(), vars(tails).values(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)
    assert spent["tail"] > 15 and "tail_refused" not in spent
    assert spent["forward"] == 2 + len(whole.score)  # the prompts once, every variant once


def test_in_float32_they_differ_by_rounding_also_without_a_mask():
    whole, tails, spent = ask_both_ways(build("gpt2").float(), "pad", inputs={"input_ids": IDS})
    torch.testing.assert_close(tails.logits, whole.logits, rtol=0, atol=1e-5 * float(whole.logits.abs().max()))
    assert spent["tail"]


def test_tokens_that_ran_once_do_not_run_again():
    module, seen = build("gpt2"), []
    keep, of = leave_one_out(PADDED)
    probe = probe_of(module)
    module.transformer.wte.register_forward_pre_hook(lambda _, given: seen.append(given[0].numel()))
    probe.keep_only(keep, of, "pad")
    seen.clear()
    probe.keep_only(keep, of, "pad")
    assert sum(seen) < 0.75 * keep.numel()
    with why.engine(reuse_prefix=False):
        seen.clear()
        probe.keep_only(keep, of, "pad")
    assert sum(seen) == int(PADDED[of].sum())


@pytest.mark.parametrize("name", ["narrow window", "forgets"])
def test_a_model_that_cannot_do_it_runs_whole_variants(name):
    config = hf.GPT2Config(vocab_size=60, n_embd=24, n_layer=2, n_head=3, n_positions=32)
    torch.manual_seed(0)
    module = ForgetsPrefix(config).double().eval() if name == "forgets" else make_decoder(name)
    assert takes_cache(module)
    whole, tails, spent = ask_both_ways(module, "delete")
    assert torch.equal(tails.logits, whole.logits)
    assert spent["tail_refused"] == len(whole.score) and not spent["tail"]
    assert spent["forward"] == len(whole.score)


def test_models_without_a_cache_are_not_asked():
    for name in ("bert", "gpt"):
        assert not takes_cache(animal(name).module)
    e = why.explain(animal("gpt").module, animal("gpt").inputs, "leave_one_out", target=[0, 1, 2])
    assert set(e.spent) == {"forward"}


def test_a_target_inside_the_prompt_is_read_there():
    """The prefix ends before the first token that is read."""
    span = why.targets.LogProbability(why.targets.Tokens(6, 8))
    whole, tails, spent = ask_both_ways(build("llama"), "pad", target=(span, span))
    torch.testing.assert_close(tails.score, whole.score, rtol=1e-9, atol=1e-11)
    assert spent["tail"] and len(whole.score.unique()) > 5


def test_a_function_of_the_whole_output_gets_the_whole_output():
    def first_token(out):
        return out.logits[:, 0, 3]

    whole, tails, spent = ask_both_ways(build("gpt2"), "pad", target=first_token)
    assert torch.equal(tails.score, whole.score)
    assert not spent["tail"]


def test_explanations_are_the_same_and_the_model_too():
    module = build("gpt2")
    before = {name: value.clone() for name, value in module.state_dict().items()}
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    for method in ("leave_one_out", "occlusion"):
        with why.engine(reuse_prefix=False):
            plain = why.explain(module, inputs, method)
        e = why.explain(module, inputs, method)
        torch.testing.assert_close(e.scores, plain.scores, rtol=1e-9, atol=1e-11)
        assert e.spent["tail"] > 4 and "tail" not in plain.spent
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


# --- the parts --------------------------------------------------------------------------------------------------------


def test_tails_by_hand():
    """Two other endings of the first prompt and one of the second, after nine tokens in common."""
    module = build("llama")
    model = why.open(module)
    shadow, encoded = make_shadow(module), model.encode({"input_ids": IDS})
    prompts = read_prompts(shadow, encoded)
    of = torch.tensor([0, 1, 0])
    endings = IDS[of].clone()
    endings[0, 9], endings[1, 11], endings[2, 13] = 50, 51, 52
    variants = model.encode({"input_ids": endings})
    assert prompts.count_shared(variants, of) == 9
    tail = cut_prefix(variants, 9)
    assert tail.inputs["input_ids"].tolist() == endings[:, 9:].tolist()
    assert tail.origin.tolist() == [[9, 10, 11, 12, 13]] * 3
    for _ in range(2):  # a run does not change what is kept
        found = prompts.run_tails(shadow, tail, of, 9).logits
        with torch.no_grad():
            torch.testing.assert_close(found, module(endings).logits[:, 9:], rtol=1e-9, atol=1e-11)


def test_at_least_one_token_is_left():
    model = why.open(build("gpt2"))
    encoded = model.encode({"input_ids": IDS})
    prompts = read_prompts(make_shadow(model.module), encoded)
    assert prompts.count_shared(encoded, torch.tensor([0, 1])) == 13


def test_a_masked_token_is_not_shared():
    model = why.open(build("gpt2"))
    prompts = read_prompts(make_shadow(model.module), model.encode({"input_ids": IDS, "attention_mask": MASK}))
    hidden = MASK.clone()
    hidden[1, 4] = 0
    variants = model.encode({"input_ids": IDS, "attention_mask": hidden})
    assert prompts.count_shared(variants, torch.tensor([0, 1])) == 4
    assert prompts.count_shared(model.encode({"input_ids": IDS}), torch.tensor([0, 1])) == 0
    unmasked = read_prompts(make_shadow(model.module), model.encode({"input_ids": IDS}))
    assert unmasked.count_shared(variants, torch.tensor([0, 1])) == 4


def test_other_inputs_are_refused():
    model = why.open(build("gpt2"))
    encoded = model.encode({"inputs_embeds": torch.randn(2, 5, 24, dtype=torch.float64)})
    with pytest.raises(NoPrefix, match="inputs_embeds"):
        read_prompts(make_shadow(model.module), encoded)
    bert = why.open(hf.BertLMHeadModel(hf.BertConfig(**TEXT)).double().eval())
    with pytest.raises(NoPrefix, match="no cache"):
        read_prompts(make_shadow(bert.module), bert.encode({"input_ids": IDS}))
