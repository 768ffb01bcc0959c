"""An explanation: one score for every patch or token of every example, with all that is needed to read it again.

    e = explain(model, "cat.png")              the predicted class, by transformer attribution
    e.top(3); e.map(); print(e); e.save("cat.safetensors")

`explain` finds the method, records what it needs in one run of the model, and calls it. Nothing else happens here.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import whyformer.methods  # noqa: F401 (fills METHODS)
from whyformer._engine.capture import Capture, record
from whyformer._engine.relevance.recipes import Recipe, find_recipe, make_recipe
from whyformer._engine.target import Target
from whyformer._model.image import KeptImage
from whyformer._model.loading import open as open_model
from whyformer._model.model import EncodedBatch, Model
from whyformer._plain import archive
from whyformer._plain.tokens import Grid, Pieces, Tokens
from whyformer._plain.versions import collect_versions
from whyformer._plain.words import WORD_REDUCTIONS, join_words, pad_pieces
from whyformer.errors import InputError, MethodError, NonFinite
from whyformer.methods import _selection
from whyformer.methods._registry import METHODS as METHODS
from whyformer.methods._registry import Method, MethodFunction, Scores, check_settings, find_method
from whyformer.results import health
from whyformer.results._fields import restore_explanation_fields, to_safetensors
from whyformer.show import figures, head_figures, latex, page, score_rows, terminal
from whyformer.show.drawing import Drawing
from whyformer.show.panel import Panel
from whyformer.show.report import escape_html
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible

MethodLike: TypeAlias = str | Method | MethodFunction | partial[Any]
ModelLike: TypeAlias = Model | str | os.PathLike[str] | nn.Module


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """How much each patch or token counts for the target, one row an example.

    Scores of a picture belong to its patches, row by row; those of other tokens (CLS, registers) are in `special`. A
    method that works on pixels has its full map in `pixels`, and `scores` are the sums over each patch. Scores of a
    text belong to all its tokens; special ones are marked in `tokens`, padding is exactly 0.
    """

    scores: Tensor  # batch patch | batch token
    tokens: tuple[Tokens, ...]
    targets: tuple[Target, ...]
    names: tuple[str, ...]
    method: str
    settings: Mapping[str, Any]
    model: str
    versions: Mapping[str, str]
    class_specific: bool
    signed: bool
    pixels: Tensor | None = None  # batch height width
    special: Tensor | None = None  # batch token
    notes: tuple[str, ...] = ()
    details: Mapping[str, Tensor] = field(default_factory=dict)  # what else the method found; the batch comes first
    spent: Mapping[str, float] = field(default_factory=dict)  # passes through the model for each example, by kind
    images: tuple[KeptImage, ...] = ()  # what a person sees of each example, to draw on; none for texts and tensors

    def __post_init__(self) -> None:
        belong = (len(self.tokens), len(self.targets), len(self.names))
        if self.scores.dim() != 2 or any(count != len(self.scores) for count in belong):
            raise InputError(
                f"Scores {list(self.scores.shape)} do not fit {belong[0]} lists of tokens, {belong[1]} targets and "
                f"{belong[2]} names."
            )
        for tokens in self.tokens:
            if len(tokens) != self.scores.shape[1]:
                raise InputError(f"{self.scores.shape[1]} scores do not fit {len(tokens)} tokens.")
        if self.images and len(self.images) != len(self.scores):
            raise InputError(f"{len(self.images)} pictures do not fit {len(self.scores)} examples.")

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, wanted: int | slice) -> "Explanation":
        """Some of the examples, as an explanation of their own."""
        if not isinstance(wanted, slice):
            place = range(len(self))[wanted]  # an index that is not there raises, a negative one counts from the end
            wanted = slice(place, place + 1)
        return replace(
            self,
            scores=self.scores[wanted],
            tokens=self.tokens[wanted],
            targets=self.targets[wanted],
            names=self.names[wanted],
            pixels=None if self.pixels is None else self.pixels[wanted],
            special=None if self.special is None else self.special[wanted],
            details={name: found[wanted] for name, found in self.details.items()},
            images=self.images[wanted],
        )

    def __iter__(self) -> Iterator["Explanation"]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        labels = [make_visible(target.label) for target in self.targets[:3]] + ["..."] * (len(self) > 3)
        shape = " x ".join(map(str, self.scores.shape))
        return f"<Explanation by {make_visible(self.method)} of {', '.join(labels)}: {shape} scores>"

    def __str__(self) -> str:
        return self.render()

    # --- reading ---

    def map(self, example: int = 0) -> Tensor:
        """The scores of one picture as [rows columns]."""
        grid = self.tokens[example]
        if not isinstance(grid, Grid):
            raise InputError("A text has no map of rows and columns. Its scores are in .scores, its tokens in .tokens.")
        return self.scores[example].reshape(grid.rows, grid.columns)

    def top(
        self, k: int = 5, *, by: Literal["score", "magnitude"] = "score", special: bool = False
    ) -> list[tuple[Any, float]] | list[list[tuple[Any, float]]]:
        """The k highest scores with their token or (row, column); for several examples, a list of such lists."""
        if by not in ("score", "magnitude"):
            raise InputError(f"by={by!r} is not an order. There are: 'score', 'magnitude'.")
        if k < 0:
            raise InputError(f"The top {k} cannot be had; give 0 or more.")
        weigh = abs if by == "magnitude" else float
        ranked = [
            sorted(self._pair_scores(i, special), key=lambda pair: weigh(pair[1]), reverse=True)[:k]
            for i in range(len(self))
        ]
        return ranked[0] if len(ranked) == 1 else ranked

    def _pair_scores(self, example: int, special: bool) -> list[tuple[Any, float]]:
        tokens, scores = self.tokens[example], self.scores[example].tolist()
        if isinstance(tokens, Pieces):
            return [
                (terminal.characters_of_piece(tokens, i), score)
                for i, score in enumerate(scores)
                if not tokens.padding[i] and (special or not tokens.special[i])
            ]
        patches = [(divmod(i, tokens.columns), score) for i, score in enumerate(scores)]
        if special and self.special is not None:
            return patches + [(f"special {i}", score) for i, score in enumerate(self.special[example].tolist())]
        return patches

    def words(self, *, reduce: Literal["sum", "max", "mean"] = "sum") -> "Explanation":
        """The same scores for whole words: what stands between blanks, with the scores of its pieces put together."""
        if reduce not in WORD_REDUCTIONS:
            raise InputError(
                f"reduce={reduce!r} is not a way to put scores together. There are: {', '.join(WORD_REDUCTIONS)}."
            )
        joined = [join_words(tokens, scores, reduce) for tokens, scores in zip(self.tokens, self.scores, strict=True)]
        length = max((len(tokens) for tokens, _ in joined), default=0)
        scores = self.scores.new_zeros(len(self), length)
        for row, (_, values) in zip(scores, joined, strict=True):
            row[: len(values)] = values
        return replace(
            self,
            scores=scores,
            tokens=tuple(pad_pieces(tokens, length) for tokens, _ in joined),
            settings={**self.settings, "words": reduce},
        )

    @property
    def health(self) -> health.Health:
        """Whether relevance was conserved, block by block, and who took what did not arrive."""
        found = health.Health.from_details(self.details, str(self.settings.get("recipe")))
        if found is None:
            sends = "explain with health=True" if "recipe" in self.settings else f"{self.method} sends no relevance"
            raise InputError(f"No books of relevance were kept: {sends}.")
        return found

    # --- showing and keeping ---

    def render(self, screen: Screen | None = None) -> str:
        """As text for a terminal; without a screen, for standard output as it is."""
        screen = screen or Screen.from_stdout()
        parts: list[Any] = []
        for i, (tokens, target) in enumerate(zip(self.tokens, self.targets, strict=True)):
            name = None if isinstance(tokens, Pieces) and tokens.text is not None else self.names[i]
            parts += [""] if i else []
            parts.append(terminal.render_title(target, self.method, name=name, class_specific=self.class_specific))
            parts += self._render_example(i, screen)
        if self.notes:
            parts.append(terminal.render_notes(self.notes))
        return terminal.render_parts(parts, screen)

    def _render_example(self, example: int, screen: Screen) -> list[Any]:
        tokens = self.tokens[example]
        if isinstance(tokens, Pieces):
            return terminal.render_text(tokens, self.scores[example], signed=self.signed, screen=screen)
        return terminal.render_map(self.map(example), signed=self.signed, screen=screen)

    def panels(self, label: str | None = None) -> list[Panel]:
        """The examples one by one, as they are drawn; `label` is what to call the method."""
        return [self._panel(i, label or self.method) for i in range(len(self))]

    def _panel(self, i: int, label: str) -> Panel:
        return Panel(
            label=label,
            name=self.names[i],
            tokens=self.tokens[i],
            scores=self.scores[i].double(),
            target=self.targets[i],
            signed=self.signed,
            class_specific=self.class_specific,
            pixels=None if self.pixels is None else self.pixels[i].double(),
            image=self.images[i] if self.images else None,
            model=self.model,
            settings=self.settings,
            versions=self.versions,
            notes=self.notes,
        )

    def draw(self, *, contours: bool = False) -> Drawing:
        """A figure of all examples, to be saved as .svg, .pdf or .png or shown in a notebook."""
        return figures.draw_panels(self.panels(), contours=contours)

    def draw_build_up(self, example: int = 0) -> Drawing:
        """How the explanation comes about, layer by layer; needs `explain(..., per_layer=True)`."""
        return head_figures.draw_build_up(self._panel(range(len(self))[example], self.method), self._layers(example))

    def animate_build_up(self, example: int = 0) -> bytes:
        """The same as a GIF, for pictures."""
        return head_figures.animate_build_up(self._panel(range(len(self))[example], self.method), self._layers(example))

    def _layers(self, example: int) -> Tensor:
        if "per_layer" not in self.details:
            raise InputError("The layers were not kept apart. Explain with per_layer=True.")
        return self.details["per_layer"][example]

    def overlay(
        self, example: int = 0, *, smooth: bool = True, contours: bool = False, percentile: float | None = 99.0
    ) -> Image.Image:
        """The map over its picture, at the picture's own size; smooth between patches, or each patch as it is.

        Colours end at `percentile` of the scores, None: at the largest.
        """
        case = self._panel(range(len(self))[example], self.method)
        if not case.is_image:
            raise InputError("A text has no picture to lay a map over. .draw() shows its words in colour.")
        if case.image is None or case.image.view is None:
            raise InputError(
                "The picture is not known: the model was given tensors, or its processor shows no straight part of the "
                "picture. .draw() shows the map by itself."
            )
        scores = case.finest if smooth else case.grid
        return figures.overlay_panel(case, scores, smooth=smooth, contours=contours, percentile=percentile)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file; its ending says what.

        .safetensors, .json: to be loaded again. .html, .png, .svg, .pdf, .txt: to be looked at. .tex: words for a
        document. .csv, .parquet: the numbers as a table.
        """
        archive.write_file(path, FORMATS[archive.suffix_of(path, FORMATS)](self))

    def _repr_html_(self) -> str:
        return page.make_explanation_fragment(self.panels()) if len(self) else escape_html(repr(self))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Explanation":
        """What was saved as .safetensors or .json, bit for bit."""
        return archive.read_archive(path, "explanation", lambda held: Explanation(**restore_explanation_fields(held)))


