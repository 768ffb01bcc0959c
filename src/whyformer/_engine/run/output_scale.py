r"""The scale of what a model returns, logits or probabilities, and the logits beneath probabilities.

The slope of a probability $p$ is next to 0 where the model is certain, and a softmax of probabilities is not what the
model says. So where a forward ends in a softmax, a sigmoid or a log-softmax, what enters that operation is explained:
the operation is watched for, and what comes after it and only moves numbers (`squeeze`, `stack`, $1 - p$) is done to
the logits as well. One column of a softmax is explained by its log-odds. Rows in [0, 1] that sum to 1 but come from
elsewhere are converted: $\log p - \log(1 - p)$, and of more than two classes $\log p$.

The logits are an attribute of the returned tensor, so that functions of the output still get what the model returns.
So are logits [row class] where a model returns [class row], [class] for one row, or one axis more of size 1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whyformer._engine.run.model_memory import Scale, learnt
from whyformer._engine.run.returned import Returned, attach_logits, find_returned_output, iterate_tensors, logits_of
from whyformer._engine.tracing.provenance import axis_of, trace_of
from whyformer._engine.tracing.recording import pause_recording
from whyformer._plain.private_torch import without_interception

RETURNED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": partial(torch.softmax, dim=-1),
    "log-softmax": partial(torch.log_softmax, dim=-1),
    "sigmoid": torch.sigmoid,
}
ENDS: Mapping[str, Scale] = {
    "softmax": "softmax",
    "special_softmax": "softmax",
    "log_softmax": "log-softmax",
    "special_log_softmax": "log-softmax",
    "sigmoid": "sigmoid",
    "sigmoid_": "sigmoid",
    "special_expit": "sigmoid",
}
MOVES = frozenset(
    "squeeze unsqueeze view reshape flatten unflatten permute transpose __getitem__ select narrow expand contiguous "
    "clone detach float double half to type type_as".split()
)
CLIPS = frozenset(("clamp", "clip", "clamp_min", "clamp_max"))
ADDITIONS = ("add", "__add__", "__radd__")
AFTER: Mapping[tuple[str, str], Scale] = {
    ("exp", "log-softmax"): "softmax",
    ("log", "softmax"): "log-softmax",
    ("div", "exp"): "softmax",
    ("__truediv__", "exp"): "softmax",
}
JOINS = frozenset(("stack", "cat", "concat", "concatenate", "hstack", "column_stack"))
SAME = 1e-2  # probabilities that are computed again from the logits differ by less: they may be clipped
SMALL = 1e-3  # what is added before a logarithm is taken
ROWS_COMPARED = 64
NOTE = (
    "The model returns {}: its forward ends in a {}. The logits beneath are explained, and the probability shown is "
    "the model's own. To explain what it returns, pass a function of that as target."
)
CONVERTED = (
    "The model returns probabilities. Their {} are explained, and the probability shown is the model's own. To explain "
    "what it returns, pass a function of that as target."
)


def scale_of(module: nn.Module) -> Scale:
    """Of what a model returns; logits until one of its runs has been watched."""
    return learnt(module).scale or "logits"


def note_scale(module: nn.Module) -> tuple[str, ...]:
    scale = scale_of(module)
    if scale in RETURNED:
        return (NOTE.format("log-probabilities" if scale == "log-softmax" else "probabilities", scale),)
    return () if scale == "logits" else (CONVERTED.format(scale),)


Convert: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Beneath:
    """Where a tensor of probabilities comes from."""

    scale: Scale
    make: Callable[[Convert], Tensor]  # converts the logits, and moves them as the probabilities were


class ScaleWatch(TorchFunctionMode):
    """Remembers of each result of a softmax or sigmoid, and of what only moves its numbers, what lies beneath."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = find_beneath(func, args, kwargs or {})
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            if found is not None:
                made._whyformer_beneath = found  # type: ignore[attr-defined]
            elif "_whyformer_beneath" in made.__dict__:  # the model has written into it
                del made._whyformer_beneath  # type: ignore[attr-defined]
        return made


