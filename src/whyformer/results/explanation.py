"""An explanation: one score for every patch or token of every example, with everything needed to read it later.

    e = explain(model, "cat.png")
    e.top(3); e.map(); print(e); e.save("cat.safetensors")

`load("cat.safetensors")` reads it back, without the model.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from PIL import Image
from torch import Tensor

from whyformer._engine import EngineChoice, Target, TargetLike, record
from whyformer._model import InputLike, KeptImage, ModelLike
from whyformer._model.loading import open as open_model
from whyformer._plain.archive import Fields, WrittenFields
from whyformer._plain.json_value import JsonValue
from whyformer._plain.tokens import Grid, Pieces, ScoredTokens, Stream, pad_pieces, take_pieces
from whyformer._plain.torch_state import neutral_torch
from whyformer._plain.words import WORD_REDUCTIONS, group_by_unit, join_groups, reduce_groups
from whyformer.errors import InputError
from whyformer.results._fields import restore_explanation_fields
from whyformer.results.conditioning import NOTES, Conditioning, drop_settled_notes, note_undetermined
from whyformer.results.given_scores import FINGERPRINT, GivenScores, arrange_given_scores, write_fingerprints
from whyformer.results.health import Health
from whyformer.results.hiding import Hiding, name_hidden_unit
from whyformer.results.result import LoadableResult, choose_formats, require_captured
from whyformer.results.windows import COUNTS as WINDOW_COUNTS
from whyformer.results.windows import Window, read_window_details
from whyformer.show import figures, head_figures
from whyformer.show.blocks import Block, ExampleView, Notes, PageSection, PromptRegions, Report
from whyformer.show.chips import get_piece_text
from whyformer.show.drawing import Drawing, show_bars, show_image
from whyformer.show.page_facts import collect_facts
from whyformer.show.panel import Panel
from whyformer.show.panel_images import overlay_panel
from whyformer.show.prompt_view import view_panel
from whyformer.show.score_rows import ScoreRow, list_score_rows
from whyformer.show.visible import make_visible
from whyformer.show.wording import format_headline, name_explainer, shorten_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PER_EXAMPLE = ("scores", "tokens", "targets", "names", "pixels", "special")
ScoredToken: TypeAlias = tuple[str | tuple[int, int], float]  # a token, or the (row, column) of a patch, and its score


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(LoadableResult):
    """How much each patch or token counts for the target, one row per example.

    The scores of an image belong to its patches, row by row; those of its other tokens (CLS, registers) are in
    `special`. A method that works on pixels has the full map in `pixels`; its `scores` are the sums over each patch.
    The scores of a text belong to all its tokens: `tokens` marks the special ones, and padding is exactly 0.

    Files: .safetensors and .json can be loaded again; .html, .png, .svg, .pdf, .txt and .md show the explanation; .tex
    has the words for a document; .csv and .parquet have the scores as a table.
    """

    formats = choose_formats(".safetensors .json .html .png .svg .pdf .tex .csv .parquet .txt .md")

    scores: Tensor  # batch patch | batch token
    tokens: tuple[ScoredTokens, ...]
    targets: tuple[Target, ...]
    names: tuple[str, ...]
    method: str
    settings: Mapping[str, JsonValue]
    model: str
    versions: Mapping[str, str]
    class_specific: bool
    signed: bool
    pixels: Tensor | None = None  # batch height width
    special: Tensor | None = None  # batch token
    notes: tuple[str, ...] = ()
    details: Mapping[str, Tensor] = field(default_factory=dict)  # more results of the method; the batch comes first
    spent: Mapping[str, float] = field(default_factory=dict)  # passes through the model per example, by kind
    images: tuple[KeptImage, ...] = ()  # the originals, to draw on; empty for texts and tensors
    engine: EngineChoice | None = None  # which runner ran and why not the others; None if it was loaded from a file
    parts: tuple[Stream, ...] = ()  # what the model read as several sequences, one after the other in `scores`

    def __post_init__(self) -> None:
        counts = (len(self.tokens), len(self.targets), len(self.names))
        if self.scores.dim() != 2 or any(count != len(self.scores) for count in counts):
            raise InputError(
                f"Scores {list(self.scores.shape)} do not fit {counts[0]} lists of tokens, {counts[1]} targets and "
                f"{counts[2]} names."
            )
        for tokens in self.tokens:
            if len(tokens) != self.scores.shape[1]:
                raise InputError(f"{self.scores.shape[1]} scores do not fit {len(tokens)} tokens.")
        if self.parts and not covers_all(self.parts, self.scores.shape[1]):
            raise InputError(f"The streams {self.streams} do not fit {self.scores.shape[1]} scores.")
        if self.images and len(self.images) != len(self.scores) * self._images_each:
            raise InputError(f"{len(self.images)} images do not fit {len(self.scores)} examples.")

    @classmethod
    @neutral_torch()
    def from_scores(
        cls,
        model: ModelLike,
        inputs: InputLike,
        scores: GivenScores,
        *,
        method: str = "given scores",
        target: TargetLike = None,
        versus: TargetLike = None,
        signed: bool | None = None,
    ) -> "Explanation":
        """Scores of captum, shap or anything else, to be drawn, saved, compared and judged like those of a method.

        scores: one row per input (a single input needs no batch axis), each with one number per token, with or without
        the special ones, per word, per patch or per pixel; channels are summed. Pixels are those that the model takes,
        after its processor. An object with `.values`, as shap returns it, is read as these.
        target, versus: what the scores explain, by default the predicted class.
        signed: whether a negative score is evidence against the target; by default if there is one.
        """
        opened = open_model(model)
        encoded = opened.encode(inputs)
        if encoded.pictures is not None:
            raise InputError("Scores of images between words cannot be given. Pass the scores of a text or an image.")
        capture = record(opened, encoded, target=target, versus=versus, keep=())
        arranged = arrange_given_scores(scores, encoded, capture)
        return cls(
            scores=arranged.scores,
            tokens=capture.tokens,
            targets=capture.targets,
            names=encoded.names,
            method=method,
            settings={},
            model=opened.name,
            versions=opened.describe_versions(),
            class_specific=True,
            signed=bool((arranged.scores < 0).any()) if signed is None else signed,
            pixels=arranged.pixels,
            details={FINGERPRINT: write_fingerprints(encoded.fingerprints())},
            images=encoded.images,
            parts=encoded.streams,
        )

    def to_fields(self) -> WrittenFields:
        """What is saved: everything but the engine."""
        return {name: value for name, value in vars(self).items() if name != "engine"}

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, wanted: int | slice) -> "Explanation":
        """One example or a slice, as an explanation of its own."""
        if not isinstance(wanted, slice):
            index = range(len(self))[wanted]  # raises IndexError like a list, and takes negative indices
            wanted = slice(index, index + 1)
        details = {name: detail[wanted] for name, detail in self.details.items()}
        own = {name: value[wanted] for name in PER_EXAMPLE if (value := getattr(self, name)) is not None}
        own["images"] = tuple(image for i in range(len(self))[wanted] for image in self.images_of(i))
        notes = drop_settled_notes(self.notes, Conditioning.from_details(details))
        return replace(self, **own, notes=notes, details=details)

    def __iter__(self) -> Iterator["Explanation"]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        labels = [make_visible(target.label) for target in self.targets[:3]] + ["..."] * (len(self) > 3)
        shape = " x ".join(map(str, self.scores.shape))
        return f"<Explanation by {make_visible(self.method)} of {', '.join(labels)}: {shape} scores>"

    @property
    def _images_each(self) -> int:
        """How many images an example has: one, or one for each stream that has a grid."""
        return max(1, sum(part.grid is not None for part in self.parts))

    def images_of(self, example: int = 0) -> tuple[KeptImage, ...]:
        """The images of one example; several if the model reads several between the words."""
        each, start = self._images_each, range(len(self))[example]
        return self.images[start * each : (start + 1) * each]

    # --- reading ---

    def map(self, example: int = 0) -> Tensor:
        """[rows columns]: the scores of one image."""
        grid = self.tokens[example]
        if not isinstance(grid, Grid):
            raise InputError("A text has no map. Use .scores and .tokens.")
        return self.scores[example].reshape(grid.rows, grid.columns)

    def top(
        self, k: int = 5, *, by: Literal["score", "magnitude"] = "score", special: bool = False
    ) -> list[ScoredToken] | list[list[ScoredToken]]:
        """The k highest scores with their token or (row, column); for several examples, a list of such lists."""
        if not isinstance(by, str) or by not in ("score", "magnitude"):
            raise InputError(f"by must be 'score' or 'magnitude', got {by!r}.", code="E_OPTION")
        if not isinstance(cast(Any, k), Integral):
            raise InputError(f"k must be a whole number, got {k!r}.", code="E_OPTION")
        if k < 0:
            raise InputError(f"k must be >= 0, got {k}.", code="E_OPTION")
        measure = abs if by == "magnitude" else float
        ranked = [
            sorted(self._pair_scores(i, special), key=lambda pair: measure(pair[1]), reverse=True)[:k]
            for i in range(len(self))
        ]
        return ranked[0] if len(ranked) == 1 else ranked

    def _pair_scores(self, example: int, special: bool) -> list[ScoredToken]:
        tokens, scores = self.tokens[example], self.scores[example].tolist()
        if isinstance(tokens, Pieces):
            return [
                (get_piece_text(tokens, i), score)
                for i, score in enumerate(scores)
                if not tokens.padding[i] and (special or not tokens.special[i])
            ]
        pairs: list[ScoredToken] = [(divmod(i, tokens.columns), score) for i, score in enumerate(scores)]
        if special and self.special is not None:
            pairs += [(f"special {i}", score) for i, score in enumerate(self.special[example].tolist())]
        return pairs

    @property
    def streams(self) -> dict[str, slice]:
        """Where in `scores` each sequence that the model reads is, in order: "source" and "prefix", or "image" and
        "words"; empty for a model that reads only one."""
        return {part.name: slice(part.start, part.stop) for part in self.parts}

    def stream(self, name: str) -> "Explanation":
        """The scores of one of the sequences that the model reads, as an explanation of its own."""
        own = self.find_stream(name)
        part = next(part for part in self.parts if part.name == name)
        tokens: tuple[ScoredTokens, ...] = (part.grid,) * len(self) if part.grid is not None else ()
        details = {n: detail[..., own] if n == "per_layer" else detail for n, detail in self.details.items()}
        # [batch height width]: the scores of the pixels of an image, if they were traced through the vision tower.
        found = self.details.get("pixels") if part.grid is not None else None
        return replace(
            self,
            scores=self.scores[:, own],
            tokens=tokens or tuple(take_stream(one, range(part.start, part.stop)) for one in self.tokens),
            details=details,
            images=() if part.grid is None else self.images[self._number_image(part) :: self._images_each],
            pixels=None if found is None else found[:, self._number_image(part)],
            parts=(),
        )

    def _number_image(self, part: Stream) -> int:
        return [one.name for one in self.parts if one.grid is not None].index(part.name)

    def share(self, name: str, example: int = 0) -> float:
        """The share of one stream, such as "image", in the sum of the absolute scores of an example."""
        own, total = self.stream(name).scores[example].abs().sum(), self.scores[example].abs().sum()
        return float(own / total) if total else 0.0

    def find_stream(self, name: str) -> slice:
        """Where in `scores` this sequence is."""
        if name not in self.streams:
            there = f"There are: {', '.join(self.streams)}." if self.parts else "This model reads only one."
            raise InputError(f"There is no stream {name!r}. {there}", code="E_OPTION")
        return self.streams[name]

    def segment(self, number: Literal[0, 1]) -> "Explanation":
        """The scores of the first (0) or second (1) text of each pair; a special token goes with the text before it."""
        if number not in (0, 1):
            raise InputError(f"number must be 0 (the first text) or 1 (the second), got {number!r}.", code="E_OPTION")
        positions = [find_segment(tokens, number) for tokens in self.tokens]
        length = max(map(len, positions), default=0)
        parts = [take_segment(tokens, own, number) for tokens, own in zip(self.tokens, positions, strict=True)]
        scores = reduce_all_groups(self.scores, [[[i] for i in own] for own in positions], length, "sum")
        return replace(
            self, scores=scores, tokens=tuple(pad_pieces(part, length) for part in parts), details={}, parts=()
        )

    def words(self, *, reduce: Literal["sum", "max", "mean"] = "sum") -> "Explanation":
        """The scores of whole words, combined from the scores of their tokens.

        A word is text between blanks; in scripts without blanks, such as Chinese, every token is a word.
        """
        return self._join_tokens("words", reduce)

    def sentences(self, *, reduce: Literal["sum", "max", "mean"] = "sum") -> "Explanation":
        """The scores of whole sentences, combined from the scores of their tokens.

        A sentence ends with . ! ? or the like, but not with the full stop of a common abbreviation, and at a blank
        line. A special token, such as the one between the texts of a pair, stays alone and ends a sentence too.
        """
        return self._join_tokens("sentences", reduce)

    def paragraphs(self, *, reduce: Literal["sum", "max", "mean"] = "sum") -> "Explanation":
        """The scores of whole paragraphs, which blank lines separate, combined from the scores of their tokens."""
        return self._join_tokens("paragraphs", reduce)

    def _join_tokens(self, unit: str, reduce: str) -> "Explanation":
        if not isinstance(reduce, str) or reduce not in WORD_REDUCTIONS:
            raise InputError(f"reduce must be one of {', '.join(WORD_REDUCTIONS)}, got {reduce!r}.", code="E_OPTION")
        groups = [group_by_unit(tokens, unit) for tokens in self.tokens]
        length = max(map(len, groups), default=0)
        joined = [join_groups(tokens, own) for tokens, own in zip(self.tokens, groups, strict=True)]
        details = {name: detail for name, detail in self.details.items() if name != WINDOW_COUNTS}
        if "per_layer" in details:
            details["per_layer"] = reduce_all_groups(details["per_layer"], groups, length, reduce)
        return replace(
            self,
            scores=reduce_all_groups(self.scores, groups, length, reduce),
            tokens=tuple(pad_pieces(tokens, length) for tokens in joined),
            settings={**self.settings, unit: reduce},
            details=details,
            parts=join_streams(self.parts, groups),
        )

    @property
    def windows(self) -> tuple[tuple[Window, ...], ...]:
        """The windows of each example, with the answer to each; needs `explain(..., windows=True)`."""
        advice = "This explanation was not made in windows. Pass windows=True to explain()."
        return require_captured(read_window_details(self.details), advice)

    @property
    def health(self) -> Health:
        """The conservation check; needs `explain(..., health=True)`."""
        reason = f"{make_visible(self.method)} propagates no relevance, so there is no conservation to check."
        if "recipe" in self.settings:
            reason = "Relevance totals were not recorded. Pass health=True to explain()."
        return require_captured(Health.from_details(self.details, str(self.settings.get("recipe"))), reason)

    @property
    def conditioning(self) -> Conditioning:
        """How much rounding can change the scores: an estimate, and with `explain(..., health=True)` a measurement."""
        reason = f"{make_visible(self.method)} propagates no relevance."
        if "recipe" in self.settings:
            reason = "this explanation was saved by an earlier version."
        found = Conditioning.from_details(self.details)
        return require_captured(found, f"No estimate of rounding errors was kept: {reason}")

    @property
    def hiding(self) -> Hiding:
        """What the model says with the highest words hidden, and with every word; needs `explain(..., check=True)`."""
        advice = "This explanation was not checked. Pass check=True to explain(), or use whyformer.check(model, e)."
        return require_captured(self.find_hiding(), advice)

    def find_hiding(self) -> Hiding | None:
        """The same, or None."""
        units = ["part" if self.has_images_and_words else name_hidden_unit(one) for one in self.tokens]
        return Hiding.from_details(self.details, units, self.targets)

    def with_conditioning(self, conditioning: Conditioning) -> "Explanation":
        """The same scores with another measurement of how much rounding can change them."""
        notes = tuple(note for note in self.notes if note not in NOTES.values())
        notes += note_undetermined(conditioning, self.scores.dtype)
        return replace(self, notes=notes, details={**self.details, **conditioning.to_details()})

    # --- displaying ---

    def _report(self) -> Report:
        """Every example with its map or coloured words; a single prompt with its regions."""
        if not len(self):
            return Report(repr(self), ())
        panels = self.panels()
        first, view = panels[0], view_panel(panels[0]) if len(panels) == 1 else None
        notes = Notes(self.notes)
        examples: list[Block] = [
            PageSection(
                shorten_text(one.title, 120), [ExampleView(one)], name=shorten_text(one.title, 60), is_example=True
            )
            for one in panels
        ]
        title = f"{len(panels)} examples" if len(panels) > 1 else format_headline(first)
        whole = [*examples, notes] if view is None else [PromptRegions(view)]
        return Report(
            title, whole, name_explainer(first), collect_facts(first), is_titled=False, brief=[*examples, notes]
        )

    def panels(self, label: str | None = None) -> list[Panel]:
        """One panel per example, to draw; `label` replaces the name of the method."""
        return [self._panel(i, label or self.method) for i in range(len(self))]

    def _panel(self, i: int, label: str) -> Panel:
        conditioning = Conditioning.from_details(self.details)
        own = None if conditioning is None else conditioning[i : i + 1]
        # What hiding showed, and what it speaks against; nothing where it was not tried.
        hiding = self.find_hiding()
        return Panel(
            label=label,
            name=self.names[i],
            tokens=self.tokens[i],
            scores=self.scores[i].double(),
            target=self.targets[i],
            pixels=None if self.pixels is None else self.pixels[i].double(),
            image=self.images_of(i)[0] if self.images else None,
            notes=drop_settled_notes(self.notes, own),
            caution="" if own is None else own.caution,
            streams=self._stream_panels(i),
            check=() if hiding is None else hiding.list_lines(i),
            hidden_answers=None if hiding is None else (hiding.answers[i, 1].item(), hiding.answers[i, 2].item()),
            **{name: getattr(self, name) for name in ("signed", "class_specific", "model", "settings", "versions")},
        )

    @property
    def has_images_and_words(self) -> bool:
        """Whether one of the streams is an image, and the words are beside it."""
        return any(part.grid is not None for part in self.parts)

    def _stream_panels(self, example: int) -> tuple[Panel, ...]:
        """A panel for each image of an example, and one for its words."""
        if not self.has_images_and_words:
            return ()
        names = {name: self._describe_stream(name, example) for name in self.streams}
        panels = {name: self.stream(name)._panel(example, label) for name, label in names.items()}
        return tuple(replace(panel, name=f"{panel.name} ({name})") for name, panel in panels.items())

    def _describe_stream(self, name: str, example: int) -> str:
        return f"{name}: {100 * self.share(name, example):.0f} % of the total magnitude"

    def draw(self, *, contours: bool = False) -> Drawing:
        """A figure of all examples, to save as .svg, .pdf or .png or to display in a notebook."""
        if not len(self):
            raise InputError("This explanation has no examples, so there is nothing to draw.")
        return figures.draw_panels(self.panels(), contours=contours)

    def _draw_into(self, axes: "Axes") -> None:
        """The map over its image, or the words as bars; of the first example."""
        panel, tokens = self._panel_of(0), self.tokens[0]
        if panel.is_image and panel.image is not None and panel.image.view is not None:
            show_image(axes, self.overlay())
        elif isinstance(tokens, Pieces) and not self.has_images_and_words:
            shown = self.words() if tokens.text is not None else self
            show_bars(axes, [(str(token), score) for token, score in shown._pair_scores(0, False)])
        else:
            super()._draw_into(axes)
        axes.set_title(f"{make_visible(self.targets[0].label)}, by {make_visible(self.method)}")

    def draw_build_up(self, example: int = 0) -> Drawing:
        """The explanation from each layer to the last, as a figure; needs `explain(..., per_layer=True)`."""
        return head_figures.draw_build_up(self._panel_of(example), self._layers_of(example))

    def animate_build_up(self, example: int = 0) -> bytes:
        """The same as an animated GIF, for images."""
        return head_figures.animate_build_up(self._panel_of(example), self._layers_of(example))

    def _layers_of(self, example: int) -> Tensor:
        advice = "Scores per layer were not computed. Pass per_layer=True to explain()."
        return require_captured(self.details.get("per_layer"), advice)[example]

    def overlay(
        self, example: int = 0, *, smooth: bool = True, contours: bool = False, percentile: float | None = 99.0
    ) -> Image.Image:
        """The map over its image, at the size of the image; interpolated between patches unless smooth=False.

        The colour scale ends at this percentile of the scores, or with None at the largest score.
        """
        panel = self._panel_of(example)
        if not panel.is_image:
            raise InputError("A text has no image to overlay. Use .draw() to show its words in colour.")
        if panel.image is None or panel.image.view is None:
            raise InputError(
                "The original image is not available: the model was given tensors, or its processor does more than "
                "resize and crop. Use .draw() to show the map alone."
            )
        scores = panel.finest if smooth else panel.grid
        return overlay_panel(panel, scores, smooth=smooth, contours=contours, percentile=percentile)

    def _panel_of(self, example: int) -> Panel:
        return self._panel(range(len(self))[example], self.method)  # a negative index counts from the end

    def _list_rows(self) -> Iterator[ScoreRow]:
        return list_score_rows(self.panels())

    @classmethod
    def _from_fields(cls, saved: Fields) -> "Explanation":
        return Explanation(**restore_explanation_fields(saved))


def reduce_all_groups(scores: Tensor, groups: Sequence[list[list[int]]], length: int, reduce: str) -> Tensor:
    """[batch ... length]: the scores [batch ... token] of each group, padded with zeros."""
    reduced = scores.new_zeros(*scores.shape[:-1], length)
    for row, own, values in zip(reduced, groups, scores, strict=True):
        for filled, given in zip(row.reshape(-1, length), values.reshape(-1, values.shape[-1]), strict=True):
            filled[: len(own)] = reduce_groups(given, own, reduce)
    return reduced


def covers_all(parts: Sequence[Stream], count: int) -> bool:
    """Streams follow each other from the first score to the last."""
    ends = [0, *(part.stop for part in parts)]
    return [part.start for part in parts] == ends[:-1] and ends == sorted(ends) and ends[-1] == count


def join_streams(parts: Sequence[Stream], groups: Sequence[list[list[int]]]) -> tuple[Stream, ...]:
    """The streams of tokens that were joined; none if they begin elsewhere in each example."""
    found = set()
    for own in groups:
        counts = [sum(part.start <= group[0] < part.stop for group in own) for part in parts]
        found.add(tuple(accumulate(counts, initial=0)))
    if len(found) != 1:
        return ()
    ends = found.pop()
    return tuple(Stream(part.name, start, stop) for part, start, stop in zip(parts, ends, ends[1:], strict=False))


def take_stream(tokens: ScoredTokens, at: Sequence[int]) -> Pieces:
    """The pieces of one stream; the text is theirs alone, if the streams have a text each."""
    assert isinstance(tokens, Pieces)
    own = replace(take_pieces(tokens, at), regions=())
    if tokens.text is None or tokens.second is None:
        return own
    number = int(any(span is not None and span[0] >= tokens.second for span in own.spans))
    first, text = (tokens.second, tokens.text[tokens.second :]) if number else (0, tokens.text[: tokens.second - 1])
    spans = tuple(None if span is None else (span[0] - first, span[1] - first) for span in own.spans)
    return replace(own, spans=spans, text=text, second=None)


def find_segment(tokens: ScoredTokens, number: int) -> list[int]:
    """The indices of the pieces of one text of a pair."""
    if not isinstance(tokens, Pieces) or tokens.second is None:
        raise InputError("This example is not a pair of texts. Pass a TextPair to explain().")
    return [i for i, segment in enumerate(tokens.segments) if segment == number]


def take_segment(tokens: ScoredTokens, positions: Sequence[int], number: int) -> Pieces:
    """The pieces at these positions, all of one text of a pair, with spans in that text."""
    assert isinstance(tokens, Pieces) and tokens.text is not None and tokens.second is not None
    text = tokens.text[tokens.second :] if number else tokens.text[: tokens.second - 1]
    pieces, special = tuple(tokens.pieces[i] for i in positions), tuple(tokens.special[i] for i in positions)
    spans = tuple(tokens.find_place(i) for i in positions)
    return Pieces(pieces, special, (False,) * len(positions), spans, text)


def load(path: str | os.PathLike[str]) -> Explanation:
    """Load an explanation from a .safetensors or .json file."""
    return Explanation.load(path)