def load(path: str | os.PathLike[str]) -> Explanation:
    """An explanation from the file it was saved in."""
    return Explanation.load(path)


def join_explanations(parts: Sequence[Explanation]) -> Explanation:
    """Explanations of the same kind, one after the other, as one; shorter texts are padded at their end."""
    if len(parts) == 1:
        return parts[0]
    length = max(part.scores.shape[1] for part in parts)
    first = parts[0]
    tokens = [pad_pieces(one, length) if isinstance(one, Pieces) else one for part in parts for one in part.tokens]
    if any(len(one) != length for one in tokens):
        raise InputError("Pictures with different numbers of patches cannot be put into one explanation.")
    same = {name for name in first.details if all(name in part.details for part in parts)}
    same = {name for name in same if len({part.details[name].shape[1:] for part in parts}) == 1}
    return replace(
        first,
        scores=torch.cat([F.pad(part.scores, (0, length - part.scores.shape[1])) for part in parts]),
        tokens=tuple(tokens),
        targets=tuple(target for part in parts for target in part.targets),
        names=tuple(name for part in parts for name in part.names),
        pixels=None if first.pixels is None else torch.cat([part.pixels for part in parts if part.pixels is not None]),
        special=None if first.special is None else torch.cat([p.special for p in parts if p.special is not None]),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        details={name: torch.cat([part.details[name] for part in parts]) for name in same},
        spent={
            kind: sum(p.spent.get(kind, 0.0) * len(p) for p in parts) / sum(map(len, parts)) for kind in first.spent
        },
        images=tuple(kept for part in parts for kept in part.images),
    )


