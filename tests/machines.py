"""What every method computes on the shipped models and on the zoo, in float32, to compare machines.

    python tests/machines.py scores.npz --setting oldest --threads 2 --together

Another processor rounds sums in another order, and so do another number of threads and another size of the batch. The
instruction sets that PyTorch, oneDNN and MKL use are read from the environment when a process starts, so every run has
a process of its own. `Difference` says how far the scores of several runs are apart.
"""

import argparse
import copy
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conftest import FAMILIES, IMAGE_FAMILIES, QUICK, animal
from PIL import Image, ImageOps

import whyformer as why
from whyformer._explain.method_call import choose_method
from whyformer._explain.sharing import explain_by_each, record_for_methods, share_captures
from whyformer._plain.tokens import Pieces
from whyformer.demo import shapes
from whyformer.demo.tour import AGREEMENT_PROMPT, CAT, SENTENCE
from whyformer.methods._registry import METHODS
from whyformer_papers.worlds import agreement

TOLERANCE = 1e-4  # of the largest magnitude
TOP = 5
EXAMPLES = 5

# The only methods whose scores may depend on the machine: literal rules of LRP. A test fails if one of them does not.
CANCELLING_SUMS = "the paper's rules divide by u + v where a residual connection adds branches that may cancel"
ILL_CONDITIONED = {
    "lrp": CANCELLING_SUMS,
    "partial_lrp": CANCELLING_SUMS,
    "transformer_attribution": CANCELLING_SUMS,
    "lrp_epsilon": "the rule divides by sums that may cancel; epsilon damps them, but not enough for every pixel",
    "lrp_gamma": "single pixels of a photo differ by 3e-4 under one setting; the scores of patches differ by 5e-5",
}

# What the largest score counts as at least. AtMan subtracts log-probabilities, which float32 knows to about 1e-7; on a
# random BEiT they hardly change, so that this is more than 1e-4 of the change. Grad-CAM averages gradients of both
# signs: on a random Llama they cancel but for 5e-5, of which the last digits are rounding.
SMALLEST_MAXIMUM = {"atman": 5e-3, "grad_cam": 2e-3}

# --- runs ------------------------------------------------------------------------------------------------------------

NEWEST = {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
OLDEST = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}
SETTINGS: dict[str, dict[str, str]] = {
    "newest": NEWEST,
    **{f"{name}={value}": NEWEST | {name: value} for other in (AVX2, OLDEST) for name, value in other.items()},
    "avx2": AVX2,
    "oldest": OLDEST,
}


@dataclass(frozen=True)
class Run:
    """One way to compute all scores."""

    setting: str
    threads: int = 1
    together: bool = False  # the five examples in one batch, or one by one

    @property
    def name(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.setting}, {threads}, {'batch' if self.together else 'alone'}"

    @property
    def is_extreme(self) -> bool:
        return self.setting in ("newest", "oldest")


# The extremes with one and two threads, alone and in a batch, by all methods; every other setting by the quick ones.
RUNS = (
    Run("newest"),
    Run("oldest"),
    Run("newest", together=True),
    Run("oldest", threads=2, together=True),
    Run("newest", threads=2),
    *(Run(setting, together=True) for setting in SETTINGS if setting not in ("newest", "oldest")),
)


def can_run(setting: Mapping[str, str]) -> bool:
    """Whether this processor has the instructions."""
    wanted = " ".join(setting.values()).lower()
    return ("avx512" not in wanted or torch.cpu._is_avx512_supported()) and (
        "avx2" not in wanted or torch.cpu._is_avx2_supported()
    )


def start_run(run: Run, out: Path, *options: str) -> "subprocess.Popen[bytes]":
    """Write the scores of this run to `out`, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in OLDEST} | SETTINGS[run.setting]
    command = [sys.executable, __file__, str(out), "--setting", run.setting, "--threads", str(run.threads)]
    return subprocess.Popen([*command, *["--together"] * run.together, *options], env=environment)


# --- what is explained -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A model with five examples, one by one and in a batch."""

    model: why.Model
    examples: Sequence[Any]
    batch: Any
    settings: Mapping[str, Mapping[str, Any]]  # of methods with a budget


