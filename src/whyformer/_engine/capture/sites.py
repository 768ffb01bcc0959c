"""Sites: the named points of a running model that can be captured, each with its axes and its meaning.

A site whose first axis is `layer` or `boundary` comes as a sequence with one tensor per layer, computed on access. A
stacked tensor works too, since methods only index and iterate.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Quantity = Literal["value", "gradient", "relevance", "other"]


@dataclass(frozen=True)
class Site:
    """A point of a running model that can be captured. `str(site)` gives its axes."""

    name: str
    axes: str
    description: str
    quantity: Quantity = "value"
    of: str | None = None  # what it is the gradient or relevance of
    is_class_specific: bool = False  # it depends on the explained class, so the model needs a head
    is_costly: bool = False  # it takes more than the forward and backward passes of one run

    def __str__(self) -> str:
        return self.axes

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        return tuple(self.axes.split())

    @cached_property
    def has_layers(self) -> bool:
        """One tensor per layer."""
        return self.axis_names[0] == "layer"

    @cached_property
    def has_boundaries(self) -> bool:
        """One tensor per block boundary: one more than there are layers."""
        return self.axis_names[0] == "boundary"

    @cached_property
    def has_heads(self) -> bool:
        return "head" in self.axis_names

    @cached_property
    def is_gradient(self) -> bool:
        return self.quantity == "gradient"

    @cached_property
    def is_relevance(self) -> bool:
        """It belongs to a relevance recipe."""
        return self.quantity == "relevance"


def make_gradient_site(of: str, axes: str, name: str = "", description: str = "") -> Site:
    description = description or f"gradient of the explained score by `{of}`"
    return Site(name or f"{of}_grad", axes, description, "gradient", of, True)


def make_relevance_site(of: str, axes: str, description: str = "") -> Site:
    return Site(f"{of}_relevance", axes, description or f"relevance that arrives at `{of}`", "relevance", of, True)


def make_parts_site(name: str, description: str) -> Site:
    return Site(name, "batch token", description, "other", is_class_specific=True, is_costly=True)


ATTENTION_GRADIENTS = {
    "direct_attention_grad": "gradient by `attention` along paths that avoid later attention (skip connections, MLPs)",
    "layer_attention_grad": "gradient by `attention` of what the head of the model reads from the output of the same "
    "layer",
    "mean_attention_grad": "the same, read from the mean over tokens, as a share of the length of all logits",
}
_HEAD_MATRIX = "layer batch head query key"
_HEAD_OUTPUT = "layer batch head query channel"
_HEAD_KEYS = "layer batch head key channel"
_STATE = "layer batch token channel"
_BOUNDARY = "boundary batch token channel"
_INPUT = "batch *place channel"  # *place is `token`, or `height width` of an image

SITES: dict[str, Site] = {
    site.name: site
    for site in (
        Site("attention", _HEAD_MATRIX, "attention weights, after the softmax"),
        make_gradient_site("attention", _HEAD_MATRIX),
        make_relevance_site("attention", _HEAD_MATRIX),
        Site("attention_scores", _HEAD_MATRIX, "attention scores before the softmax, after scale and mask"),
        *(
            make_gradient_site("attention", _HEAD_MATRIX, name, description)
            for name, description in ATTENTION_GRADIENTS.items()
        ),
        Site("attention_input", _STATE, "what the module that computes attention receives"),
        Site("query", _HEAD_OUTPUT, "queries"),
        Site("key", _HEAD_KEYS, "keys"),
        Site("value", _HEAD_KEYS, "values"),
        Site("attention_output", _HEAD_OUTPUT, "attention @ value, before the heads are concatenated"),
        make_gradient_site("attention_output", _HEAD_OUTPUT),
        Site("projected", _HEAD_KEYS, "what a head adds to a token that attends only to this key"),
        Site("residual", _STATE, "the state that the attention output of a block is added to"),
        Site("middle", _STATE, "the state after that addition, and after the norm that follows it, if any"),
        Site("update", _STATE, "what the second half of a block adds to `middle`"),
        Site("norms", "layer norm", "the norms after the two additions of a block, as linear maps", "other"),
        Site(
            "hidden",
            _BOUNDARY,
            "hidden states: [0] enters the first block, [-1] leaves the last; of an encoder and a decoder, those that "
            "each attention reads",
        ),
        make_gradient_site("hidden", _BOUNDARY),
        make_relevance_site("hidden", _BOUNDARY),
        Site("unattended", "block", "for each block, whether it mixes tokens without attention", "other"),
        Site("input", _INPUT, "the explained input: pixels, or the embeddings of the token ids"),
        make_gradient_site("input", _INPUT),
        make_relevance_site("input", _INPUT),
        make_relevance_site("token", "batch token", "relevance of the tokens without their positions"),
        make_relevance_site(
            "position",
            "place use batch token",
            "relevance of positions, per place where they are added; queries and keys are two uses of rotary positions",
        ),
        make_parts_site(
            "answer_parts", "what each token contributes to the explained logit, propagated through all layers"
        ),
        make_parts_site("released_answer_parts", "the same with biases shared as in the released code of DecompX"),
        Site("readout", "batch token", "how much of the answer is read at each token; sums to 1"),
        Site("mask", "batch token", "True where a token is not padding"),
        Site(
            "streams",
            "stream",
            "the lengths of source and prefix, of an encoder and a decoder; one length if attentions do not all cover "
            "the same tokens; else ()",
            "other",
        ),
        Site("special", "batch token", "True where a token is no word and no patch (CLS, SEP, registers)"),
        Site("fingerprint", "batch", "an integer that depends only on the example, not on its batch", "other"),
        Site("probe", "a Probe", "runs the model on variants of the examples", "other", is_costly=True),
    )
}
