"""Models of vit-pytorch and x-transformers, whose attention is written out; cases_handwritten.py has the list."""

import copy
import inspect
from collections.abc import Callable, Iterator
from functools import partial

import torch
from others.cases_handwritten import VIT_PYTORCH, X_TRANSFORMERS
from others.subject import Subject, describe_module, read_logits
from torch import Tensor, nn


def describe(build: Callable[[], nn.Module], draw: Callable[[], dict[str, Tensor]]) -> Subject:
    """Neither library reports its attention; gradient x input can be checked where images go in."""
    module = build()
    (drawn,) = draw().values()
    name = next(iter(inspect.signature(module.forward).parameters))
    inputs = {name: drawn}

    def differentiate(targets: list[int]) -> Tensor:
        twin = copy.deepcopy(module).requires_grad_(False)
        pixels = drawn.clone().requires_grad_()
        logits = read_logits(twin(pixels))
        logits[torch.arange(len(targets)), targets].sum().backward()
        return (pixels * pixels.grad).sum(1).detach()

    return describe_module(module, inputs, differentiate=differentiate if drawn.dim() == 4 else None)


def iterate_cases() -> Iterator[tuple[str, str, Callable[[], Subject]]]:
    for name, build, draw in (*VIT_PYTORCH, *X_TRANSFORMERS):
        library, _, model = name.partition(": ")
        if model == "NaViT":  # takes lists of images and packs them into one sequence, so there is no batch
            continue
        yield library, model, partial(describe, build, draw)
