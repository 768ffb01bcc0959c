"""The numbers of the authors' released code (golden/authors): AtMan, AGCAM, LeGrad, ViT-CX, value zeroing, norms, ALTI.

Each folder has the authors' outputs on a tiny model and a README with the commit, the settings and the quirks of the
code. AtMan's numbers and the masks of ViT-CX are in float32, ALTI adds 1e-6 to each difference; the rest is exact.
"""

from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import whyformer as why
from whyformer._engine.capture.residual import LayerReading, compute_layer_gradients
from whyformer._engine.layout.layout import lay_out
from whyformer._engine.record import record
from whyformer._engine.run.forward import run_forward
from whyformer._engine.targets.target import ClassReading
from whyformer.methods import alti, norm_analysis, value_zeroing
from whyformer.methods._contributions import measure_contributions, normalise_rows
from whyformer.methods.atman import embedding_similarities
from whyformer.methods.value_zeroing import measure_zeroing, read_clean_states
from whyformer.methods.vit_cx import cluster_maps, make_masks, measure_overlap, scale_maps

GOLDEN = Path(__file__).parents[1] / "golden" / "authors"
MODELS = {
    "atman": "gpt_neo",
    "agcam": "vit",
    "legrad": "vit_without_bias",
    "vit_cx": "vit",
    "value_zeroing": "bert",
    "norm_analysis": "bert",
    "alti": "bert",
}
EXACT, SINGLE = 1e-12, 1e-5  # where the released code ran in float64, and where part of it is in float32


@cache
def expected(folder):
    return load_file(GOLDEN / folder / "expected.safetensors")


@cache
def given(folder):
    """The model, its inputs in float64 and the targets."""
    model = why.open(GOLDEN / "models" / MODELS[folder], dtype=torch.float64)
    inputs = dict(load_file(GOLDEN / folder / "inputs.safetensors"))
    targets = inputs.pop("targets").tolist()
    return model, {key: t.double() if t.is_floating_point() else t for key, t in inputs.items()}, targets


@cache
def capture(folder, *keep):
    model, inputs, targets = given(folder)
    return record(model, model.encode(inputs), target=targets, keep=set(keep))


def explain(folder, **settings):
    model, inputs, targets = given(folder)
    return why.explain(model, inputs, folder, target=targets, **settings)


def assert_near(found, wanted, tolerance):
    """Relative to the largest magnitude."""
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= tolerance * wanted.abs().max()


@pytest.mark.parametrize("folder", MODELS)
def test_the_model_is_the_authors(folder):
    """GPT-Neo computes its attention in float32."""
    logits = capture(folder, "attention").logits
    logits = logits[:, -1] if folder == "atman" else logits
    assert_near(logits, expected(folder)["logits"].double(), 1e-6 if folder == "atman" else EXACT)


# --- AtMan ------------------------------------------------------------------------------------------------------------

THRESHOLDS = {"threshold_0.6": {}, "threshold_0.7": {"similarity": 0.7}, "no_similarity": {"similarity": 2.0}}


@pytest.mark.parametrize("key", THRESHOLDS)
def test_atman_is_the_change_of_the_loss_with_its_sign_reversed(key):
    """The default, and by name; the authors' number falls where a token helps, ours rises."""
    wanted = -expected("atman")[f"delta_cross_entropy.{key}"]
    assert_near(explain("atman", **THRESHOLDS[key]).scores, wanted, SINGLE)
    assert_near(explain("atman", preset="released", **THRESHOLDS[key]).scores, wanted, SINGLE)


@pytest.mark.parametrize("key", THRESHOLDS)
def test_atman_as_the_change_of_the_logit(key):
    wanted = expected("atman")[f"delta_logit.{key}"]
    assert_near(explain("atman", of="score", **THRESHOLDS[key]).scores, wanted, SINGLE)


def test_atman_compares_word_embeddings():
    found = embedding_similarities(capture("atman", "probe")["probe"], -1.0)
    assert_near(found, expected("atman")["similarity"], 1e-6)


def test_atman_of_the_paper_is_something_else():
    paper, released = explain("atman", preset="paper").scores, explain("atman").scores
    assert (paper - released).abs().max() > 0.1 * released.abs().max()


# --- AGCAM ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"preset": "released"}], ids=["default", "released"])
def test_agcam_map(settings):
    assert_near(explain("agcam", **settings).scores.view(2, 4, 4), expected("agcam")["map"], EXACT)


@pytest.mark.parametrize("layer", range(3))
def test_agcam_layer_by_layer(layer):
    assert_near(explain("agcam", layers=layer).scores, expected("agcam")["per_layer"][:, layer], EXACT)


