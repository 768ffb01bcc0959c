r"""Layer-wise relevance propagation, down to the input.

$$ s_j = \sum_c R^{(0)}_{jc}, \qquad R^{(l)}_j = \sum_i \frac{x_j w_{ji}}{\sum_k x_k w_{ki}}\,R^{(l+1)}_i $$

from $R^{(L)}$ = one-hot at the explained class, so that the total relevance is 1; $c$ runs over channels.
Bach et al., On Pixel-wise Explanations for Non-Linear Classifier Decisions by Layer-Wise Relevance Propagation,
PLoS ONE 10(7), 2015, doi:10.1371/journal.pone.0130140. For transformers: Chefer, Gur & Wolf, CVPR 2021, section 3.
arXiv:2012.09838

The recipe, a set of rules, says which rule each operation follows. The default is "chefer", the rules of the 2021 paper
(positive products in linear layers, skip connections renormalised), which conserve relevance. The released "LRP"
baseline is different, `recipe="chefer_baseline"`: every linear layer doubles the total. Relevance arrives at the pixels
of an image, or at the input of the first block of a text (the released code does not go through the embeddings either).
The released BERT code sets CLS to 0: `own="zero"`.
"""

from torch import Tensor

from whyformer._plain.setting_checks import allow_choice
from whyformer.errors import MethodError
from whyformer.methods._readout_row import require_readout_token
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings


@method(paper="Bach et al., PLoS ONE 2015", class_specific=True, signed=True, recipe="chefer")
@check_method_settings(own=allow_choice(("keep", "zero")))
def lrp(input_relevance: Tensor, readout: Tensor, *, own: str = "keep") -> Tensor:
    """The share of the explained output that each token or pixel accounts for, propagated back layer by layer.

    own: "keep", or "zero" for the readout token (token scores only; pixels have no readout token).
    """
    scores = input_relevance.sum(dim=-1)
    if own == "keep":
        return scores
    if scores.shape != readout.shape:
        raise MethodError(
            f"own={own!r} applies to tokens, but these scores belong to pixels. Use own='keep'.", code="E_OPTION"
        )
    return scores.masked_fill(require_readout_token(readout, own), 0)
