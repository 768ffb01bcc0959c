"""The attribution methods, one file per paper. Importing this package fills METHODS.

Each file has the formula, the paper and our deviations from it in its module docstring, and a function decorated with
`@method`. Families, by what a method reads:

    attention weights       raw_attention rollout attention_flow redistribution
    ... and values          norm_analysis globenc alti value_zeroing
    attention gradients     grads attgrads grad_cam generic_attention legrad agcam tokentm bi_attribution
    input gradients         saliency gradient_x_input cat attcat smooth_grad integrated_gradients
    relevance (LRP)         lrp lrp_epsilon lrp_gamma attnlrp cp_lrp pa_lrp partial_lrp libragrad
    ... and gradients       transformer_attribution gamma_attribution
    token decomposition     decompx
    perturbed inputs        leave_one_out occlusion rise lime kernel_shap partition_shap vit_cx atman
                            context_cite
    random baseline         chance

Private files:

    _registry       the `@method` decorator and the METHODS table
    _layers_and_heads  `layers=`, `heads=` and `per_layer=` for every method
    _settings       checks for setting values
    _readout_row    products of token-to-token matrices, read at the tokens the answer comes from
    _contributions  what each token contributes to each other token in one block, as vectors
    _boundary       hidden states between two blocks
    _players        the units that perturbation methods keep or remove (superpixels too), and the model's answers
    _answers        score, probability or log-odds of the model's answers
    _encoder_decoder  Chefer et al.'s rules for an encoder and a decoder
"""

from whyformer.methods._registry import METHODS
from whyformer.methods.agcam import agcam
from whyformer.methods.alti import alti
from whyformer.methods.atman import atman
from whyformer.methods.attcat import attcat, cat
from whyformer.methods.attention_flow import attention_flow
from whyformer.methods.attgrads import attgrads
from whyformer.methods.attnlrp import attnlrp
from whyformer.methods.bi_attribution import bi_attribution
from whyformer.methods.chance import chance
from whyformer.methods.context_cite import context_cite
from whyformer.methods.cp_lrp import cp_lrp
from whyformer.methods.decompx import decompx
from whyformer.methods.gamma_attribution import gamma_attribution
from whyformer.methods.generic_attention import generic_attention
from whyformer.methods.globenc import globenc
from whyformer.methods.grad_cam import grad_cam
from whyformer.methods.gradient_x_input import gradient_x_input
from whyformer.methods.grads import grads
from whyformer.methods.integrated_gradients import integrated_gradients
from whyformer.methods.kernel_shap import kernel_shap
from whyformer.methods.leave_one_out import leave_one_out
from whyformer.methods.legrad import legrad
from whyformer.methods.libragrad import libragrad
from whyformer.methods.lime import lime
from whyformer.methods.lrp import lrp
from whyformer.methods.lrp_epsilon import lrp_epsilon
from whyformer.methods.lrp_gamma import lrp_gamma
from whyformer.methods.norm_analysis import norm_analysis
from whyformer.methods.occlusion import occlusion
from whyformer.methods.pa_lrp import pa_lrp
from whyformer.methods.partial_lrp import partial_lrp
from whyformer.methods.partition_shap import partition_shap
from whyformer.methods.raw_attention import raw_attention
from whyformer.methods.redistribution import redistribution
from whyformer.methods.rise import rise
from whyformer.methods.rollout import rollout
from whyformer.methods.saliency import saliency
from whyformer.methods.smooth_grad import smooth_grad
from whyformer.methods.tokentm import tokentm
from whyformer.methods.transformer_attribution import transformer_attribution
from whyformer.methods.value_zeroing import value_zeroing
from whyformer.methods.vit_cx import vit_cx

__all__ = sorted(METHODS)
