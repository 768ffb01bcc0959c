"""The conservation check: fill in a `Health` report from a capture.

Needs a capture with `REQUIRED_SITES` that tracked absorbed relevance: `record(..., track_absorbed=True)`.
"""

import torch
from torch import Tensor

from whyformer._engine import Capture, Recipe
from whyformer.errors import NotCaptured
from whyformer.results.health import Health

REQUIRED_SITES = ("hidden_relevance", "input_relevance")


def check_health(capture: Capture, recipe: Recipe) -> Health:
    """Relevance sent, present at each block boundary, absorbed in between, and arrived at the input."""
    if recipe not in capture.absorbed:
        raise NotCaptured(
            f"Absorbed relevance was not tracked for the recipe {recipe.name}. Pass track_absorbed=True to record()."
        )
    hidden = [state.flatten(1) for state in capture.get("hidden_relevance", recipe)]
    arrived = capture.get("input_relevance", recipe).flatten(1).sum(1)
    absorbed_by: dict[str, Tensor] = {}
    for absorbed in capture.absorbed[recipe]:
        segment = sum(boundary < absorbed.step for boundary in capture.boundaries)
        column = absorbed_by.setdefault(absorbed.what, arrived.new_zeros(len(arrived), len(hidden) + 1))
        column[:, segment] += absorbed.amount
    return Health(
        recipe=recipe.name,
        sent=find_sent_relevance(capture, recipe).to(arrived),
        relevance=torch.stack([state.sum(1) for state in hidden], dim=1),
        magnitude=torch.stack([state.abs().sum(1) for state in hidden], dim=1),
        arrived=arrived,
        absorbed_by=absorbed_by,
    )


def find_sent_relevance(capture: Capture, recipe: Recipe) -> Tensor:
    """[batch]: the relevance put in at the output.

    Recipes that send slopes put in the logit (for a contrast, the difference of logits), the others 1 (for a contrast,
    1 - 1). For a function of the output see _engine/targets/function_target.py.
    """
    if capture.sent is not None:
        return capture.sent[recipe.sends]
    if recipe.sends == "slope":
        return torch.tensor([target.score for target in capture.targets], dtype=torch.float64)
    return torch.tensor([1.0 if target.versus is None else 0.0 for target in capture.targets], dtype=torch.float64)
