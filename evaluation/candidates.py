r"""Candidates for a sound form of transformer attribution: which relevance, which product, which scale?

    python evaluation/candidates.py [--device cuda] [--photos 300] [--scenes 200] [--shapes MODEL ...]

Every candidate is a rollout $\prod_l (I + M_l)$ whose matrices $M_l$ are built from attention $A$, its gradient $G$ and
its relevance $R$ under some recipe. Judged on held-out photos of the *choosing* half (see `halves.py`), never on those
that docs/judge-measured.md reports, and on generated shapes with other seeds than the reported ones.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from halves import take_half
from scenes import make_examples
from torch import Tensor

import whyformer as why
from whyformer import methods
from whyformer.data import Data, read
from whyformer.demo import shapes
from whyformer.methods._readout_row import mask_padding, propagate_row
from whyformer.methods._registry import method

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "benchmarks"))
from class_specificity import measure_both  # noqa: E402

PETS = HERE / "data" / "pets"
PRODUCTS = ("relevance", "agree", "gate", "half", "root", "least", "sum")
COLUMNS = ("positive_perturbation", "negative_perturbation", "pixel_accuracy", "mean_average_precision", "mean_iou")


def multiply(product: str, attention: Tensor, grad: Tensor, relevance: Tensor) -> Tensor:
    """The matrices of one layer: [batch head query key], never negative."""
    if product == "relevance":
        return relevance.clamp(min=0)
    if product == "gradient":
        return (grad * relevance).clamp(min=0)
    if product == "agree":  # where both are positive; a negative gradient of a negative relevance counts for nothing
        return grad.clamp(min=0) * relevance.clamp(min=0)
    if product == "gate":  # the relevance, where the gradient is positive
        return relevance.clamp(min=0) * (grad > 0)
    if product == "half":  # between "gate" and "agree"
        return relevance.clamp(min=0) * grad.clamp(min=0).sqrt()
    if product == "root":  # the geometric mean of G A and R: linear in the logit, as both are
        return (grad * attention * relevance).clamp(min=0).sqrt() * ((grad > 0) & (relevance > 0))
    if product == "least":  # what both say
        return torch.minimum(grad * attention, relevance).clamp(min=0)
    assert product == "sum"
    return (grad * attention + relevance).clamp(min=0)


def scale(how: str, matrix: Tensor) -> Tensor:
    """The mean over heads, scaled: as it is, or such that the largest (mean) sum of a row is 1."""
    rows = matrix.sum(-1)
    if how == "largest":
        return matrix / rows.amax(-1)[:, None, None].clamp(min=1e-30)
    if how == "mean":
        return matrix / rows.mean(-1)[:, None, None].clamp(min=1e-30)
    return matrix


@method(paper="a candidate", class_specific=True, signed=False, recipe="gamma")
def candidate(
    attention: Sequence[Tensor],
    attention_grad: Sequence[Tensor],
    attention_relevance: Sequence[Tensor],
    readout: Tensor,
    mask: Tensor,
    *,
    product: str = "gradient",
    how: str = "none",
    start: int = 0,
) -> Tensor:
    """A rollout of products of attention, gradient and relevance."""
    row = readout
    for layer in reversed(range(start, len(attention))):
        cells = multiply(product, attention[layer], attention_grad[layer], attention_relevance[layer])
        row = propagate_row(row, scale(how, cells.mean(1)), normalise=how == "rows")
    return mask_padding(row, readout, mask)


def list_candidates() -> list[Any]:
    today = ["transformer_attribution", "generic_attention", "rollout", "libragrad"]
    by_gamma = [partial(candidate, gamma=gamma) for gamma in (0.0, 0.25, 0.5, 1.0, 3.0)]
    by_gamma += [partial(candidate, product="agree", gamma=gamma) for gamma in (0.0, 1.0, 3.0)]
    by_start = [partial(candidate, start=start) for start in (1, 3)]
    by_product = [partial(candidate, product=product) for product in PRODUCTS]
    by_scale = [
        partial(candidate, product=product, how=how)
        for product, how in itertools.product(("gradient", "agree", "root"), ("largest", "mean", "rows"))
    ]
    other = [partial(candidate, recipe="epsilon"), partial(methods.transformer_attribution, ablation="no_gradient")]
    return [*today, *by_gamma, *by_start, *by_product, *by_scale, *other]


def judge(model: why.Model, data: Data, chosen: Sequence[Any], out: Path) -> why.Judgement:
    judged = why.judge(model, data, chosen, COLUMNS, out=out, batch_size=32)
    judged.save(out / "table.md")
    return judged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--photos", type=int, default=300)
    parser.add_argument("--data", type=Path, default=PETS, help="photos; others than the default are taken as they are")
    parser.add_argument("--scenes", type=int, default=200)
    parser.add_argument("--out", type=Path, default=HERE / "runs" / "candidates")
    parser.add_argument("--shapes", nargs="*", default=["demo/shapes"], help="models of the shapes world")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    candidates = list_candidates()
    for name in arguments.shapes:
        model = why.open(name, device=arguments.device)
        print(f"{name}: right / other object, {arguments.scenes} scenes of two objects", flush=True)
        pairs = shapes.generate(arguments.scenes, seed=77, objects=2)
        for one in candidates:
            right, other = measure_both(model, one, pairs).mean((0, 1))
            print(f"  {right / other:6.2f}  {100 * right:5.1f} % {100 * other:5.1f} %  {describe(one)}", flush=True)
        folder = arguments.out / name.replace("/", "-").strip("-")
        print(judge(model, make_examples(arguments.scenes, seed=78), candidates, folder), flush=True)
    if arguments.photos:
        data = read(arguments.data, mask_values="trimap")
        data = take_half(data, "choosing").sample(arguments.photos) if arguments.data == PETS else data
        model = why.open("demo/pets", device=arguments.device)
        print(judge(model, data, candidates, arguments.out / "pets"), flush=True)


def describe(wanted: Any) -> str:
    return wanted if isinstance(wanted, str) else f"{wanted.func.__name__}({wanted.keywords})"


if __name__ == "__main__":
    main()