# --- making one -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MethodCall:
    """A method with all its settings, and the relevance rules they name."""

    method: Method
    settings: dict[str, Any]  # of the function
    recipe: Recipe | None
    selected: dict[str, Any] = field(default_factory=dict)  # layers, heads, per_layer: what is not the default
    wants_health: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        """What must be captured."""
        return self.method.needs_with(self.settings)

    @property
    def all_settings(self) -> dict[str, Any]:
        given = {**self.settings, **self.selected}
        settings = {name: as_plain_setting(value) for name, value in given.items()}
        if self.recipe is None:
            return settings
        rules = {"recipe": self.recipe.name, "stabiliser": self.recipe.stabiliser.name, **self.recipe.parameters}
        return settings | rules


def as_plain_setting(value: Any) -> Any:
    """A setting as a file holds it: numbers of other libraries as plain ones, several values as a list."""
    if isinstance(value, list | tuple | range | set | frozenset):
        return [as_plain_setting(one) for one in value]
    return value.item() if getattr(value, "ndim", None) == 0 else value


def choose_method(wanted: MethodLike, settings: Mapping[str, Any]) -> MethodCall:
    """The method meant, its settings checked and completed by their defaults."""
    method, brought = find_method(wanted)
    given = {**brought, **settings}
    offered = {
        name: default
        for name, default in _selection.list_selection_settings(method.needs).items()
        if name not in method.settings
    }
    recipe: Any = given.get("recipe", method.recipe)
    parameters = find_recipe(recipe).parameters if method.recipe else {}
    check_settings(method, given, [*offered, *parameters, *(["health"] if method.recipe else [])])
    own = {name: given.get(name, default) for name, default in method.settings.items()}
    chosen = {key: given[key] for key in parameters if key in given}
    rules = make_recipe(recipe, given.get("stabiliser"), **chosen) if method.recipe else None
    selected = {name: given[name] for name, default in offered.items() if given.get(name, default) != default}
    return MethodCall(method, own, rules, selected, wants_health=bool(given.get("health")))


