"""samples=20: the mean of the scores over 20 runs with other random numbers, for a model that answers at random.

    explain(model, "a film", "leave_one_out", samples=20)

Run i draws from torch's generator with seed i, so that the same call gives the same scores once the model is known:
what is found out about it once draws, too. The caller's random state stays.
The target is that of the first run. `details["deviation"]` is the standard deviation of the scores between the runs.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from whyformer._model import Model
from whyformer.results.explanation import Explanation


def average_runs(
    explain_again: Callable[[], Explanation], first: Explanation, model: Model, samples: int
) -> Explanation:
    """The explanation with mean scores; all else is that of the first run."""
    runs = []
    for seed in range(samples):
        with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
            torch.manual_seed(seed)
            runs.append(explain_again())
    scores = torch.stack([run.scores for run in runs])
    deviation = scores.std(0)
    largest = float(scores.mean(0).abs().max()) or 1.0
    note = (
        f"Scores are the mean of {samples} runs with other random numbers; between runs they deviate by up to "
        f"{float(deviation.max()) / largest:.0%} of the largest."
    )
    spent = {kind: sum(run.spent.get(kind, 0.0) for run in (first, *runs)) for kind in first.spent}
    return replace(
        first,
        scores=scores.mean(0),
        pixels=average_parts([run.pixels for run in runs]),
        special=average_parts([run.special for run in runs]),
        details={"deviation": deviation},
        notes=(*first.notes, note),
        spent=spent,
    )


def average_parts(parts: list[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.stack(known).mean(0) if known else None
