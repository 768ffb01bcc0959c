"""Every model family: the same numbers as the model, correct gradients, and conserved relevance."""

import copy

import pytest
import torch
from conftest import FAMILIES, IMAGE_FAMILIES, LENGTHS, animal

import whyformer as why
from whyformer._engine.capture.sites import SITES
from whyformer._engine.record import record
from whyformer._engine.relevance.recipes import PA_LRP

TWO_KERNELS = [name for name in FAMILIES if name not in ("encoder", "encoder_token_first", "gpt")]
every_family = pytest.mark.parametrize("name", FAMILIES)
CHEFER, BASELINE = why.make_recipe("chefer"), why.make_recipe("baseline")
TARGETS = [0, 1, 2]


def record_family(name, keep, **options):
    it = animal(name)
    model = why.open(it.module)
    return record(model, model.encode(it.inputs), keep=set(keep), target=TARGETS, **options)


def answer_of(module, inputs):
    with torch.no_grad():
        answer = module(**inputs)
    return getattr(answer, "logits", answer)


@every_family
@pytest.mark.parametrize("keep", ["attention", "attention_grad", "attention_relevance"])
def test_the_shadow_answers_as_the_model_does(name, keep):
    """Bit for bit without relevance (`nn.TransformerEncoder` leaves its fast path: rounding)."""
    capture = record_family(name, {keep}, recipes=[CHEFER])
    difference = (capture.logits - answer_of(animal(name).module, animal(name).inputs)).abs().max()
    assert difference <= (1e-14 if name == "encoder" or keep == "attention_relevance" else 0)


@pytest.mark.parametrize("name", TWO_KERNELS)
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_attention_is_what_the_model_itself_reports(name, kernel):
    eager = animal(name, "eager")
    with torch.no_grad():
        reported = eager.module(**eager.inputs, output_attentions=True).attentions
    it = animal(name, kernel)
    model = why.open(it.module)
    found = record(model, model.encode(it.inputs), keep={"attention"}, target=TARGETS)["attention"]
    assert len(found) == len(reported)
    for ours, theirs in zip(found, reported, strict=True):
        assert (ours - theirs).abs().max() < 1e-6  # several families compute their eager softmax in float32


@every_family
def test_every_site_has_the_axes_the_table_says(name):
    capture = record_family(name, SITES.keys() - {"query", "key"}, recipes=[CHEFER, PA_LRP])
    heads = capture["attention"][0].shape[1]
    tokens = capture["mask"].shape[1]
    width = capture["hidden"][0].shape[-1]
    layers = len(capture["attention"])
    place = (16, 16) if name in IMAGE_FAMILIES else (tokens,)
    sizes = {
        "layer": layers,
        "boundary": layers + 1,
        "batch": 3,
        "head": heads,
        "query": tokens,
        "key": tokens,
        "token": tokens,
    }
    for site in SITES:
        axes = SITES[site].axes
        if site in ("query", "key", "probe", "norms"):
            continue
        value = capture.get(site, PA_LRP if site in ("token_relevance", "position_relevance") else CHEFER)
        if site in ("unattended", "streams"):
            assert value == ((False,) * layers if site == "unattended" else ())
            continue
        if axes.startswith("place"):
            assert all(part.shape[1:] == (3, tokens) and len(part) in (1, 2) for part in value), site
            continue
        if axes.startswith(("layer", "boundary")):
            assert len(value) == sizes[axes.split()[0]], site
            axes, value = axes.split(maxsplit=1)[1], value[0]
        if site == "fingerprint":
            assert len(value) == 3
        elif "*place" in axes:
            assert value.shape[:-1] == (3, *place), site
        else:
            wanted = [sizes.get(axis) for axis in axes.split()]
            assert all(w in (None, s) for w, s in zip(wanted, value.shape, strict=True)), site
        if axes.endswith("token channel"):
            assert value.shape[-1] == width, site


