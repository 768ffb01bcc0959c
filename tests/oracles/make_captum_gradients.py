"""Captum's results: integrated gradients, gradient x input and saliency of the small models.

    python tests/oracles/make_captum_gradients.py            writes captum_gradients.json
    python tests/oracles/make_captum_gradients.py --check    computes again and compares

Needs an environment with tests/oracles/captum.txt; `make test-oracles` does all of it.
"""

from pathlib import Path

import captum
import torch
from captum.attr import InputXGradient, IntegratedGradients, Saliency
from small_models import TARGETS, pictures, words
from stored import store_or_check

STORED = Path(__file__).with_name("captum_gradients.json")
STEPS = (4, 16)


def measured() -> dict[str, object]:
    torch.set_num_threads(1)
    watcher, pixels = pictures()
    reader, ids = words()
    found = {
        "pictures": said_about(watcher, pixels, axis=1),
        "words": said_about(reader.of_words, reader.words(ids).detach(), axis=-1),
    }
    return {"versions": {"captum": captum.__version__, "torch": torch.__version__.split("+")[0]}, "scores": found}


def said_about(model, inputs: torch.Tensor, axis: int) -> dict[str, object]:
    """One number per pixel or word: the sum over channels, or the largest for saliency."""
    inputs = inputs.clone().requires_grad_()
    integrated = {
        f"integrated_gradients {steps}": IntegratedGradients(model).attribute(
            inputs, baselines=0.0, target=TARGETS, n_steps=steps, method="gausslegendre"
        )
        for steps in STEPS
    }
    plain = {"gradient_x_input": InputXGradient(model).attribute(inputs, target=TARGETS)}
    largest = Saliency(model).attribute(inputs, target=TARGETS, abs=True).amax(axis)
    return {
        **{name: scores.sum(axis).detach().tolist() for name, scores in (integrated | plain).items()},
        "saliency": largest.detach().tolist(),
    }


if __name__ == "__main__":
    store_or_check(measured(), STORED, rtol=1e-9, atol=1e-12)
