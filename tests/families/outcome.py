"""What the checks of a class note, and how they call the model: the result, the explained call, the second example."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import whyformer as why
from whyformer.errors import TargetError


@dataclass
class Outcome:
    """The result of one class: a word for each method and each check, and the sentences behind them."""

    words: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def note(self, what: str, word: str, reason: str = "") -> None:
        self.words[what] = word
        if reason:
            self.reasons[what] = " ".join(reason.split())


def explain_case(model: Any, inputs: Any, method: str, target: Any) -> Any:
    """The explanation of the target, or of the model's own answer where it has no such target."""
    chosen = None if method == "default" else method
    try:
        return why.explain(model, inputs, chosen, target=target)
    except TargetError:
        return why.explain(model, inputs, chosen)


def take_second(inputs: dict[str, Any]) -> dict[str, Any]:
    """The second example without its padding."""
    mask = inputs.get("attention_mask")
    length = mask.shape[-1] if isinstance(mask, Tensor) and mask.dim() == 2 else None
    alone = {}
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.dim() and value.size(0) == 2:
            value = value[1:]
            if length and value.dim() > 1 and value.size(1) == length and not name.startswith(("decoder", "pixel")):
                value = value[:, mask[1].bool()]
        alone[name] = value
    return alone


def find_answer(module: nn.Module, inputs: dict[str, Any]) -> Tensor | None:
    """The logits, at the last real token where there are some for each."""
    output = module(**inputs)
    logits = getattr(output, "logits", None)
    if logits is None or logits.dim() < 2:
        return None
    mask = inputs.get("attention_mask")
    if logits.dim() == 3 and isinstance(mask, Tensor) and mask.shape == logits.shape[:2]:
        return logits[torch.arange(len(logits)), mask.cumsum(-1).argmax(-1)]
    return logits[:, -1] if logits.dim() == 3 else logits
