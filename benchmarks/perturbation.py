"""Perturbation AUC for 64 images: our metric against one call of the model for each image and step.

    python benchmarks/perturbation.py                 on the CPU
    python benchmarks/perturbation.py --device cuda

A ViT-Tiny with random weights (12 blocks, 3 heads, 192 wide, 224 pixels), a random map for each image, pixels
blacked out in steps of 10 % up to 90 %, as Chefer et al. 2021 do. Both ways are run in turn, several times, in this one
process; the fastest run of each counts. The maps are there already; the clean images are part of both. They must find
the same area for every image.
"""

import argparse
import time
from collections.abc import Callable

import torch
import transformers
from torch import Tensor

import whyformer as why
import whyformer.metrics
from whyformer._engine.probe.probe import Probe
from whyformer._plain.tokens import Grid
from whyformer.metrics._registry import choose_metric, measure
from whyformer.results.explanation import Explanation

IMAGES, STEPS, SIDE = 64, tuple(i / 10 for i in range(1, 10)), 224
BLACK = -1.0  # after normalisation with mean 0.5 and spread 0.5


def tiny_vit(device: str) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768, num_labels=1000
    )
    return transformers.ViTForImageClassification(config).to(device).eval()


@torch.no_grad()
def one_by_one(module: torch.nn.Module, pixels: Tensor, maps: Tensor, labels: Tensor) -> Tensor:
    """The area under the accuracy of each image, one call for each image and step."""
    areas = []
    for image, scores, label in zip(pixels, maps, labels, strict=True):
        order = scores.flatten().argsort(descending=True)
        right = [float(module(image[None]).logits.argmax() == label)]
        for step in STEPS:
            gone = torch.zeros(SIDE * SIDE, dtype=torch.bool, device=image.device)
            gone[order[: int(SIDE * SIDE * step)]] = True
            perturbed = image.masked_fill(gone.view(SIDE, SIDE), BLACK)
            right.append(float(module(perturbed[None]).logits.argmax() == label))
        areas.append(100 * torch.trapezoid(torch.tensor(right), torch.tensor((0.0, *STEPS))))
    return torch.stack(areas).double()


def by_the_metric(probe: Probe, explanation: Explanation, labels: Tensor) -> Tensor:
    """The same by our metric, the clean images included."""
    metric = choose_metric("positive_perturbation", {"fractions": STEPS})
    return measure(metric, {"explanation": explanation, "probe": probe, "label": labels}).value


def timed(run: Callable[[Probe], Tensor], probe: Probe, device: str) -> tuple[float, Tensor]:
    started = time.perf_counter()
    found = run(probe)
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - started, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--images", type=int, default=IMAGES)
    arguments = parser.parse_args()
    module = tiny_vit(arguments.device)
    processor = transformers.ViTImageProcessorPil(image_mean=[0.5] * 3, image_std=[0.5] * 3)
    model = why.open(module, processor=processor)
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(arguments.images, 3, SIDE, SIDE, generator=generator).to(arguments.device)
    maps = torch.rand(arguments.images, SIDE, SIDE, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        labels = torch.cat([module(one[None]).logits.argmax(-1) for one in pixels]).cpu()
    explanation = a_map(model, pixels, maps)
    ways = {
        "one call an image and step": lambda _: one_by_one(module, pixels, maps.to(arguments.device), labels),
        "whyformer": lambda probe: by_the_metric(probe, explanation, labels),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    found: dict[str, Tensor] = {}
    for _ in range(arguments.repeats):
        for way, run in ways.items():
            encoded = model.encode({"pixel_values": pixels})
            probe = why.record(model, encoded, keep={"probe"})["probe"]  # comes with the explanation
            seconds, found[way] = timed(run, probe, arguments.device)
            times[way].append(seconds)
    slow, fast = (min(times[way]) for way in ways)
    same = (found["whyformer"] - found["one call an image and step"]).abs() < 1e-4
    threads = f", {torch.get_num_threads()} threads" if arguments.device == "cpu" else ""
    print(f"{arguments.images} images on {arguments.device}{threads}, fastest of {arguments.repeats} runs each")
    for way in ways:
        print(f"  {way}: {min(times[way]):.2f} s")
    print(f"  whyformer takes {fast / slow:.2f} of the time: {slow / fast:.1f} times as fast")
    print(f"  the same area for {int(same.sum())} of {len(same)} images")


def a_map(model: why.Model, pixels: Tensor, maps: Tensor) -> Explanation:
    """A map for each image as an explanation."""
    made = why.explain(model, {"pixel_values": pixels}, "chance")
    grid = made.tokens[0]
    assert isinstance(grid, Grid)
    return Explanation(**{**vars(made), "pixels": maps})


if __name__ == "__main__":
    main()