def explain(
    model: ModelLike,
    inputs: Any,
    method: MethodLike = "transformer_attribution",
    *,
    target: Any = None,
    versus: Any = None,
    **settings: Any,
) -> Explanation:
    """How much each patch or token of the inputs counts for the target, by default what the model itself predicts.

    inputs: a path, picture, text, tensor or dict of tensors, or a list of these.
    target, versus: a class by index or label, or a next token of a language model; one, or one for each example.
    health=True: methods that send relevance also report whether it was conserved, in `.health`.
    """
    chosen = choose_method(method, settings)
    model = as_model(model)
    encoded = model.encode(inputs)
    capture = record_for_methods([chosen], model, encoded, target, versus)
    return make_explanation(chosen, model, encoded, capture)


def as_model(model: ModelLike) -> Model:
    return model if isinstance(model, Model) else open_model(model)


def record_for_methods(
    chosen: Sequence[MethodCall], model: Model, encoded: EncodedBatch, target: Any, versus: Any
) -> Capture:
    """One run of the model that holds what all these methods need."""
    keep = {need for one in chosen for need in one.needs}
    recipes = list(dict.fromkeys(one.recipe for one in chosen if one.recipe))
    if not any(one.wants_health for one in chosen):
        return record(model, encoded, target=target, versus=versus, keep=keep, recipes=recipes)
    keep |= set(health.REQUIRED_SITES)
    return record(model, encoded, target=target, versus=versus, keep=keep, recipes=recipes, track_absorbed=True)


