"""Query tiles and fused gradients: the same numbers as whole matrices, and no matrix of all tokens by all tokens."""

import copy
import math
import threading

import pytest
import torch
import torch.nn.functional as F
from conftest import QUICK, animal
from rule_calls import assert_same, make_call, numbers
from torch.utils._python_dispatch import TorchDispatchMode

import whyformer as why
from whyformer._engine.capture.query_tiles import QueryTiles, iterate_rows
from whyformer._engine.program import replay
from whyformer._engine.relevance import rules, slopes
from whyformer._engine.relevance.calls import AttentionCall
from whyformer._engine.relevance.node import RuleNode, Switch, attach_factors, find_factors
from whyformer._engine.relevance.recipes import ATTNLRP, CHEFER, CP_LRP, EPSILON, GAMMA, LIBRA, PA_LRP
from whyformer._engine.relevance.rounding import RoundingError
from whyformer._engine.tracing import fused_attention, tiles
from whyformer._engine.tracing.fused_attention import ScoreMask, read_fused_arguments
from whyformer._engine.tracing.operations import Operation
from whyformer._engine.tracing.tiles import TileSetting, iterate_tiles
from whyformer._explain.method_call import choose_method
from whyformer._explain.scoring import make_explanation
from whyformer._explain.sharing import record_for_methods
from whyformer.errors import ResourceError
from whyformer.methods._registry import METHODS

WITHOUT_PROBE = sorted(name for name, method in METHODS.items() if "probe" not in method.needs)
SLOPES = {"attnlrp": ATTNLRP, "gamma": GAMMA, "cp_lrp": CP_LRP, "libra": LIBRA, "pa_lrp": PA_LRP}
FORMS = ("plain", "grouped", "padded", "causal", "window", "bias")


def build_mistral():
    """Sliding windows and keys that several heads share."""
    import transformers as hf

    torch.manual_seed(0)
    config = hf.MistralConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=24, sliding_window=3,
    )  # fmt: skip
    return hf.MistralForCausalLM._from_config(config, attn_implementation="sdpa").double().eval()


def explain_by_all(module, inputs, rows):
    """Every method without a probe, from one run."""
    with why.engine(tiles=rows):
        model = why.open(module)
        encoded = model.encode(inputs)
        chosen = {name: choose_method(name, QUICK.get(name, {})) for name in WITHOUT_PROBE}
        capture = record_for_methods(list(chosen.values()), model, encoded, None, None)
        found = {}
        for name, one in chosen.items():
            try:
                found[name] = make_explanation(one, model, encoded, capture)
            except why.WhyformerError as error:
                found[name] = str(error)
    return found


def assert_tiles_change_nothing(module, inputs, rows):
    tiled, whole = (explain_by_all(module, inputs, one) for one in (rows, False))
    for name in WITHOUT_PROBE:
        if isinstance(whole[name], str):
            assert tiled[name] == whole[name]
            continue
        assert_same(tiled[name].scores, whole[name].scores, 1e-9)
        assert tiled[name].spent == whole[name].spent
        for detail, value in whole[name].details.items():  # the rounding estimate among them
            assert_same(tiled[name].details[detail].double(), value.double(), 1e-9)


