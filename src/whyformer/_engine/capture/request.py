"""A run request: what to run, what is explained, what is kept; and the runners that can carry it out.

A runner accepts a request, or says why not. While it runs it may still find that it cannot (`Declined`); then the next
one is asked. `Capture.engine` says which one ran, and why those before it did not.
"""

import os
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from whyformer._engine.capture.capture import Capture, EpilogueResults
from whyformer._engine.relevance.recipes import Recipe
from whyformer._engine.run.intervene import Intervention
from whyformer._engine.targets.target_like import TargetLike
from whyformer._model import EncodedBatch, Model


@dataclass(frozen=True)
class Epilogue:
    """What is computed from a capture as the last part of a recorded program.

    compute: gives nested tensors by a name and the recipe they depend on, or None, of a capture and its batch, whose
    masks are tensors of the program. Such a capture has no other values.
    key: what `compute` depends on besides these.
    """

    key: Hashable
    compute: Callable[[Capture, EncodedBatch], EpilogueResults]


@dataclass(frozen=True)
class RunRequest:
    """One run of a model, and what it is to keep."""

    model: Model
    encoded: EncodedBatch
    keep: frozenset[str]
    target: TargetLike = None
    versus: TargetLike = None
    recipes: tuple[Recipe, ...] = ()
    track_absorbed: bool = False  # also keep, per recipe, the relevance that did not reach the input
    intervention: Intervention | None = None  # attention to use instead of the model's own
    epilogue: Epilogue | None = None  # what a recorded program may compute in place of the values
    runs_alone: bool = False  # one example of a batch that the model would mix


class Declined(Exception):
    """A runner has found, before it gave a result, that it cannot run this request. The message says why."""


class Runner(Protocol):
    """One way to carry out a request."""

    name: str

    def accepts(self, request: RunRequest) -> str | None:
        """None if it can run the request, as far as that is known before; else why not."""

    def run(self, request: RunRequest) -> Capture:
        """The capture; raises Declined."""


# --- what why.engine() asks for ---------------------------------------------------------------------------------------

ASKED = {"1": True, "0": False}


def read_environment(name: str) -> bool | None:
    return ASKED.get(os.environ.get(name, ""))


@dataclass(frozen=True)
class RunSetting:
    """Which runners are wanted; None: where they pay and nobody can tell the difference."""

    replay: bool | None = read_environment("WHYFORMER_REPLAY")
    plan: bool | None = read_environment("WHYFORMER_PLAN")
    recompute: bool | None = None  # blocks in the backward pass of planned runs, MLPs in programs


BY_DEFAULT = RunSetting()
run_setting: ContextVar[RunSetting] = ContextVar("run_setting", default=BY_DEFAULT)
