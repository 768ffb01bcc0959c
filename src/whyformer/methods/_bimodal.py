r"""Generic attention explainability for two sequences: the rules for co-attention and for encoder-decoder models.

$$ R^{ss} \leftarrow R^{ss} + \bar A R^{ss}, \qquad R^{sq} \leftarrow R^{sq} + \bar A R^{sq} \qquad (6, 7) $$

$$ \bar R^{xx} = I + \frac{R^{xx} - I}{\mathrm{rowsum}(R^{xx} - I)} \qquad (8, 9) $$

$$ R^{sq} \leftarrow R^{sq} + (\bar R^{ss})^\top \bar A\,\bar R^{qq}, \qquad R^{ss} \leftarrow R^{ss} + \bar A R^{qs}
   \qquad (10, 11) $$

with $\bar A = \mathbb{E}_h[(\nabla A^h \odot A^h)^+]$ (5), where $A$ is a self-attention of $s$ in (6, 7) and an
attention from $s$ to $q$ in (10, 11). Right-hand sides use the matrices before the update. Start: $R^{ss} = I$,
$R^{qq} = I$, the others 0.
Chefer, Gur & Wolf, Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder Transformers,
ICCV 2021. arXiv:2103.15679

Where a row of $R^{xx} - I$ sums to 0 (no self-attention yet, or none that supports the class) the released code
divides 0 by 0: in its DETR part one such row blanks the whole update, in its LXMERT part it spreads NaN. Here such a
row stays 0, so the row of $\bar R^{xx}$ is that of $I$.

Pure functions on matrices [batch query key]; nothing here runs a model. `generic_attention` uses them for models with
an encoder and a decoder.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Relevancies(NamedTuple):
    """Relevance of each token of s and q for each token of s and q; [batch, token, token] each."""

    ss: Tensor
    sq: Tensor
    qs: Tensor
    qq: Tensor

    @property
    def swapped(self) -> "Relevancies":
        """The same with s and q exchanged."""
        return Relevancies(self.qq, self.qs, self.sq, self.ss)


def init_relevancies(batch: int, s: int, q: int, like: Tensor) -> Relevancies:
    """Each token is relevant only for itself."""
    zeros = [like.new_zeros(batch, *shape) for shape in ((s, q), (q, s))]
    identity = [torch.eye(n, dtype=like.dtype, device=like.device).expand(batch, n, n).clone() for n in (s, q)]
    return Relevancies(identity[0], zeros[0], zeros[1], identity[1])


def class_attention(attention: Tensor, attention_grad: Tensor) -> Tensor:
    """Rule 5: [batch head query key] to [batch query key], attention that would raise the explained output."""
    return (attention_grad * attention).clamp(min=0).mean(dim=1)


def apply_self_attention(before: Relevancies, mixing: Tensor) -> Relevancies:
    """Rules 6 and 7, for a self-attention of s."""
    return before._replace(ss=before.ss + mixing @ before.ss, sq=before.sq + mixing @ before.sq)


def normalise_relevancies(own: Tensor) -> Tensor:
    """Rules 8 and 9: the relevance from other tokens, scaled to sum to 1, plus the identity."""
    unit = torch.eye(own.size(-1), dtype=own.dtype, device=own.device)
    gathered = own - unit
    total = gathered.sum(dim=-1, keepdim=True)
    return gathered / total.masked_fill(total == 0, 1) + unit


def apply_cross_attention(before: Relevancies, mixing: Tensor, *, normalise: bool = True) -> Relevancies:
    """Rules 10 and 11, for attention from s to q. normalise=False is the ablation in the released code."""
    ss, qq = (
        (normalise_relevancies(before.ss), normalise_relevancies(before.qq)) if normalise else (before.ss, before.qq)
    )
    return before._replace(sq=before.sq + ss.mT @ mixing @ qq, ss=before.ss + mixing @ before.qs)


def apply_co_attention(before: Relevancies, s_to_q: Tensor, q_to_s: Tensor, *, normalise: bool = True) -> Relevancies:
    """A layer in which s and q attend to each other; both directions use the matrices before the layer."""
    forth = apply_cross_attention(before, s_to_q, normalise=normalise)
    back = apply_cross_attention(before.swapped, q_to_s, normalise=normalise).swapped
    return Relevancies(forth.ss, forth.sq, back.qs, back.qq)


def apply_encoder_decoder(
    encoder: Sequence[Tensor], decoder: Sequence[tuple[Tensor, Tensor]], *, normalise: bool = True
) -> Relevancies:
    """Relevance in an encoder-decoder model; the explanation is the row of the explained token in `sq`.

    s is what the decoder generates (or DETR's object queries), q the input of the encoder.
    encoder: the rule 5 matrix of each encoder layer.
    decoder: the rule 5 matrices of the self-attention and of the cross-attention of each decoder layer.
    Nothing flows back from decoder to encoder, so rule 11 adds 0; the released DETR code leaves it out.
    """
    batch, length = decoder[0][0].shape[:2]
    relevancies = init_relevancies(batch, length, decoder[0][1].size(-1), decoder[0][0])
    for mixing in encoder:
        relevancies = apply_self_attention(relevancies.swapped, mixing).swapped
    for own, across in decoder:
        relevancies = apply_cross_attention(apply_self_attention(relevancies, own), across, normalise=normalise)
    return relevancies


def score_two_streams(mixing: Sequence[Tensor], readout: Tensor, streams: Sequence[int]) -> Tensor:
    """[batch token] of source and prefix, one after the other: the rows in which the answer is read.

    mixing: the rule 5 matrix of each attention over both, in the order of the layers. It is 0 outside of the part that
    its attention covers, so that only one of the rules changes anything.
    """
    q = streams[0]
    decoder = [(whole[:, q:, q:], whole[:, q:, :q]) for whole in mixing]
    found = apply_encoder_decoder([whole[:, :q, :q] for whole in mixing], decoder)
    row = readout[:, None, q:].to(found.ss.dtype)
    return torch.cat([row @ found.sq, row @ found.ss], -1)[:, 0]
