"""Methods against ground truth: in the generated data it is known what decides the answer.

Class-specific methods must highlight the object of the class they explain; class-agnostic methods must not depend on
the class; if one word decides, it must get the highest score. Thresholds are below the measured values
(benchmarks/class_specificity.py) and far above chance.
"""

import pytest
import torch
from PIL import Image

import whyformer as why
from whyformer.demo import shapes
from whyformer_papers.worlds import agreement

torch.set_num_threads(1)
IMAGES = 16


@pytest.fixture(scope="module")
def two_objects():
    scenes = shapes.generate(IMAGES, seed=77, objects=2)
    side = 12
    size = shapes.SIZE // side
    tiles = scenes.masks.reshape(IMAGES, 2, side, size, side, size).mean((3, 5)).reshape(IMAGES, 2, -1)
    return [Image.fromarray(image) for image in scenes.images], scenes.labels, torch.from_numpy(tiles)


def measure_shares(method, two_objects):
    """The share of the positive score on the object of the explained class, and on the other one."""
    images, labels, covered = two_objects
    model = why.open("demo/shapes")
    shares = []
    for asked in (0, 1):
        scores = why.explain(model, images, method, target=labels[:, asked].tolist()).scores.double().clamp(min=0)
        on = torch.einsum("ip,iop->io", scores, covered) / scores.sum(1, keepdim=True).clamp(min=1e-12)
        shares.append(on[:, [asked, 1 - asked]])
    right, other = torch.stack(shares).mean((0, 1)).tolist()
    return right, other


@pytest.mark.parametrize(
    ("method", "ratio"),
    [
        ("transformer_attribution", 4),
        ("generic_attention", 2),
        ("attcat", 1.4),
        ("attnlrp", 4),
        ("libragrad", 4),
        ("lrp_gamma", 3),
    ],
)
def test_a_class_specific_method_highlights_the_object_of_its_class(method, ratio, two_objects):
    right, other = measure_shares(method, two_objects)
    assert right > ratio * other
    assert right > 0.3


@pytest.mark.parametrize("method", ["rollout", "raw_attention"])
def test_a_class_agnostic_method_finds_objects_but_not_which(method, two_objects):
    right, other = measure_shares(method, two_objects)
    assert right == pytest.approx(other, rel=1e-9)
    assert right > 0.09  # an object covers 4 % of an image


def test_chance_finds_nothing(two_objects):
    right, other = measure_shares("chance", two_objects)
    assert max(right, other) < 0.06


RELEVANCE = ("attnlrp", "libragrad", "pa_lrp", "lrp_gamma", "lrp_epsilon", "cp_lrp")


@pytest.mark.parametrize(
    ("method", "floor"),
    [("transformer_attribution", 0.9), ("attcat", 0.9), ("lrp", 0.8), *((name, 0.9) for name in RELEVANCE)],
)
def test_the_word_that_decides_gets_the_highest_score(method, floor):
    """Higher than the nouns of the other number between it and the verb."""
    sentences = agreement.generate(30, seed=5, attractors=2)
    model = why.open("demo/agreement")
    e = why.explain(model, [s.masked for s in sentences], method)
    hits = 0
    for one, sentence in zip(e, sentences, strict=True):
        nouns = [sentence.subject, *sentence.attractors]
        hits += max(nouns, key=lambda word: one.scores[0, word + 1]) == sentence.subject
    assert hits / len(sentences) >= floor


def test_chance_does_not_find_the_word_that_decides():
    sentences = agreement.generate(60, seed=5, attractors=2)
    e = why.explain(why.open("demo/agreement"), [s.masked for s in sentences], "chance")
    hits = sum(
        max([s.subject, *s.attractors], key=lambda word: one.scores[0, word + 1]) == s.subject
        for one, s in zip(e, sentences, strict=True)
    )
    assert hits / len(sentences) < 0.6
