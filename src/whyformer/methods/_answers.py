"""The number that perturbation methods read off the model's answers: the score, its probability or its log-odds."""

import torch
from torch import Tensor

from whyformer._engine import Answers, Probe
from whyformer.methods._log_odds import read_log_odds
from whyformer.methods._settings import ANSWER_KINDS, check_choice


def read_answers(probe: Probe, answers: Answers, rows: Tensor, of: str) -> Tensor:
    """The score or the probability, [n] in float64; for a contrast, the probability of one class against the other.

    rows: [n], the example that each answer belongs to. of="log_odds": see _log_odds.py.
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
