"""No two methods are the same under two names: on at least one of the bundled models they rank tokens differently.

Presets of one method count as one method. Perturbation methods run with the small budgets of the contract.
"""

from functools import partial
from itertools import combinations

import torch
from conftest import QUICK
from PIL import Image

import whyformer as why
from whyformer.demo import shapes
from whyformer.demo.tour import CAT
from whyformer.methods._registry import METHODS
from whyformer_papers.worlds import agreement

AT_LEAST = 30  # registered methods
ALIKE = 0.9999  # Spearman's rank correlation, mean over examples

INPUTS = {
    "demo/sentiment": lambda: ["a gorgeous, witty, seductive film", "not good at all, and far too long"],
    "demo/untrained-vit": lambda: [str(CAT)],
    "demo/shapes": lambda: [Image.fromarray(image) for image in shapes.generate(1, seed=77, objects=2).images],
    "demo/agreement": lambda: [s.masked for s in agreement.generate(3, seed=5, attractors=2)],
    "demo/decoder": lambda: ["The film was a"],
    "demo/pets": lambda: [str(CAT)],
}


def alike(model, inputs, methods):
    """Pairs that are indistinguishable on this model: the same order of tokens, or both without any order."""
    chosen = [partial(METHODS[name].compute, **QUICK[name]) if name in QUICK else name for name in methods]
    found = {}
    opened = why.open(model)
    for name, method in zip(methods, chosen, strict=True):
        try:
            found[name] = why.explain(opened, inputs, method)
        except why.WhyformerError:
            continue  # does not support this model
    rows = why.Comparison(found).agreement()
    names = list(found)
    distinguished = {
        frozenset((a, b))
        for (i, a), (j, b) in combinations(enumerate(names), 2)
        if rows[i, j] <= ALIKE or rows[i].isnan().all() != rows[j].isnan().all()
    }
    return {frozenset(pair) for pair in combinations(methods, 2)} - distinguished


def test_no_two_methods_are_the_same():
    torch.set_num_threads(1)
    left = {frozenset(pair) for pair in combinations(sorted(METHODS), 2)}
    for model, inputs in INPUTS.items():
        if not left:
            break
        left &= alike(model, inputs(), sorted({name for pair in left for name in pair}))
    assert not left, "these pairs rank tokens the same everywhere: " + ", ".join(" = ".join(sorted(p)) for p in left)


def test_two_names_of_one_method_are_noticed(monkeypatch):
    import dataclasses

    twin = dataclasses.replace(METHODS["rollout"], name="twin")
    monkeypatch.setitem(METHODS, "twin", twin)
    texts = INPUTS["demo/sentiment"]()
    assert alike("demo/sentiment", texts, ["raw_attention", "rollout", "twin"]) == {frozenset(("rollout", "twin"))}


def test_there_are_many():
    assert len(METHODS) >= AT_LEAST
