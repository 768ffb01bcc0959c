"""Does the estimate of rounding errors predict them? Maps in float32 against maps in float64.

    python benchmarks/conditioning.py --photos FOLDER [--limit 100] [--methods ...] [--device cuda] [--roundings 4]

For every photo and method: the estimate (`Explanation.conditioning`), and the true error of the float32 map, its
distance from the float64 map. How far off one float32 map is depends on how its own sums happened to be rounded, so
the error is also measured for `--roundings` other float32 runs, with all weights moved by one rounding, and averaged
geometrically. Printed for each method:

    below .95      the share of float32 maps whose rank correlation with the float64 map is below .95
    note           the share of maps with the note that rounding may decide the order of the top scores
    one run        the rank correlation over photos of the estimate with the error of the one float32 map
    mean           the same with the mean error over roundings
    of a run       the same for the error of another run: a prediction that takes as long as the explanation itself
    limit          the most that a prediction can reach for one run if it cannot see how that run was rounded: the
                   square root of the rank correlation between the errors of two runs
    median         the estimate, and the true error, of the median photo; then the largest error
    time           the time of the estimate, as a share of that of the explanation; both measured in turn

Errors are the largest difference, relative to the largest score; with --error rank, 1 - rank correlation.
"""

import argparse
import copy
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

import whyformer as why
from whyformer._engine.capture.builder import CaptureBuilder
from whyformer._engine.capture.capture import RoundingEstimate
from whyformer._engine.relevance.rounding import RoundingError
from whyformer.results.comparison import rank_correlation

METHODS = (
    "gamma_attribution",
    "transformer_attribution",
    "lrp",
    "partial_lrp",
    "lrp_epsilon",
    "lrp_gamma",
    "attnlrp",
    "libragrad",
)
SUFFIXES = (".jpg", ".jpeg", ".png")


def batches(photos: list[Path], size: int) -> Iterator[list[str]]:
    for start in range(0, len(photos), size):
        yield [str(photo) for photo in photos[start : start + size]]


def moved(model: why.Model, seed: int) -> why.Model:
    """A copy of the model with every weight moved by one float32 rounding."""
    module = copy.deepcopy(model.module)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            sign = torch.rand(weight.shape, generator=generator).to(weight.device).sub_(0.5).sign_()
            weight.mul_(1 + sign * torch.finfo(torch.float32).eps)
    return why.open(module, processor=model.processor, labels=model.labels, readout=model.readout)


def distance(ours: torch.Tensor, true: torch.Tensor, error: str) -> np.ndarray:
    """[example]: how far a map is from the float64 map."""
    ours, true = ours.double(), true.double()
    if error == "rank":
        return np.array([1 - float(rank_correlation(torch.stack(pair))[0, 1]) for pair in zip(ours, true, strict=True)])
    return ((ours - true).abs().amax(1) / true.abs().amax(1)).numpy()


def spearman(one: np.ndarray, other: np.ndarray) -> float:
    return float(rank_correlation(torch.tensor(np.stack([one, other])))[0, 1])


def run_without_estimate(model: why.Model, inputs: object, method: str) -> None:
    """An explanation in which nothing is estimated."""
    nothing = {name: (lambda *args, **kwargs: None) for name in ("note_addition", "note_division", "note_attention")}

    def unknown(self: CaptureBuilder, *args: object) -> RoundingEstimate:
        return RoundingEstimate(torch.zeros(self.encoded.batch, dtype=torch.float64))

    with patch.multiple(RoundingError, **nothing), patch.object(CaptureBuilder, "estimate_rounding", unknown):
        why.explain(model, inputs, method)


def time_share(model: why.Model, inputs: object, method: str, repeats: int) -> float:
    """The time of the estimate relative to the explanation without it: the median over pairs of runs."""
    ratios = []
    for _ in range(repeats):
        took = []
        for run in (run_without_estimate, why.explain):
            start = time.perf_counter()
            run(model, inputs, method)
            if model.device.type == "cuda":
                torch.cuda.synchronize()
            took.append(time.perf_counter() - start)
        ratios.append(took[1] / took[0] - 1)
    return float(np.median(ratios[1:] or ratios))


def measure(models: list[why.Model], exact: why.Model, photos: list[Path], method: str, options: argparse.Namespace):
    """Estimates [photo], whether there is a note, and errors [run photo] for each kind of error."""
    estimates, notes = [], []
    errors: dict[str, list[np.ndarray]] = {"rank": [], "largest": []}
    for names in batches(photos, options.batch):
        first = why.explain(models[0], names, method)
        targets = [target.index for target in first.targets]
        true = why.explain(exact, names, method, target=targets).scores
        maps = [first.scores, *(why.explain(model, names, method, target=targets).scores for model in models[1:])]
        for error, parts in errors.items():
            parts.append(np.stack([distance(scores, true, error) for scores in maps]))
        estimates.append(first.conditioning.estimate.numpy())
        notes.append(~first.conditioning.is_determined.numpy())
    joined = {error: np.concatenate(parts, axis=1).clip(min=1e-12) for error, parts in errors.items()}
    return np.concatenate(estimates), np.concatenate(notes), joined


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--photos", type=Path, required=True, help="a folder of images")
    parser.add_argument("--model", default="demo/pets")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--roundings", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=8, help="pairs of runs for the time")
    parser.add_argument("--error", choices=("largest", "rank"), default="largest")
    options = parser.parse_args()
    torch.set_num_threads(1)
    photos = sorted(path for path in options.photos.rglob("*") if path.suffix.lower() in SUFFIXES)
    if options.limit is not None:
        picked = np.random.default_rng(0).permutation(len(photos))[: options.limit]
        photos = [photos[i] for i in sorted(picked)]
    model = why.open(options.model, device=options.device)
    exact = why.open(options.model, device=options.device, dtype=torch.float64)
    models = [model, *(moved(model, seed) for seed in range(options.roundings))]
    runs = f"1 + {options.roundings} float32 runs"
    print(f"{len(photos)} photos, {options.model} on {options.device}, {runs}, error: {options.error}")
    print(f"{'method':26s} below .95  note   one run  mean   of a run  limit  median: estimate  error  largest    time")
    pooled: list[tuple[np.ndarray, np.ndarray]] = []
    for method in options.methods:
        estimate, notes, errors = measure(models, exact, photos, method, options)
        error = errors[options.error]
        mean = np.exp(np.log(error).mean(0))
        pairs = [(a, b) for a in range(len(error)) for b in range(a)]
        between = np.mean([spearman(error[a], error[b]) for a, b in pairs]) if pairs else np.nan
        share = time_share(model, [str(photo) for photo in photos[: options.batch]], method, options.repeats)
        print(
            f"{method:26s} {np.mean(errors['rank'][0] > 0.05):9.1%} {np.mean(notes):6.1%}"
            f" {spearman(estimate, error[0]):7.2f} {spearman(estimate, mean):7.2f}"
            f" {between:9.2f} {np.sqrt(max(between, 0)):7.2f}"
            f" {np.median(estimate):16.1e} {np.median(error[0]):9.1e} {error[0].max():8.1e} {share:7.1%}",
            flush=True,
        )
        pooled.append((estimate, error[0]))
    estimates, ones = (np.concatenate(column) for column in zip(*pooled, strict=True))
    print(f"all methods together: rank correlation of estimate and error of one run {spearman(estimates, ones):.2f}")


if __name__ == "__main__":
    main()