def test_agcam_scores_and_gradients():
    found = capture("agcam", "attention_scores", "direct_attention_grad", "attention_grad")
    cls_rows = {site: torch.stack([layer[:, :, 0] for layer in found[site]], 1) for site in found_sites(found)}
    assert_near(cls_rows["attention_scores"], expected("agcam")["scores_cls_row"], EXACT)
    assert_near(cls_rows["direct_attention_grad"], expected("agcam")["attention_grad_cls_row"], EXACT)
    away = (cls_rows["attention_grad"] - cls_rows["direct_attention_grad"]).abs().amax((0, 2, 3))
    assert away[0] > 0.01 and away[2] == 0  # nothing comes after the last attention


def found_sites(found):
    return [name for name, _ in found.values if name in ("attention_scores", "attention_grad", "direct_attention_grad")]


# --- LeGrad -----------------------------------------------------------------------------------------------------------


def enlarge_and_scale(scores):
    """The authors' last two steps."""
    large = F.interpolate(scores.view(2, 1, 4, 4), size=(32, 32), mode="bilinear", align_corners=False)[:, 0]
    low, high = large.amin((1, 2), keepdim=True), large.amax((1, 2), keepdim=True)
    return (large - low) / (high - low)


@pytest.mark.parametrize(("key", "settings"), [("map.last2", {}), ("map.all", {"start": 0})])
def test_legrad_map(key, settings):
    found = explain("legrad", preset="released", **settings).scores
    assert_near(enlarge_and_scale(found), expected("legrad")[key], EXACT)


@pytest.mark.parametrize("layer", range(3))
def test_legrad_layer_by_layer(layer):
    found = explain("legrad", preset="released", layers=layer).scores
    assert_near(found.view(2, 4, 4), expected("legrad")["per_layer"][:, layer], EXACT)


def test_legrad_with_plain_logits():
    """The same code with the logits as they are; the map is of the last two layers or of all."""
    model, inputs, targets = given("legrad")
    encoded = model.encode(inputs)
    kept = record(model, encoded, target=targets, keep={"value"})
    with run_forward(model, encoded, asks_gradient=True, keeps_tape=True) as run:
        arrived = compute_layer_gradients(
            run, encoded, lay_out(run, encoded), ClassReading(model.module, kept.targets), LayerReading(True, False)
        )
    gradients = [g @ v.mT for g, v in zip(arrived, kept["value"], strict=True)]
    layers = torch.stack([g.clamp(min=0).mean((1, 2))[:, 1:].view(2, 4, 4) for g in gradients], 1)
    assert_near(layers, expected("legrad")["per_layer.logit"], EXACT)
    assert_near(enlarge_and_scale(layers[:, 1:].sum(1)), expected("legrad")["map.last2.logit"], EXACT)
    assert_near(enlarge_and_scale(layers.sum(1)), expected("legrad")["map.all.logit"], EXACT)


# --- ViT-CX -----------------------------------------------------------------------------------------------------------

GRID, SIZE = (4, 4), (32, 32)


@cache
def feature_maps(example):
    """[channel patch]: what the last attention receives, without CLS."""
    return capture("vit_cx", "attention_input")["attention_input"][2][example, 1:].T


@pytest.mark.parametrize("example", [0, 1])
def test_vit_cx_merges_the_same_maps(example):
    scaled = scale_maps(feature_maps(example), GRID, SIZE)
    label = cluster_maps(scaled, measure_overlap(GRID, SIZE), 0.1, 100)
    wanted = expected("vit_cx")["labels"][example]
    assert torch.equal(label[:, None] == label, wanted[:, None] == wanted)


@pytest.mark.parametrize("example", [0, 1])
def test_vit_cx_masks(example):
    """In any order; the authors' are in float32."""
    found, wanted = make_masks(feature_maps(example), GRID, SIZE, 0.1, 100), expected("vit_cx")[f"masks.{example}"]
    nearest = torch.cdist(wanted.double().flatten(1), found.flatten(1), p=torch.inf)
    assert nearest.amin(1).max() < 1e-6
    assert sorted(nearest.argmin(1).tolist()) == list(range(len(found)))


def test_vit_cx_map_without_noise():
    assert_near(explain("vit_cx", preset="released", noise=0).pixels, expected("vit_cx")["map.noise_0"], SINGLE)


def test_vit_cx_map_with_noise_is_one_of_the_authors_draws():
    """The mean of eight seeds is as near to the authors' mean as the mean of eight of their runs."""
    found = torch.stack([explain("vit_cx", preset="released", seed=seed).pixels for seed in range(8)])
    mean, spread = expected("vit_cx")["map.noise_mean"], expected("vit_cx")["map.noise_std"]
    away = (found.mean(0) - mean) / (spread * (1 / 8 + 1 / 64) ** 0.5)
    assert away.square().mean() < 4  # 1 is expected
    assert 0.5 < (found.std(0) / spread).mean() < 1.5


