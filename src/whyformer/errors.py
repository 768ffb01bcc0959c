"""Everything whyformer raises on purpose.

    WhyformerError
    ├── InputError            the picture, text or tensors given
    ├── ModelError            the model given
    │   ├── ModelNotFound     no such folder or name
    │   ├── IncompleteModel   weights missing, damaged or not finite
    │   ├── UnsafeModel       pickle weights, code in the model folder
    │   ├── UnsupportedModel  it runs, but we cannot see into it
    │   │   └── NoAttention   it ran without reaching attention
    │   └── UnknownOperation  a recipe has no rule for an operation on the way
    ├── TargetError           the class or token to explain
    ├── MethodError           the method, or a setting of it
    ├── MetricError           the metric, or a setting of it
    ├── NotCaptured           a capture was asked for what it does not hold
    └── NonFinite             NaN or infinity where a number is due

A message says what was asked, what is there and what to do. `exit_code` is what the command line returns.
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
    """' Did you mean 'rollout'?' or nothing, for the middle of a message."""
    close = get_close_matches(word, list(words), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
