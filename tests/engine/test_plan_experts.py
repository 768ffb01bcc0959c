"""Planned runs of mixtures of experts: the full engine's scores whichever experts are hit, in linear memory."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from engine.test_plan import count_kept_bytes, explain_both, make_ids, measure_distance
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import whyformer as why
from whyformer._engine.plan import memory, runner
from whyformer._engine.plan.deferred_attention import DeferredAttention, is_causal_mask
from whyformer._engine.plan.loops import find_loops, find_place, fold, list_loops, read_stack
from whyformer._engine.run.model_memory import recall

SMALL = dict(
    vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=512, num_key_value_heads=1, bos_token_id=0, eos_token_id=0, pad_token_id=0,
)  # fmt: skip
LOCAL = dict(num_local_experts=8, num_experts_per_tok=2)
MANY = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16)
LATENT = dict(
    num_key_value_heads=2, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=1,
    first_k_dense_replace=1, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8,
)  # fmt: skip
FALCON = dict(
    vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, ffn_hidden_size=48, bos_token_id=0,
    eos_token_id=0, pad_token_id=0,
)  # fmt: skip
FAMILIES: dict[str, tuple[str, str, dict]] = {
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", SMALL | LOCAL),
    "qwen2_moe": ("Qwen2MoeConfig", "Qwen2MoeForCausalLM", SMALL | MANY | {"shared_expert_intermediate_size": 16}),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", SMALL | MANY | {"head_dim": 12}),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM", SMALL | LOCAL | {"head_dim": 12, "sliding_window": 16}),
    "llama4": ("Llama4TextConfig", "Llama4ForCausalLM", SMALL | LOCAL | {"head_dim": 12, "intermediate_size_mlp": 48}),
    "deepseek_v2": ("DeepseekV2Config", "DeepseekV2ForCausalLM", SMALL | LATENT),
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM", SMALL | LATENT | {"n_group": 2, "topk_group": 1}),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM", SMALL | {"num_experts": 8, "num_experts_per_tok": 2}),
    "granitemoe": ("GraniteMoeConfig", "GraniteMoeForCausalLM", SMALL | LOCAL),
    "falcon": ("FalconConfig", "FalconForCausalLM", FALCON | {"new_decoder_architecture": False}),
    "falcon_new": ("FalconConfig", "FalconForCausalLM", FALCON | {"new_decoder_architecture": True}),
}
CHOOSABLE = ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "deepseek_v2", "deepseek_v3", "olmoe", "granitemoe")


def build(name: str, experts: str | None = None, dtype: torch.dtype = torch.float32) -> nn.Module:
    config, model, settings = FAMILIES[name]
    torch.manual_seed(0)
    module = getattr(hf, model)._from_config(getattr(hf, config)(**settings))
    if experts is not None:
        module.set_experts_implementation(experts)
    with torch.no_grad():
        for key, weight in module.named_parameters():
            noise = torch.randn_like(weight)
            is_scale = weight.dim() == 1 and "weight" in key
            weight.copy_(1 + 0.1 * noise if is_scale else 0.1 * noise if weight.dim() < 2 else 0.15 * noise)
    return module.to(dtype).eval()


@cache
def share(name: str) -> nn.Module:
    return build(name)


# --- against the full engine -----------------------------------------------------------------------------------------


OTHERS = [
    pytest.param(name, method, marks=() if name in ("gpt_oss", "deepseek_v2", "granitemoe") else pytest.mark.slow)
    for name in FAMILIES
    for method in ("cp_lrp", "libragrad")
]


@pytest.mark.parametrize(("name", "method"), [*((name, "attnlrp") for name in FAMILIES), *OTHERS])
def test_gives_the_scores_of_the_full_engine(name: str, method: str):
    """By one plan for three inputs, the last of which is shorter than what the plan was made from."""
    for length in (40, 70, 5):
        ours, theirs = explain_both(share(name), {"input_ids": make_ids(1, length)}, method)
        assert measure_distance(ours, theirs) < 1e-5
        assert ours.engine.name == "plan" and theirs.engine.name == "full"


@pytest.mark.parametrize("experts", ["eager", "batched_mm"])
@pytest.mark.parametrize("name", CHOOSABLE)
def test_every_way_to_run_experts_gives_the_scores_of_the_full_engine(name: str, experts: str):
    module = build(name, experts)
    for length in (20, 60):
        ours, theirs = explain_both(module, {"input_ids": make_ids(1, length)})
        assert measure_distance(ours, theirs) < 1e-5
        assert ours.engine.name == "plan"
    assert len(recall(module, "plans")) == 1


def count_hit(module: nn.Module, ids: Tensor) -> set[int]:
    """The experts that the first block sends tokens to."""
    hit: set[int] = set()
    block = module.model.layers[0].mlp.experts
    handle = block.register_forward_pre_hook(lambda _, args: hit.update(args[1].unique().tolist()))
    with torch.no_grad():
        module(input_ids=ids)
    handle.remove()
    return hit


def test_experts_that_the_plan_did_not_see_are_no_obstacle():
    """One token repeated goes to two of eight experts; a text goes to others, more and fewer turns of the same loop."""
    module = build("mixtral", "eager")
    repeated, text = torch.full((1, 20), 7), make_ids(1, 60)
    assert len(count_hit(module, repeated)) < len(count_hit(module, text))
    for ids in (repeated, text, repeated):
        ours, theirs = explain_both(module, {"input_ids": ids})
        assert measure_distance(ours, theirs) < 1e-5
        assert ours.engine.name == "plan"
    (plan,) = (learnt.plan for learnt in recall(module, "plans").values())
    assert len(plan.loops) == 2  # one in each block


def test_blocks_computed_again_give_the_same_scores():
    for name, experts in (("mixtral", "eager"), ("gpt_oss", "grouped_mm")):
        module, inputs = build(name, experts), {"input_ids": make_ids(1, 40)}
        with why.engine(plan=True):
            kept = why.explain(module, inputs, method="attnlrp")
        with why.engine(plan=True, recompute=True):
            again = why.explain(module, inputs, method="attnlrp")
        assert recall(module, "plans") and (kept.scores - again.scores).abs().max() < 1e-6 * kept.scores.abs().max()


# --- identical experts -----------------------------------------------------------------------------------------------


class OneExpert(nn.Module):
    """What identical experts compute, without sending tokens anywhere: one of them, times each of the weights."""

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Parameter(experts.gate_up_proj[0]), nn.Parameter(experts.down_proj[0])

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        gate, up = F.linear(x, self.gate_up).chunk(2, -1)
        made = F.linear(F.silu(gate) * up, self.down)
        return made * weights[:, :1] + made * weights[:, 1:]


@pytest.mark.parametrize("method", ["attnlrp", "cp_lrp", "libragrad"])
@pytest.mark.parametrize("experts", ["grouped_mm", "eager"])
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_identical_experts_are_their_dense_twin(name: str, experts: str, method: str):
    module, twin = build(name, experts), build(name, experts)
    with torch.no_grad():
        for one in (module, twin):
            for layer in one.model.layers:
                for weight in layer.mlp.experts.parameters():
                    weight.copy_(weight[:1].clone().expand_as(weight))
        for layer in twin.model.layers:
            layer.mlp.experts = OneExpert(layer.mlp.experts)
    inputs = {"input_ids": make_ids(1, 50)}
    ours, _ = explain_both(module, inputs, method, target=7)
    dense, _ = explain_both(twin, inputs, method, target=7)
    assert measure_distance(ours, dense) < 1e-5


# --- memory ----------------------------------------------------------------------------------------------------------


def count_autograd_bytes(module: nn.Module, tokens: int) -> int:
    """What a plain gradient of one logit by the embeddings keeps."""
    kept = memory.KeptMemory(module)
    words = module.get_input_embeddings()(make_ids(1, tokens)).detach().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(kept.note, lambda tensor: tensor):
        module(inputs_embeds=words, use_cache=False, logits_to_keep=1)
    return kept.size


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_what_is_kept_is_linear_and_little_more_than_autograd_keeps(monkeypatch, name: str):
    monkeypatch.setattr("whyformer._engine.plan.deferred_attention.TILE", 32)  # a window is cut where it is longer
    module = build(name).requires_grad_(False)
    count_kept_bytes(module, 64)  # plans
    short, long = count_kept_bytes(module, 128), count_kept_bytes(module, 256)
    assert long <= 2.2 * short
    assert long <= 1.3 * count_autograd_bytes(module, 256)


def test_a_relevance_pass_is_one_forward_and_one_backward_of_the_model(monkeypatch):
    module, runs, passes = build("qwen3_moe"), [], []
    run_planned, grad = runner.run_planned, torch.autograd.grad
    with why.engine(plan=True):
        why.explain(module, {"input_ids": make_ids(1, 40)}, method="attnlrp")
        monkeypatch.setattr(
            runner, "run_planned", lambda *args, **options: runs.append(1) or run_planned(*args, **options)
        )
        monkeypatch.setattr(runner, "make_plan", None)
        monkeypatch.setattr(torch.autograd, "grad", lambda *args, **options: passes.append(1) or grad(*args, **options))
        why.explain(module, {"input_ids": make_ids(1, 80)}, method="attnlrp")
    assert len(runs) == len(passes) == 1


class ProductCounter(TorchDispatchMode):
    """Multiplications of the products of matrices and of attention."""

    products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if count := flop_registry.get(func._overloadpacket):
            self.products += count(*args, **(kwargs or {}), out_val=result)
        return result


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_a_relevance_pass_multiplies_as_much_as_three_forwards_at_most(monkeypatch, name: str):
    """A forward, and a backward that goes to the inputs of products alone; by counts, not by time."""
    module, inputs = build(name).requires_grad_(False), {"input_ids": make_ids(1, 256)}
    counter, run_once = ProductCounter(), runner.run_once

    def count(*args, **options):
        with counter:
            return run_once(*args, **options)

    with why.engine(plan=True, recompute=False):
        why.explain(module, inputs, method="attnlrp")
        monkeypatch.setattr(runner, "run_once", count)
        assert why.explain(module, inputs, method="attnlrp").engine.name == "plan"
    with ProductCounter() as plain, torch.no_grad():
        module(**inputs, use_cache=False, logits_to_keep=1)
    assert 0 < counter.products <= 3 * plain.products


class KernelCounter(TorchDispatchMode):
    """Operations that compute something: on a GPU each is a kernel that Python launches."""

    kernels = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.kernels += not (func.is_view or func._overloadpacket in (torch.ops.aten.detach, torch.ops.aten.alias))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_a_relevance_pass_launches_no_more_than_plain_autograd(monkeypatch, name: str):
    module, ids = build(name).to(torch.bfloat16).requires_grad_(False), make_ids(1, 64)
    counter, run_once = KernelCounter(), runner.run_once

    def count(*args, **options):
        with counter:
            return run_once(*args, **options)

    with why.engine(plan=True, recompute=False):
        why.explain(module, {"input_ids": ids}, method="attnlrp")
        monkeypatch.setattr(runner, "run_once", count)
        why.explain(module, {"input_ids": ids}, method="attnlrp")
    with KernelCounter() as plain:
        words = module.get_input_embeddings()(ids).detach().requires_grad_()
        module(inputs_embeds=words, use_cache=False, logits_to_keep=1).logits.max().backward()
    assert 0 < counter.kernels <= plain.kernels


# --- attention in separate operations --------------------------------------------------------------------------------


def attend_slowly(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, sink: Tensor | None) -> Tensor:
    scores = query @ key.mT * 0.5
    scores = scores if mask is None else scores + mask
    if sink is None:
        return scores.softmax(-1) @ value
    return torch.cat((scores, sink), -1).softmax(-1)[..., :-1] @ value


def make_window(length: int, width: int) -> Tensor:
    distance = torch.arange(length)[:, None] - torch.arange(length)
    sees = (distance >= 0) & (distance < width)
    return torch.zeros(1, 1, length, length, dtype=torch.float64).masked_fill(~sees, torch.finfo(torch.float64).min)


@pytest.mark.parametrize("has_sink", [False, True])
@pytest.mark.parametrize("width", [None, 9, 70])
def test_fused_attention_with_sinks_and_windows_is_the_attention_itself(monkeypatch, width: int | None, has_sink: bool):
    monkeypatch.setattr("whyformer._engine.plan.deferred_attention.TILE", 16)
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 70, 6, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = None if width is None else make_window(70, width)
    sink = torch.randn(1, 3, 1, 1, dtype=torch.float64).expand(2, 3, 70, 1) if has_sink else None
    assert width is None or is_causal_mask(mask, 70, 70) == (width == 70)
    deferred = DeferredAttention((0.25, 0.25, 0.5))
    scores = deferred.run("scores", torch.matmul, (query, key.mT), {})
    assert scores.is_meta and scores.shape == (2, 3, 70, 70) and scores.requires_grad
    deferred.run("scale", torch.mul, (scores, 0.5), {})
    deferred.mask, deferred.sink = mask, sink
    ours = deferred.run("output", torch.matmul, (scores, value), {})
    theirs = attend_slowly(query, key, value, mask, sink)
    assert torch.allclose(ours, theirs)
    slope = torch.randn_like(ours)
    for mine, other, factor in zip(
        torch.autograd.grad(ours, (query, key, value), slope),
        torch.autograd.grad(theirs, (query, key, value), slope),
        (0.25, 0.25, 0.5),
        strict=True,
    ):
        assert torch.allclose(mine, other * factor)


def test_no_matrix_of_tokens_by_tokens_is_kept_of_attention_in_separate_operations(monkeypatch):
    monkeypatch.setattr("whyformer._engine.plan.deferred_attention.TILE", 32)
    module = build("gpt_oss")
    count_kept_bytes(module, 64)
    (plan,) = (learnt.plan for learnt in recall(module, "plans").values())
    assert [step.part for step in plan.steps if step.part].count("output") == 2
    assert count_kept_bytes(module, 512) < 4.4 * count_kept_bytes(module, 128)


# --- loops -----------------------------------------------------------------------------------------------------------


def note_places(turns: int) -> list:
    depth, places = len(read_stack()) - 1, [None]
    for _ in range(turns):
        places.append(find_place(read_stack(), depth))
        places.append(find_place(read_stack(), depth))
    places.append(find_place(read_stack(), depth))
    return places


def test_turns_of_a_loop_are_told_apart_by_where_they_are_called():
    (first, last), *_ = list_loops(note_places.__code__)
    assert first < last
    ((place, starts),) = find_loops(note_places(3))
    assert place.code is note_places.__code__ and starts == [1, 3, 5, 7]


def test_loops_have_one_turn_and_later_steps_new_numbers():
    runs = find_loops(note_places(3))
    folded = fold(["a", "x", "y", "x", "y", "x", "y", "b"], runs)
    assert folded.steps == ["a", "x", "y", "b"]
    assert [(loop.start, loop.stop) for loop in folded.loops] == [(1, 3)]
    assert folded.renumbered == [0, *[None] * 6, 3, 4]


def test_a_loop_whose_turns_differ_stays_as_it_ran():
    steps = ["a", "x", "y", "x", "z", "x", "y", "b"]
    folded = fold(steps, find_loops(note_places(3)))
    assert folded.steps == steps and not folded.loops and folded.renumbered == list(range(9))


# --- writes in place -------------------------------------------------------------------------------------------------


class Writer(nn.Module):
    """A language model that writes into what it made: into a part, over the whole, by a product and into its input."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.kind = build("mixtral"), kind
        self.config = self.inner.config
        self.register_buffer("seen", torch.zeros(1, 1, 24))

    def forward(self, input_ids: Tensor) -> Tensor:
        states = self.inner.model(input_ids=input_ids, use_cache=False).last_hidden_state
        if self.kind == "part":
            made = torch.zeros_like(states)
            made[..., :12] = states[..., 12:]
            made[..., 12:].copy_(states[..., :12])
            states = states + made
        elif self.kind == "product":
            gate = torch.sigmoid(states)
            gate.mul_(states)
            states = states + gate
        elif self.kind == "activation":
            states = states + F.silu(states.clone(), inplace=True)
        elif self.kind == "buffer":
            self.seen.copy_(states[:, :1].detach())
            states = states + self.seen
        states += 1
        return self.inner.lm_head(states)


