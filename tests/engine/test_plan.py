"""Planned runs of language models: the same scores as the full engine, in memory linear in the number of tokens."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

import whyformer as why
from whyformer import targets
from whyformer._engine.plan import actions as plan_actions
from whyformer._engine.plan import memory, runner
from whyformer._engine.plan.actions import Activation, Call, GatedProduct, linearise_layer_norm
from whyformer._engine.plan.target import find_read_positions
from whyformer._engine.relevance.recipes import STABILISERS
from whyformer._engine.run.model_memory import recall

SMALL = dict(
    vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
    max_position_embeddings=512, num_key_value_heads=1, bos_token_id=0, eos_token_id=0, pad_token_id=0,
)  # fmt: skip
GPT = dict(vocab_size=60, n_embd=24, n_layer=2, n_head=2, n_positions=512, bos_token_id=0, eos_token_id=0)
OPT = dict(vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, ffn_dim=48, pad_token_id=0)
FAMILIES: dict[str, tuple[str, str, dict]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", SMALL),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", SMALL),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", SMALL | {"head_dim": 12}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", SMALL | {"head_dim": 12}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", SMALL | {"head_dim": 12}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", SMALL),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", SMALL | {"head_dim": 12}),
    "mistral": ("MistralConfig", "MistralForCausalLM", SMALL),
    "phi": ("PhiConfig", "PhiForCausalLM", SMALL),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", SMALL),
    "opt": ("OPTConfig", "OPTForCausalLM", OPT | {"word_embed_proj_dim": 24, "max_position_embeddings": 512}),
    "gptj": ("GPTJConfig", "GPTJForCausalLM", GPT | {"rotary_dim": 4}),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", SMALL),
    "cohere": ("CohereConfig", "CohereForCausalLM", SMALL),
    "granite": ("GraniteConfig", "GraniteForCausalLM", SMALL),
    "glm": ("GlmConfig", "GlmForCausalLM", SMALL | {"head_dim": 12}),
    "starcoder2": ("Starcoder2Config", "Starcoder2ForCausalLM", SMALL),
}
QUICK = ("llama", "gpt2", "phi")
METHODS = ("attnlrp", "cp_lrp", "libragrad")
EAGER_ONLY = ("gemma2", "gptj")


def build(name: str, attention: str = "sdpa", dtype: torch.dtype = torch.float64) -> nn.Module:
    config, model, settings = FAMILIES[name]
    torch.manual_seed(0)
    attention = "eager" if name in EAGER_ONLY else attention
    module = getattr(hf, model)._from_config(getattr(hf, config)(**settings), attn_implementation=attention)
    with torch.no_grad():  # random biases and scales: the initial values 0 and 1 would hide mistakes
        for key, weight in module.named_parameters():
            noise = torch.randn_like(weight)
            is_scale = weight.dim() == 1 and "weight" in key
            weight.copy_(1 + 0.1 * noise if is_scale else 0.1 * noise if weight.dim() < 2 else 0.15 * noise)
    return module.to(dtype).eval()


@cache
def share(name: str) -> nn.Module:
    """A model that several tests use, and its plans with it."""
    return build(name)


def make_ids(*shape: int) -> Tensor:
    return torch.randint(3, 60, shape, generator=torch.Generator().manual_seed(1))


def explain_both(module: nn.Module, inputs, method: str = "attnlrp", **options):
    """By a planned run, and by the full engine."""
    with why.engine(plan=True, recompute=options.pop("recompute", None)):
        ours = why.explain(module, inputs, method=method, **options)
    assert has_plan(module), dict(recall(module, "plans"))
    with why.engine(plan=False):
        theirs = why.explain(module, inputs, method=method, **options)
    return ours, theirs


def has_plan(module: nn.Module) -> bool:
    return any(learnt.plan is not None for learnt in recall(module, "plans").values())


def measure_distance(ours: why.Explanation, theirs: why.Explanation) -> float:
    return float((ours.scores - theirs.scores).abs().max() / theirs.scores.abs().max())


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_halves_a_gated_product_and_takes_the_secant_of_its_gate():
    g, u = (torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in (2.0, 3.0))
    activation = Activation(torch.square, STABILISERS["signed"], is_silu=False)
    y = GatedProduct.apply(g, u, g.detach().square(), activation)
    to_g, to_u = torch.autograd.grad(y, (g, u), torch.tensor([1.0], dtype=torch.float64))
    assert y.item() == 12
    assert float(to_g) == pytest.approx(3.0)  # 1/2 * u * (g^2 / g)
    assert float(to_u) == pytest.approx(2.0)  # 1/2 * g^2
    assert (to_g * g + to_u * u).item() == pytest.approx(12)  # conserved


def test_silu_divided_by_its_input_is_the_sigmoid():
    x = torch.linspace(-4, 4, 7, dtype=torch.float64, requires_grad=True)
    activation = Activation(F.silu, STABILISERS["signed"], is_silu=True)
    made = GatedProduct.apply(x, torch.ones_like(x), F.silu(x.detach()), activation)
    (slope,) = torch.autograd.grad(made.sum(), x)
    assert torch.allclose(slope * 2, torch.sigmoid(x))


def test_holds_the_spread_of_a_layer_norm_but_not_its_mean():
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(shape, dtype=torch.float64) for shape in ((3, 5), (5,), (5,)))
    slope = torch.randn(3, 5, dtype=torch.float64)
    x.requires_grad_()
    y = linearise_layer_norm(Call(F.layer_norm, (x, (5,), weight, bias, 1e-5), {}))
    (ours,) = torch.autograd.grad(y, x, slope)
    spread = (x.detach().var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    (by_hand,) = torch.autograd.grad((x - x.mean(-1, keepdim=True)) / spread * weight, x, slope)
    assert torch.allclose(ours, by_hand)
    assert torch.allclose(y, F.layer_norm(x, (5,), weight, bias))


def test_a_rotation_has_the_gradient_of_its_halves():
    torch.manual_seed(0)
    start = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    x, slope = start * 1, torch.randn(2, 6, dtype=torch.float64)
    first = plan_actions.take_part(Call(torch.Tensor.__getitem__, (x, (..., slice(None, 3))), {}))
    second = plan_actions.take_part(Call(torch.Tensor.__getitem__, (x, (..., slice(3, None))), {}))
    negative = plan_actions.negate(Call(torch.neg, (second,), {}))
    turned = plan_actions.join(Call(torch.cat, ((negative, first),), {"dim": -1}))
    assert "HalfRotation" in type(turned.grad_fn).__name__
    assert torch.equal(turned, torch.cat((-x[:, 3:], x[:, :3]), -1))
    (ours,) = torch.autograd.grad(turned, start, slope)
    assert torch.equal(ours, torch.cat((slope[:, 3:], -slope[:, :3]), -1))


def test_a_concatenation_that_is_no_rotation_stays_one():
    x = torch.randn(2, 6, requires_grad=True) * 1
    first, second = (
        plan_actions.take_part(Call(torch.Tensor.__getitem__, (x, (..., one)), {})) for one in (slice(3), slice(3, 6))
    )
    negative = plan_actions.negate(Call(torch.neg, (first,), {}))
    swapped = plan_actions.join(Call(torch.cat, ((negative, second),), {"dim": -1}))
    assert "HalfRotation" not in type(swapped.grad_fn).__name__


def test_a_norm_in_16_bits_goes_back_in_one_product():
    x = (torch.arange(1.0, 9).reshape(2, 4)).bfloat16().requires_grad_()
    wide = plan_actions.cast(Call(torch.Tensor.to, (x, torch.float32), {}))
    statistic = torch.tensor([[0.5], [0.25]])
    scaled = plan_actions.KeepStatistic(0)(Call(torch.mul, (wide, statistic), {}))
    narrow = plan_actions.cast(Call(torch.Tensor.to, (scaled, torch.bfloat16), {}))
    assert "ScaledCast" in type(narrow.grad_fn).__name__
    (slope,) = torch.autograd.grad(narrow, x, torch.ones_like(narrow))
    assert slope.dtype == torch.bfloat16 and slope.tolist() == [[0.5] * 4, [0.25] * 4]


# --- against the full engine -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", QUICK)
def test_gives_the_scores_of_the_full_engine(name: str, method: str):
    ours, theirs = explain_both(share(name), {"input_ids": make_ids(1, 40)}, method)
    assert measure_distance(ours, theirs) < 1e-7  # RMS norms of transformers compute in float32
    assert [one.index for one in ours.targets] == [one.index for one in theirs.targets]


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", FAMILIES)
def test_gives_the_scores_of_the_full_engine_in_every_family(name: str, method: str, attention: str):
    ours, theirs = explain_both(build(name, attention), {"input_ids": make_ids(1, 40)}, method)
    assert measure_distance(ours, theirs) < 1e-6


@pytest.mark.parametrize(
    ("target", "versus"),
    [
        (7, None),
        (7, 9),
        (targets.Token(7, at=20), None),
        (targets.Token(at=5), targets.Token(3, at=5)),
        (targets.Tokens(30, 36), None),
        (targets.LogProbability(targets.Tokens(30, 36)), None),
        (targets.Group(3, 4, weights=[1, -2]), None),
        (lambda returned: returned.logits[:, 3, 4], None),
    ],
    ids=[
        "token",
        "contrast",
        "at a place",
        "predicted at a place",
        "span",
        "log-probability",
        "group",
        "function",
    ],
)
def test_explains_any_target(target, versus):
    ours, theirs = explain_both(share("llama"), {"input_ids": make_ids(1, 40)}, target=target, versus=versus)
    assert measure_distance(ours, theirs) < 1e-6
    assert ours.spent["relevance"] == 1
    for mine, other in zip(ours.targets, theirs.targets, strict=True):
        assert (mine.label, mine.spec, mine.predicted) == (other.label, other.spec, other.predicted)
        assert mine.score == pytest.approx(other.score, rel=1e-6)


@pytest.mark.parametrize("score", ["logit", "logp"])
def test_computes_logits_only_where_an_answer_is_read(score: str):
    module, ids = share("llama"), make_ids(1, 40)[0].tolist()
    model = why.open(module)
    prompt, target = why.Prompt.from_tokens(model, ids[:30], ids[30:]), targets.Answer([1, 4], score=score)
    assert find_read_positions(model, model.encode(prompt), target, None) == [[30, 33]]
    ours, theirs = explain_both(module, prompt, target=target)
    assert measure_distance(ours, theirs) < 1e-6
    assert ours.spent["relevance"] == 1


@pytest.mark.parametrize("name", QUICK)
def test_batches_with_padding_equal_single_examples(name: str):
    module, ids = share(name), make_ids(3, 30)
    mask = torch.arange(30)[None] < torch.tensor([30, 17, 5])[:, None]
    inputs = {"input_ids": torch.where(mask, ids, 0), "attention_mask": mask.long()}
    ours, _ = explain_both(module, inputs, target=targets.Token(5, at=3))
    for row, length in enumerate((30, 17, 5)):
        alone, _ = explain_both(module, {"input_ids": ids[row : row + 1, :length]}, target=targets.Token(5, at=3))
        assert torch.allclose(ours.scores[row, :length], alone.scores[0], atol=1e-7)
        assert not ours.scores[row, length:].any()


@pytest.mark.parametrize("method", METHODS)
def test_a_span_is_the_sum_of_its_tokens(method: str):
    module, ids = share("llama"), make_ids(1, 24)
    with why.engine(plan=True):
        whole = why.explain(module, {"input_ids": ids}, method=method, target=targets.Tokens(20, 23))
        singles = [targets.Tokens(position) for position in range(20, 24)]
        parts = [why.explain(module, {"input_ids": ids}, method=method, target=one) for one in singles]
    total = sum(part.scores for part in parts)
    assert (whole.scores - total).abs().max() < 1e-5 * total.abs().max()
    assert whole.spent["relevance"] == 1


# --- computing blocks again ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "method"), [(name, "attnlrp") for name in QUICK] + [("llama", "libragrad")])
def test_blocks_computed_again_give_the_same_scores(name: str, method: str):
    module, inputs = share(name), {"input_ids": make_ids(1, 40)}
    with why.engine(plan=True):
        kept = why.explain(module, inputs, method=method, target=targets.Tokens(30, 35))
    with why.engine(plan=True, recompute=True):
        again = why.explain(module, inputs, method=method, target=targets.Tokens(30, 35))
    assert (kept.scores - again.scores).abs().max() < 1e-7 * kept.scores.abs().max()


def test_computes_blocks_again_where_memory_is_short(monkeypatch):
    module, inputs = build("llama"), {"input_ids": make_ids(1, 40)}
    with why.engine(plan=True):
        kept = why.explain(module, inputs, method="attnlrp")
        monkeypatch.setattr(memory, "find_free_memory", lambda device: 1000)
        monkeypatch.setattr(memory, "ALWAYS_FREE", 0)
        again = why.explain(module, inputs, method="attnlrp")
    assert not kept.notes
    assert "Blocks were computed again" in again.notes[0]
    assert torch.equal(kept.scores, again.scores)


# --- memory ----------------------------------------------------------------------------------------------------------


def count_kept_bytes(module: nn.Module, tokens: int, *, recompute: bool = False) -> int:
    kept = memory.KeptMemory(module)
    hooks = torch.autograd.graph.saved_tensors_hooks(kept.note, lambda tensor: tensor)
    with why.engine(plan=True, recompute=recompute), hooks:
        why.explain(module, {"input_ids": make_ids(1, tokens)}, method="attnlrp")
    return kept.size


def test_what_is_kept_grows_with_the_number_of_tokens_and_not_with_its_square():
    module = build("llama", dtype=torch.float32)
    count_kept_bytes(module, 64)  # learns
    short, long = count_kept_bytes(module, 128), count_kept_bytes(module, 512)
    assert long < 4.5 * short  # four times the tokens; a square would be sixteen times


def test_blocks_computed_again_keep_their_input_alone():
    module = build("llama", dtype=torch.float32)
    count_kept_bytes(module, 64)
    kept: list[Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)
    with why.engine(plan=True, recompute=True), hooks:
        why.explain(module, {"input_ids": make_ids(1, 128)}, method="attnlrp")
    states = [tensor for tensor in kept if tensor.shape == (1, 128, 24)]
    assert len(states) >= 2 and kept[0].shape == (1, 128, 24)


def test_keeps_no_more_of_a_gated_mlp_than_gate_and_up():
    module = build("llama", dtype=torch.float32)
    count_kept_bytes(module, 64)
    plan = next(iter(recall(module, "plans").values())).plan
    width, wide, heads, key = 24, 48, 24, 12
    per_layer = 2 * wide + 2 * heads + 2 * key + 2 + 2  # gate, up, query, output, key, value, norms, log-sum-exp
    positions = 2 * 12  # cosines and sines
    assert plan.bytes_per_token <= 4 * (2 * per_layer + positions + width + 8)


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_one_lesson_serves_inputs_that_are_longer_than_a_sliding_window(name: str):
    config, model, settings = FAMILIES[name]
    layers = {"layer_types": ["sliding_attention", "full_attention"]} if name == "gemma3" else {}
    small = getattr(hf, config)(**settings, sliding_window=16, **layers)
    torch.manual_seed(0)
    module = getattr(hf, model)._from_config(small, attn_implementation="sdpa").double().eval()
    for length in (12, 60):
        ours, theirs = explain_both(module, {"input_ids": make_ids(1, length)})
        assert measure_distance(ours, theirs) < 1e-6
    assert len(recall(module, "plans")) == 1


def test_threads_agree():
    module, batches = share("llama"), [{"input_ids": make_ids(1, 20 + i)} for i in range(4)]

    def explain(inputs: dict[str, Tensor]) -> Tensor:
        with why.engine(plan=True):
            return why.explain(module, inputs, method="attnlrp").scores

    alone = [explain(inputs) for inputs in batches]
    with ThreadPoolExecutor(4) as threads:
        assert all(map(torch.equal, threads.map(explain, batches * 2), alone * 2))


def test_a_kept_shadow_holds_no_weights():
    module = build("llama")
    with why.engine(plan=True):
        why.explain(module, {"input_ids": make_ids(1, 20)}, method="attnlrp")
    (kept,) = recall(module, "shadows", of_weights=True)[None].idle
    assert not list(kept.shadow.parameters()) and not list(kept.shadow.buffers())


# --- when the full engine runs ---------------------------------------------------------------------------------------


def test_the_second_short_input_learns_a_plan_and_a_long_one_at_once():
    short, long = ({"input_ids": make_ids(1, tokens)} for tokens in (runner.LONG_FROM - 1, runner.LONG_FROM))
    module = build("llama")
    engines = [why.explain(module, short, method="attnlrp").engine for _ in range(4)]
    assert [engine.name for engine in engines] == ["full", "full", "full", "plan"]
    assert [engine.reasons["plan"] for engine in engines[:3]] == [runner.NOT_LEARNT, runner.TRIED, runner.TRIED]
    module = build("llama")
    assert why.explain(module, long, method="attnlrp").engine.name == "plan"


def test_health_runs_in_the_full_engine():
    module = build("llama")
    with why.engine(plan=True):
        checked = why.explain(module, {"input_ids": make_ids(1, 20)}, method="attnlrp", health=True)
    assert not recall(module, "plans") and checked.health is not None


def test_learns_again_when_the_model_does_something_else():
    module, inputs = build("llama"), {"input_ids": make_ids(1, 20)}
    explain_both(module, inputs)
    module.model.layers[0].mlp.act_fn = nn.GELU()
    ours, theirs = explain_both(module, inputs)
    assert measure_distance(ours, theirs) < 1e-6


class Fickle(nn.Module):
    """A language model that squares its states where the input is long."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = build("llama")
        self.config = self.inner.config

    def forward(self, input_ids: Tensor) -> Tensor:
        states = self.inner.model(input_ids=input_ids, use_cache=False).last_hidden_state
        if input_ids.size(1) > runner.PLANNED_AGAIN_FROM:
            states = states + states.square()
        return self.inner.lm_head(states)