# --- whole models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        pytest.param("bert", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "beit", "gpt", "encoder_token_first", "vit")),
    ],
)
@pytest.mark.parametrize("is_alone", [False, True], ids=["padded", "alone"])
def test_tiles_change_no_score(name, is_alone):
    it = animal(name)
    assert_tiles_change_nothing(it.module, it.alone(0) if is_alone else it.inputs, 4 if is_alone else 3)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_tiles_change_no_score_of_sliding_windows(rows):
    ids = torch.randint(5, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    assert_tiles_change_nothing(build_mistral(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, rows)


class Largest(TorchDispatchMode):
    """The largest tensor that any operation makes, forward, backward and in the method."""

    def __init__(self):
        super().__init__()
        self.numel, self.by = 0, ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (list, tuple)) else [made]:
            is_storage = isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes() > 0
            if is_storage and tensor.untyped_storage().nbytes() // tensor.element_size() > self.numel:
                self.numel = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.by = f"{func} {list(tensor.shape)}"
        return made


LINEAR = {
    "fast": "transformer_attribution rollout attcat gradient_x_input",
    "slow": "generic_attention gamma_attribution raw_attention cat attgrads grads agcam legrad grad_cam partial_lrp "
    "lrp lrp_epsilon lrp_gamma attnlrp cp_lrp libragrad pa_lrp saliency tokentm",
}
LENGTH = 80


def build_long(kind):
    import transformers as hf

    torch.manual_seed(0)
    if kind == "encoder":
        config = hf.BertConfig(
            vocab_size=60, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=LENGTH,
        )  # fmt: skip
        return hf.BertForSequenceClassification._from_config(config, attn_implementation="sdpa").eval()
    config = hf.LlamaConfig(
        vocab_size=60, hidden_size=8, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=16,
    )  # fmt: skip
    return hf.LlamaForCausalLM._from_config(config, attn_implementation="sdpa").eval()


@pytest.mark.parametrize("which", ["fast", pytest.param("slow", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_no_matrix_of_all_tokens_is_whole(kind, which):
    module = build_long(kind)
    ids = torch.randint(5, 50, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for method in LINEAR[which].split():
        with why.engine(tiles=3), Largest() as largest:
            why.explain(module, inputs, method)
        assert largest.numel < LENGTH**2, f"{method}: {largest.by}"
    with why.engine(tiles=False), Largest() as largest:
        why.explain(module, inputs, "transformer_attribution")
    assert largest.numel >= LENGTH**2


@pytest.mark.parametrize("method", ["attnlrp", "cp_lrp", "libragrad", "lrp_gamma"])
def test_slopes_take_one_relevance_pass_and_no_matrix_even_without_tiles(method):
    ids = torch.randint(5, 50, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    with Largest() as largest:
        e = why.explain(build_long("decoder"), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, method)
    assert e.spent == {"forward": 1.0, "relevance": 1.0}
    assert largest.numel < LENGTH**2, largest.by


def test_padding_needs_no_matrix_of_numbers(monkeypatch):
    monkeypatch.setattr(fused_attention, "SHARED_FROM", 0)
    ids = torch.randint(5, 50, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(LENGTH) < torch.tensor([[LENGTH], [50]])).long()
    inputs, module = {"input_ids": ids, "attention_mask": mask}, build_long("encoder").double()
    given = []
    run = Operation.run
    monkeypatch.setattr(Operation, "run", lambda self: given.append(self) or run(self))
    with why.engine(tiles=7):
        found = why.explain(module, inputs, "attnlrp")
    masks = [one.kwargs["attn_mask"] for one in given if one.name == "scaled_dot_product_attention"]
    assert [list(one.shape) for one in masks] == [[2, 1, 1, LENGTH]] * 2 and masks[0] is masks[1]
    with why.engine(tiles=False):
        assert_same(found.scores, why.explain(module, inputs, "attnlrp").scores, 1e-9)


def test_matrices_that_a_model_makes_itself_are_reported(monkeypatch):
    monkeypatch.setattr(tiles, "TILED_FROM", 1)
    monkeypatch.setattr(tiles, "TILE_BYTES", 800)
    by_steps, fused = animal("bert", "eager"), animal("bert")
    found = why.explain(by_steps.module, by_steps.alone(0), "rollout")
    (note,) = found.notes
    assert note.startswith("The model computes its attention in separate operations, so 3 matrices of up to 0.0 GiB")
    assert 'Load it with attn_implementation="sdpa"' in note
    again = why.explain(fused.module, fused.alone(0), "rollout")
    assert not again.notes  # the remedy
    assert_same(again.scores, found.scores, 1e-9)


def test_a_recorded_program_belongs_to_its_tiles():
    """Replay gives the numbers of the same setting, and a program of one setting is not used for another."""
    module, inputs, found = copy.deepcopy(animal("bert").module), animal("bert").alone(0), {}
    for rows in (3, False):
        with why.engine(tiles=rows), why.engine(replay=True):
            scores = [why.explain(module, inputs, "transformer_attribution", target=1).scores for _ in range(8)]
        assert_same(scores[-1], scores[0], 1e-9)
        found[rows] = scores[-1]
    assert_same(found[3], found[False], 1e-9)
    _, programs = replay.check_programs(module)
    settings = [part for key in programs.runs for part in key if isinstance(part, TileSetting)]
    assert settings == [TileSetting(rows=3), TileSetting(is_on=False)]


# --- the rule for attention -------------------------------------------------------------------------------------------


def make_attention(form, seed, dtype=torch.float64):
    """Query, key, value, the arguments of the call, and what arrives."""
    heads, shared = (4, 2) if form == "grouped" else (2, 1)
    length = 7
    query = numbers(seed, 2, heads, length, 3, dtype=dtype)
    key, value = (numbers(seed + i, 2, heads // shared, length, 3, dtype=dtype) for i in (1, 2))
    allowed = torch.ones(length, length, dtype=torch.bool)
    how = {"scale": 0.4}
    if form == "grouped":
        how["enable_gqa"] = True
    if form == "causal":
        how["is_causal"] = True
    if form == "padded":
        how["attn_mask"] = (torch.arange(length) < torch.tensor([[7], [4]]))[:, None, None].expand(2, 1, length, length)
    if form == "window":
        how["attn_mask"] = allowed.tril().triu(-2)
    if form == "bias":
        how["attn_mask"] = numbers(seed + 4, 1, heads, length, length, dtype=dtype)
    return query, key, value, how, numbers(seed + 3, 2, heads, length, 3, dtype=dtype)


def share_attention(recipe, form, seed, setting, *, absorbed=False):
    query, key, value, how, arriving = make_attention(form, seed)
    result = F.scaled_dot_product_attention(query, key, value, **how)
    given = read_fused_arguments(Operation("", F.scaled_dot_product_attention, (query, key, value), how))
    call = make_call(
        AttentionCall, result, score_mask=given.mask, scale=given.scale, is_grouped=given.is_grouped,
        has_bias=form == "bias",
    )  # fmt: skip
    switch = Switch(recipe=recipe, tiles=setting, rounding=RoundingError(), absorbed={} if absorbed else None)
    return rules.share_attention(call.attach(switch, result, [query, key, value]), arriving), switch


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("recipe", [CHEFER, EPSILON, ATTNLRP, CP_LRP], ids=lambda recipe: recipe.name)
def test_shares_of_tiles_add_up_to_those_of_the_whole(recipe, form):
    for seed in range(3):
        for rows in (1, 3, 6):
            tiled, one = share_attention(recipe, form, seed, TileSetting(rows=rows), absorbed=True)
            whole, other = share_attention(recipe, form, seed, TileSetting(is_on=False), absorbed=True)
            for ours, theirs in zip(tiled, whole, strict=True):
                assert (ours is None) == (theirs is None)
                if ours is not None:
                    assert_same(ours, theirs)
            assert one.absorbed.keys() == other.absorbed.keys()
            for key in one.absorbed:
                torch.testing.assert_close(one.absorbed[key], other.absorbed[key], rtol=1e-9, atol=1e-9)
            assert len(one.rounding.at_attention) == len(other.rounding.at_attention) == 1
            if other.rounding.error is not None:
                torch.testing.assert_close(one.rounding.error, other.rounding.error)


def test_a_bias_that_is_shared_over_all_pairs_is_not_cut_into_tiles(monkeypatch):
    """The normalised addition of `chefer` divides by sums over a whole example, so its rows depend on each other."""
    assert not hasattr(rules.share_normalised_addition, "acts_on_rows")
    monkeypatch.setattr(tiles, "find_free_memory", lambda device: 100)
    with pytest.raises(ResourceError, match=r"Attention of 7 tokens in place, whole as chefer needs it, takes .* GiB"):
        share_attention(CHEFER, "bias", 0, TileSetting(rows=3))
    share_attention(ATTNLRP, "bias", 0, TileSetting(rows=3))  # what the message names


def test_a_rule_that_nobody_marked_is_not_cut_into_tiles():
    seen = []

    def mine(call, arriving):
        seen.append(arriving.shape)
        return rules.pass_unchanged(call, arriving)

    share_attention(CHEFER.replace("mine", softmax=mine), "plain", 0, TileSetting(rows=3))
    assert seen == [(2, 2, 7, 7)]


# --- relevance by the kernel's own gradient ---------------------------------------------------------------------------


def send_by_kernel(recipe, form, seed, carrying=(True, True, True), dtype=torch.float64):
    """What queries, keys and values get if the kernel's gradient passes."""
    *operands, how, arriving = make_attention(form, seed, dtype)
    operands = [x.requires_grad_(carries) for x, carries in zip(operands, carrying, strict=True)]
    operation = Operation("scaled_dot_product_attention", F.scaled_dot_product_attention, tuple(operands), how)
    switch = Switch()
    running, factors = attach_factors(operation, switch)
    result = running.run()
    call = make_call(AttentionCall, result, scale=0.4, carrying=carrying, factors=factors)
    carried = RuleNode.apply(switch, call, result, *operands)
    switch.recipe = recipe
    wanted = [x for x in operands if x.requires_grad]
    return torch.autograd.grad(carried, wanted, arriving, allow_unused=True)


def send_by_steps(recipe, form, seed, carrying=(True, True, True)):
    query, key, value, how, arriving = make_attention(form, seed)
    result = F.scaled_dot_product_attention(query, key, value, **how)
    given = read_fused_arguments(Operation("", F.scaled_dot_product_attention, (query, key, value), how))
    call = make_call(
        AttentionCall, result, score_mask=given.mask, scale=0.4, is_grouped=given.is_grouped, carrying=carrying,
        has_bias=form == "bias",
    )  # fmt: skip
    switch = Switch(recipe=recipe, tiles=TileSetting(is_on=False))
    shares = rules.share_attention(call.attach(switch, result, [query, key, value]), arriving)
    return [share for share, carries in zip(shares, carrying, strict=True) if carries]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SLOPES)
def test_the_gradient_of_the_kernel_is_what_the_steps_send(name, form):
    for seed in range(3):
        found, wanted = send_by_kernel(SLOPES[name], form, seed), send_by_steps(SLOPES[name], form, seed)
        for ours, theirs in zip(found, wanted, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                assert_same(ours, theirs, 1e-9)


@pytest.mark.parametrize("carrying", [(True, True, False), (True, False, True), (False, False, True)])
@pytest.mark.parametrize("name", ["attnlrp", "cp_lrp"])
def test_constant_operands_take_no_part(name, carrying):
    found = send_by_kernel(SLOPES[name], "plain", 0, carrying)
    wanted = send_by_steps(SLOPES[name], "plain", 0, carrying)
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert_same(ours, theirs, 1e-9)


def test_the_factors_by_hand():
    assert find_factors(ATTNLRP, (True, True, True)) == (0.25, 0.25, 0.5)
    assert find_factors(ATTNLRP, (True, True, False)) == (0.5, 0.5, 0.5)
    assert find_factors(ATTNLRP, (False, False, True))[2] == 1.0
    assert find_factors(CP_LRP, (True, True, True)) == find_factors(LIBRA, (True, True, True)) == (0.0, 0.0, 1.0)
    assert find_factors(CHEFER, (True, True, True)) is None
    mine = ATTNLRP.replace("mine", softmax=lambda call, slope: slopes.expand_softmax(call, slope))
    assert find_factors(mine, (True, True, True)) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_kernel_works_in_half_precision(dtype):
    found = send_by_kernel(ATTNLRP, "causal", 0, dtype=dtype)
    wanted = send_by_steps(ATTNLRP, "causal", 0)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == dtype
        assert_same(ours.double(), theirs, 0.05)


def test_without_a_recipe_the_true_gradient_passes():
    found = send_by_kernel(None, "plain", 0)
    query, key, value, how, arriving = make_attention("plain", 0)
    starts = [x.requires_grad_() for x in (query, key, value)]
    wanted = torch.autograd.grad(F.scaled_dot_product_attention(*starts, **how), starts, arriving)
    for ours, theirs in zip(found, wanted, strict=True):
        assert_same(ours, theirs)


def test_the_conservation_check_goes_step_by_step():
    """What the softmax absorbs is not known to the kernel."""
    it = animal("bert")
    checked = why.explain(it.module, it.alone(0), "attnlrp", target=1, health=True)
    plain = why.explain(it.module, it.alone(0), "attnlrp", target=1)
    assert_same(checked.scores, plain.scores, 1e-9)


# --- matrices that stand for tensors ----------------------------------------------------------------------------------


def make_tiles(seed, rows=3):
    whole = numbers(seed, 2, 3, 7, 7)
    return QueryTiles(lambda some: whole[..., some, :], whole.shape, whole, rows), whole


EXPRESSIONS = {
    "product": lambda a, b: (a * b).clamp(min=0).mean(dim=1),
    "scalars": lambda a, b: (2 - a / 3 + 1) * 0.5,
    "masked": lambda a, b: a.masked_fill(b > 0, 0),
    "shut": lambda a, b: b.masked_fill((a > 1).all(dim=1, keepdim=True), 0).sum(dim=1),
    "rows": lambda a, b: a / a.abs().sum(dim=-1, keepdim=True),
    "per query": lambda a, b: a * numbers(9, 2, 1, 7, 1) + numbers(8, 7, 1),
    "tensor first": lambda a, b: numbers(7, 2, 3, 1, 7) * a,
    "heads": lambda a, b: a[:, [0, 2]] + b[:, 1:2],
    "where": lambda a, b: torch.where(a > b, a, 0.0),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_operations_on_queries_one_by_one_are_put_off(name):
    (a, whole_a), (b, whole_b) = make_tiles(0), make_tiles(1)
    found, wanted = EXPRESSIONS[name](a, b), EXPRESSIONS[name](whole_a, whole_b)
    assert isinstance(found, QueryTiles)
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    assert [part.size(-2) for _, part in iterate_rows(found)] == [3, 3, 1]
    assert_same(found.whole(), wanted)


WHOLE_EXPRESSIONS = {
    "transposed": lambda a: a.mT @ a,
    "over queries": lambda a: a.mean(dim=2),
    "over keys": lambda a: a.sum(dim=-1),
    "one number": lambda a: a.sum(),
    "flat": lambda a: a.flatten(2),
    "einsum": lambda a: torch.einsum("bhqk->bhkq", a),
    "stack": lambda a: torch.stack([a, a]),
    "some queries": lambda a: a[:, :, 2:5],
    "one query": lambda a: a[:, :, 0],
    "new axis": lambda a: a[:, None],
}


@pytest.mark.parametrize("name", WHOLE_EXPRESSIONS)
def test_any_other_operation_gets_the_whole_matrix(name):
    a, whole = make_tiles(0)
    found = WHOLE_EXPRESSIONS[name](a)
    assert isinstance(found, torch.Tensor)
    assert_same(found, WHOLE_EXPRESSIONS[name](whole))


def test_a_row_skips_tiles_where_it_is_zero():
    made = []
    whole = numbers(0, 1, 8, 8)
    matrix = QueryTiles(lambda some: made.append(some) or whole[..., some, :], whole.shape, whole, 3)
    row = torch.zeros(1, 8, dtype=torch.float64)
    row[0, 4] = 1.0
    found = torch.cat([row[:, some, None] * part for some, part in iterate_rows(matrix, row)], 1).sum(1)
    assert made == [slice(3, 6)]
    assert_same(found, whole[:, 4])


def test_a_matrix_too_large_to_be_whole_says_which_methods_need_none(monkeypatch):
    it = animal("bert")
    monkeypatch.setattr(tiles, "find_free_memory", lambda device: 100)
    with why.engine(tiles=3):
        with pytest.raises(ResourceError, match=r"matrix of .* whole, takes .* GiB; .* are free\. .*rollout"):
            why.explain(it.module, it.alone(0), "attention_flow")
        for named in ("rollout", "transformer_attribution", "generic_attention", "attcat", "attnlrp"):
            why.explain(it.module, it.alone(0), named)


def test_free_memory_is_known_here():
    free = tiles.find_free_memory(torch.device("cpu"))
    assert free is None or free > 2**20


# --- the setting ------------------------------------------------------------------------------------------------------


def test_large_matrices_are_cut_and_small_ones_are_not():
    by_size = TileSetting()
    assert by_size.choose_rows((1, 12, 512, 512), 4) == 0
    rows = by_size.choose_rows((1, 12, 8192, 8192), 4)
    assert rows == tiles.TILE_BYTES // (12 * 8192 * 4)
    assert by_size.choose_rows((64, 64, 8192, 8192), 8) == 1
    assert TileSetting(is_on=False).choose_rows((1, 12, 8192, 8192), 4) == 0
    assert TileSetting(rows=5).choose_rows((1, 1, 5, 5), 4) == 0
    assert list(iterate_tiles(7, 3)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(iterate_tiles(7, 0)) == [slice(0, 7)]


@pytest.mark.parametrize("rows", [0, -1, 1.5, "all"], ids=str)
def test_other_numbers_of_rows_are_refused(rows):
    refused = pytest.raises(why.errors.InputError, match=r"tiles must be True, False or a number of queries >= 1")
    with refused, why.engine(tiles=rows):
        pass


def test_the_setting_ends_with_its_block_and_belongs_to_its_thread():
    seen = []
    with why.engine(tiles=5):
        thread = threading.Thread(target=lambda: seen.append(tiles.current_setting.get()))
        thread.start()
        thread.join()
        assert tiles.current_setting.get() == TileSetting(rows=5)
        assert Switch().tiles == TileSetting(rows=5)
    assert seen == [TileSetting()] and tiles.current_setting.get() == TileSetting()


def test_a_mask_for_some_queries_is_a_part_of_the_whole():
    query = numbers(0, 1, 1, 5, 2)
    allowed = torch.ones(5, 6, dtype=torch.bool).tril()
    low = torch.zeros(5, 6, dtype=torch.float64).masked_fill(~allowed, -math.inf)
    for mask in (ScoreMask(None, is_causal=True), ScoreMask(allowed), ScoreMask(low)):
        assert torch.equal(mask.read(slice(2, 4), query, 6), low[2:4])
    row = ScoreMask(allowed[:1])
    assert torch.equal(row.read(slice(2, 4), query, 6), low[:1])
    assert ScoreMask().read(slice(0, 5), query, 6) is None