def make_explanation(chosen: MethodCall, model: Model, encoded: EncodedBatch, capture: Capture) -> Explanation:
    """What one method makes of a capture."""
    name = chosen.method.name
    captured = {need: capture.get(need, chosen.recipe) for need in chosen.needs}
    asked = Counter(captured["probe"].spent) if "probe" in captured else Counter()
    picked = _selection.resolve_selection(chosen.selected, captured)
    returned = compute_scores(chosen, captured, picked)
    is_image = getattr(encoded.inputs.get(encoded.main), "ndim", 0) == 4
    place = partial(split_scores, capture=capture, method=name, is_image=is_image)
    scores, pixels, special = place(returned.values.detach().cpu())
    details = {key: found.detach().cpu() for key, found in returned.details.items()}
    if chosen.selected.get("per_layer"):
        details["per_layer"] = compute_per_layer(chosen, captured, picked, place)
    if chosen.wants_health and chosen.recipe is not None:
        report = health.check_health(capture, chosen.recipe).to_details()
        details |= {key: found.detach().cpu() for key, found in report.items()}
    if not all(part.isfinite().all() for part in (scores, pixels, special) if part is not None):
        raise NonFinite(f"{name} gave NaN or infinity. Open the model with dtype=torch.float64, or use another method.")
    return Explanation(
        scores=scores,
        tokens=find_scored_tokens(scores, pixels, capture),
        targets=capture.targets,
        names=encoded.names,
        method=name,
        settings=chosen.all_settings,
        model=model.name,
        versions=collect_versions(model.module),
        class_specific=chosen.method.class_specific,
        signed=chosen.method.signed,
        pixels=pixels,
        special=special,
        notes=capture.notes,
        details=details,
        spent=count_model_passes(chosen, capture, captured, asked),
        images=encoded.images,
    )


def compute_scores(chosen: MethodCall, captured: Mapping[str, Any], picked: _selection.Selection) -> Scores:
    """What the method makes of the layers and heads that count."""
    needs = [picked.of(need, value) for need, value in captured.items()]
    returned = chosen.method.compute(*needs, **chosen.settings)
    return returned if isinstance(returned, Scores) else Scores(returned)


def compute_per_layer(
    chosen: MethodCall,
    captured: Mapping[str, Any],
    picked: _selection.Selection,
    place: Callable[[Tensor], tuple[Tensor, Tensor | None, Tensor | None]],
) -> Tensor:
    """[batch layer unit]: the explanation from each layer to the last."""
    layers = picked.layers or tuple(range(_selection.depth_of(captured)))
    parts = [replace(picked, layers=layers[start:]) for start in range(len(layers))]
    return torch.stack(
        [place(compute_scores(chosen, captured, part).values.detach().cpu())[0] for part in parts], dim=1
    )


def count_model_passes(
    chosen: MethodCall, capture: Capture, captured: Mapping[str, Any], asked: "Counter[str]"
) -> dict[str, float]:
    """Passes through the model for each example, as if this method had been alone."""
    batch = len(capture.targets)
    spent = {"forward": 1.0}
    if chosen.method.needs_gradient:
        spent["backward"] = 1.0
    if chosen.recipe is not None:
        spent["relevance"] = 2.0 if any(target.versus is not None for target in capture.targets) else 1.0
    if "probe" in captured:
        for kind, rows in (captured["probe"].spent - asked).items():
            spent[kind] = spent.get(kind, 0.0) + rows / batch
    return spent


