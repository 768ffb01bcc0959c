r"""Health: the conservation check. Is relevance conserved block by block, and what absorbed the part that is missing?

Between two neighbouring block boundaries, before the first and after the last,

$$ R_{\text{above}} = R_{\text{below}} + \text{absorbed} $$

must hold. Biases, position embeddings, a class token and the stabiliser absorb relevance; relevance that a recipe
creates counts as absorbed with a minus sign. The difference of the two sides is the error: rounding, or a wrong rule.

    e = explain(model, inputs, "attnlrp", health=True)
    print(e.health)                a table from the output down to the input, and a one-line verdict
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer.show.visible import make_visible

DETAIL_PREFIX, ABSORBED_PREFIX = "health ", "health took "  # names of details in saved files
TOTALS = ("sent", "relevance", "magnitude", "arrived")


@dataclass(frozen=True)
class Health:
    """Where the relevance of each example went.

    A segment is the part of the model between two boundaries: 0 the embedding, 1 to L the blocks, L + 1 the head.
    """

    recipe: str
    sent: Tensor  # [batch] put in at the output: the explained logit, or 1
    relevance: Tensor  # [batch boundary] total at each boundary
    magnitude: Tensor  # [batch boundary] total of absolute values; far above the relevance, the signs cancel
    arrived: Tensor  # [batch] total at the explained input
    absorbed_by: Mapping[str, Tensor]  # what absorbed it -> [batch segment]

    @property
    def absorbed(self) -> Tensor:
        """[batch segment]: all that was absorbed."""
        zeros = torch.zeros(len(self.sent), self.relevance.shape[1] + 1, dtype=self.sent.dtype)
        return torch.stack([zeros, *self.absorbed_by.values()]).sum(0)

    @property
    def error(self) -> Tensor:
        """[batch segment]: the relevance missing in each segment, relative to `scale`."""
        levels = torch.cat([self.arrived[:, None], self.relevance, self.sent[:, None]], dim=1)
        missing = levels.diff(dim=1) - self.absorbed
        return missing.abs() / self.scale[:, None]

    @property
    def scale(self) -> Tensor:
        """[batch]: the largest magnitude at any boundary; errors are relative to it."""
        return torch.cat([self.magnitude, self.sent.abs()[:, None]], dim=1).amax(1).clamp_min(1e-300)

    @property
    def is_conserved(self) -> bool:
        """Whether the totals balance up to rounding."""
        tolerance = 1e-9 if self.sent.dtype == torch.float64 else 1e-4
        return bool((self.error <= tolerance).all())

    @property
    def verdict(self) -> str:
        """The result of the check in one line."""
        worst = float(self.error.amax())
        if not self.is_conserved:
            segment = self.name_segment(int(self.error.amax(0).argmax()))
            return f"Relevance totals do not balance: {worst:.1e} of the relevance is missing in {segment}."
        balanced = f"Relevance totals balance (error {worst:.0e})"
        counted = self.sent != 0  # skip examples that sent no relevance
        if not bool(counted.any()):
            return f"{balanced}. The relevance sent is 0 (1 - 1 for a contrast), so no share of it can be given."
        arrived = float((self.arrived[counted] / self.sent[counted]).mean())
        growth = float((self.magnitude[counted].amax(1) / self.sent.abs()[counted]).mean())
        absorber = self.find_largest_absorber()
        clauses = [f"{balanced}: {arrived:.0%} of the relevance sent reached the input"]
        if not -1 < arrived < 2:
            times = f"{arrived:.0f} times the relevance sent"
            clauses = [f"{balanced}, but relevance is not conserved: {times} reached the input"]
        if absorber:
            verb = "most of the rest was absorbed" if -1 < arrived < 1 else "the rest was created"
            clauses.append(f"{verb} by {absorber}")
        if growth > 10:
            clauses.append(f"positive and negative parts grow to {growth:.0f} times the total")
        return "; ".join(clauses) + "."

    def find_largest_absorber(self) -> str:
        """What absorbed most, over all segments; empty if nothing absorbed more than 0.1 % of the relevance."""
        sums = {what: float((amount.sum(1) * self.sent.sign()).mean()) for what, amount in self.absorbed_by.items()}
        least = 1e-3 * float(self.sent.abs().mean())
        sizes = {what: abs(amount) for what, amount in sums.items() if abs(amount) > least}
        return make_visible(max(sizes, key=sizes.__getitem__)) if sizes else ""

    def name_segment(self, number: int) -> str:
        last = self.relevance.shape[1]
        return "the embedding" if number == 0 else "the head" if number == last else f"block {number - 1}"

    def __getitem__(self, wanted: slice) -> "Health":
        details = {name: part[wanted] for name, part in self.to_details().items()}
        some = Health.from_details(details, self.recipe)
        assert some is not None
        return some

    def __str__(self) -> str:
        """A table for the first example, from the output down to the input."""
        least = 5e-4 * self.scale[0]
        columns = [what for what, amount in self.absorbed_by.items() if bool((amount[0].abs() > least).any())]
        widths = {what: max(len(make_visible(what)), 8) + 2 for what in columns}
        heads = "".join(f"  {make_visible(what):>8}" for what in columns)
        lines = [f"relevance under {make_visible(self.recipe)}: {float(self.sent[0]):.4g} sent"]
        lines.append(f"{'below':14}{'relevance':>11}{heads}{'error':>10}")
        for number in reversed(range(self.relevance.shape[1] + 1)):
            level = self.arrived[0] if number == 0 else self.relevance[0, number - 1]
            amounts = "".join(f"{float(self.absorbed_by[what][0, number]):>{widths[what]}.3g}" for what in columns)
            error = float(self.error[0, number])
            lines.append(f"{self.name_segment(number):14}{float(level):>11.4g}{amounts}{error:>10.0e}")
        return "\n".join([*lines, self.verdict])

    def to_details(self) -> dict[str, Tensor]:
        """Tensors that begin with the batch, to keep in the details of an explanation."""
        return {DETAIL_PREFIX + name: getattr(self, name) for name in TOTALS} | {
            ABSORBED_PREFIX + what: amount for what, amount in self.absorbed_by.items()
        }

    @staticmethod
    def from_details(details: Mapping[str, Tensor], recipe: str) -> "Health | None":
        """The inverse of `to_details`; None if the details hold no check."""
        if DETAIL_PREFIX + "sent" not in details:
            return None
        names = [name for name in details if name.startswith(ABSORBED_PREFIX)]
        absorbed_by = {name.removeprefix(ABSORBED_PREFIX): details[name] for name in names}
        sent, relevance, magnitude, arrived = (details[DETAIL_PREFIX + name] for name in TOTALS)
        return Health(recipe, sent, relevance, magnitude, arrived, absorbed_by)
