"""What an explanation costs on a stream of inputs of different lengths, in plain forward passes.

    python benchmarks/streams.py                                  demo/sentiment, demo/decoder, demo/pets
    python benchmarks/streams.py --texts FOLDER FILE              a classifier, and a file with a text in each line
    python benchmarks/streams.py --prompts FOLDER FILE            a language model, and a file of prompts, one a line
    python benchmarks/streams.py --before                         the full engine alone

For each method the median over the second half of the stream, the worst call of that half, and the share of calls that
ran by plan. Beside them gradient x input written by hand. Explanations start from the text or the photo, plain forwards
from tensors. Both are measured in processor time, on one thread.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import whyformer as why
from whyformer._model import unwrap

METHODS = ["default", "libragrad", "attnlrp", "gradient_x_input", "attcat", "generic_attention", "rollout"]
WORDS = "a gorgeous witty seductive film that goes nowhere and yet one of the most moving stories of this year".split()
PHOTOS, LINES = 30, 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", nargs=2, metavar=("MODEL", "FILE"))
    parser.add_argument("--prompts", nargs=2, metavar=("MODEL", "FILE"))
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--most", type=int, default=LINES, help="inputs of a stream")
    parser.add_argument("--before", action="store_true", help="without plans")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    given = [pair for pair in (arguments.texts, arguments.prompts) if pair]
    streams: list[tuple[str, Sequence[Any]]] = [(name, read_lines(Path(file))) for name, file in given]
    if not streams:
        streams = [("demo/sentiment", make_texts()), ("demo/decoder", make_texts()), ("demo/pets", make_photos())]
    for name, inputs in streams:
        measure_stream(name, inputs[: arguments.most], arguments.methods, plan=False if arguments.before else None)


def read_lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]


def make_texts() -> list[str]:
    """Texts of different lengths."""
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(WORDS, int(generator.integers(4, 30)))) for _ in range(LINES)]


def make_photos() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [(generator.random((160, 160, 3)) * 255).astype("uint8") for _ in range(PHOTOS)]


def measure_stream(name: str, inputs: Sequence[Any], methods: Sequence[str], plan: bool | None) -> None:
    model = why.open(name)
    encoded = [model.encode(one) for one in inputs]
    plain, by_hand = [], []
    for _ in range(2):  # the first pass warms up
        plain = [min(measure(lambda one=one: run_plainly(model, one.inputs)) for _ in range(3)) for one in encoded]
    by_hand = [
        measure(lambda one=one: multiply_by_gradient(model, one)) / t for one, t in zip(encoded, plain, strict=True)
    ]
    print(f"\n{name}: {len(inputs)} inputs, a plain forward {statistics.median(plain) * 1e3:.1f} ms")
    print(f"{'gradient x input by hand':24} {statistics.median(by_hand):5.2f}")
    for method in methods:
        ratios, engines = [], []
        for one, seconds in zip(inputs, plain, strict=True):
            before = time.process_time()
            with why.engine(plan=plan):
                found = why.explain(model, one) if method == "default" else why.explain(model, one, method)
            ratios.append((time.process_time() - before) / seconds)
            engines.append(found.engine.name if found.engine else "")
        half = ratios[len(ratios) // 2 :]
        served = engines.count("plan") / len(engines)
        middle, worst = statistics.median(half), max(half)
        print(f"{method:24} {middle:5.2f}   worst of the second half {worst:5.1f}   by plan {served:.0%}")


def measure(call: Callable[[], object]) -> float:
    before = time.process_time()
    call()
    return time.process_time() - before


def run_plainly(model: why.Model, inputs: dict[str, Tensor]) -> object:
    with torch.no_grad():
        return model.module(**inputs)


def multiply_by_gradient(model: why.Model, encoded: Any) -> Tensor:
    """The gradient of the highest logit by the embeddings, or by the pixels, times these."""
    module, given = unwrap(model.module), dict(encoded.inputs)
    entered = given[encoded.main]
    if not entered.is_floating_point():
        entered = module.get_input_embeddings()(given.pop(encoded.main))
        given["inputs_embeds"] = entered = entered.detach().requires_grad_()
    else:
        given[encoded.main] = entered = entered.detach().clone().requires_grad_()
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        logits = module(**given).logits
        last = logits[:, -1] if logits.dim() == 3 else logits
        (slope,) = torch.autograd.grad(last.max(-1).values.sum(), entered)
    finally:
        for weight in weights:
            weight.requires_grad_(True)
    return (entered * slope).sum(-1)


if __name__ == "__main__":
    main()