def find_scored_tokens(scores: Tensor, pixels: Tensor | None, capture: Capture) -> tuple[Tokens, ...]:
    """What the scores belong to; each pixel is its own patch where the patches are not known."""
    if pixels is None or len(capture.tokens[0]) == scores.shape[1]:
        return capture.tokens
    return (Grid(pixels.shape[1], pixels.shape[2]),) * len(scores)


def split_scores(
    scores: Tensor, capture: Capture, method: str, *, is_image: bool = True
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """What a method returned, as scores of patches or tokens, of pixels, and of the tokens that are no patch."""
    tokens, batch = capture.tokens[0], len(capture.tokens)
    if isinstance(tokens, Grid) and scores.dim() == 3 and len(scores) == batch:
        return sum_over_patches(scores, tokens), scores, None
    if isinstance(tokens, Grid):
        patches = capture.patches or tuple(range(len(tokens)))
        if scores.dim() == 2 and len(scores) == batch and scores.shape[1] > max(patches):
            others = sorted(set(range(scores.shape[1])) - set(patches))
            return scores[:, patches], None, scores[:, others] if others else None
        if scores.shape == (batch, len(tokens)):  # of patches alone, by a method that looks at nothing else
            return scores, None, None
    elif is_image and scores.dim() == 3 and len(scores) == batch:  # its patches are not known
        return scores.flatten(1), scores, None
    elif scores.shape == (batch, len(tokens)):
        padding = torch.tensor([one.padding for one in capture.tokens if isinstance(one, Pieces)])
        return scores.masked_fill(padding, 0), None, None
    places = "patches" if isinstance(tokens, Grid) else "tokens"
    raise MethodError(
        f"{method} returned {list(scores.shape)} for {batch} x {len(tokens)} {places}. "
        "A method returns one score a token, [batch token], or for a picture [batch height width]."
    )


def sum_over_patches(pixels: Tensor, grid: Grid) -> Tensor:
    """What all pixels of a patch get together: [batch patch]."""
    if grid.covers is not None:  # the model does not look at what is left over
        pixels = pixels[:, : grid.covers[0], : grid.covers[1]]
    batch, height, width = pixels.shape
    if height % grid.rows or width % grid.columns:
        raise InputError(
            f"{height} x {width} pixels do not divide into {grid.rows} x {grid.columns} patches. Resize the picture so "
            "that they do, or use a method that works on tokens."
        )
    tiles = pixels.reshape(batch, grid.rows, height // grid.rows, grid.columns, width // grid.columns)
    return tiles.sum((2, 4)).flatten(1)


# --- files ------------------------------------------------------------------------------------------------------------


def draw_explanation(e: Explanation) -> Drawing:
    if not len(e):
        raise InputError("This explanation holds no example, so there is nothing to draw.")
    return e.draw()


FORMATS: dict[str, Callable[[Explanation], bytes]] = {
    ".safetensors": lambda e: to_safetensors("explanation", vars(e)),
    ".json": lambda e: archive.to_json_text("explanation", vars(e)).encode("ascii"),
    ".html": lambda e: page.make_explanation_page(e.panels()).encode("utf-8"),
    ".png": lambda e: draw_explanation(e).png(),
    ".svg": lambda e: draw_explanation(e).svg().encode("utf-8"),
    ".pdf": lambda e: draw_explanation(e).pdf(),
    ".tex": lambda e: latex.to_latex(e.panels()).encode("utf-8"),
    ".csv": lambda e: score_rows.as_csv(score_rows.list_score_rows(e.panels())),
    ".parquet": lambda e: score_rows.as_parquet(score_rows.list_score_rows(e.panels())),
    ".txt": lambda e: (e.render(Screen(width=100, colours=None)) + "\n").encode("utf-8", "backslashreplace"),
}
