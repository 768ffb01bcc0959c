r"""ContextCite: a sparse linear model of the answer's log-odds, fitted to random ablations.

$$ s = \operatorname{argmin}_w \min_b \frac{1}{2n} \sum_{i=1}^n \Bigl(\tfrac{1}{T} \operatorname{logit} p(z_i) - b -
   w \cdot \tilde z_i\Bigr)^2 + \alpha \lVert w \rVert_1 , \qquad z_{ij} \sim \text{Bernoulli}(1/2) $$

where $z_{ij} = 1$ if source $j$ is kept in ablation $i$, $\tilde z$ is $z$ standardised, $p$ the probability of the
answer and $T$ the number of its tokens. Cohen-Wang, Shah, Georgiev & Madry, ContextCite: Attributing Model Generation
to Context, NeurIPS 2024, section 3. arXiv:2409.00729

As in the released code the weights are those of $z$, not of $\tilde z$, multiplied by $T$ again: a score is the change
of the log-odds when the source is added. $\alpha = 0.01$; `budget` is 64 there and 32 in most figures of the paper.
Sources are sentences in the paper; here they are the regions of a prompt in `cite`, otherwise words, tokens or patches.
`cite` deletes a source as the paper does, but from the tokens, without tokenising the rest again; elsewhere it is
replaced by `fill`. For an answer of several tokens `cite` sums the log-odds of its tokens, an option of the released
code too (`total_token_logit_prob`); by default that code takes the log-odds of their joint probability, as we do for
the target `logp:answer-tokens`. Both the paper and we draw independent masks; the generator is ours.

`details["r2"]` is the share of the variance that the linear model explains on its own ablations.
"""

import warnings
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from whyformer._engine import Probe
from whyformer._plain.environment import keep_environment
from whyformer._plain.random_generator import make_generator
from whyformer._plain.setting_checks import allow_number, allow_whole_number
from whyformer.methods._answers import count_span_tokens
from whyformer.methods._players import ask_coalitions, players_of, spread_values
from whyformer.methods._registry import Scores, method
from whyformer.methods._settings import check_method_settings


@method(paper="Cohen-Wang et al., NeurIPS 2024", class_specific=True, signed=True, cost="`budget` forwards")
@check_method_settings(budget=allow_whole_number(2), penalty=allow_number("a finite number >= 0", limit=1e6))
def context_cite(
    probe: Probe,
    *,
    budget: int = 64,
    units: str | None = None,
    superpixels: int = 49,
    penalty: float = 0.01,
    fill: str | None = None,
    seed: int = 0,
) -> Scores:
    """The weight of each word or patch in a sparse linear model of the log-odds of the answer; signed.

    budget: random ablations; each keeps every word or patch with probability 1/2.
    units: "word" (the default) or "token" for texts, "patch" or "superpixel" for images.
        The tokens of a word share its value, so metrics that remove single tokens score words lower than tokens.
    superpixels: their approximate number.
    penalty: of the lasso, on standardised data.
    fill: what replaces a removed word or patch.

    The weight of a word is divided among its tokens, whose scores sum to it.
    """
    team = players_of(probe, units, text="word", superpixels=superpixels)
    ablations = [
        draw_ablations(players.count, budget, make_generator(seed, fingerprint))
        for players, fingerprint in zip(team, probe.fingerprints, strict=True)
    ]
    answers = ask_coalitions(probe, team, ablations, fill=fill, seed=seed, of="log_odds")
    lengths = [max(count_span_tokens(probe, i, "logp", "log_odds"), 1) for i in range(probe.batch)]
    fits = [
        fit_lasso(kept, answer / length, penalty)
        for kept, answer, length in zip(ablations, answers, lengths, strict=True)
    ]
    weights = [fit.weights * length for fit, length in zip(fits, lengths, strict=True)]
    intercepts = [fit.intercept * length for fit, length in zip(fits, lengths, strict=True)]
    return Scores(
        spread_values(team, weights),
        {
            "r2": torch.tensor([fit.r2 for fit in fits], dtype=torch.float64),
            "intercept": torch.tensor(intercepts, dtype=torch.float64),
        },
    )


def draw_ablations(players: int, count: int, generator: torch.Generator) -> Tensor:
    """[count player] bool: each player is kept with probability 1/2, independently."""
    return torch.rand(count, players, dtype=torch.float64, generator=generator) < 0.5


class LinearFit(NamedTuple):
    """answer = intercept + weights . kept"""

    weights: Tensor  # [player], of z, not of the standardised one
    intercept: float
    r2: float  # explained share of the variance; 1 if the answers are constant


@keep_environment()
def fit_lasso(kept: Tensor, answers: Tensor, penalty: float) -> LinearFit:
    """The lasso of ablations [n player] on answers [n], in float64; a player that is always kept gets 0.

    Without a penalty it is least squares, the shortest solution where there are several.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import Lasso

    z, y = kept.double().numpy(), answers.double().numpy()
    mean, scale = z.mean(0), z.std(0)
    scale[scale == 0] = 1
    standardised, centred = (z - mean) / scale, y - y.mean()
    if penalty and z.shape[1]:
        lasso = Lasso(alpha=penalty, fit_intercept=False, tol=1e-12, max_iter=100_000, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # what is left is far below the noise of ablations
            weights = lasso.fit(standardised, centred).coef_
    else:
        weights = np.linalg.lstsq(standardised, centred, rcond=None)[0]
    left, variance = centred - standardised @ weights, float((centred**2).sum())
    r2 = 1 - float((left**2).sum()) / variance if variance > 0 else 1.0
    weights = weights / scale
    return LinearFit(torch.from_numpy(weights), float(y.mean() - weights @ mean), r2)
