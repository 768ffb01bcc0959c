"""Given scores as a method, so that judge() and compare() take them beside their own.

judge(model, texts, ["libragrad", Explanation.from_scores(model, texts, scores, method="captum IG")])
"""

from collections.abc import Callable

import torch
from torch import Tensor

from whyformer._engine import Probe
from whyformer._plain.tokens import Pieces
from whyformer.errors import InputError, MethodError
from whyformer.methods._registry import METHODS, Method
from whyformer.results.explanation import Explanation
from whyformer.results.given_scores import FINGERPRINT, read_fingerprints


def as_given_method(given: Explanation) -> Method:
    """A method that returns the scores of this explanation for the examples that it has, and refuses others."""
    if FINGERPRINT not in given.details:
        raise MethodError(
            f"This explanation by {given.method} cannot be used as a method: name the method, or pass scores that were "
            "computed elsewhere by Explanation.from_scores()."
        )
    name = f"{given.method} (given)" if given.method in METHODS else given.method
    return Method(
        name, make_look_up(given), ("probe",), {}, "", given.class_specific, given.signed, None,
        extra_cost="given scores", is_given=True,
    )  # fmt: skip


def make_look_up(given: Explanation) -> Callable[..., Tensor]:
    """The function of the method: finds each example by its fingerprint."""
    rows = {number: i for i, number in enumerate(read_fingerprints(given.details[FINGERPRINT]))}

    def look_up(probe: Probe) -> Tensor:
        found = [rows.get(number) for number in probe.fingerprints]
        if None in found:
            raise InputError(f"{given.method} has no scores for {probe.encoded.names[found.index(None)]}.")
        places = [place for place in found if place is not None]
        for place, target in zip(places, probe.targets, strict=True):
            own = given.targets[place]
            if (own.index, own.spec, own.versus) != (target.index, target.spec, target.versus):
                raise InputError(
                    f"The scores of {given.method} explain {own.label!r}, not {target.label!r}. Pass the same target= "
                    "to both."
                )
        if given.pixels is not None:
            return given.pixels[places]
        return torch.stack([move_scores(given, place, probe, i) for i, place in enumerate(places)])

    return look_up


def move_scores(given: Explanation, place: int, probe: Probe, example: int) -> Tensor:
    """The scores of an example, padded as it is in this batch."""
    own, there = given.tokens[place], probe.tokens[example]
    if not isinstance(own, Pieces) or not isinstance(there, Pieces):
        return given.scores[place]
    source, goal = (~torch.tensor(tokens.padding) for tokens in (own, there))
    if int(source.sum()) != int(goal.sum()):
        raise InputError(f"{given.method} has {int(source.sum())} scores for {int(goal.sum())} tokens.")
    moved = given.scores.new_zeros(len(there))
    moved[goal] = given.scores[place][source]
    return moved
