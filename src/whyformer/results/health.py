r"""Health: is relevance conserved, block by block, and who took what did not arrive?

Between two block boundaries, and before the first and after the last one, it must hold that

$$ R_{\text{above}} = R_{\text{below}} + \text{absorbed} $$

where biases, positions, a class token and the stabiliser absorb; what a recipe makes from nothing is absorbed with a
minus sign. The difference of the two sides is the error. It is rounding, or a rule is wrong.

    health_of(capture, recipe)     a capture with `hidden_relevance` and books (`record(..., track_absorbed=True)`)
    print(health)                  a table, from the answer down to the input, and one line of verdict
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer._engine.capture import Capture
from whyformer._engine.relevance.recipes import Recipe
from whyformer.errors import NotCaptured

DETAIL_PREFIX, ABSORBED_PREFIX = "health ", "health took "


@dataclass(frozen=True)
class Health:
    """What became of the relevance of each example.

    A stretch is what lies between two boundaries: 0 before the first block, 1 to L the blocks, L + 1 the head.
    """

    recipe: str
    sent: Tensor  # [batch] put in at the answer: the explained logit, or 1
    relevance: Tensor  # [batch boundary] what there is at each boundary
    magnitude: Tensor  # [batch boundary] the same without signs: far above the relevance, both signs cancel
    arrived: Tensor  # [batch] what reached the explained input
    absorbed_by: Mapping[str, Tensor]  # who absorbed it -> [batch stretch]

    @property
    def absorbed(self) -> Tensor:
        """By anybody: [batch stretch]."""
        none = torch.zeros(len(self.sent), self.relevance.shape[1] + 1, dtype=self.sent.dtype)
        return torch.stack([none, *self.absorbed_by.values()]).sum(0)

    @property
    def error(self) -> Tensor:
        """What is missing in each stretch, as a part of the relevance that was sent: [batch stretch]."""
        levels = torch.cat([self.arrived[:, None], self.relevance, self.sent[:, None]], dim=1)
        missing = levels.diff(dim=1) - self.absorbed
        return missing.abs() / self.scale[:, None]

    @property
    def scale(self) -> Tensor:
        """[batch] the largest amount there is anywhere, for errors to be measured by."""
        return torch.cat([self.magnitude, self.sent.abs()[:, None]], dim=1).amax(1).clamp_min(1e-300)

    @property
    def is_conserved(self) -> bool:
        tolerance = 1e-9 if self.sent.dtype == torch.float64 else 1e-4
        return bool((self.error <= tolerance).all())

    @property
    def verdict(self) -> str:
        """One line."""
        worst = float(self.error.amax())
        if not self.is_conserved:
            stretch = int(self.error.amax(0).argmax())
            return f"Not accounted for: {worst:.1e} of the relevance is missing in {self.name_stretch(stretch)}."
        counts = self.sent != 0  # of nothing there is no share
        if not bool(counts.any()):
            return (
                f"Accounted for to {worst:.0e}. What was sent, 1 - 1 for a contrast, is 0: there is no share to arrive."
            )
        total = self.sent.abs()[counts]
        arrived = float((self.arrived[counts] / self.sent[counts]).mean())
        growth = float((self.magnitude[counts].amax(1) / total).mean())
        most = self.largest()
        said = [f"Accounted for to {worst:.0e}: {arrived:.0%} of what was sent reached the input"]
        if not -1 < arrived < 2:
            said = [f"Accounted for to {worst:.0e}, not conserved: {arrived:.0f} times what was sent reached the input"]
        if most:
            said.append(f"most of the rest went to {most}" if -1 < arrived < 1 else f"the rest was made by {most}")
        if growth > 10:
            said.append(f"parts of both signs grow to {growth:.0f} times the whole")
        return "; ".join(said) + "."

    def largest(self) -> str:
        """Who absorbed most, over all blocks."""
        sums = {who: float((amount.sum(1) * self.sent.sign()).mean()) for who, amount in self.absorbed_by.items()}
        worth = {who: abs(amount) for who, amount in sums.items() if abs(amount) > 1e-3 * float(self.sent.abs().mean())}
        return max(worth, key=worth.__getitem__) if worth else ""

    def name_stretch(self, number: int) -> str:
        last = self.relevance.shape[1]
        return "the embedding" if number == 0 else "the head" if number == last else f"block {number - 1}"

    def __getitem__(self, wanted: slice) -> "Health":
        details = {name: part[wanted] for name, part in self.to_details().items()}
        some = Health.from_details(details, self.recipe)
        assert some is not None
        return some

    def __str__(self) -> str:
        """A table for the first example, from the answer down to the input."""
        columns = [
            who for who, amount in self.absorbed_by.items() if bool((amount[0].abs() > 5e-4 * self.scale[0]).any())
        ]
        lines = [f"relevance under {self.recipe}: {float(self.sent[0]):.4g} sent", self._head(columns)]
        for number in reversed(range(self.relevance.shape[1] + 1)):
            level = self.arrived[0] if number == 0 else self.relevance[0, number - 1]
            taken = "".join(f"{float(self.absorbed_by[who][0, number]):>{max(len(who), 8) + 2}.3g}" for who in columns)
            lines.append(
                f"{self.name_stretch(number):14}{float(level):>11.4g}{taken}{float(self.error[0, number]):>10.0e}"
            )
        return "\n".join([*lines, self.verdict])

    def _head(self, columns: list[str]) -> str:
        return f"{'below':14}{'relevance':>11}{''.join(f'  {who:>8}' for who in columns)}{'error':>10}"

    def to_details(self) -> dict[str, Tensor]:
        """As tensors with the batch first, to be kept with an explanation."""
        plain = {name: getattr(self, name) for name in ("sent", "relevance", "magnitude", "arrived")}
        return {DETAIL_PREFIX + name: part for name, part in plain.items()} | {
            ABSORBED_PREFIX + who: part for who, part in self.absorbed_by.items()
        }

    @staticmethod
    def from_details(details: Mapping[str, Tensor], recipe: str) -> "Health | None":
        """What `to_details` made; None if it is not there."""
        if DETAIL_PREFIX + "sent" not in details:
            return None
        took = {
            name.removeprefix(ABSORBED_PREFIX): part
            for name, part in details.items()
            if name.startswith(ABSORBED_PREFIX)
        }
        sent, relevance, magnitude, arrived = (
            details[DETAIL_PREFIX + name] for name in ("sent", "relevance", "magnitude", "arrived")
        )
        return Health(recipe, sent, relevance, magnitude, arrived, took)


REQUIRED_SITES = ("hidden_relevance", "input_relevance")  # what must be recorded, with books


def check_health(capture: Capture, recipe: Recipe) -> Health:
    """The report, from a capture that kept the books."""
    if recipe not in capture.absorbed:
        raise NotCaptured(f"No books were kept for the recipe {recipe.name}; record with track_absorbed=True.")
    hidden = [state.flatten(1) for state in capture.get("hidden_relevance", recipe)]
    arrived = capture.get("input_relevance", recipe).flatten(1).sum(1)
    absorbed_by: dict[str, Tensor] = {}
    for taken in capture.absorbed[recipe]:
        stretch = sum(boundary < taken.step for boundary in capture.boundaries)
        column = absorbed_by.setdefault(taken.what, arrived.new_zeros(len(arrived), len(hidden) + 1))
        column[:, stretch] += taken.amount
    return Health(
        recipe=recipe.name,
        sent=find_sent_relevance(capture, recipe).to(arrived),
        relevance=torch.stack([state.sum(1) for state in hidden], dim=1),
        magnitude=torch.stack([state.abs().sum(1) for state in hidden], dim=1),
        arrived=arrived,
        absorbed_by=absorbed_by,
    )


def find_sent_relevance(capture: Capture, recipe: Recipe) -> Tensor:
    """What was put in at the answer: the logit (of a contrast, the difference) by recipes that send slopes, else 1 (of
    a contrast, 1 - 1)."""
    if recipe.sends == "slope":
        return torch.tensor([target.score for target in capture.targets], dtype=torch.float64)
    return torch.tensor([1.0 if target.versus is None else 0.0 for target in capture.targets], dtype=torch.float64)