# --- value zeroing ----------------------------------------------------------------------------------------------------


def test_value_zeroing_scores():
    probe = capture("value_zeroing", "probe", "mask")["probe"]
    mask = capture("value_zeroing", "probe", "mask")["mask"]
    clean = read_clean_states(probe)
    of, tokens = mask.nonzero(as_tuple=True)
    layers = [normalise_rows(measure_zeroing(probe, at, of, tokens, clean[at + 1]), mask) for at in range(3)]
    assert_near(torch.stack(layers, 1), expected("value_zeroing")["scores"], EXACT)


@pytest.mark.parametrize("query", range(9))
def test_value_zeroing_rollout(query):
    kept = capture("value_zeroing", "probe", "mask")
    found = value_zeroing(kept["probe"], one_hot(query), kept["mask"])
    assert_near(found, expected("value_zeroing")["rollout"][:, -1, query], EXACT)


def test_value_zeroing_of_the_class_token():
    assert_near(explain("value_zeroing").scores, expected("value_zeroing")["rollout"][:, -1, 0], EXACT)


def one_hot(query):
    return F.one_hot(torch.tensor([query, query]), 9).double()


# --- norms of vectors -------------------------------------------------------------------------------------------------

PARTS = ("attention", "projected", "residual", "norms", "readout", "mask")
FORMS = {"attn": {"form": "attention"}, "attn_res_ln": {"form": "block"}}


@pytest.mark.parametrize("key", FORMS)
@pytest.mark.parametrize("layer", range(3))
def test_norm_analysis(layer, key):
    kept = capture("norm_analysis", *PARTS)
    sites = [kept[name] for name in PARTS[:4]]
    for query in range(9):
        found = norm_analysis(*sites, one_hot(query), kept["mask"], layer=layer, **FORMS[key])
        assert_near(found, expected("norm_analysis")[key][:, layer, query], EXACT)


@pytest.mark.parametrize("head", range(4))
def test_norm_analysis_head_by_head(head):
    for layer in range(3):
        found = explain("norm_analysis", heads=head, layer=layer).scores
        assert_near(found, expected("norm_analysis")["attn_per_head"][:, layer, head, 0], EXACT)


@pytest.mark.parametrize("layer", range(3))
def test_norm_analysis_with_the_residual_only(layer):
    kept = capture("norm_analysis", *PARTS)
    parts = (kept["attention"][layer], kept["projected"][layer], kept["residual"][layer], ())
    found = measure_contributions(*parts, lambda vectors, _: vectors.norm(dim=-1))
    assert_near(found, expected("norm_analysis")["attn_res"][:, layer], EXACT)


@pytest.mark.parametrize(("key", "has_residual", "has_norm"), [("", 0, 0), ("_res", 1, 0), ("_res_ln", 1, 1)])
def test_norm_analysis_mixing_ratios(key, has_residual, has_norm):
    """How much of a token's new state comes from the others: their sum against its own part, by length."""
    kept = capture("norm_analysis", *PARTS)
    for layer in range(3):
        sums = {}

        def keep_vectors(vectors, _, sums=sums):
            sums["vectors"] = vectors
            return vectors.norm(dim=-1)

        residual, norms = kept["residual"][layer] if has_residual else None, kept["norms"][layer][:has_norm]
        measure_contributions(kept["attention"][layer], kept["projected"][layer], residual, norms, keep_vectors)
        own = sums["vectors"].diagonal(dim1=1, dim2=2).mT
        others = (sums["vectors"].sum(2) - own).norm(dim=-1)
        ratio = others / (others + own.norm(dim=-1))
        assert_near(ratio, expected("norm_analysis")[f"mixing_attn{key}"][:, layer], EXACT)


# --- ALTI -------------------------------------------------------------------------------------------------------------

ALTI_PARTS = ("attention", "projected", "residual", "middle", "norms", "mask")


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("query", range(9))
def test_alti(query, norm):
    """The rollout over all layers, and the contributions of each."""
    kept = capture("alti", *ALTI_PARTS)
    sites = [kept[name] for name in ALTI_PARTS[:5]]
    found = alti(*sites, one_hot(query), kept["mask"], norm=norm)
    assert_near(found, expected("alti")[f"rollout.l{norm}"][:, -1, query], SINGLE)
    for layer in range(3):
        found = alti(*([site[layer]] for site in sites), one_hot(query), kept["mask"], norm=norm)
        assert_near(found, expected("alti")[f"contributions.l{norm}"][:, layer, query], SINGLE)


@pytest.mark.parametrize("norm", [1, 2])
def test_alti_of_the_class_token(norm):
    assert_near(explain("alti", norm=norm).scores, expected("alti")[f"rollout.l{norm}"][:, -1, 0], SINGLE)
