r"""The similarity of two inputs as a sum over pairs of tokens, one of either side.

For two embeddings $u$ and $v$ of length 1 (or of their own length, for the dot product) and a scale $s$,

$$ M_{ij} = s \sum_m R_i^m(a) \, R_j^m(b), \qquad \sum_i R_i^m(a) + r^m(a) = u_m $$

where $R_i^m(a)$ is the relevance of token $i$ of $a$ for channel $m$ of the embedding (BiLRP: Eberle et al., TPAMI
2022, arXiv:2003.05431). What does not arrive at a token, $r^m$, is kept: biases absorb relevance, and so do the class
token and the positions of an image. It is the last row and the last column, "elsewhere". With them, the matrix sums to
the score; a bias of the score itself is in the corner.

Deviations from the paper: it uses LRP-gamma for convolutional networks; here $R$ comes from any class-specific method,
by default attnlrp. The lengths of $u$ and $v$ are constant.

The method runs once for every channel and side, in chunks of repeated rows: for a BERT, 2 x 768 forward and backward
rows. "states" is the cheap variant, of first order in the final states: $M_{ij} = s w_i w_j \langle h_i(a), h_j(b)
\rangle$ with the weights of the pooling. It needs no further run, but says which positions carry the similarity at the
end, not which words they got it from.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from whyformer._engine import make_shadow, run_plain
from whyformer._explain.method_call import MethodCall, choose_method
from whyformer._explain.scoring import make_explanation
from whyformer._explain.sharing import record_for_methods
from whyformer._model import Embedding, EncodedBatch, Model, pick_examples, pool_tokens
from whyformer._plain.progress import show_progress
from whyformer.errors import InputError, UnsupportedModel

if TYPE_CHECKING:
    from whyformer._explain.similarity import Side

DEFAULT, STAND_IN = "attnlrp", "gradient_x_input"
CHANNELS_AT_ONCE = {"cpu": 32, "cuda": 256}
Embedder = tuple[Model, EncodedBatch]  # a model that returns one vector per example, and its inputs


def refuse_unknown_matrix(matrix: str) -> None:
    """Refuse all but "auto", "states" and class-specific methods."""
    if not isinstance(matrix, str):
        raise InputError(f"matrix must be the name of a method, 'states' or None, got {matrix!r}.", code="E_OPTION")
    if matrix in ("auto", "states"):
        return
    if not choose_method(matrix, {}).method.class_specific:
        raise InputError(
            f"matrix={matrix!r}: that method gives every channel of an embedding the same scores. Use a class-specific "
            "one, such as attnlrp.",
            code="E_OPTION",
        )


def compute_matrix(
    sides: Sequence[Embedder], matrix: str, scale: float, bias: float, *, normalises: bool
) -> tuple[Tensor, str, tuple[str, ...]]:
    """[batch token token] by a method; the default is replaced by another, with a note, where it does not work."""
    if matrix != "auto":
        return multiply_relevance(sides, choose_method(matrix, {}), scale, bias, normalises), matrix, ()
    try:
        return multiply_relevance(sides, choose_method(DEFAULT, {}), scale, bias, normalises), DEFAULT, ()
    except UnsupportedModel as error:
        note = f"The matrix is by {STAND_IN}, since {DEFAULT} does not work here: {error}"
        found = multiply_relevance(sides, choose_method(STAND_IN, {}), scale, bias, normalises)
        return found, STAND_IN, (note,)


def multiply_relevance(
    sides: Sequence[Embedder], call: MethodCall, scale: float, bias: float, normalises: bool
) -> Tensor:
    """[batch token token]: the sum over channels of the products of what either side's tokens add to a channel."""
    parts = []
    for model, encoded in sides:
        shares = split_channels(model, encoded, call)
        length = shares.sum(1, keepdim=True).norm(dim=-1, keepdim=True)  # of the embedding
        parts.append(shares / length if normalises else shares)
    return add_bias(scale * torch.einsum("bim,bjm->bij", *parts), bias)


def split_channels(model: Model, encoded: EncodedBatch, call: MethodCall) -> Tensor:
    """[batch token channel]: how much each token adds to each channel of the embedding; elsewhere is the last token."""
    channels = run_plain(make_shadow(model.module), encoded).size(-1)
    rows = encoded.batch * channels  # all channels of the first example, then those of the second ...
    parts = []
    with show_progress(rows, "channels") as progress:
        for chosen in torch.arange(rows).split(CHANNELS_AT_ONCE.get(model.device.type, 32)):
            repeated = pick_examples(encoded, chosen // channels)
            capture = record_for_methods([call], model, repeated, (chosen % channels).tolist(), None)
            e = make_explanation(call, model, repeated, capture)
            values = torch.tensor([target.score for target in e.targets], dtype=torch.double)
            relevance = e.scores.double()
            parts.append(torch.cat([relevance, values[:, None] - relevance.sum(-1, keepdim=True)], -1))
            progress.advance(len(chosen))
    return torch.cat(parts).unflatten(0, (encoded.batch, channels)).mT


def add_bias(table: Tensor, bias: float) -> Tensor:
    """The bias of the score belongs to no token, so it goes into the corner."""
    table[:, -1, -1] += bias
    return table


def multiply_states(sides: Sequence["Side"], scale: float, bias: float, *, normalises: bool) -> Tensor:
    """[batch token token]: the products of the final states, weighted as in the pooling."""
    parts = []
    for side in sides:
        if side.readout is None:
            raise UnsupportedModel(
                f'matrix="states" needs an embedding that is a mean or one of the states, not {side.pooling!r}. Use '
                'matrix="attnlrp".'
            )
        states = run_plain(make_shadow(Embedding(side.model.module, "tokens")), side.encoded).double()
        eye = torch.eye(states.size(1), dtype=torch.double).expand(len(states), -1, -1).to(states)
        weights = pool_tokens(eye, side.pooling, side.mask)  # what the pooling makes of each position
        shares = states * weights[..., None]
        nothing = torch.zeros_like(shares[:, :1])
        length = shares.sum(1, keepdim=True).norm(dim=-1, keepdim=True) if normalises else 1.0
        parts.append(torch.cat([shares, nothing], 1) / length)
    return add_bias(scale * torch.einsum("bim,bjm->bij", *parts).cpu(), bias)


def match_tokens(embeddings: Sequence[Tensor], masks: Sequence[Tensor | None]) -> Tensor:
    """[batch query document]: each token of the query with its best match; elsewhere is empty."""
    query, document = (vectors.double().cpu() for vectors in embeddings)
    ours, theirs = (
        torch.ones(v.shape[:2], dtype=torch.bool) if m is None else m.bool().cpu()
        for v, m in zip((query, document), masks, strict=True)
    )
    products = torch.einsum("bid,bjd->bij", query, document)
    best = products.masked_fill(~theirs[:, None], -torch.inf).argmax(-1)
    table = products * one_hot(best, document.size(1)) * ours[..., None]
    return torch.nn.functional.pad(table, (0, 1, 0, 1))
