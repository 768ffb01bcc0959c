"""The checks of one subject: ten methods, and what must hold whatever the model.

A finding is (what, status, value, detail). Statuses in capitals are faults:
CRASH   an exception of another library
NAN     a score that is not finite
ZERO    no score at all
BATCH   an example in a batch differs from the example alone
WRONG   numbers that differ from those of the library
LOST    relevance that is neither conserved nor absorbed
CHANGED the model is not what it was

"n/a" is what does not apply: a method that reads attention, of a model that has none; a check for which the library
cannot tell what is right.
"""

import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from others.subject import Subject
from torch import Tensor, nn

import whyformer as why
from whyformer.errors import NoAttention, WhyformerError

METHODS = (
    "transformer_attribution", "generic_attention", "rollout", "raw_attention", "attcat", "attnlrp", "gradient_x_input",
    "grad_cam", "leave_one_out", "chance",
)  # fmt: skip
CHECKS = ("logits", "attention", "gradient", "conserved", "unchanged")
SIGNED_BY_LOGIT = ("attnlrp", "gradient_x_input", "leave_one_out")
Finding = tuple[str, str, str, str]


def study(subject: Subject) -> list[Finding]:
    """Every finding about a subject."""
    module = subject.source if isinstance(subject.source, nn.Module) else subject.source.model
    before = describe_state(module)
    try:
        model = why.open(subject.source, **subject.options)
    except WhyformerError as error:
        return [("open", "refused", "", shorten(error))]
    findings = []
    for method in METHODS:
        findings.append((method, *try_method(model, subject, method)))
    for name, check in (
        ("logits", check_logits), ("attention", check_attention), ("gradient", check_gradient),
        ("conserved", check_conservation),
    ):  # fmt: skip
        try:
            findings.append((name, *check(model, subject)))
        except NoAttention as error:
            findings.append((name, "n/a", "", shorten(error)))
        except WhyformerError as error:
            findings.append((name, "refused", "", shorten(error)))
        except Exception as error:
            findings.append((name, "CRASH", "", locate(error)))
    changed = compare_states(before, describe_state(module))
    findings.append(("unchanged", "CHANGED" if changed else "ok", "", ", ".join(changed)))
    return findings


def try_method(model: why.Model, subject: Subject, method: str) -> tuple[str, str, str]:
    """Explain the batch and one example alone."""
    try:
        explanation, target = explain(model, subject.inputs, method, subject.target)
    except NoAttention as error:
        return "n/a", "", shorten(error)
    except WhyformerError as error:
        return "refused", "", shorten(error)
    except Exception as error:
        return "CRASH", "", locate(error)
    scores = explanation.scores
    if not bool(scores.isfinite().all()):
        return "NAN", "", f"shape {list(scores.shape)}"
    is_empty = scores.flatten(1).abs().sum(1) == 0
    if bool(is_empty.any()) and method != "grad_cam":  # no head may support the class, which leaves grad_cam empty
        return "ZERO", "", f"shape {list(scores.shape)}"
    alone = take_example(subject.inputs, 1)
    if target is None and explanation.targets and explanation.targets[1].index >= 0:
        target = explanation.targets[1].index
    try:
        single = explain(model, alone, method, target)[0]
    except WhyformerError as error:
        return "BATCH", "", f"alone: {shorten(error)}"
    together, apart = (scores[1], single.scores[0]) if explanation.pixels is None else (
        explanation.pixels[1], single.pixels[0])  # fmt: skip
    together, apart = together.flatten(), apart.flatten()
    if len(together) != len(apart):
        together, apart = drop_padding(together, apart, subject.inputs)
    distance = float((together - apart).abs().max() / apart.abs().max().clamp_min(1e-12))
    if subject.run is not None and bool(explanation.targets) and method in SIGNED_BY_LOGIT:
        # Where large parts of both signs cancel, scores are rounding of the logit, and only compared with it.
        logit = float(subject.run(subject.inputs).abs().max())
        distance = 0.0 if float((together - apart).abs().max()) < 1e-5 * logit else distance
    notes = " | ".join(explanation.notes)
    status = "BATCH" if distance > 2e-2 and not answers_by_batch(subject) else "ok"
    return status, f"{distance:.0e}", f"differs by {distance:.0e}; notes: {notes}" if notes or status != "ok" else ""


def explain(model: why.Model, inputs: Any, method: str, target: Any) -> tuple[why.Explanation, Any]:
    """Explain this target; where the model has no such class, what it predicts or its representation."""
    try:
        return why.explain(model, inputs, method, target=target), target
    except why.errors.TargetError:
        return why.explain(model, inputs, method), None