@pytest.mark.parametrize("kind", ["part", "product", "activation", "buffer"])
def test_writes_of_the_forward_are_followed(kind: str):
    module = Writer(kind).eval()
    before = module.seen.clone()
    for length in (20, 40):
        ours, theirs = explain_both(module, {"input_ids": make_ids(1, length)})
        assert measure_distance(ours, theirs) < 1e-5
        assert ours.engine.name == "plan"
    assert torch.equal(module.seen, before)


# --- a note where the full engine runs -------------------------------------------------------------------------------


def test_says_why_the_full_engine_ran_on_a_long_input_and_what_it_costs():
    module, inputs = build("mixtral"), {"input_ids": make_ids(1, 200)}
    by_plan = why.explain(module, inputs, method="attnlrp")
    checked = why.explain(module, inputs, method="attnlrp", health=True)
    (note,) = [one for one in checked.notes if "full engine" in one]
    assert "relevance that does not reach the input is tracked" in note and "4 to 6 times" in note
    assert not any("full engine" in one for one in by_plan.notes)


def test_says_nothing_where_the_full_engine_was_asked_for_or_the_input_is_short():
    module = build("mixtral")
    with why.engine(plan=False):
        asked = why.explain(module, {"input_ids": make_ids(1, 200)}, method="attnlrp")
    short = why.explain(module, {"input_ids": make_ids(1, 60)}, method="attnlrp", health=True)
    assert not any("full engine" in one for one in (*asked.notes, *short.notes))


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_the_full_engine_keeps_four_to_six_times_as_much(name: str):
    """What the note says, counted."""
    module = build(name)
    count_kept_bytes(module, 64)
    ours, kept = count_kept_bytes(module, 256), memory.KeptMemory(module)
    with (
        why.engine(plan=False, replay=False),
        torch.autograd.graph.saved_tensors_hooks(kept.note, lambda tensor: tensor),
    ):
        why.explain(module, {"input_ids": make_ids(1, 256)}, method="attnlrp")
    assert 3.5 < kept.size / ours < 7.5
