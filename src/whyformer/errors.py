"""All exceptions that whyformer raises on purpose.

    WhyformerError
    ├── InputError            a problem with the image, text or tensors to explain
    ├── ModelError            a problem with the model
    │   ├── ModelNotFound     no such folder or model name
    │   ├── IncompleteModel   weights are missing, damaged or not finite
    │   ├── UnsafeModel       pickle weights, or code in the model folder
    │   ├── UnsupportedModel  the model runs, but its operations cannot be followed
    │   │   └── NoAttention   the forward pass contains no attention
    │   └── UnknownOperation  the relevance recipe has no rule for an operation
    ├── TargetError           no such class or token to explain
    ├── MethodError           no such method, or a wrong setting of it
    ├── MetricError           no such metric, or a wrong setting of it
    ├── NotCaptured           the capture did not record what was asked for
    └── NonFinite             NaN or infinity in an output, gradient or relevance

A message says what was asked, what is available and what to do. `exit_code` is the exit status of the command line.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class WhyformerError(Exception):
    exit_code = 1


class InputError(WhyformerError):
    exit_code = 3


class ModelError(WhyformerError):
    exit_code = 4


class ModelNotFound(ModelError):
    pass


class IncompleteModel(ModelError):
    pass


class UnsafeModel(ModelError):
    pass


class UnsupportedModel(ModelError):
    pass


class NoAttention(UnsupportedModel):
    pass


class UnknownOperation(ModelError):
    pass


class TargetError(WhyformerError):
    exit_code = 2


class MethodError(WhyformerError):
    exit_code = 2


class MetricError(WhyformerError):
    exit_code = 2


class NotCaptured(WhyformerError):
    pass


class NonFinite(WhyformerError):
    exit_code = 5


def suggest_nearest(word: str, words: Iterable[str]) -> str:
    """A hint for an error message: " Did you mean 'rollout'?", or "" if no known word is similar."""
    close = get_close_matches(word, list(words), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
