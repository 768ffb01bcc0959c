"""Capture: what one run of the model leaves behind.

A capture is frozen, detached from the graph, and lazy where it would be large: per-layer sites are sequences that
compute the matrices of one layer on access,

    attention            softmax(q k^T), or what the model computed
    attention_grad       dO V^T
    attention_relevance  A * ((R_O / O) V^T) / 2

from q, k, v, O, dO and R_O, which are linear in the number of tokens.

A run request: what to run, what is explained, what is kept; and the runners that can carry it out.

A runner accepts a request, or says why not. While it runs it may still find that it cannot (`Declined`); then the next
one is asked. `Capture.engine` says which one ran, and why those before it did not.
"""

import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from whyformer._engine.capture.missing_attention import ON_STATES, OPENINGS
from whyformer._engine.capture.sites import SITES
from whyformer._engine.layout.layout import pick_positions
from whyformer._engine.probe.conduct import AT_RANDOM, SLOPES
from whyformer._engine.relevance.recipes import Recipe
from whyformer._engine.run.intervene import Intervention
from whyformer._engine.run.model_state import ModelState
from whyformer._engine.targets.target import Target
from whyformer._engine.targets.target_like import TargetLike
from whyformer._model import EncodedBatch, Model
from whyformer._plain.tokens import ScoredTokens
from whyformer.errors import MethodError, NotCaptured, UnsupportedModel

CapturedValues = dict[tuple[str, Recipe | None], Any]
# What an epilogue computes: nested tensors, by a name and the recipe they depend on
EpilogueResults = Mapping[tuple[Hashable, Recipe | None], Any]
POSITIONAL_SITES = frozenset(("token_relevance", "position_relevance"))


