"""The metrics, one file per idea. Importing this package fills METRICS.

    faithfulness    perturbation games aopc rationale_removal road saco infidelity datamodelling
    localisation    segmentation localisation grid
    plausibility    rationales answers
    stability       stability
    discrimination  discrimination
    sanity          sanity
    agreement       agreement
    form            fragmentation

Private files:

    _registry    the `@metric` decorator, the METRICS table, and how a metric is measured and combined
    _settings    checks for setting values
    _rerun       the same method on other inputs, targets or weights
    _removal     the model's answers when units are removed in the order of their scores
    _ordering    the order of units by score, and how ties are broken
    _maps        explanations as maps of pixels, and object masks
    _similarity  rank correlation of two explanations
"""

from whyformer.metrics._registry import METRICS
from whyformer.metrics.agreement import agreement
from whyformer.metrics.answers import answer_tokens
from whyformer.metrics.aopc import aopc, log_odds
from whyformer.metrics.datamodelling import lds
from whyformer.metrics.discrimination import class_discrimination
from whyformer.metrics.fragmentation import fragment_spread, fragments
from whyformer.metrics.games import deletion, insertion
from whyformer.metrics.grid import grid_pointing_game
from whyformer.metrics.infidelity import faithfulness_correlation, infidelity
from whyformer.metrics.localisation import mass_in_mask, pointing_game, rank_in_mask
from whyformer.metrics.perturbation import negative_perturbation, positive_perturbation
from whyformer.metrics.rationale_removal import comprehensiveness, sufficiency
from whyformer.metrics.rationales import auprc, iou_f1, token_f1
from whyformer.metrics.road import road
from whyformer.metrics.saco import saco
from whyformer.metrics.sanity import class_swap, label_randomised_twin, parameter_randomisation
from whyformer.metrics.segmentation import mean_average_precision, mean_f1, mean_iou, pixel_accuracy
from whyformer.metrics.stability import consistency, max_sensitivity, repeatability

__all__ = sorted(METRICS)