def find_beneath(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Beneath | None:
    name, first = getattr(func, "__name__", ""), args[0] if args else kwargs.get("input")
    if name in ENDS and isinstance(first, Tensor):
        source = first.clone() if name.endswith("_") else first
        return Beneath(ENDS[name], lambda convert: convert(source))
    if name in JOINS:
        parts = [beneath_of(part) for part in first] if isinstance(first, list | tuple) else []
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts):
            return None
        return Beneath(known[0].scale, lambda convert: func([p.make(convert) for p in known], *args[1:], **kwargs))
    other = args[1] if len(args) > 1 else None
    if name == "sub" and isinstance(first, int | float):  # torch.sub(1, p)
        name, first, other = "__rsub__", other, first
    inner = beneath_of(first)
    if name in ("logsumexp", "special_logsumexp") and isinstance(first, Tensor):
        return Beneath("logsumexp", lambda convert: convert(first))
    below = beneath_of(other)
    if name == "sub" and isinstance(first, Tensor) and below is not None and below.scale == "logsumexp":
        return Beneath("log-softmax", lambda convert: convert(first))
    if name == "exp" and isinstance(first, Tensor) and (inner is None or inner.scale != "log-softmax"):
        is_shifted = inner is not None and inner.scale == "shifted"
        return Beneath("exp", inner.make if inner is not None and is_shifted else lambda convert: convert(first))
    if name == "sub" and isinstance(first, Tensor) and isinstance(other, Tensor) and other.shape[-1:] == (1,):
        return Beneath("shifted", lambda convert: convert(first))  # z - max(z)
    if inner is None:
        return None
    if name in MOVES:
        return Beneath(inner.scale, lambda convert: func(inner.make(convert), *args[1:], **kwargs))
    if name in CLIPS or (name in ADDITIONS and isinstance(other, float) and abs(other) <= SMALL):
        return inner
    if name == "__rsub__" and inner.scale == "sigmoid" and other == 1:
        return Beneath("sigmoid", lambda convert: -inner.make(convert))
    scale = AFTER.get((name, inner.scale))
    return None if scale is None else Beneath(scale, inner.make)


def beneath_of(tensor: object) -> Beneath | None:
    return getattr(tensor, "_whyformer_beneath", None) if isinstance(tensor, Tensor) else None


def run_on_logits(
    shadow: nn.Module, run: Callable[[], Returned], given: Tensor, *, batch: int, watches: bool = False
) -> Returned:
    """What a shadow returns, with the logits [row class] beneath if that is something else.

    given: the explained input. watches: find out about the scale, if it is not known.
    """
    returned, own = run_at_scale(shadow, run, watches), learnt(shadow)
    if not (watches or own.is_turned):
        return returned
    answer = find_returned_output(returned, shadow)
    logits = logits_of(answer)
    turned = turn(logits, given, batch, shadow, is_known=own.is_turned)
    if turned is not None:
        own.is_turned = True
        attach_logits(answer, turned)
    return returned


def turn(logits: Tensor, given: Tensor, batch: int, shadow: nn.Module, *, is_known: bool) -> Tensor | None:
    """The logits [row class] where they are [class row], [class] for one row, or have an axis of size 1; else None."""
    if logits.dim() == 3 and logits.size(0) == batch:
        return drop_axis(logits, given, shadow, is_known=is_known)
    if logits.dim() != 2:
        return logits[None] if logits.dim() == batch == 1 < logits.numel() else None
    if logits.size(0) == batch == logits.size(1):
        is_turned = axis_of(trace_of(logits).samples) == 1 or (is_known and trace_of(logits).samples is None)
        return logits.mT if is_turned else None
    return logits.mT if logits.size(1) == batch else None


