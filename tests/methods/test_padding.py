"""Padding and batches, for every method over tokens: an example is explained as if it were alone."""

import pytest
import torch
from torch.testing import assert_close

import whyformer.methods  # noqa: F401  fills METHODS
from whyformer._engine.capture.sites import SITES
from whyformer.methods._registry import METHODS

over_tokens = pytest.mark.parametrize(
    "name", sorted(name for name in METHODS if "mask" in METHODS[name].needs and "probe" not in METHODS[name].needs)
)
SETTINGS = {
    "raw_attention": [{"own": "min"}],
    "rollout": [{"preset": preset} for preset in ("paper", "released", "released_bert")] + [{"own": "min"}],
    "grad_cam": [{"form": form, "normalise": normalise} for form in ("vit", "bert") for normalise in (True, False)],
    "partial_lrp": [{"own": "min"}],
    "transformer_attribution": [
        {"preset": "released_vit"},
        {"preset": "released_bert"},
        {"preset": "released_bert", "start": 0},
    ]
    + [{"ablation": ablation} for ablation in ("no_gradient", "last_block", "block_1")],
    "generic_attention": [{"own": "min"}],
    "redistribution": [{"rule": "i"}, {"rule": "iii"}, {"rule": "iv", "distance_scale": "mean"}]
    + [{"head_mode": mode} for mode in ("mean_each_layer", "top_head")],
    "norm_analysis": [{"form": "block"}],
    "alti": [{"norm": 2}],
    "cat": [{"at": "output"}],
    "attgrads": [{"preset": "released"}, {"own": "min"}],
    "agcam": [{"own": "min"}, {"preset": "centred"}],
    "legrad": [{"preset": "released"}, {"preset": "output"}, {"start": 1}],
    "libragrad": [{"at": "input"}],
    "pa_lrp": [{"part": "token"}, {"part": "position"}, {"preset": "separate"}],
    "globenc": [{"preset": "released"}],
    "attcat": [{"attention_as": "cls_row"}, {"attention_as": "matrix_vector"}, {"at": "output"}],
}


@pytest.mark.parametrize(("left", "right"), [(0, 3), (3, 0), (1, 2)])
@over_tokens
def test_padding_gets_nothing_and_changes_nothing(random_capture, padded, run, name, left, right):
    capture = random_capture(tokens=4, batch=2)
    wide = padded(capture, left, right)
    for settings in [{}, *SETTINGS.get(name, [])]:
        scores = run(name, wide, **settings)
        assert_close(scores[:, left : left + 4], run(name, capture, **settings))
        assert (scores[~wide["mask"]] == 0).all()


@over_tokens
def test_a_batch_is_its_examples(random_capture, padded, run, name):
    """A short and a long one, with different readouts."""
    short, long = padded(random_capture(tokens=3, seed=1), right=2), random_capture(tokens=5, seed=2)
    long["readout"] = long["readout"].roll(4, dims=-1)
    together = {site: join(site, short[site], long[site]) for site in short if site in long}
    for settings in [{}, *SETTINGS.get(name, [])]:
        expected = torch.cat([run(name, short, **settings), run(name, long, **settings)])
        assert_close(run(name, together, **settings), expected)


def join(site, *examples):
    if site == "fingerprint":
        return [mark for marks in examples for mark in marks]
    if site in ("norms", "unattended", "streams"):
        return examples[0]
    if site == "position_relevance":
        return torch.cat(examples, dim=2)
    by_layer = SITES[site].has_layers or SITES[site].has_boundaries
    return torch.cat(examples, dim=1 if by_layer else 0)
