"""The evaluations that docs/judge.md reports: python evaluation/run.py NAME [--device cuda] [--limit N] [--out FOLDER]

    pets        the shipped pets ViT on its held-out photos: perturbation, and segmentation against trimaps
    pixels      the same photos: perturbation by maps that score single pixels, next to random pixels
    middle      the same photos: segmentation by a blob in the middle of every photo
    movies      minilm-l6-sst2 on ERASER movies: token-F1 and AUPRC against human rationales
    hatexplain  bert-tiny-toxicity on HateXplain: the same
    sst2        minilm-l6-sst2 on the development sentences of SST-2: AOPC and log-odds

evaluation/stage.py prepares data and models. Results go to evaluation/runs/NAME (or --out), which git ignores; the same
command resumes an interrupted run. The docs show table.md.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import whyformer as why
from whyformer import methods
from whyformer._plain.random_generator import make_generator
from whyformer.data import read
from whyformer.methods._registry import method
from whyformer.metrics import token_f1

HERE = Path(__file__).parent
DATA = HERE / "data"

QUICK = (
    "transformer_attribution", "generic_attention", "grad_cam", "rollout", "raw_attention", "partial_lrp", "lrp",
    "attnlrp", "libragrad", "legrad", "agcam", "attcat", "attgrads", "gradient_x_input", "saliency", "redistribution",
)  # fmt: skip


@method(paper="Hooker et al., NeurIPS 2019", class_specific=False, signed=False)
def random_pixels(input: Tensor, fingerprint: Sequence[int]) -> Tensor:
    """Chance for maps of single pixels. `chance` draws one score per patch, so its maps are smooth blobs."""
    size = input.shape[1:3]
    drawn = [torch.rand(size, dtype=torch.float64, generator=make_generator(0, int(mark))) for mark in fingerprint]
    return torch.stack(drawn).to(input.device)


@method(paper="a control for these evaluations", class_specific=False, signed=False)
def middle(input: Tensor) -> Tensor:
    """Highest in the middle, whatever the model computes: photographers put animals there."""
    height, width = (torch.linspace(-1, 1, size, dtype=torch.float64) for size in input.shape[1:3])
    blob = torch.exp(-2 * (height[:, None] ** 2 + width**2))
    return blob.expand(len(input), -1, -1).to(input.device)


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: what is measured, and on which model and data."""

    model: str
    data: str
    metrics: tuple[Any, ...]
    reading: dict[str, Any] = field(default_factory=dict)
    target: Any = "predicted"
    methods: tuple[Any, ...] = QUICK
    batch: int = 16
    marked_only: bool = False  # only texts with a marked word
    dtype: torch.dtype | None = None


EVALUATIONS = {
    "pets": Evaluation(
        "demo/pets",
        "pets",
        ("positive_perturbation", "negative_perturbation", "pixel_accuracy", "mean_average_precision", "mean_iou"),
        {"mask_values": "trimap"},
        methods=(*QUICK, partial(methods.transformer_attribution, preset="released_vit")),
        batch=32,
    ),
    "pixels": Evaluation(
        "demo/pets",
        "pets",
        ("positive_perturbation", "negative_perturbation"),
        methods=("attnlrp", "gradient_x_input", random_pixels),
    ),
    "middle": Evaluation(
        "demo/pets",
        "pets",
        ("pixel_accuracy", "mean_average_precision", "mean_iou"),
        {"mask_values": "trimap"},
        methods=(middle,),
        batch=32,
    ),
    "movies": Evaluation(
        "models/minilm-l6-sst2",
        "movies/movies",
        ("token_f1", "auprc"),
        {"classes": {"POS": "positive", "NEG": "negative"}},
        target="label",
        methods=(*QUICK, partial(methods.transformer_attribution, preset="released_bert")),
        batch=4,
        dtype=torch.float32,
    ),
    "hatexplain": Evaluation(
        "models/bert-tiny-toxicity",
        "hatexplain/test.jsonl.gz",
        (partial(token_f1, k="marked"), "auprc"),
        {"classes": {"hatespeech": "toxic", "offensive": "toxic", "normal": "not-toxic"}},
        target="toxic",
        marked_only=True,
    ),
    "sst2": Evaluation(
        "models/minilm-l6-sst2",
        "sst2/dev.tsv",
        ("aopc", "log_odds"),
        methods=(*QUICK, partial(methods.transformer_attribution, preset="released_bert")),
        batch=32,
        dtype=torch.float32,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=EVALUATIONS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    chosen = EVALUATIONS[arguments.name]
    source = chosen.model if chosen.model.startswith("demo/") else DATA / chosen.model
    model = why.open(source, device=arguments.device, dtype=chosen.dtype)
    data = read(DATA / chosen.data, **chosen.reading)
    if chosen.marked_only:
        data = replace(data, examples=tuple(example for example in data.examples if example.rationale))
    data = data.sample(arguments.limit)
    out = arguments.out or HERE / "runs" / arguments.name
    started = time.monotonic()
    judgement = why.judge(
        model, data, chosen.methods, chosen.metrics, out=out, target=chosen.target, batch=chosen.batch
    )
    judgement.save(out / "table.md")
    print(judgement)
    print(f"{len(data)} examples in {time.monotonic() - started:.0f} s; rows, table and report are in {out}")


if __name__ == "__main__":
    main()
