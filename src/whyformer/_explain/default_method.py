"""The methods that are used when the caller names none, by the kind of input.

Chosen by measurement: "The defaults" in docs/judge-measured.md, by the programs in evaluation/.
"""

from whyformer._model import EncodedBatch

IMAGE_METHOD = "gamma_attribution"
TEXT_METHOD = "libragrad"  # texts and every other sequence, for classifiers and language models
DEFAULT_METHODS = {"images": IMAGE_METHOD, "texts": TEXT_METHOD}  # in the words of `whyformer methods`
STAND_INS = {method: "attnlrp" for method in DEFAULT_METHODS.values()}  # where a default does not work
# One of each family among the best of their kind, from one run: what compare() shows if no method is named. Where one
# does not work, another quick method takes its place.
WORTH_COMPARING = {
    "images": ("gamma_attribution", "transformer_attribution", "libragrad", "lrp_gamma", "legrad", "rollout"),
    "texts": ("libragrad", "attnlrp", "legrad", "gamma_attribution", "attcat", "rollout"),
}
OTHER_CLASS_METHODS = ("grad_cam", "attcat", "attnlrp", "rollout")  # beside the default, in explain_classes


def choose_default_method(encoded: EncodedBatch) -> str:
    """The default for this kind of input."""
    return DEFAULT_METHODS[find_input_kind(encoded)]


def find_input_kind(encoded: EncodedBatch) -> str:
    """Images are numbers with two axes of space (and one of time, for videos); all else is handled as texts."""
    explained = encoded.inputs[encoded.main]
    return "images" if explained.is_floating_point() and explained.dim() >= 4 else "texts"


def list_default_kinds(name: str) -> list[str]:
    """The kinds of input that this method is the default for."""
    return [kind for kind, default in DEFAULT_METHODS.items() if default == name]