def test_an_input_that_takes_another_way_runs_in_the_full_engine():
    module, inputs = Fickle().eval(), {"input_ids": make_ids(1, runner.PLANNED_AGAIN_FROM + 10)}
    with why.engine(plan=True):
        ours = why.explain(module, inputs, method="attnlrp")
    with why.engine(plan=False):
        theirs = why.explain(module, inputs, method="attnlrp")
    assert "square" in next(iter(recall(module, "plans").values())).reason
    assert torch.equal(ours.scores, theirs.scores)


def test_a_lesson_with_other_scores_is_refused(monkeypatch):
    module, inputs = build("llama"), {"input_ids": make_ids(1, 20)}
    monkeypatch.setattr("whyformer._engine.plan.actions.scale_gradients", lambda tensors, factors, switch=None: tensors)
    with why.engine(plan=True):
        ours = why.explain(module, inputs, method="attnlrp")
    assert ours.engine.reasons["plan"] == "a run by the plan gives other input_relevance"
    monkeypatch.undo()
    with why.engine(plan=False):
        assert torch.equal(ours.scores, why.explain(module, inputs, method="attnlrp").scores)


# --- 16 bits ---------------------------------------------------------------------------------------------------------


def test_says_when_relevance_has_16_bits():
    exact = build("llama", dtype=torch.float32)
    rounded = build("llama", dtype=torch.bfloat16)
    inputs = {"input_ids": make_ids(1, 40)}
    with why.engine(plan=True):
        ours = why.explain(rounded, inputs, method="attnlrp", target=7)
        theirs = why.explain(exact, inputs, method="attnlrp", target=7)
    assert has_plan(rounded)
    assert "bfloat16" in ours.notes[0] and not theirs.notes
    assert ours.scores.dtype == torch.float32
    assert torch.cosine_similarity(ours.scores, theirs.scores).item() > 0.98


def test_leaves_the_model_as_it_was():
    module = build("llama")
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    with why.engine(plan=True, recompute=True):
        why.explain(module, {"input_ids": make_ids(1, 20)}, method="attnlrp")
    assert all(torch.equal(weight, before[name]) for name, weight in module.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    assert all(weight.grad is None for weight in module.parameters())
