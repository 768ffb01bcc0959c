"""What each metric is known to reward besides a good explanation.

Removal: a perturbed input is unlike the training data, so the model may react to the hole rather than to what is
missing (Hooker et al., NeurIPS 2019, arXiv:1806.10758; Rong et al., ICML 2022, arXiv:2202.00449). Sanity checks: a
random map passes (Binder et al., CVPR 2023, arXiv:2211.12486). Plausibility is not faithfulness (Jacovi & Goldberg, ACL
2020, arXiv:2004.03685). The controls (controls.py) show on the data at hand whether a weakness matters.
"""

from whyformer._runs.preparation import KindOfInput
from whyformer.metrics._registry import MetricCall

HOLES = "an input with parts removed is unlike the training data, and the model may react to the hole itself"
DUST = f"{HOLES}; scattered single pixels (dust) do that wherever they fall, so fine noise scores well"
WHOLE_OBJECT = f"{HOLES}; a map that covers the whole object does well for any class"
FEW_WORDS = "a few words without their sentence are unlike the training data"
OBJECT = (
    "it rewards covering the object whatever the class, and a blob in the centre does well where objects are centred"
)
PEOPLE = "people mark what convinces them, which may not be what the model uses"
CONSTANT = "a map that never changes is perfectly stable, so it says nothing about being right"
RANDOM_PASSES = "random maps pass, so it can only raise an alarm"

# The metrics that have each; (images, texts) where the two differ.
METRICS_BY_WEAKNESS: dict[str | tuple[str, str], str] = {
    HOLES: "aopc comprehensiveness saco",
    (DUST, HOLES): "deletion positive_perturbation",
    (WHOLE_OBJECT, FEW_WORDS): "insertion negative_perturbation sufficiency",
    f"{HOLES}; with few random sets it is noisy": "faithfulness_correlation",
    f"{HOLES}; scores must add up, which many maps are not made for": "infidelity",
    f"{HOLES}, and half of it is removed; scores must add up, which many maps are not made for": "lds",
    f"{HOLES}; one input whose probability falls to almost nothing outweighs many": "log_odds",
    "pixels imputed from their neighbours still show coarse shapes, so smooth parts are hardly removed at all": "road",
    "grids of images are unlike the training data, and a tile counts as a whole": "grid_pointing_game",
    OBJECT: "mass_in_mask mean_average_precision mean_f1 mean_iou pixel_accuracy rank_in_mask",
    f"one pixel decides; {OBJECT}": "pointing_game",
    f"in a text of about k tokens every map does well; {PEOPLE}": "answer_tokens",
    PEOPLE: "auprc iou_f1 token_f1",
    CONSTANT: "consistency max_sensitivity",
    "a method without random numbers is always repeatable, right or wrong": "repeatability",
    RANDOM_PASSES: "class_discrimination class_swap label_randomised_twin parameter_randomisation",
    "methods that agree may all be wrong": "agreement",
    "one bright patch in a wrong place is not fragmented": "fragment_spread fragments",
}
WEAKNESSES = {metric: weakness for weakness, metrics in METRICS_BY_WEAKNESS.items() for metric in metrics.split()}


def describe_weakness(metric: str, kind: KindOfInput | None) -> str:
    """A clause on what the metric rewards besides a good explanation; empty for a metric that is not listed."""
    found = WEAKNESSES.get(metric, "")
    return found if isinstance(found, str) else found[kind == "texts"]


def describe_judged_metric(call: MetricCall, kind: KindOfInput | None, scale: str = "probability") -> str:
    """One sentence: what the metric measures, what is better, and its known weakness. scale: of what falls."""
    weakness = describe_weakness(call.metric.name, kind)
    clauses = [call.metric.summary.rstrip("."), f"{call.metric.better} is better"]
    said = "; ".join([*clauses, *([f"known weakness: {weakness}"] if weakness else [])]).lstrip("; ") + "."
    return said.replace("the target's", "the explained").replace("probability", scale) if scale == "output" else said
