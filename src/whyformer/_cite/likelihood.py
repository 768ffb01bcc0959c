r"""Would the model give this answer itself? Its log-probability beside that of answers that the model draws.

$$ \text{surprise} = \sum_t \bigl( -\log p(a_t) - H_t \bigr) , \qquad
   H_t = -\sum_v p_t(v) \log p_t(v) , \qquad \sigma^2 = \sum_t \operatorname{Var}_{v \sim p_t} \log p_t(v) $$

An answer that the model draws token by token has a surprise of about 0, give or take $\sigma$, however long it is. One
whose surprise is above log 1000 and above $4 \sigma$ was put into its mouth: that a source makes it less unlikely does
not support it. The *rival* is what the model would rather say in the place of the token that it is least sure of.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer._model.prompt import Prompt

LEAST_SURPRISE = math.log(1000)  # an answer that is more likely than this is never implausible
MOST_DEVIATIONS = 4
TOKENS_AT_ONCE = 64


@dataclass(frozen=True)
class Likelihood:
    """The log-probability of an answer, and what it would be of one that the model draws."""

    log_probability: float
    expected: float
    deviation: float
    least_log_odds: float = math.inf  # of the token that the model is least sure of
    rival: tuple[int, int] | None = None  # that token of the answer and the likeliest one, if others are likelier

    @property
    def is_plausible(self) -> bool:
        return self.expected - self.log_probability <= max(LEAST_SURPRISE, MOST_DEVIATIONS * self.deviation)


def measure_likelihood(logits: Tensor, prompt: Prompt, tokens: Sequence[int]) -> Likelihood:
    """Of these tokens of the answer, counted from its first one.

    logits: [token word] of the prompt and its answer, or only where these tokens are read.
    """
    if len(logits) == len(prompt.ids):
        logits = logits[[prompt.prompt_length - 1 + token for token in tokens]]
    ids = torch.tensor([prompt.answer_ids[token] for token in tokens], device=logits.device)
    pairs = zip(logits.split(TOKENS_AT_ONCE), ids.split(TOKENS_AT_ONCE), strict=True)
    own, mean, variance = torch.stack([sum_moments(*pair) for pair in pairs]).sum(0).tolist()
    least, place, other = find_least_certain(logits, ids)
    rival = (tokens[place], other) if least < 0 else None
    return Likelihood(own, mean, math.sqrt(max(variance, 0.0)), least, rival)


def sum_moments(logits: Tensor, ids: Tensor) -> Tensor:
    """[3]: the log-probability of these tokens, its mean over all words and its variance, logits [token word]."""
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    probability = scores.exp()
    finite = scores.clamp(min=torch.finfo(scores.dtype).min)  # a word may be impossible
    mean = (probability * finite).sum(-1)
    variance = (probability * (finite - mean[:, None]) ** 2).nan_to_num(0.0).sum(-1)
    own = finite.gather(-1, ids[:, None])[:, 0]
    return torch.stack([own, mean, variance]).double().sum(-1).cpu()


def find_least_certain(logits: Tensor, ids: Tensor) -> tuple[float, int, int]:
    """The lowest log-odds of these tokens, where they are, and the likeliest other word there.

    Log-odds: the logit of a token minus the logarithm of the summed exponentials of all others.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    others = wide.scatter(-1, ids[:, None], -torch.inf)
    log_odds = wide.gather(-1, ids[:, None])[:, 0] - others.logsumexp(-1)
    place = int(log_odds.argmin())
    return float(log_odds[place]), place, int(others[place].argmax())