# Methods with a budget get enough for 196 patches, but not what a user would wait for.
ON_IMAGES = {
    "bi_attribution": {"steps": 5},
    "context_cite": {"budget": 32},
    "integrated_gradients": {"steps": 8},
    "kernel_shap": {"budget": 128},
    "lime": {"budget": 128},
    "partition_shap": {"budget": 128},
    "rise": {"budget": 64},
    "smooth_grad": {"samples": 4},
    "vit_cx": {"budget": 24},
}
ON_TEXTS = {"kernel_shap": {"budget": 128}, "lime": {"budget": 128}, "rise": {"budget": 64}}
LARGE_IMAGES = ("demo/pets", "demo/shapes")
TOO_SLOW = {("value_zeroing", "demo/pets")}  # one forward per token and layer: minutes per image
SENTENCES = (
    SENTENCE,
    "the plot is a mess, but the cast is charming",
    "dull",
    "an honest and moving portrait of two brothers who have nothing left to say to each other",
    "it never becomes the thriller that it wants to be",
)
PROMPTS = (
    AGREEMENT_PROMPT,
    "the key to the cabinets",
    "the boys",
    "the author near the guards",
    "the picture behind the old houses by the lake",
)


def open_shipped(name: str, examples: Sequence[Any], settings: Mapping[str, Mapping[str, Any]]) -> Subject:
    return Subject(why.open(name), examples, list(examples), settings)


def make_photos() -> list[Image.Image]:
    """The cat: whole, mirrored, and three parts of it."""
    cat = Image.open(CAT).convert("RGB")
    width, height = cat.size
    parts = [(0, 0, 0.8, 0.8), (0.2, 0.2, 1, 1), (0.1, 0.25, 0.6, 0.9)]
    boxes = [(int(a * width), int(b * height), int(c * width), int(d * height)) for a, b, c, d in parts]
    return [cat, ImageOps.mirror(cat), *map(cat.crop, boxes)]


def make_scenes() -> list[Image.Image]:
    return [Image.fromarray(image) for image in shapes.generate(5, seed=21, objects=2).images]


def open_family(name: str) -> Subject:
    """A random model of the zoo in float32, as users run models; the zoo itself is in float64."""
    module = copy.deepcopy(animal(name).module).float()
    names = ("pixel_values",) if name in IMAGE_FAMILIES else ("idx",) if name == "gpt" else ("input_ids", "mask")
    return make_tensor_subject(why.open(module), names, 40, 1 if name == "roberta" else 0)


def open_untrained(name: str) -> Subject:
    return make_tensor_subject(why.open(name), ("pixel_values",) if "vit" in name else ("input_ids", "mask"), 300, 0)


def make_tensor_subject(model: why.Model, names: tuple[str, ...], vocabulary: int, padding: int) -> Subject:
    """Five random images of 16 x 16, or five texts; those with a mask have several lengths."""
    generator = torch.Generator().manual_seed(7)
    if names == ("pixel_values",):
        size = model.module.config.image_size
        pixels = torch.randint(-512, 512, (5, 3, size, size), generator=generator) / 256  # exact, unlike randn
        return Subject(model, pixels.split(1), pixels, QUICK)
    ids = torch.randint(5, vocabulary, (5, 9), generator=generator)
    if "mask" not in names:
        return Subject(model, [{names[0]: row} for row in ids.split(1)], {names[0]: ids}, QUICK)
    lengths = (9, 6, 4, 8, 5)
    mask = torch.arange(9)[None] < torch.tensor(lengths)[:, None]
    alone = [{names[0]: row[:, :length]} for row, length in zip(ids.split(1), lengths, strict=True)]
    batch = {names[0]: torch.where(mask, ids, padding), "attention_mask": mask.long()}
    return Subject(model, alone, batch, QUICK)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "demo/pets": lambda: open_shipped("demo/pets", make_photos(), ON_IMAGES),
    "demo/shapes": lambda: open_shipped("demo/shapes", make_scenes(), ON_IMAGES),
    "demo/sentiment": lambda: open_shipped("demo/sentiment", SENTENCES, ON_TEXTS),
    "demo/agreement": lambda: open_shipped(
        "demo/agreement", [sentence.masked for sentence in agreement.generate(5, seed=5)], ON_TEXTS
    ),
    "demo/decoder": lambda: open_shipped("demo/decoder", PROMPTS, ON_TEXTS),
    "demo/untrained-vit": partial(open_untrained, "demo/untrained-vit"),
    "demo/untrained-bert": partial(open_untrained, "demo/untrained-bert"),
    **{name: partial(open_family, name) for name in FAMILIES},
}

# --- scores ----------------------------------------------------------------------------------------------------------

Scores = dict[str, np.ndarray]  # "method subject example" -> its scores; "... pixels" -> those of the pixels


