r"""LIME: a linear model of the answer near the example.

$$ s = \operatorname{argmin}_w \sum_i \pi(z_i)\,\bigl(y(z_i) - w_0 - w \cdot z_i\bigr)^2 + \lambda \lVert w \rVert^2,
   \qquad \pi(z) = e^{-D(z)^2 / 2\sigma^2}, \quad D(z) = 1 - \cos(z, \mathbf 1) $$

over samples $z_i$, where $z_{ij} = 1$ if word or patch $j$ is kept. Ribeiro, Singh & Guestrin, "Why Should I Trust
You?": Explaining the Predictions of Any Classifier, KDD 2016, eq. 1 and 2. arXiv:1602.04938

As in the released code, a sample of a text removes a random number of random words, a sample of an image removes each
patch or superpixel with probability 1/2; the kernel is the square root of the one in the paper, of width
$\sigma = 0.25$ (there 25, for a distance in percent), and $\lambda = 1$. The paper then keeps the few largest features;
we keep all. It explains the probability, `of="probability"`; our default is the logit, which does not saturate.

`details["r2"]` is the goodness of fit of the linear model on the samples, weighted by the kernel: near 0, the scores
mean little.
"""

import torch
from torch import Tensor

from whyformer._engine import Probe
from whyformer._plain.environment import keep_environment
from whyformer._plain.random_generator import make_generator
from whyformer._plain.setting_checks import allow_number, allow_whole_number
from whyformer.methods._players import ask_coalitions, players_of, spread_values
from whyformer.methods._registry import Scores, method
from whyformer.methods._settings import check_method_settings


@method(paper="Ribeiro et al., KDD 2016", class_specific=True, signed=True, cost="`budget` forwards")
@check_method_settings(
    budget=allow_whole_number(2),
    kernel_width=allow_number("a number >= 0.000001", 1e-6, limit=1e6),
    regularisation=allow_number("a finite number >= 0", limit=1e9),
)
def lime(
    probe: Probe,
    *,
    budget: int = 1000,
    units: str | None = None,
    superpixels: int = 49,
    kernel_width: float = 0.25,
    regularisation: float = 1.0,
    of: str = "score",
    fill: str | None = None,
    seed: int = 0,
) -> Scores:
    """The weight of each word or patch in a linear model of the answer, fitted to inputs with some removed; signed.

    budget: samples, including the example itself.
    units: "word" (the default) or "token" for texts, "patch" or "superpixel" for images.
        The tokens of a word share its value, so metrics that remove single tokens score words lower than tokens.
    superpixels: their approximate number.
    kernel_width: how close a sample has to be to count.
    regularisation: of the ridge regression.
    of: "score" or "probability".
    fill: what replaces a removed word or patch.

    The weight of a word is divided among its tokens, whose scores sum to it.
    """
    team = players_of(probe, units, text="word", superpixels=superpixels)
    sample = draw_image_samples if probe.is_image else draw_text_samples
    samples = [
        sample(players.count, budget, make_generator(seed, fingerprint))
        for players, fingerprint in zip(team, probe.fingerprints, strict=True)
    ]
    answers = ask_coalitions(probe, team, samples, fill=fill, seed=seed, of=of)
    fits = [
        fit_ridge(some, weigh_samples(some, kernel_width), answer, regularisation)
        for some, answer in zip(samples, answers, strict=True)
    ]
    weights, intercepts, r2 = zip(*fits, strict=True)
    return Scores(
        spread_values(team, weights),
        {"r2": torch.tensor(r2, dtype=torch.float64), "intercept": torch.tensor(intercepts, dtype=torch.float64)},
    )


def draw_text_samples(players: int, budget: int, generator: torch.Generator) -> Tensor:
    """[budget player]: everything kept, then samples with 1 to all players removed."""
    removed = torch.randint(1, max(players, 1) + 1, (budget, 1), generator=generator)
    removed[0] = 0
    order = torch.rand(budget, players, dtype=torch.float64, generator=generator).argsort(dim=1)
    return order >= removed


def draw_image_samples(players: int, budget: int, generator: torch.Generator) -> Tensor:
    """[budget player]: everything kept, then each player kept with probability 1/2."""
    kept = torch.rand(budget, players, dtype=torch.float64, generator=generator) < 0.5
    kept[0] = True
    return kept


def weigh_samples(samples: Tensor, width: float) -> Tensor:
    """[sample]: the kernel of the cosine distance to the full input; the distance is 1 if nothing is kept."""
    share = samples.double().mean(1) if samples.size(1) else torch.ones(len(samples), dtype=torch.float64)
    return torch.exp(-((1 - share.sqrt()) ** 2) / (2 * width**2))


@keep_environment()
def fit_ridge(samples: Tensor, weights: Tensor, answers: Tensor, regularisation: float) -> tuple[Tensor, float, float]:
    """The weights of the linear model, its intercept, and R squared."""
    from sklearn.linear_model import Ridge

    if not samples.size(1):
        return torch.zeros(0, dtype=torch.float64), float(answers[0]), 1.0
    z, y, w = (part.double().numpy() for part in (samples, answers, weights))
    linear = Ridge(alpha=regularisation, solver="cholesky" if regularisation else "svd").fit(z, y, sample_weight=w)
    return torch.tensor(linear.coef_), float(linear.intercept_), float(linear.score(z, y, sample_weight=w))
