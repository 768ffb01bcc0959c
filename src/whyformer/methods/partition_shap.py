r"""Partition SHAP: Owen values over a hierarchy of halves.

$$ s_A(S) = \frac12 \bigl(y(S \cup A) - y(S)\bigr) + \frac12 \bigl(y(S \cup A \cup B) - y(S \cup B)\bigr) $$

for the halves $A$ and $B$ of a group, where $S$ are the other players present; each of the two terms is then divided in
the same way among the halves of $A$, and so on down to single words or patches.
Owen, Values of Games with a Priori Unions, Mathematical Economics and Game Theory, Springer 1977
(doi:10.1007/978-3-642-45494-3_7); as an explanation, the partition explainer of Lundberg & Lee's SHAP (NeurIPS 2017,
arXiv:1705.07874).

These are Shapley values under one restriction: outside its own group a player only meets groups that are completely
present or completely absent. That takes about $m^2$ coalitions instead of $2^m$, and far fewer if groups with little
effect are not split: level by level, the budget goes to the groups of largest weighted effect, and the value of a group
that is not split is divided equally among its members. The values sum to $y(x) - y(\emptyset)$ at any budget.

The hierarchy repeatedly halves the longer side of an image's patch grid, or the sequence of a text's words.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer._engine import Probe
from whyformer._plain.setting_checks import allow_whole_number
from whyformer.methods._answers import read_clean_answers
from whyformer.methods._players import Players, ask_coalitions, players_of, spread_values
from whyformer.methods._registry import Scores, method
from whyformer.methods._settings import check_choice, check_method_settings

Box = tuple[int, int, int, int]  # top, bottom, left, right; bottom and right are exclusive


@dataclass(frozen=True)
class PlayerGroup:
    """Players that join together, before the group is split."""

    box: Box
    others: Tensor  # [player]: True for the other players present
    without: float  # the answer without this group
    with_it: float
    weight: float

    @property
    def worth(self) -> float:
        return self.weight * (self.with_it - self.without)

    @property
    def is_single(self) -> bool:
        top, bottom, left, right = self.box
        return (bottom - top) * (right - left) <= 1


@method(paper="Owen, Springer 1977", class_specific=True, signed=True, cost="up to `budget` forwards")
@check_method_settings(budget=allow_whole_number(2))
def partition_shap(
    probe: Probe,
    *,
    budget: int = 500,
    units: str | None = None,
    of: str = "score",
    fill: str | None = None,
    seed: int = 0,
) -> Scores:
    """The Owen value of each word or patch: its Shapley value if neighbours join in nested halves; signed.

    budget: coalitions to evaluate, besides the empty and the full one.
    units: "word" (the default) or "token" for texts, "patch" for images.
        The tokens of a word share its value, so metrics that remove single tokens score words lower than tokens.
    of: "score" or "probability".
    fill: what replaces an absent word or patch.
    seed: for the fill "noise".
    """
    if probe.is_image and units is not None:
        check_choice("units", units, ("patch",))  # the hierarchy needs rows and columns
    team = players_of(probe, units, text="word")
    nobody = [torch.zeros(1, players.count, dtype=torch.bool) for players in team]
    empty = torch.cat(ask_coalitions(probe, team, nobody, fill=fill, seed=seed, of=of))
    full = read_clean_answers(probe, of)
    open_groups = [
        [make_root_group(players, a, b)] for players, a, b in zip(team, empty.tolist(), full.tolist(), strict=True)
    ]
    values = [torch.zeros(players.count, dtype=torch.float64) for players in team]
    left = [budget] * probe.batch
    while any(open_groups):
        to_split = [choose_groups(groups, budget_left) for groups, budget_left in zip(open_groups, left, strict=True)]
        for i, groups in enumerate(open_groups):
            for group in groups:
                if not any(group is chosen for chosen in to_split[i]):
                    credit_members(values[i], group, team[i])
        pairs = [make_half_coalitions(groups, players) for groups, players in zip(to_split, team, strict=True)]
        answers = ask_coalitions(probe, team, pairs, fill=fill, seed=seed, of=of)
        open_groups = [
            [child for k, group in enumerate(groups) for child in split_group(group, players, found[2 * k : 2 * k + 2])]
            for groups, players, found in zip(to_split, team, answers, strict=True)
        ]
        left = [budget_left - len(some) for budget_left, some in zip(left, pairs, strict=True)]
    error = torch.stack([value.sum() for value in values]) - (full - empty)
    return Scores(spread_values(team, values), {"efficiency_error": error.abs(), "empty": empty})


def make_root_group(players: Players, empty: float, full: float) -> PlayerGroup:
    rows, columns = players.grid_shape
    return PlayerGroup((0, rows, 0, columns), torch.zeros(players.count, dtype=torch.bool), empty, full, 1.0)


def choose_groups(groups: list[PlayerGroup], budget: int) -> list[PlayerGroup]:
    """The groups of largest effect that can be split within the budget, at two answers each."""
    splittable = sorted((group for group in groups if not group.is_single), key=lambda group: -abs(group.worth))
    return splittable[: budget // 2]


def halve_box(box: Box) -> tuple[Box, Box]:
    """The box halved along its longer side."""
    top, bottom, left, right = box
    if bottom - top > right - left:
        middle = (top + bottom) // 2
        return (top, middle, left, right), (middle, bottom, left, right)
    middle = (left + right) // 2
    return (top, bottom, left, middle), (top, bottom, middle, right)


def find_members(box: Box, players: Players) -> Tensor:
    top, bottom, left, right = box
    members = torch.zeros(players.grid_shape, dtype=torch.bool)
    members[top:bottom, left:right] = True
    return members.flatten()


def make_half_coalitions(groups: list[PlayerGroup], players: Players) -> Tensor:
    """[2 x group, player]: the others plus one half, and the others plus the other half."""
    rows = [group.others | find_members(half, players) for group in groups for half in halve_box(group.box)]
    return torch.stack(rows) if rows else torch.zeros(0, players.count, dtype=torch.bool)


def split_group(group: PlayerGroup, players: Players, answers: Tensor) -> Iterator[PlayerGroup]:
    """Each half twice: joining the others first, and joining after the other half."""
    boxes, found = halve_box(group.box), answers.tolist()
    for own, other in ((0, 1), (1, 0)):
        later = group.others | find_members(boxes[other], players)
        yield PlayerGroup(boxes[own], group.others, group.without, found[own], group.weight / 2)
        yield PlayerGroup(boxes[own], later, found[other], group.with_it, group.weight / 2)


def credit_members(values: Tensor, group: PlayerGroup, players: Players) -> None:
    """Add the group's worth to its members in equal shares."""
    inside = find_members(group.box, players)
    values[inside] += group.worth / max(int(inside.sum()), 1)
