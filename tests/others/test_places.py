"""Models that accelerate, PEFT and sentence-transformers hold: scored as the plain model, and left as they were."""

import copy

import accelerate
import peft
import pytest
import torch
from others.cases_peft import build_bert, build_gpt2
from others.cases_sentence import build_chain
from others.study import compare_states, describe_state
from others.subject import make_ids

import whyformer as why
from whyformer._engine.run.shadow import make_shadow
from whyformer.errors import UnsupportedModel

METHODS = ["rollout", "attnlrp", "gradient_x_input", "leave_one_out"]
PLACES = {
    "device map": lambda m: accelerate.dispatch_model(
        m, {name: "cpu" for name, _ in m.named_children()}, main_device="cpu", force_hooks=True
    ),
    "memory": lambda m: accelerate.cpu_offload(m, torch.device("cpu")),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("build", [build_bert, build_gpt2])  # the words of GPT-2 are tied to its head
def test_a_placed_model_gives_the_scores_of_the_plain_one(place, build):
    plain, placed = build().eval(), PLACES[place](build().eval())
    for method in METHODS:
        ours, theirs = (why.explain(model, make_ids(), method, target=1).scores for model in (placed, plain))
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("place", PLACES)
def test_a_placed_model_still_answers_as_before(place):
    model = PLACES[place](build_bert().eval())
    before, state = model(**make_ids()).logits, describe_state(model)
    with pytest.raises(why.errors.TargetError):
        why.explain(model, make_ids(), "attnlrp", target=99)
    why.explain(model, make_ids(), "attnlrp", health=True)
    assert not compare_states(state, describe_state(model))
    assert torch.equal(model(**make_ids()).logits, before)


def test_offloaded_half_precision_is_widened_for_relevance():
    plain, placed = build_bert().eval().half(), accelerate.cpu_offload(build_bert().eval().half(), torch.device("cpu"))
    ours, theirs = (why.explain(model, make_ids(), "attnlrp", target=1).scores for model in (placed, plain))
    assert torch.equal(ours, theirs) and ours.dtype == torch.float32


def test_the_health_of_an_offloaded_model_is_that_of_the_plain_one():
    plain, placed = build_bert().eval(), accelerate.cpu_offload(build_bert().eval(), torch.device("cpu"))
    ours, theirs = (why.explain(model, make_ids(), "attnlrp", target=1, health=True) for model in (placed, plain))
    assert ours.details.keys() == theirs.details.keys()
    assert all(torch.equal(ours.details[name], theirs.details[name]) for name in ours.details)


# --- PEFT -------------------------------------------------------------------------------------------------------------


def add_lora(**more) -> peft.PeftModel:
    config = peft.LoraConfig(target_modules=["query", "value"], init_lora_weights=False, **more)
    return peft.get_peft_model(build_bert(), config).eval()


@pytest.mark.parametrize("method", METHODS)
def test_an_adapter_is_explained_as_the_merged_model(method):
    adapted = add_lora()
    merged = copy.deepcopy(adapted).merge_and_unload()
    ours, theirs = (why.explain(model, make_ids(), method, target=1).scores for model in (adapted, merged))
    plain = why.explain(build_bert().eval(), make_ids(), method, target=1).scores
    assert torch.allclose(ours, theirs, atol=1e-5 * float(theirs.abs().max()))
    assert not torch.allclose(ours, plain, atol=1e-3 * float(plain.abs().max()))


def test_a_disabled_adapter_is_explained_as_the_base_model():
    adapted = add_lora()
    with adapted.disable_adapter():
        ours = why.explain(adapted, make_ids(), "attnlrp", target=1).scores
    theirs = why.explain(build_bert().eval(), make_ids(), "attnlrp", target=1).scores
    assert torch.allclose(ours, theirs, atol=1e-6 * float(theirs.abs().max()))


@pytest.mark.parametrize("base", [build_bert, build_gpt2])
def test_a_learned_prompt_is_part_of_the_tokens(base):
    task = "SEQ_CLS" if base is build_bert else "CAUSAL_LM"
    prompted = peft.get_peft_model(base(), peft.PromptTuningConfig(task_type=task, num_virtual_tokens=3)).eval()
    model = why.open(prompted)
    encoded = model.encode(make_ids())
    with torch.no_grad():
        assert torch.equal(make_shadow(model.module)(**encoded.inputs).logits, prompted(**make_ids()).logits)
    explanation = why.explain(model, make_ids(), "gradient_x_input", target=1)
    assert explanation.tokens[0].pieces[:4] == (
        "<prompt 1>",
        "<prompt 2>",
        "<prompt 3>",
        str(int(make_ids()["input_ids"][0, 0])),
    )
    assert explanation.scores.shape == (2, 10)
    assert not bool(explanation.scores[1, -2:].any())  # padding


def test_a_learned_prompt_without_a_task_type_is_refused():
    config = peft.PromptTuningConfig(num_virtual_tokens=3, num_layers=2, token_dim=32, num_attention_heads=4)
    config.num_transformer_submodules = 1
    prompted = peft.PeftModel(build_bert(), config)
    with pytest.raises(UnsupportedModel, match="learned prompt but no task type"):
        why.open(prompted)
    why.explain(prompted.get_base_model().eval(), make_ids(), "rollout")


# --- sentence-transformers --------------------------------------------------------------------------------------------


def test_a_sentence_transformer_is_explained_with_its_tokenizer_and_pooling():
    encoder = build_chain("mean", "dense", "normalize")
    model = why.open(encoder)
    texts = ["the film is good", "bad"]
    with torch.no_grad():
        ours = make_shadow(model.module)(**model.encode(texts).inputs)
    assert torch.allclose(ours, encoder.encode(texts, convert_to_tensor=True), atol=1e-6)
    explanation = why.explain(model, texts, "rollout")
    assert explanation.tokens[0].pieces == ("[CLS]", "the", "film", "is", "good", "[SEP]")


def test_mean_pooling_is_the_readout():
    encoder = build_chain("mean")
    model = why.open(encoder)
    readout = why.record(model, model.encode(make_ids()), keep={"readout"})["readout"]
    real = make_ids()["attention_mask"].double()
    assert torch.allclose(readout.double(), real / real.sum(1, keepdim=True), atol=1e-6)


def test_a_default_prompt_is_noted():
    encoder = build_chain("mean")
    encoder.prompts, encoder.default_prompt_name = {"query": "query: "}, "query"
    assert "query: " in why.open(encoder).notes[0]
