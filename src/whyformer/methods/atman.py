r"""AtMan: what the answer loses when attention to a token is suppressed.

$$ s_j = \log p(x) - \log p\bigl(x;\, H_{\cdot k} \leftarrow (1 - f_k)\,(H_{\cdot k} - \min_m H_{\cdot m})\bigr), \qquad
   f_k = \begin{cases} f \cos(e_j, e_k) & \cos(e_j, e_k) \ge \kappa \\ 0 & \text{else} \end{cases} $$

where $H$ are the scores before the mask and the softmax, of all heads, layers and queries, and $f_j = f$. Deiseroth,
Deb, Weinbach, Brack, Schramowski & Kersting, AtMan: Understanding Transformer Predictions Through Memory Efficient
Attention Manipulation, NeurIPS 2023. arXiv:2301.08110

Suppressing one token has little effect where its neighbours carry the same information, so tokens with a similar
embedding are suppressed with it, in proportion to their similarity.

The default, `preset="released"`, is the authors' code: the minimum of a row, over all keys (those a causal mask
excludes as well), is subtracted before the factor, so that a smaller score is always less attention; $e$ are the word
embeddings without positions; $\kappa = 0.6$. The paper's formula, `preset="paper"`, has no minimum: there the factor
shrinks the magnitude of a score, and a negative score goes up, not down, which is why the default is the authors'. With
it go $\kappa = 0.7$ and, for $e$, the states that enter the first block (our choice; the paper does not say).

In both: scores that a mask has excluded stay excluded, padding counts neither in the minimum nor as a neighbour,
special tokens are left alone, patches of an image have the state that enters the first block as their embedding. The
released code reports the change of the loss, which is $-s_j$ ("delta cross entropy"), or of the logit (`of="score"`).
For a regression model, its output takes the place of $\log p$.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine import MASK_THRESHOLD, Intervention, Probe, probabilities_of, read_hidden_states
from whyformer._plain.setting_checks import allow_choice, allow_number, allow_share
from whyformer.errors import MethodError, UnsupportedModel
from whyformer.methods._answers import read_answers, read_clean_answers
from whyformer.methods._registry import Setting, method
from whyformer.methods._settings import apply_preset, check_method_settings

PRESETS: dict[str, dict[str, Setting]] = {
    "released": {"suppression": 0.9, "similarity": 0.6, "has_minimum": True, "embeddings": "words"},
    "paper": {"suppression": 0.9, "similarity": 0.7, "has_minimum": False, "embeddings": "states"},
}


@method(
    paper="Deiseroth et al., NeurIPS 2023",
    class_specific=True,
    signed=True,
    cost="one forward, and one per token or patch",
    reads_attention=True,
)
@check_method_settings(
    preset=allow_choice(tuple(PRESETS)),
    suppression=allow_share,
    similarity=allow_number("a number", -1e6, 1e6),
    of=allow_choice(("log_probability", "score")),
)
def atman(
    probe: Probe,
    *,
    preset: str = "released",
    suppression: float | None = None,
    similarity: float | None = None,
    of: str = "log_probability",
) -> Tensor:
    """How much the log-probability falls when attention to a token and to similar tokens is suppressed; signed.

    preset: "released" (the authors' code) or "paper"; explicit settings override the preset.
    suppression: the factor f by which scores before the softmax are reduced; 1 sets them to the lowest, or to 0.
    similarity: the cosine from which tokens are suppressed together; above 1, each token alone.
    of: "log_probability", or "score" for the explained logit.
    """
    if probe.is_image and probe.grid is None:
        raise MethodError("The patches of this image are unknown, so attention to them cannot be suppressed.")
    chosen = apply_preset(PRESETS, preset, suppression=suppression, similarity=similarity)
    factors = chosen["suppression"] * embedding_similarities(probe, chosen["similarity"], chosen["embeddings"])
    example, unit = probe.real.nonzero().T
    suppress = suppress_above_minimum if chosen["has_minimum"] else suppress_attention
    answers, _ = probe.intervene(
        lambda rows: suppress(probe, factors[example[rows], unit[rows]], example[rows]), example
    )
    kind = "score" if of == "score" else "probability"
    before, after = read_clean_answers(probe, kind), read_answers(probe, answers, example, kind)
    if kind == "probability" and probabilities_of(probe.model.module, probe.before.logits) is not None:
        before, after = (p.clamp(min=1e-300).log() for p in (before, after))
    scores = torch.zeros(probe.real.shape, dtype=torch.float64)
    scores[example, unit] = before[example] - after
    return scores


def embedding_similarities(probe: Probe, similarity: float, embeddings: str = "words") -> Tensor:
    """[batch unit unit]: the cosine of two embeddings if it is at least `similarity`, else 0; 1 on the diagonal."""
    own = torch.eye(probe.units, dtype=torch.float64).expand(probe.batch, -1, -1)
    if similarity > 1:
        return own
    unit = F.normalize(read_embeddings(probe, embeddings).double().cpu(), dim=-1)
    cosine = unit @ unit.mT
    both = probe.real[:, :, None] & probe.real[:, None, :] & (cosine >= similarity)
    return torch.where(own == 1, own, cosine * both)


def read_embeddings(probe: Probe, which: str) -> Tensor:
    """[batch unit channel]: "words" without their positions, or the "states" that enter the first block."""
    if which == "words" and not probe.is_image:
        is_by_word = probe.words.size(1) == probe.units  # and not by position in the model's sequence
        return probe.words if is_by_word else probe.words[:, probe.places.to(probe.words.device)]
    _, seen = probe.intervene(lambda _: Intervention(), torch.arange(probe.batch), look=read_hidden_states)
    return torch.cat([states[0] for states in seen])[:, probe.places]


def suppress_above_minimum(probe: Probe, factors: Tensor, example: Tensor) -> Intervention:
    """Scores counted from the lowest of their row, those of each unit multiplied by 1 - factor: factors [row unit]."""
    kept = factors_kept(probe, factors)
    is_padding = ~probe.layout.mask.cpu()[example]

    def scale_scores(_: int, scores: Tensor) -> Tensor:
        refuse_other_tokens(scores, kept)
        low = scores.masked_fill(is_padding[:, None, None].to(scores.device), torch.inf).amin(-1, keepdim=True)
        return (scores - low) * kept[:, None, None].to(scores)

    return Intervention(unmasked=scale_scores)


def suppress_attention(probe: Probe, factors: Tensor, _: Tensor) -> Intervention:
    """The scores of each unit multiplied by 1 - factor: factors [row unit]."""
    kept = factors_kept(probe, factors)

    def scale_scores(_: int, scores: Tensor) -> Tensor:
        refuse_other_tokens(scores, kept)
        return torch.where(scores > MASK_THRESHOLD, scores * kept[:, None, None].to(scores), scores)

    return Intervention(scores=scale_scores)


def factors_kept(probe: Probe, factors: Tensor) -> Tensor:
    """[row token]: what the scores of each token are multiplied by, 1 for tokens that are no unit."""
    kept = torch.ones(len(factors), probe.layout.length, dtype=torch.float64)
    kept[:, probe.places] = 1 - factors
    return kept


def refuse_other_tokens(scores: Tensor, kept: Tensor) -> None:
    if scores.size(-1) != kept.size(1):
        raise UnsupportedModel("atman needs a model in which every attention has the same tokens.")
