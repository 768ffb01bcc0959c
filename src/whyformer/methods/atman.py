r"""AtMan: what the answer loses when attention to a token is suppressed.

$$ s_j = \log p(x) - \log p\bigl(x;\, H_{\cdot k} \leftarrow (1 - f_k)\,H_{\cdot k}\bigr), \qquad
   f_k = \begin{cases} f \cos(e_j, e_k) & \cos(e_j, e_k) \ge \kappa \\ 0 & \text{else} \end{cases} $$

where $H$ are the scores before the softmax, of all heads, layers and queries. Deiseroth, Deb, Weinbach, Brack,
Schramowski & Kersting, AtMan: Understanding Transformer Predictions Through Memory Efficient Attention Manipulation,
NeurIPS 2023. arXiv:2301.08110

Implemented from the paper, without reference to its code. Suppressing one token has little effect where its neighbours
carry the same information, so tokens with a similar embedding are suppressed with it, in proportion to their
similarity. We take the cosine of what enters the first block, multiplied by the factor $f$, so that the token itself
gets $f_j = f$.
Special tokens are left alone. As printed, the factor shrinks the magnitude of a score: a negative score goes up, not
down. Scores that a mask has excluded stay excluded. For a regression model, its output takes the place of $\log p$.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.intervene import Intervention
from whyformer._engine.probe import Probe, read_hidden_states
from whyformer._engine.target import probabilities_of
from whyformer._plain.setting_checks import allow_number, allow_share
from whyformer.errors import MethodError, UnsupportedModel
from whyformer.methods._answers import read_answers, read_clean_answers
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings

MASK_THRESHOLD = -5e3  # lower scores come from an attention mask


@method(
    paper="Deiseroth et al., NeurIPS 2023",
    class_specific=True,
    signed=True,
    cost="one forward, and one per token or patch",
)
@check_method_settings(suppression=allow_share, similarity=allow_number("a number", -1e6, 1e6))
def atman(probe: Probe, *, suppression: float = 0.9, similarity: float = 0.7) -> Tensor:
    """How much the log-probability falls when attention to a token and to similar tokens is suppressed; signed.

    suppression: the factor f by which scores before the softmax are reduced; 1 sets them to 0.
    similarity: the cosine from which tokens are suppressed together; above 1, each token alone.
    """
    if probe.is_image and probe.grid is None:
        raise MethodError("The patches of this image are unknown, so attention to them cannot be suppressed.")
    factors = suppression * embedding_similarities(probe, similarity)
    example, unit = probe.real.nonzero().T
    answers, _ = probe.intervene(lambda rows: suppress_attention(probe, factors[example[rows], unit[rows]]), example)
    before, after = read_clean_answers(probe, "probability"), read_answers(probe, answers, example, "probability")
    if probabilities_of(probe.model.module, probe.before.logits) is not None:
        before, after = (p.clamp(min=1e-300).log() for p in (before, after))
    scores = torch.zeros(probe.real.shape, dtype=torch.float64)
    scores[example, unit] = before[example] - after
    return scores


def embedding_similarities(probe: Probe, similarity: float) -> Tensor:
    """[batch unit unit]: the cosine of two embeddings if it is at least `similarity`, else 0; 1 on the diagonal."""
    own = torch.eye(probe.units, dtype=torch.float64).expand(probe.batch, -1, -1)
    if similarity > 1:
        return own
    _, seen = probe.intervene(lambda _: Intervention(), torch.arange(probe.batch), look=read_hidden_states)
    unit = F.normalize(torch.cat([states[0] for states in seen])[:, probe.places].double().cpu(), dim=-1)
    cosine = unit @ unit.mT
    both = probe.real[:, :, None] & probe.real[:, None, :] & (cosine >= similarity)
    return torch.where(own == 1, own, cosine * both)


def suppress_attention(probe: Probe, factors: Tensor) -> Intervention:
    """An intervention that multiplies the scores of each unit by 1 - factor: factors [row unit]."""
    kept = torch.ones(len(factors), probe.layout.length, dtype=torch.float64)
    kept[:, probe.places] = 1 - factors

    def scale_scores(_: int, scores: Tensor) -> Tensor:
        if scores.size(-1) != kept.size(1):
            raise UnsupportedModel("atman needs a model in which every attention has the same tokens.")
        return torch.where(scores > MASK_THRESHOLD, scores * kept[:, None, None].to(scores), scores)

    return Intervention(scores=scale_scores)
