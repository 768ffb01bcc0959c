r"""The number that perturbation methods read off the model's answers: the score, its probability or its log-odds.

The log-odds, which linear surrogates and datamodels predict, are the logit of the probability:

$$ \operatorname{logit} p = \log \frac{p}{1 - p} $$

For a class or a next token, $p$ is its softmax (or sigmoid, in a multi-label model) and the log-odds are computed from
the logits, so that they do not saturate. For the log-probability of a span, $p$ is the probability of the whole span. A
contrast of two classes is the log-odds of one against the other already. The summed log-odds of the tokens of an answer
and targets without a probability (a regression, a sum of logits, a function of the output) are read as they are.
"""

import torch
from torch import Tensor

from whyformer._engine import Answers, FunctionReading, Probe, Scale, TermSum
from whyformer._model import unwrap
from whyformer.methods._settings import ANSWER_KINDS, check_choice


def read_answers(probe: Probe, answers: Answers, rows: Tensor, of: str) -> Tensor:
    """The score or the probability, [n] in float64; for a contrast, the probability of one class against the other.

    rows: [n], the example that each answer belongs to. of="log_odds": as `read_log_odds` has it.
    """
    if of == "log_odds":
        return read_log_odds(probe, answers, rows)
    score = answers.score.double().cpu()
    if check_choice("of", of, ANSWER_KINDS) == "score":
        return score
    is_contrast = torch.tensor([target.versus is not None for target in probe.targets])[rows]
    return torch.where(is_contrast, score.sigmoid(), answers.probability.double().cpu())


def read_clean_answers(probe: Probe, of: str) -> Tensor:
    """The answers to the unchanged examples, [batch] in float64."""
    return read_answers(probe, probe.before, torch.arange(probe.batch), of)


# A probability closer to 1 than this cannot be told from 1 once it was a float32: its log-odds are at most about 16.
LARGEST_LOG_PROBABILITY = -(2.0**-23)


def read_log_odds(probe: Probe, answers: Answers, rows: Tensor) -> Tensor:
    """[n] in float64: the log-odds of the target of each answer; `rows` [n] is the example that it belongs to."""
    score, logits = answers.score.detach().double().cpu(), answers.logits.detach().double().cpu()
    spans = torch.tensor([count_span_tokens(probe, i, "logp") > 0 for i in range(probe.batch)])[rows]
    found = torch.where(spans, to_log_odds(torch.where(spans, score, -1.0)), score)
    index = torch.tensor([-1 if target.versus is not None else target.index for target in probe.targets])[rows]
    if logits.size(1) < 2 or has_independent_classes(probe):
        return found
    others = logits.scatter(1, index.clamp(min=0)[:, None], -torch.inf).logsumexp(1)
    return torch.where(index >= 0, score - others, found)


def to_log_odds(log_probability: Tensor) -> Tensor:
    """log p - log(1 - p) of log p."""
    log_probability = log_probability.double().clamp(max=LARGEST_LOG_PROBABILITY)
    return log_probability - torch.log(-torch.expm1(log_probability))


def count_span_tokens(probe: Probe, example: int, *scales: Scale) -> int:
    """The number of tokens if the target is a token or a span, on one of these scales; else 0."""
    reading = getattr(probe, "reading", None)
    function = reading.function if isinstance(reading, FunctionReading) else None
    if not isinstance(function, TermSum):
        return 0
    terms = function.terms[example]
    return len(terms) if all(term.scale in scales and term.weight == 1 for term in terms) else 0


def has_independent_classes(probe: Probe) -> bool:
    """A multi-label model, in which the logit of a class is its log-odds, or a regression."""
    module = getattr(getattr(probe, "model", None), "module", None)
    config = None if module is None else getattr(unwrap(module), "config", None)
    return getattr(config, "problem_type", None) in ("multi_label_classification", "regression")
