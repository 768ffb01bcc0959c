"""Hybrids run by plan: recurrences over chunks, beside attention, at any length, as the full engine computes them."""

import logging

import pytest
import torch
import transformers as hf

import whyformer as why

SIZES = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 16}
SIZES |= {"vocab_size": 64, "head_dim": 8}
IDS = torch.randint(1, 60, (1, 330), generator=torch.Generator().manual_seed(0))


def build_qwen3_next() -> torch.nn.Module:
    experts = {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "num_experts": 4}
    recurrence = {"linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8}
    config = hf.Qwen3NextConfig(
        **SIZES, **experts, **recurrence, num_experts_per_tok=2, linear_value_head_dim=8, num_hidden_layers=4
    )
    return hf.Qwen3NextForCausalLM._from_config(config, experts_implementation="eager")  # in float64 too


def build_falcon_h1() -> torch.nn.Module:
    mamba = {"mamba_d_ssm": 32, "mamba_n_heads": 2, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 16}
    return hf.FalconH1ForCausalLM(hf.FalconH1Config(**SIZES, **mamba, num_hidden_layers=2))


def build_kimi_linear() -> torch.nn.Module:
    latent = {"kv_lora_rank": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "qk_nope_head_dim": 8, "linear_head_dim": 8}
    experts = {"moe_intermediate_size": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "linear_num_heads": 2}
    kinds = {"layer_types": ["linear_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"]}
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = hf.KimiLinearConfig(**sizes, **latent, **experts, **kinds, **tokens, num_hidden_layers=2)
    return hf.KimiLinearForCausalLM._from_config(config, experts_implementation="eager")


BUILDERS = {"Qwen3-Next": build_qwen3_next, "FalconH1": build_falcon_h1, "KimiLinear": build_kimi_linear}


@pytest.mark.parametrize("name", BUILDERS)
def test_a_plan_serves_any_number_of_chunks(name, caplog):
    torch.manual_seed(0)
    module = BUILDERS[name]().double().eval()
    model = why.open(module)
    for length in (40, 330, 129):  # the first plan is from one chunk, whose state nobody reads
        scores = {}
        for how, options in {"plan": {}, "again": {"recompute": True}, "full": {"plan": False}}.items():
            with why.engine(**{"plan": True, **options}), caplog.at_level(logging.DEBUG, logger="whyformer"):
                caplog.clear()
                scores[how] = why.explain(model, {"input_ids": IDS[:, :length]}, "attnlrp").scores.double()
                assert caplog.messages[-1].split(": ")[1].startswith("full" if how == "full" else "plan")
        most = scores["full"].abs().max()
        assert (scores["plan"] - scores["full"]).abs().max() <= 1e-5 * most
        assert (scores["again"] - scores["full"]).abs().max() <= 1e-5 * most


@pytest.mark.parametrize("name", BUILDERS)
def test_a_planned_run_calls_each_operation_of_the_model_once(name, monkeypatch):
    """One forward and one backward: at most as many operations as four forwards have, however long the input is."""
    torch.manual_seed(0)
    model = why.open(BUILDERS[name]().eval())
    inputs = {"input_ids": IDS}
    why.explain(model, inputs, "attnlrp")

    def count(call) -> int:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            call()
        return sum(event.count for event in seen.key_averages() if event.key.startswith("aten::"))

    with torch.no_grad():
        forward = count(lambda: model.module(**inputs, use_cache=False))
    assert count(lambda: why.explain(model, inputs, "attnlrp")) <= 4 * forward


def test_a_model_without_attention_is_explained_at_any_length():
    """It has no attention to find block boundaries by; a long text was refused as a bug."""
    torch.manual_seed(0)
    config = hf.MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, state_size=4)
    model, inputs = why.open(hf.MambaForCausalLM(config).eval()), {"input_ids": IDS[:, :140]}
    found = why.explain(model, inputs, "attnlrp")
    with why.engine(plan=False):
        full = why.explain(model, inputs, "attnlrp")
    torch.testing.assert_close(found.scores, full.scores, rtol=1e-3, atol=1e-4 * float(full.scores.abs().max()))
