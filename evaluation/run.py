"""The evaluations that docs/judge-measured.md reports.

    python evaluation/run.py NAME [--half reporting] [--device cuda] [--limit N] [--model FOLDER] [--out FOLDER]

    pets        the shipped pets ViT on its held-out photos: perturbation, and segmentation against trimaps
    shapes      the shipped shapes ViT on generated scenes: the same
    movies      minilm-l6-sst2 on ERASER movies: token-F1 and AUPRC against human rationales
    hatexplain  bert-tiny-toxicity on HateXplain: the same
    sst2        minilm-l6-sst2 on the development sentences of SST-2: AOPC and log-odds
    sentiment   the shipped sentiment BERT on the same sentences: the same
    decoder     the shipped language model on sentences whose evidence is known: AOPC, log-odds, token-F1, AUPRC

--half takes every other example: defaults are chosen on `choosing` and the docs show `reporting`. --model is another
model for the same data: those of training/worlds/shapes_other.toml and training/pets/other.toml. evaluation/stage.py
prepares data and models. Results go to evaluation/runs (or --out), which git ignores; the same command resumes an
interrupted run. evaluation/table.py turns them into the tables of the docs.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from halves import HALVES, take_half
from scenes import make_examples

import whyformer as why
from whyformer import methods
from whyformer.data import Data, Example, read
from whyformer.metrics import token_f1
from whyformer_papers.worlds import agreement

HERE = Path(__file__).parent
DATA = HERE / "data"
RUNS = HERE / "runs"

# Every method of at most one backward and one relevance pass. The literal rules of lrp need float64 on photos.
QUICK = (
    "gamma_attribution", "transformer_attribution", "generic_attention", "grad_cam", "rollout", "raw_attention",
    "partial_lrp", "lrp_gamma", "attnlrp", "libragrad", "legrad", "agcam", "attcat", "attgrads", "gradient_x_input",
    "saliency", "redistribution",
)  # fmt: skip
EXACT_LRP = partial(methods.lrp, precision="float64")
EXACT_TRANSFORMER_ATTRIBUTION = partial(methods.transformer_attribution, precision="float64")
PHOTO_METRICS = (
    "positive_perturbation",
    "negative_perturbation",
    "pixel_accuracy",
    "mean_average_precision",
    "mean_iou",
)


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: what is measured, and on which model and data."""

    model: str
    data: Callable[[], Data]
    metrics: tuple[Any, ...]
    methods: tuple[Any, ...]
    target: Any = "predicted"
    batch: int = 32
    dtype: torch.dtype | None = None


def read_pets() -> Data:
    return read(DATA / "pets", mask_values="trimap")


def read_movies() -> Data:
    return read(DATA / "movies" / "movies", classes={"POS": "positive", "NEG": "negative"})


def read_hatexplain() -> Data:
    """The posts with a marked word."""
    classes = {"hatespeech": "toxic", "offensive": "toxic", "normal": "not-toxic"}
    data = read(DATA / "hatexplain" / "test.jsonl.gz", classes=classes)
    return replace(data, examples=tuple(example for example in data.examples if example.rationale))


def read_sst2() -> Data:
    return read(DATA / "sst2" / "dev.tsv")


def make_sentences() -> Data:
    """The beginnings of 600 sentences, up to the verb; the evidence is the subject."""
    examples = []
    for number, sentence in enumerate(agreement.generate(600, seed=0)):
        start = len(agreement.write_sentence((*sentence.words[: sentence.subject], "x"))) - 1
        span = (start, start + len(sentence.evidence))
        examples.append(Example(f"sentence {number}", sentence.prefix, rationale=(span,)))
    return Data("agreement, seed 0", tuple(examples))


EVALUATIONS = {
    "pets": Evaluation(
        "demo/pets",
        read_pets,
        PHOTO_METRICS,
        (
            *QUICK,
            EXACT_LRP,
            EXACT_TRANSFORMER_ATTRIBUTION,
            partial(methods.transformer_attribution, preset="released_vit"),
            partial(methods.gamma_attribution, gradient="none"),
        ),
    ),
    "shapes": Evaluation("demo/shapes", partial(make_examples, 1200, seed=5), PHOTO_METRICS, (*QUICK, EXACT_LRP)),
    "movies": Evaluation(
        "models/minilm-l6-sst2",
        read_movies,
        ("token_f1", "auprc"),
        (*QUICK, "lrp", partial(methods.transformer_attribution, preset="released_bert")),
        target="label",
        batch=4,
        dtype=torch.float32,
    ),
    "hatexplain": Evaluation(
        "models/bert-tiny-toxicity",
        read_hatexplain,
        (partial(token_f1, k="marked"), "auprc"),
        (*QUICK, "lrp"),
        target="toxic",
        batch=16,
    ),
    "sst2": Evaluation(
        "models/minilm-l6-sst2",
        read_sst2,
        ("aopc", "log_odds"),
        (*QUICK, "lrp", partial(methods.transformer_attribution, preset="released_bert")),
        dtype=torch.float32,
    ),
    "sentiment": Evaluation("demo/sentiment", read_sst2, ("aopc", "log_odds"), (*QUICK, "lrp")),
    "decoder": Evaluation(
        "demo/decoder",
        make_sentences,
        ("aopc", "log_odds", partial(token_f1, k="marked"), "auprc"),
        (*QUICK, "lrp"),
    ),
}


def evaluate(
    name: str,
    half: str | None = None,
    *,
    model: str | Path | None = None,
    device: str = "cpu",
    limit: int | None = None,
    out: Path | None = None,
) -> why.Judgement:
    """Judge the methods of one evaluation; with `half`, on that half of its data."""
    chosen = EVALUATIONS[name]
    source = model or (chosen.model if chosen.model.startswith("demo/") else DATA / chosen.model)
    data = chosen.data()
    data = (take_half(data, half) if half else data).sample(limit)
    out = out or RUNS / "-".join([name, *([half] if half else []), *([Path(model).name] if model else [])])
    opened = why.open(source, device=device, dtype=chosen.dtype)
    return why.judge(
        opened,
        data,
        chosen.methods,
        chosen.metrics,
        out=out,
        target=chosen.target,
        batch_size=chosen.batch,
        report=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=EVALUATIONS)
    parser.add_argument("--half", choices=HALVES)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    started = time.monotonic()
    judged = evaluate(**vars(arguments))
    print(judged)
    examples = judged.plan.examples
    print(f"{examples} examples in {time.monotonic() - started:.0f} s; rows and table are in {judged.folder}")


if __name__ == "__main__":
    main()