def drop_axis(logits: Tensor, given: Tensor, shadow: nn.Module, *, is_known: bool) -> Tensor | None:
    """[row class] from [row 1 class] or [row class 1], if what is returned has no axis of tokens; else None.

    Models of transformers say by their names what they return, and an output for each word of a vocabulary is that of
    a last token.
    """
    if hasattr(shadow, "main_input_name") or sorted(logits.shape[1:])[0] > 1 or logits.numel() == len(logits):
        return None
    if logits.size(1) == 1:
        tables = [module.num_embeddings for module in shadow.modules() if isinstance(module, nn.Embedding)]
        return None if any(2 * logits.size(2) > words for words in tables) else logits.squeeze(1)
    is_of_tokens = axis_of(trace_of(logits).tokens) == 1 or given.dim() == 4 or logits.size(1) == given.size(1)
    return logits.squeeze(2) if is_known or not is_of_tokens else None


def run_at_scale(shadow: nn.Module, run: Callable[[], Returned], watches: bool) -> Returned:
    """What a shadow returns, with the logits beneath if that is probabilities."""
    known = learnt(shadow).scale
    if known == "logits" or (known is None and not watches):
        return run()
    with ScaleWatch():
        returned = run()
    answer = find_returned_output(returned, shadow)
    for tensor in iterate_tensors(returned):
        beneath = beneath_of(tensor)
        scale = None if beneath is None else attach_beneath(tensor, beneath)
        known = scale if tensor is answer else known
    if logits_of(answer) is answer and is_distribution(answer):
        has_two = answer.size(-1) == 2
        logs = answer.clamp(min=torch.finfo(answer.dtype).tiny).log()
        attach_logits(answer, logs - logs.flip(-1) if has_two else logs)
        known = "log-odds" if has_two else "log-probabilities"
    if watches:
        learnt(shadow).scale = "logits" if known is None or logits_of(answer) is answer else known
    return returned


def attach_beneath(tensor: Tensor, beneath: Beneath) -> Scale | None:
    """Attach the logits beneath, and return their scale; None if there are none."""
    tries: list[tuple[Scale, Convert]] = [(beneath.scale, lambda logits: logits)] if beneath.scale in RETURNED else []
    if beneath.scale == "softmax":  # a column of it
        tries.append(("sigmoid", subtract_others))
    for scale, convert in tries:
        logits = beneath.make(convert)
        if is_scale_of(scale, logits, tensor):
            attach_logits(tensor, logits)
            return scale
    return None


@pause_recording()
def is_scale_of(scale: Scale, logits: Tensor, returned: Tensor) -> bool:
    """Whether these logits give what was returned; looked at in some rows."""
    if logits.shape != returned.shape or not logits.dim():
        return False
    with without_interception():  # no step of the model
        some, wanted = (one.detach().reshape(-1, one.size(-1))[:ROWS_COMPARED].float() for one in (logits, returned))
        return torch.allclose(RETURNED[scale](some), wanted, rtol=SAME, atol=SAME, equal_nan=True)


@pause_recording()
def is_distribution(returned: Tensor) -> bool:
    """Whether every row is in [0, 1] and sums to 1."""
    if returned.dim() < 2 or returned.size(-1) < 2 or not returned.numel():
        return False
    with without_interception():  # no step of the model
        low, high = returned.detach().aminmax()
        if not (low >= 0 and high <= 1):
            return False
        rounding = max(1e-4, torch.finfo(returned.dtype).eps)
        return bool(((returned.detach().float().sum(-1) - 1).abs() < rounding).all())


def subtract_others(logits: Tensor) -> Tensor:
    """Of each class: its logit minus the logarithm of the summed exponentials of the others."""
    if logits.size(-1) == 2:
        return logits - logits.flip(-1)
    own = torch.eye(logits.size(-1), dtype=torch.bool, device=logits.device)
    return logits - logits.unsqueeze(-2).masked_fill(own, -torch.inf).logsumexp(-1)
