r"""KernelSHAP: Shapley values by weighted regression.

$$ s = \operatorname{argmin}_{\varphi} \sum_{\emptyset \ne z \ne \mathbf 1} \frac{m - 1}{\binom{m}{|z|}\,|z|\,(m - |z|)}
   \bigl(y(z) - y(\emptyset) - z \cdot \varphi\bigr)^2
   \quad\text{with}\quad \sum_j \varphi_j = y(x) - y(\emptyset) $$

over coalitions $z$ of the $m$ words or patches that are kept.
Lundberg & Lee, A Unified Approach to Interpreting Model Predictions, NeurIPS 2017, theorem 2. arXiv:1705.07874

If all coalitions fit into the budget, they are all evaluated and the values are exact. Otherwise the sizes of largest
weight (one in or out, two in or out, ...) are enumerated completely as long as the budget allows, and coalitions of the
remaining sizes are sampled by weight, each with its complement. The constraint is not approximated by a large weight
but met exactly (`details["efficiency_error"]` is the remaining difference): $\varphi = (y(x) - y(\emptyset))/m + \psi$
with $\sum_j \psi_j = 0$, and of several minima we take the $\psi$ of smallest norm. `details["empty"]` is
$y(\emptyset)$.

An absent word or patch is replaced by a fill value, not averaged over a data set as in the paper. A tokenizer with a
mask token provides that of a word; otherwise absent words are hidden from attention, or, if the model takes no mask,
replaced by padding. A model that masks padding by itself then has no $y(\emptyset)$ unless the text has special tokens,
which are always kept: pass `fill="drop"`.

A coalition and its complement carry nearly the same information, so a budget of about twice the number of players is
the worst choice: the regression then interpolates every answer, noise included. Use at least five times the number of
players, fewer players (`units="superpixel"`), or `partition_shap`.
"""

from itertools import combinations
from math import comb

import torch
from torch import Tensor

from whyformer._engine import Probe
from whyformer._plain.environment import keep_environment
from whyformer._plain.random_generator import make_generator
from whyformer._plain.setting_checks import allow_whole_number
from whyformer.methods._answers import read_clean_answers
from whyformer.methods._players import ask_coalitions, players_of, spread_values
from whyformer.methods._registry import Scores, method
from whyformer.methods._settings import check_method_settings


@method(paper="Lundberg & Lee, NeurIPS 2017", class_specific=True, signed=True, cost="up to `budget` forwards")
@check_method_settings(budget=allow_whole_number(2))
def kernel_shap(
    probe: Probe,
    *,
    budget: int = 1000,
    units: str | None = None,
    superpixels: int = 49,
    of: str = "score",
    fill: str | None = None,
    seed: int = 0,
) -> Scores:
    """The Shapley value of each word or patch: its mean contribution over all orders of adding them; signed.

    budget: coalitions to evaluate, besides the empty and the full one.
    units: "word" (the default) or "token" for texts, "patch" or "superpixel" for images.
        The tokens of a word share its value, so metrics that remove single tokens score words lower than tokens.
    superpixels: their approximate number.
    of: "score" or "probability".
    fill: what replaces an absent word or patch.

    The value of a word is divided among its tokens, whose scores sum to it.
    """
    team = players_of(probe, units, text="word", superpixels=superpixels)
    plans = [
        plan_coalitions(players.count, budget, make_generator(seed, fingerprint))
        for players, fingerprint in zip(team, probe.fingerprints, strict=True)
    ]
    with_none = [torch.cat([torch.zeros(1, some.size(1), dtype=torch.bool), some]) for some, _ in plans]
    answers = ask_coalitions(probe, team, with_none, fill=fill, seed=seed, of=of)
    empty = torch.stack([found[0] for found in answers])
    total = read_clean_answers(probe, of) - empty
    values = [
        solve_shapley_values(some, weights, found[1:] - found[0], gained)
        for (some, weights), found, gained in zip(plans, answers, total, strict=True)
    ]
    error = torch.stack([value.sum() for value in values]) - total
    return Scores(spread_values(team, values), {"efficiency_error": error.abs(), "empty": empty})


def plan_coalitions(players: int, budget: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Coalitions [coalition player] and their weights [coalition]. A size and its complement come together."""
    mass = {k: (players - 1) / (k * (players - k)) * (1 if 2 * k == players else 2) for k in range(1, players // 2 + 1)}
    chosen, weights, left = [torch.zeros(0, players, dtype=torch.bool)], [torch.zeros(0, dtype=torch.float64)], budget
    while mass:
        size = min(mass)
        number = comb(players, size) * (1 if 2 * size == players else 2)
        if left * mass[size] / sum(mass.values()) < number - 1e-9:
            break
        # Every coalition of this size and of the complementary size.
        members = torch.tensor(list(combinations(range(players), size)))
        some = torch.zeros(len(members), players, dtype=torch.bool).scatter_(1, members, True)
        chosen.append(some if 2 * size == players else torch.cat([some, ~some]))
        weights.append(torch.full((number,), mass.pop(size) / number, dtype=torch.float64))
        left -= number
    if mass and left > 1:
        chosen.append(draw_coalitions(players, mass, left // 2, generator))
        weights.append(torch.full((2 * (left // 2),), sum(mass.values()) / (2 * (left // 2)), dtype=torch.float64))
    return torch.cat(chosen), torch.cat(weights)


def draw_coalitions(players: int, mass: dict[int, float], pairs: int, generator: torch.Generator) -> Tensor:
    """Random coalitions of these sizes, drawn by weight, and the complement of each."""
    sizes, weights = torch.tensor(list(mass)), torch.tensor(list(mass.values()), dtype=torch.float64)
    size = sizes[weights.multinomial(pairs, replacement=True, generator=generator)]
    order = torch.rand(pairs, players, dtype=torch.float64, generator=generator).argsort(dim=1)
    some = order < size[:, None]
    return torch.cat([some, ~some])


@keep_environment()
def solve_shapley_values(coalitions: Tensor, weights: Tensor, gains: Tensor, total: Tensor) -> Tensor:
    """[player]: the weighted least-squares solution among values that sum to the total."""
    from sklearn.linear_model import LinearRegression

    players = coalitions.size(1)
    equal = (total / max(players, 1)).expand(players).double()
    if not len(coalitions):
        return equal
    present = coalitions.double()
    centred = present - present.mean(1, keepdim=True)  # insensitive to a constant added to all values
    left = gains - present @ equal
    fitted = LinearRegression(fit_intercept=False).fit(centred.numpy(), left.numpy(), sample_weight=weights.numpy())
    return equal + torch.tensor(fitted.coef_)