def take_example(inputs: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    """One example without its padding."""
    length = int(inputs["attention_mask"][row].sum()) if "attention_mask" in inputs else None
    return {
        name: tensor[row : row + 1, :length] if length is not None and tensor.dim() == 2 else tensor[row : row + 1]
        for name, tensor in inputs.items()
    }


def answers_by_batch(subject: Subject) -> bool:
    """Whether the model itself answers otherwise in a batch, as with activations quantised by the range of a batch."""
    if subject.run is None:
        return False
    together, apart = subject.run(subject.inputs)[1], subject.run(take_example(subject.inputs, 1))[0]
    together = together[: len(apart)] if together.shape != apart.shape else together
    return float((together - apart).abs().max() / apart.abs().max()) > 1e-3


def drop_padding(together: Tensor, apart: Tensor, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Padding is at the end, behind a prompt if there is one."""
    return together[: len(apart)], apart


def check_logits(model: why.Model, subject: Subject) -> tuple[str, str, str]:
    """The shadow answers what the library answers."""
    if subject.run is None:
        return "n/a", "", ""
    own = subject.run(subject.inputs)
    try:
        capture = why.record(model, model.encode(subject.inputs), keep={"attention"})
    except NoAttention:
        capture = why.record(model, model.encode(subject.inputs), keep={"mask"})
    if capture.logits.shape != own.shape:
        return "n/a", "", f"{list(capture.logits.shape)} and {list(own.shape)}"
    distance = float((capture.logits - own).abs().max() / own.abs().max().clamp_min(1e-12))
    return "ok" if distance < subject.tolerance else "WRONG", f"{distance:.0e}", ""


def check_attention(model: why.Model, subject: Subject) -> tuple[str, str, str]:
    """Captured attention is that of the library's own eager code."""
    found = list(why.record(model, model.encode(subject.inputs), keep={"attention"})["attention"])
    rows = max(float((weights.sum(-1) - 1).abs().max()) for weights in found)
    detail = f"{len(found)} layers of {list(found[0].shape)}; rows sum to 1 within {rows:.0e}"
    own = subject.attend(subject.inputs) if subject.attend is not None else []
    if not own:
        return "n/a", "", detail
    if [weights.shape for weights in own] != [weights.shape for weights in found]:
        return "n/a", "", f"{detail}; the library's own: {len(own)} of {list(own[0].shape)}"
    real = subject.inputs.get("attention_mask")
    keep = 1.0 if real is None or real.size(1) != own[0].size(-2) else real[:, None, :, None]
    distance = max(float(((a - b).abs() * keep).max()) for a, b in zip(own, found, strict=True))
    return "ok" if distance < subject.tolerance else "WRONG", f"{distance:.0e}", detail


def check_gradient(model: why.Model, subject: Subject) -> tuple[str, str, str]:
    """Gradient x input is that of autograd on the library's model."""
    if subject.differentiate is None:
        return "n/a", "", ""
    explanation, _ = explain(model, subject.inputs, "gradient_x_input", subject.target)
    if any(target.index < 0 for target in explanation.targets):
        return "n/a", "", "no class"
    own = subject.differentiate([target.index for target in explanation.targets]).float()
    ours = (explanation.scores if explanation.pixels is None else explanation.pixels).float()
    own, ours = own.flatten(1), ours.flatten(1)
    if own.shape != ours.shape:
        return "n/a", "", f"{list(ours.shape)} and {list(own.shape)}"
    if "attention_mask" in subject.inputs:
        own = own * subject.inputs["attention_mask"]
    distance = float((own - ours).abs().max() / own.abs().max())
    return "ok" if distance < 1e-2 else "WRONG", f"{distance:.0e}", ""


def check_conservation(model: why.Model, subject: Subject) -> tuple[str, str, str]:
    """Relevance that is sent arrives or is absorbed by something that is named."""
    try:
        explanation = why.explain(model, subject.inputs, "attnlrp", target=subject.target, health=True)
    except why.errors.TargetError:
        explanation = why.explain(model, subject.inputs, "attnlrp", health=True)
    health = explanation.health
    missing = (health.sent - health.arrived - health.absorbed.sum(1)).abs() / health.scale
    return "ok" if float(missing.max()) <= 1e-4 else "LOST", f"{float(missing.max()):.0e}", ""


# --- the state of a model ---------------------------------------------------------------------------------------------

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def describe_state(module: nn.Module) -> dict[str, Any]:
    named = [*module.named_parameters(), *module.named_buffers()]  # state_dict of bitsandbytes repacks the weights
    weights = {name: tensor.detach().clone() for name, tensor in named}
    parts, parameters = list(module.modules()), list(module.parameters())
    return {
        "weights": weights,
        "hooks": sum(len(getattr(part, name)) for part in parts for name in HOOKS),
        "training": [part.training for part in parts],
        "requires_grad": [parameter.requires_grad for parameter in parameters],
        "gradients": [parameter.grad is None for parameter in parameters],
        "attributes": sorted(name for part in parts for name in part.__dict__),
    }


def compare_states(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The names of what has changed."""
    old, new = before["weights"], after["weights"]
    weights = [name for name in old if name not in new or not has_same_values(old[name], new[name])]
    return weights[:3] + [what for what in before if what != "weights" and before[what] != after[what]]


def has_same_values(old: Tensor, new: Tensor) -> bool:
    if old.is_meta or new.is_meta:
        return old.is_meta and new.is_meta
    old, new = (tensor.dequantize() if hasattr(tensor, "qdata") else tensor for tensor in (old, new))
    return torch.equal(old.float().nan_to_num(), new.float().nan_to_num())


def shorten(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def locate(error: BaseException) -> str:
    """The exception and the innermost lines it came through."""
    frames = [
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
    ]
    return f"{shorten(error)} at {' < '.join(reversed(frames[-4:]))}"


def iterate_faults(findings: list[Finding]) -> Iterator[Finding]:
    return (finding for finding in findings if finding[1].isupper())