@every_family
def test_the_gradient_at_the_input_is_correct(name):
    """N8, by finite differences along random directions."""
    it = animal(name)
    capture = record_family(name, {"input_grad", "input"})
    direction = torch.randn(capture["input"].shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    wanted = (direction * capture["input_grad"]).flatten(1).sum(1)
    if name in IMAGE_FAMILIES:
        moved = lambda step: answer_of(  # noqa: E731
            it.module, {"pixel_values": it.inputs["pixel_values"] + step * direction.permute(0, 3, 1, 2)}
        )
    else:
        moved = lambda step: answer_of(nudge_embeddings(it, step * direction), it.inputs)  # noqa: E731
    step, precision = (1e-5, 1e-6) if name != "llama" else (1e-3, 3e-3)  # Llama norms in float32 whatever its weights
    change = (moved(step) - moved(-step)) / (2 * step)
    for i, target in enumerate(TARGETS):
        place = (LENGTHS[i] - 1 if name != "gpt" else 8,) if change.dim() == 3 else ()
        assert change[(i, *place, target)] == pytest.approx(wanted[i].item(), rel=precision)


def nudge_embeddings(it, step):
    """The model with `step` added to its embeddings of the ids."""
    module = copy.deepcopy(it.module)
    table = max((m for m in module.modules() if isinstance(m, torch.nn.Embedding)), key=lambda m: m.num_embeddings)
    table.register_forward_hook(lambda _, __, out: out + step)
    return module


@pytest.mark.parametrize("name", TWO_KERNELS)
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_the_gradient_of_attention_is_correct(name, kernel):
    """Against autograd, where the model computes its attention in separate operations."""
    own = gradients_by_autograd(name)
    it = animal(name, kernel)
    model = why.open(it.module)
    found = record(model, model.encode(it.inputs), keep={"attention_grad"}, target=TARGETS)["attention_grad"]
    for ours, theirs in zip(found, own, strict=True):
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def gradients_by_autograd(name):
    it = animal(name, "eager")
    answer = it.module(**it.inputs, output_attentions=True)
    for attention in answer.attentions:
        attention.retain_grad()
    logits = answer.logits
    if logits.dim() == 3:
        logits = logits[torch.arange(3), torch.tensor(LENGTHS) - 1]
    logits[torch.arange(3), TARGETS].sum().backward()
    found = [attention.grad for attention in answer.attentions]
    it.module.zero_grad(set_to_none=True)
    return found


# --- books -----------------------------------------------------------------------------------------------------------


@every_family
@pytest.mark.parametrize(
    "recipe", [CHEFER, why.make_recipe("chefer", "released"), BASELINE], ids=lambda r: f"{r.name}-{r.stabiliser.name}"
)
def test_relevance_at_every_boundary_and_what_was_absorbed_sum_to_the_seed(name, recipe):
    capture = record_family(name, {"hidden_relevance", "input_relevance"}, recipes=[recipe], track_absorbed=True)
    absorbed = capture.absorbed[recipe]
    ends = [*zip(capture.boundaries, capture.get("hidden_relevance", recipe), strict=True)]
    ends.append((-1, capture.get("input_relevance", recipe)))
    for step, relevance in ends:
        above = sum((entry.amount for entry in absorbed if entry.step > step), torch.zeros(3, dtype=torch.float64))
        total = relevance.flatten(1).sum(1) + above
        size = 1 + above.abs() + sum(e.amount.abs() for e in absorbed)
        tolerance = 1e-9 if name != "llama" else 1e-7  # Llama norms in float32 whatever its weights
        assert ((total - 1).abs() <= tolerance * size).all(), (step, total)


@every_family
def test_the_paper_s_rules_lose_relevance_only_to_constants(name):
    """Within the blocks only an attention bias absorbs relevance (BEiT has one)."""
    capture = record_family(name, {"hidden_relevance"}, recipes=[CHEFER])
    for relevance in capture.get("hidden_relevance", CHEFER):
        assert relevance.flatten(1).sum(1).tolist() == pytest.approx([1, 1, 1], abs=0.05 if name == "beit" else 1e-7)


@every_family
def test_a_contrast_is_the_difference_of_two_relevances(name):
    it = animal(name)
    model = why.open(it.module)
    keep = {"attention_relevance", "attention_grad", "input_relevance"}
    both, one, other = (
        record(model, model.encode(it.inputs), keep=keep, recipes=[CHEFER], **options)
        for options in ({"target": TARGETS, "versus": 3}, {"target": TARGETS}, {"target": 3})
    )
    near = 1e-9 if name != "llama" else 1e-5
    wanted = one.get("input_relevance", CHEFER) - other.get("input_relevance", CHEFER)
    torch.testing.assert_close(
        both.get("input_relevance", CHEFER), wanted, rtol=0, atol=near * float(wanted.abs().max())
    )
    for layer in range(len(one["attention_grad"])):
        for site in ("attention_grad", "attention_relevance"):
            a, b, c = (capture.get(site, CHEFER)[layer] for capture in (both, one, other))
            torch.testing.assert_close(a, b - c, rtol=0, atol=near * float((b - c).abs().max()))


@every_family
def test_readout_says_where_the_answer_is_read(name):
    found = record_family(name, {"readout"})["readout"]
    torch.testing.assert_close(found.sum(1), torch.ones(3, dtype=torch.float64))
    if name == "deit":
        assert found[0, :3].tolist() == [0.5, 0.5, 0]
    elif name == "dinov2":  # class token and the mean of 16 patches; 4 registers are not read
        assert found[0].tolist() == pytest.approx([0.5] + [0] * 4 + [0.5 / 16] * 16)
    elif name == "beit":
        assert found[0].tolist() == pytest.approx([0] + [1 / 16] * 16)
    elif name.startswith("encoder"):
        for i, length in enumerate(LENGTHS):
            assert found[i].tolist() == pytest.approx([1 / length] * length + [0] * (9 - length))
    else:
        last = {"gpt": [8, 8, 8], "gpt2": [8, 5, 3], "llama": [8, 5, 3]}.get(name, [0, 0, 0])
        assert found.argmax(1).tolist() == last
        assert found.amax(1).tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", ["bert", "vit", "llama"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_relevance_of_a_half_precision_model_is_computed_in_float32(name, dtype):
    module = copy.deepcopy(animal(name).module)
    half = copy.deepcopy(module).to(dtype)
    inputs = animal(name).inputs
    found = why.explain(why.open(half), inputs, "lrp", target=TARGETS)
    full = why.explain(
        why.open(half.to(torch.float32)),
        {k: v.to(dtype).float() if v.is_floating_point() else v for k, v in inputs.items()},
        "lrp",
        target=TARGETS,
    )
    assert found.scores.dtype == torch.float32
    assert torch.equal(found.scores, full.scores)
