"""Subject: a model of another library with inputs, and what the library itself says about it."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Attention = list[Tensor]


@dataclass
class Subject:
    """A batch of two for a model. `run` gives the library's own logits, `attend` its own attention, if it can."""

    source: Any  # what open() gets
    inputs: dict[str, Tensor]
    target: int | None = 1
    run: Callable[[Mapping[str, Tensor]], Tensor] | None = None
    attend: Callable[[Mapping[str, Tensor]], Attention] | None = None
    differentiate: Callable[[list[int]], Tensor] | None = None  # gradient x input by hand, [batch token or pixels]
    options: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-4


def make_images(size: int = 32, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(1))


def make_ids(vocabulary: int = 50, length: int = 7, *, padded: bool = True) -> dict[str, Tensor]:
    ids = torch.randint(4, vocabulary, (2, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if padded:
        mask[1, -2:] = 0
        ids[1, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def read_logits(answer: Any) -> Tensor:
    """The logits that a library returned."""
    logits = getattr(answer, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(answer, Tensor):
        return answer
    return read_logits(answer[0])


def describe_module(module: nn.Module, inputs: dict[str, Tensor], **more: Any) -> Subject:
    """A subject that is run by calling the module with its inputs by name."""

    def run(given: Mapping[str, Tensor]) -> Tensor:
        with torch.no_grad():
            return read_logits(module(**given))

    return Subject(module, inputs, run=run, **more)


def describe_image_model(module: nn.Module, size: int, *, name: str = "x", **more: Any) -> Subject:
    """An image classifier: attention from the modules, gradient x input by autograd."""
    inputs = {name: make_images(size)}

    def differentiate(targets: list[int]) -> Tensor:
        twin = copy.deepcopy(module).requires_grad_(False)
        pixels = inputs[name].clone().requires_grad_()
        logits = read_logits(twin(pixels))
        logits[torch.arange(len(targets)), targets].sum().backward()
        return (pixels * pixels.grad).sum(1).detach()

    def attend(given: Mapping[str, Tensor]) -> Attention:
        return watch_attention(module, given[name])

    return describe_module(module, inputs, attend=attend, differentiate=differentiate, **more)


def watch_attention(module: nn.Module, *given: Tensor) -> Attention:
    """Attention as the modules of a library compute it with their own eager code, in the order of their calls.

    timm passes the weights to a dropout named attn_drop where attention is not fused; nn.MultiheadAttention returns
    them if it is asked to.
    """
    twin, found = copy.deepcopy(module), []
    for path, part in twin.named_modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = False
        if path.rpartition(".")[2] == "attn_drop":
            part.register_forward_hook(lambda _, args, __: found.append(args[0]))
        if isinstance(part, nn.MultiheadAttention):

            def ask(_: Any, args: Any, kwargs: Any) -> Any:
                return args, kwargs | {"need_weights": True, "average_attn_weights": False}

            part.register_forward_pre_hook(ask, with_kwargs=True)
            part.register_forward_hook(lambda _, __, result: found.append(result[1]))
    with torch.no_grad():
        twin(*given)
    return found


def describe_transformers_model(
    module: nn.Module, inputs: dict[str, Tensor], *, inner: nn.Module | None = None, **more: Any
) -> Subject:
    """A model of transformers, possibly wrapped: `inner` reports attention, `module` gives the logits."""

    def attend(given: Mapping[str, Tensor]) -> Attention:
        twin = copy.deepcopy(module if inner is None else inner)
        twin.set_attn_implementation("eager")
        with torch.no_grad():
            return [weights for weights in twin(**given, output_attentions=True).attentions if weights is not None]

    def differentiate(targets: list[int]) -> Tensor:
        twin = copy.deepcopy(module).requires_grad_(False)
        if "pixel_values" in inputs:
            held = inputs["pixel_values"].clone().requires_grad_()
            logits = read_logits(twin(**inputs | {"pixel_values": held}))
        else:
            held_by_hook: list[Tensor] = []

            def hold(_: nn.Module, __: Any, result: Tensor) -> Tensor:
                held_by_hook.append(result.detach().clone().requires_grad_())
                return held_by_hook[0]

            twin.get_input_embeddings().register_forward_hook(hold)
            logits = read_last(read_logits(twin(**inputs)), inputs)
            held = held_by_hook[0]
        logits[torch.arange(len(targets)), targets].sum().backward()
        return (held * held.grad).sum(1 if held.dim() == 4 else -1).detach()

    return describe_module(module, inputs, **{"attend": attend, "differentiate": differentiate} | more)


def read_last(logits: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """The logits after the last real token of a language model; those of a classifier as they are."""
    if logits.dim() < 3:
        return logits
    at = inputs["attention_mask"].cumsum(-1).argmax(-1)
    return logits[torch.arange(len(logits)), at]
