"""The register of kinds: every way of writing a model that is strange to us has a name, and a rule that builds it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from strangers.draft import Draft

Build = Callable[[Draft], None]
EVERY = ("ids", "series", "table", "image")
AXES = ("made", "mixed", "read", "returned", "passed", "whole")


@dataclass(frozen=True)
class Kind:
    name: str
    point: str  # the family that it is counted in
    axis: str
    modalities: Sequence[str]
    build: Build
    batch: int | None = None  # the number of rows that it needs
    takes_over: bool = False  # it puts a mixing of its own in the place of what was drawn
    combines: bool = True
    one_input: bool = False  # the model takes no second one

    def goes_with(self, other: "Kind") -> bool:
        if "passed" in (self.axis, other.axis) and (self.one_input or other.one_input):
            return False
        if self.axis == other.axis or not (self.combines and other.combines) or (self.takes_over and other.takes_over):
            return False
        return bool(set(self.modalities) & set(other.modalities))


KINDS: dict[str, Kind] = {}


def kind(
    name: str, point: str, axis: str, modalities: Sequence[str] = EVERY, **settings: Any
) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        assert name not in KINDS
        assert axis in AXES
        KINDS[name] = Kind(name, point, axis, tuple(modalities), build, **settings)
        return build

    return register