class LazyLayers(Sequence[Tensor]):
    """One tensor per layer, computed on access."""

    def __init__(self, makers: Sequence[Callable[[], Tensor]]) -> None:
        self._makers = tuple(makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __getitem__(self, layer: Any) -> Any:
        return LazyLayers(self._makers[layer]) if isinstance(layer, slice) else self._makers[layer]()

    def __iter__(self) -> Iterator[Tensor]:
        return (make() for make in self._makers)

    def stack(self) -> Tensor:
        return torch.stack(list(self))


@dataclass(frozen=True)
class AbsorbedRelevance:
    """Relevance that did not reach the input: what absorbed it, and where."""

    what: str
    step: int  # of the forward; steps above that of a block boundary are between it and the answer
    amount: Tensor  # [batch]


@dataclass(frozen=True)
class RoundingEstimate:
    """The expected error of relevance by rounding, relative to the relevance (relevance/rounding.py).

    rows: [row batch], where they were computed: the error at the end of the pass; then, if known, the errors at the
    output of each attention and the relevance at the tokens where the answer is read, layer by layer.
    """

    rows: Tensor
    layers: int = 0

    @cached_property
    def read(self) -> Tensor:
        """The rows, read from the device in one go."""
        return self.rows.detach().cpu()

    @property
    def arrived(self) -> Tensor:
        """[batch] at the end of the pass."""
        return self.read[0]

    @property
    def attention(self) -> Tensor | None:
        """[batch layer] at the output of each attention; None if it is not known."""
        return self.read[1 : 1 + self.layers].T if len(self.read) > 1 else None

    @property
    def weight(self) -> Tensor | None:
        """[batch layer]: the relevance at the tokens where the answer is read."""
        return self.read[1 + self.layers :].T if len(self.read) > 1 + self.layers else None

    def at_attention(self, layers: Sequence[int]) -> Tensor:
        """[batch]: the mean over these layers, weighted by the relevance where the answer is read."""
        attention, weight = self.attention, self.weight
        if attention is None or not layers:
            return self.arrived
        chosen = attention[:, layers]
        if weight is None:
            return chosen.mean(1)
        weight = weight[:, layers]
        total = weight.sum(1)
        return torch.where(total > 0, (chosen * weight).sum(1) / total.clamp_min(1e-300), chosen.mean(1))


@dataclass(frozen=True)
class EngineChoice:
    """The runner of a request: "plan", "program" or "full"; and, by name, why those before it did not run it."""

    name: str
    reasons: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name + "".join(f"; {name}: {reason}" for name, reason in self.reasons.items())


@dataclass(frozen=True)
class Capture:
    """What one run of the model leaves behind."""

    targets: tuple[Target, ...]
    tokens: tuple[ScoredTokens, ...]
    patches: tuple[int, ...] | None  # images: positions of the patches in the token sequence, row by row
    logits: Tensor
    boundaries: tuple[int, ...] = ()  # the step of the forward at which each of `hidden` was computed
    absorbed: Mapping[Recipe, tuple[AbsorbedRelevance, ...]] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()
    values: CapturedValues = field(default_factory=dict, repr=False)
    rounding: Mapping[Recipe, RoundingEstimate] = field(default_factory=dict, repr=False)
    # By what a recipe sends, [batch]: the relevance put in at the output; None if the target is a class
    sent: Mapping[str, Tensor] | None = field(default=None, repr=False)
    fixed: Any = field(default=None, repr=False)  # what to pass as target= to explain the same score of other inputs
    attending: tuple[int, ...] = ()  # the block that each attention is in; () if blocks were not looked for
    places: tuple[int, ...] | None = None  # positions of `tokens` in the sequence, if the model adds others
    owners: Tensor | None = field(default=None, repr=False)  # signals: which of `tokens` each entry belongs to, or -1
    slots: Tensor | None = field(default=None, repr=False)  # [batch token]: their positions, if they differ by example
    obstacle: str = ""  # why the positions of `tokens` in the sequence are not known
    # What a recorded program computed in place of `values` (program/runner.py)
    epilogue: EpilogueResults | None = field(default=None, repr=False)
    parts: tuple["Capture", ...] = field(default=(), repr=False)  # one for each example, if each had a run of its own
    engine: EngineChoice = EngineChoice("full")  # which runner ran, and why those before it did not

    @property
    def same_target(self) -> tuple[TargetLike, TargetLike]:
        """target= and versus= that explain the same score again, whatever the model predicts."""
        if self.fixed is not None:
            return self.fixed, None
        return [target.index for target in self.targets], [target.versus for target in self.targets]

    @property
    def is_random(self) -> bool:
        """The model was seen to answer at random."""
        return any(note.startswith(AT_RANDOM) for note in self.notes)

    def get(self, site: str, recipe: Recipe | None = None) -> Any:
        """The value of a site, by its name in SITES. Relevance sites also need the recipe.

        Raises UnsupportedModel if this model does not provide the site.
        """
        key = (site, recipe if site in SITES and SITES[site].is_relevance else None)
        if key not in self.values:
            raise self._explain_missing(*key)
        if isinstance(self.values[key], UnsupportedModel):
            raise UnsupportedModel(str(self.values[key]))
        return self.values[key]

    def __getitem__(self, site: str) -> Any:
        return self.get(site)

    def pick_slots(self, scores: Tensor) -> Tensor | None:
        """[batch token], from scores [batch position] whose positions differ by example; None if they do not."""
        is_by_example = self.slots is not None and scores.dim() == 2 and len(scores) == len(self.slots)
        return pick_positions(scores, self.slots) if self.slots is not None and is_by_example else None

    def select_notes(self, needs: Sequence[str], *, reads_attention: bool, reads_slopes: bool) -> tuple[str, ...]:
        """The notes that concern a method: not all read attention, states between blocks, or gradients."""
        of = {SITES[need].of or need for need in needs if need in SITES}
        notes = tuple(note for note in self.notes if reads_slopes or not note.startswith(SLOPES))
        if not reads_attention and not any(site.startswith("attention") for site in of):
            notes = tuple(note for note in notes if not note.startswith(OPENINGS))
            if "hidden" in of and "unattended" not in of:
                return notes
        return tuple(note for note in notes if ON_STATES not in note)

    def _explain_missing(self, site: str, recipe: Recipe | None) -> MethodError | NotCaptured | UnsupportedModel:
        if site in POSITIONAL_SITES and recipe is not None and recipe.sends != "slope":
            return MethodError(
                f"The recipe {recipe.name} does not separate tokens from positions. Use pa_lrp or attnlrp."
            )
        if self.parts:
            return UnsupportedModel("This model changes the order of the examples inside. Pass one example at a time.")
        captured = ", ".join(sorted({name for name, _ in self.values}))
        wanted = f"{site} under the recipe {recipe.name}" if recipe is not None else site
        return NotCaptured(f"This capture has {captured}, but not {wanted}. Record it with keep={{..., {site!r}}}.")


# --- requests and runners ---------------------------------------------------------------------------------------------


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
    state: ModelState | None = None  # of the model, when the request came in


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
    """Which runners are wanted; None: automatic, only for models without side effects."""

    replay: bool | None = read_environment("WHYFORMER_REPLAY")
    plan: bool | None = read_environment("WHYFORMER_PLAN")
    recompute: bool | None = None  # blocks in the backward pass of planned runs, MLPs in programs


BY_DEFAULT = RunSetting()
run_setting: ContextVar[RunSetting] = ContextVar("run_setting", default=BY_DEFAULT)
