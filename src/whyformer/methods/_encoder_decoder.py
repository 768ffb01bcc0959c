r"""Generic attention explainability for a model with an encoder and a decoder.

$$ R^{ss} \leftarrow R^{ss} + \bar A R^{ss}, \qquad R^{sq} \leftarrow R^{sq} + \bar A R^{sq} \qquad (6, 7) $$

$$ \bar R^{xx} = I + \frac{R^{xx} - I}{\mathrm{rowsum}(R^{xx} - I)} \qquad (8, 9) $$

$$ R^{sq} \leftarrow R^{sq} + (\bar R^{ss})^\top \bar A\,\bar R^{qq} \qquad (10) $$

with $\bar A = \mathbb{E}_h[(\nabla A^h \odot A^h)^+]$ (5), where $A$ is a self-attention of $s$ in (6, 7) and an
attention from $s$ to $q$ in (10). $s$ is what the decoder generates (or DETR's object queries), $q$ the input of the
encoder, whose self-attention changes $R^{qq}$ as in (6). Start: $R^{ss} = I$, $R^{qq} = I$, $R^{sq} = 0$.
Chefer, Gur & Wolf, Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder Transformers,
ICCV 2021. arXiv:2103.15679

Nothing flows back from decoder to encoder, so rule 11 of the paper adds 0; the released DETR code leaves it out, too.
Where a row of $R^{xx} - I$ sums to 0 (no self-attention yet, or none that supports the class) the released code
divides 0 by 0: one such row blanks the whole update. Here such a row stays 0, and that of $\bar R^{xx}$ is that of
$I$.

Pure functions on matrices [batch query key]; nothing here runs a model.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def class_attention(attention: Tensor, attention_grad: Tensor) -> Tensor:
    """Rule 5: [batch head query key] to [batch query key], attention that would raise the explained output."""
    return (attention_grad * attention).clamp(min=0).mean(dim=1)


def make_identity(matrix: Tensor, size: int) -> Tensor:
    """[batch token token]: each token is relevant only for itself."""
    return torch.eye(size, dtype=matrix.dtype, device=matrix.device).expand(len(matrix), size, size)


def normalise_relevancies(own: Tensor) -> Tensor:
    """Rules 8 and 9: the relevance from other tokens, scaled to sum to 1, plus the identity."""
    unit = make_identity(own, own.size(-1))
    gathered = own - unit
    total = gathered.sum(dim=-1, keepdim=True)
    return gathered / total.masked_fill(total == 0, 1) + unit


def combine_streams(encoder: Sequence[Tensor], decoder: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The relevance of s for s, and of q for s; the explanation is the row of the explained token in both.

    encoder: the rule 5 matrix of each layer. decoder: those of the self-attention and the cross-attention of each.
    """
    first_own, first_across = decoder[0]
    ss, qq = (make_identity(first_own, size) for size in first_across.shape[1:])
    sq = torch.zeros_like(first_across)
    for mixing in encoder:
        qq = qq + mixing @ qq
    for own, across in decoder:
        ss, sq = ss + own @ ss, sq + own @ sq
        sq = sq + normalise_relevancies(ss).mT @ across @ normalise_relevancies(qq)
    return ss, sq


def score_two_streams(mixing: Sequence[Tensor], readout: Tensor, streams: Sequence[int]) -> Tensor:
    """[batch token] of source and prefix, one after the other: the rows in which the answer is read.

    mixing: the rule 5 matrix of each attention over both, in the order of the layers. It is 0 outside of the part that
    its attention covers, so that only one of the rules changes anything.
    """
    q = streams[0]
    decoder = [(whole[:, q:, q:], whole[:, q:, :q]) for whole in mixing]
    ss, sq = combine_streams([whole[:, :q, :q] for whole in mixing], decoder)
    row = readout[:, None, q:].to(ss.dtype)
    return torch.cat([row @ sq, row @ ss], -1)[:, 0]