def compute_scores(run: Run, subjects: Iterable[str], methods: Sequence[str], count: int = EXAMPLES) -> Scores:
    """Of the first `count` examples, in this process, which should have been started with the setting of the run."""
    torch.set_num_threads(run.threads)
    found: Scores = {}
    for name in subjects:
        subject = SUBJECTS[name]()
        for numbers, inputs in list_inputs(subject, run, count):
            chosen = [method for method in methods if is_measured(method, name, numbers, run)]
            if not chosen:
                continue
            for method, e in explain_by_all(subject, inputs, chosen).items():
                for i, one in zip(numbers, e, strict=True):
                    found |= name_scores(f"{method} {name} {i}", one)
    return found


def list_inputs(subject: Subject, run: Run, count: int) -> Iterator[tuple[range, Any]]:
    """The numbers of the examples that are explained at once, and these examples."""
    if run.together:
        batch = subject.batch
        yield range(count), {k: v[:count] for k, v in batch.items()} if isinstance(batch, dict) else batch[:count]
    else:
        yield from ((range(i, i + 1), example) for i, example in enumerate(subject.examples[:count]))


def is_measured(method: str, subject: str, numbers: range, run: Run) -> bool:
    """What is left out, so that the runs take minutes and not hours."""
    is_quick = METHODS[method].is_quick
    if not run.is_extreme:
        return is_quick and (subject.startswith("demo/") or subject in ("vit", "bert", "gpt2"))
    if is_quick or subject not in LARGE_IMAGES:
        return run.together or numbers[0] < 2
    return run in RUNS[:2] and numbers[0] == 0 and (method, subject) not in TOO_SLOW


def explain_by_all(subject: Subject, inputs: Any, methods: Sequence[str]) -> dict[str, why.Explanation]:
    """The predicted classes, from one run of the model; without the methods that cannot explain it."""
    model = subject.model
    encoded = model.encode(inputs)
    calls = {name: choose_method(name, dict(subject.settings.get(name, {}))) for name in methods}
    captures = share_captures(list(calls.values()), lambda some: record_for_methods(some, model, encoded, None, None))
    return explain_by_each(calls, captures, model, encoded, tolerate=(why.WhyformerError,))[0]


def name_scores(key: str, e: why.Explanation) -> Scores:
    """The scores of one example, without its padding."""
    tokens, scores = e.tokens[0], e.scores[0]
    kept = scores[~torch.tensor(tokens.padding)] if isinstance(tokens, Pieces) else scores
    pixels = {} if e.pixels is None else {f"{key} pixels": e.pixels[0].double().numpy()}
    return {key: kept.double().numpy(), **pixels}


# --- differences -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """How far the scores of one example are apart in several runs."""

    largest: float  # between two runs, as a share of the largest magnitude
    has_other_top: bool  # two runs have other top fives, and no tie explains it

    @property
    def is_none(self) -> bool:
        return self.largest <= TOLERANCE and not self.has_other_top


def measure_difference(runs: Sequence[np.ndarray], smallest_maximum: float = 0.0) -> Difference:
    stacked = np.stack([scores.ravel() for scores in runs])
    largest = max(np.abs(stacked).max(), smallest_maximum)
    spread = (stacked.max(0) - stacked.min(0)).max()
    pairs = combinations(np.unique(stacked, axis=0), 2)
    return Difference(
        spread / largest if largest else 0.0, any(has_other_top(a, b, TOLERANCE * largest) for a, b in pairs)
    )


def has_other_top(a: np.ndarray, b: np.ndarray, tie: float) -> bool:
    """Whether the five highest scores are at other places, and those that changed places are not tied in both."""
    first, second = (set(np.argsort(-scores, kind="stable")[:TOP].tolist()) for scores in (a, b))
    return any(abs(x[i] - x[j]) > tie for i in first - second for j in second - first for x in (a, b))


def measure_differences(runs: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Difference]:
    """By "method subject example", for all scores that at least two runs have."""
    keys = dict.fromkeys(key for run in runs for key in run)
    there = {key: [run[key] for run in runs if key in run] for key in keys}
    return {
        key: measure_difference(scores, SMALLEST_MAXIMUM.get(key.split()[0], 0.0))
        for key, scores in there.items()
        if len(scores) > 1
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--setting", choices=SETTINGS, default="newest", help="of the environment, which has it already"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--methods", nargs="+", choices=sorted(METHODS), default=sorted(METHODS), metavar="METHOD")
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, default=list(SUBJECTS), metavar="MODEL")
    parser.add_argument("--count", type=int, default=EXAMPLES)
    options = parser.parse_args()
    run = Run(options.setting, options.threads, options.together)
    np.savez(options.out, **compute_scores(run, options.subjects, options.methods, options.count))


if __name__ == "__main__":
    main()
