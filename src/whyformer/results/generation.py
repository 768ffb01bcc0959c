"""Writing: a language model continues a text, and every token of the continuation is explained.

    w = written(model, "the keys to the cabinet", tokens=8)
    w[0]; print(w); w.save("why.html")      # the page: click on a token to see why it was said

Each token is explained as the one that comes after all before it. The beginnings of the text are explained in batches;
a batch gives what its examples give alone, so it does not matter how they are cut.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.next_token import predict_next_token
from whyformer._engine.shadow import make_shadow
from whyformer._model.model import EncodedBatch, Model
from whyformer._plain import archive
from whyformer._plain.progress import show_progress
from whyformer._plain.tokens import Pieces
from whyformer.errors import InputError, TargetError
from whyformer.results.explanation import (
    Explanation,
    MethodLike,
    ModelLike,
    as_model,
    choose_method,
    make_explanation,
    record_for_methods,
)
from whyformer.show import figures, page, report, score_rows, terminal
from whyformer.show.drawing import Drawing
from whyformer.show.panel import Panel
from whyformer.show.report import Html, make_element
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible
from whyformer.show.wording import format_certainty, name_target

BATCH = 16  # beginnings explained at once


@dataclass(frozen=True, eq=False, repr=False)
class Generation:
    """A text, and for each token of its continuation why it was said."""

    text: str  # all of it, the prompt first; empty without a tokenizer
    prompt_length: int  # how many tokens were given
    steps: tuple[Explanation, ...]  # one example each: token `prompt + i` from all before it

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, place: int) -> Explanation:
        return self.steps[place]

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.steps)

    @property
    def words(self) -> list[str]:
        """The tokens that were said."""
        return [step.targets[0].label for step in self.steps]

    def matrix(self) -> Tensor:
        """[said token, token before]: the scores, NaN where a token was not there yet."""
        longest = max(len(step.tokens[0]) for step in self.steps)
        scores = torch.full((len(self), longest), float("nan"), dtype=torch.double)
        for row, step in zip(scores, self.steps, strict=True):
            row[: len(step.tokens[0])] = step.scores[0].double()
        return scores

    def __repr__(self) -> str:
        words, method = make_visible("".join(self.words)), make_visible(self.steps[0].method)
        return f"<Generation of {len(self)} tokens by {method}: {words!r}>"

    def __str__(self) -> str:
        return self.render()

    def render(self, screen: Screen | None = None) -> str:
        """As text for a terminal: every said token with its reasons."""
        screen = screen or Screen.from_stdout()
        parts: list[Any] = []
        for step in self.steps:
            parts.append(terminal.render_title(step.targets[0], None, name=None, class_specific=step.class_specific))
            tokens = step.tokens[0]
            assert isinstance(tokens, Pieces)
            parts += [*terminal.render_text(tokens, step.scores[0], signed=step.signed, screen=screen), ""]
        return terminal.render_parts(parts, screen)

    def panels(self) -> list[Panel]:
        return [step.panels()[0] for step in self.steps]

    def draw(self) -> Drawing:
        """Every said token a line: the text before it in colour."""
        lines = [(name_target(case.target), case) for case in self.panels()]
        names = [name for name, _ in lines]
        alt = f"Why {', '.join(names)}, by {self.steps[0].method}"
        return figures.draw_panel_table([("", [case for _, case in lines])], names, title="", alt=alt)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file: .html to click through, .png, .svg, .pdf, .txt, or .csv and .parquet for the numbers."""
        archive.write_file(path, FORMATS[archive.suffix_of(path, FORMATS)](self))

    def _repr_html_(self) -> str:
        return page.make_comparison_fragment([{name_target(case.target): case for case in self.panels()}])


def explain_generation(
    model: ModelLike,
    prompt: str,
    method: MethodLike = "attcat",
    *,
    tokens: int = 20,
    continuation: str | None = None,
    **settings: Any,
) -> Generation:
    """Why each token was said: of what the model goes on with, at most `tokens`, or of a continuation that is given."""
    chosen = choose_method(method, settings)
    model = as_model(model)
    if tokens < 1:
        raise InputError(f"{tokens} tokens cannot be explained; give 1 or more.")
    if model.kind != "text":
        raise InputError(f"{model.name} does not write text: it was opened without a tokenizer.")
    start, ids = encode_prompt(model, prompt, continuation)
    if continuation is None:
        ids = generate_ids(model, start, tokens)
    if len(ids) == len(start):
        raise InputError("The model says nothing after this text: its first token would be the end.")
    steps = []
    with show_progress(len(ids) - len(start), "explaining") as progress:
        for first in range(len(start), len(ids), BATCH):
            places = list(range(first, min(first + BATCH, len(ids))))
            encoded = encode_ids(model, [ids[:place] for place in places])
            capture = record_for_methods([chosen], model, encoded, [ids[place] for place in places], None)
            found = make_explanation(chosen, model, encoded, capture)
            steps += [trim_padding(found[i], model, ids[:place]) for i, place in enumerate(places)]
            progress.advance(len(places))
    return Generation(model.tokenizer.decode(ids), len(start), tuple(steps))


def encode_prompt(model: Model, prompt: str, continuation: str | None) -> tuple[list[int], list[int]]:
    """The ids of the prompt, and those of the whole text if its continuation is given."""
    start = token_ids_of(model.encode(prompt))
    if continuation is None:
        return start, start
    whole = token_ids_of(model.encode(prompt + continuation))
    if whole[: len(start)] != start or len(whole) == len(start):
        raise TargetError(
            f"{continuation!r} does not continue the prompt token by token: together the tokenizer cuts them "
            "differently. Begin it with the blank that stands between them, or end the prompt elsewhere."
        )
    return start, whole


def token_ids_of(encoded: EncodedBatch) -> list[int]:
    return [int(i) for i in encoded.inputs[encoded.main][0]]


def generate_ids(model: Model, start: Sequence[int], tokens: int) -> list[int]:
    """What the model goes on with, always the likeliest token, until it ends."""
    ends = {model.tokenizer.eos_token_id, model.tokenizer.pad_token_id} - {None}
    most = len(start) + tokens if model.max_length is None else min(len(start) + tokens, model.max_length)
    ids, shadow = list(start), make_shadow(model.module)
    with show_progress(most - len(ids), "writing") as progress:
        while len(ids) < most:
            token = predict_next_token(model, shadow, encode_ids(model, [ids]))
            if token is None:
                raise InputError(f"{model.name} answers with classes, not with a next token.")
            if token in ends:
                break
            ids.append(token)
            progress.advance()
    return ids


def encode_ids(model: Model, rows: Sequence[Sequence[int]]) -> EncodedBatch:
    """Token ids as a batch."""
    return model.encode([{"input_ids": torch.tensor(row)} for row in rows])


def trim_padding(e: Explanation, model: Model, ids: Sequence[int]) -> Explanation:
    """One example without its padding, its tokens with the letters they stand for."""
    tokens = e.tokens[0]
    assert isinstance(tokens, Pieces)
    real = [i for i, padding in enumerate(tokens.padding) if not padding]
    text, spans = decode_with_spans(model.tokenizer, ids)
    cut = Pieces(
        pieces=tuple(tokens.pieces[i] for i in real),
        special=tuple(tokens.special[i] for i in real),
        padding=(False,) * len(real),
        spans=tuple(None if tokens.special[i] else spans[place] for place, i in enumerate(real)),
        text=text,
    )
    details = {name: found[..., real] for name, found in e.details.items() if found.shape[-1] == len(tokens)}
    return replace(e, scores=e.scores[:, real], tokens=(cut,), names=(text,), details=details)


def decode_with_spans(tokenizer: Any, ids: Sequence[int]) -> tuple[str, list[tuple[int, int] | None]]:
    """The text of these ids, and which of its letters each stands for; the bytes of one letter share it."""
    text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    ends = []
    for count in range(1, len(ids) + 1):
        part = tokenizer.decode(ids[:count], clean_up_tokenization_spaces=False).rstrip("\ufffd")
        ends.append(
            next((i for i, (a, b) in enumerate(zip(part, text, strict=False)) if a != b), min(len(part), len(text)))
        )
    spans: list[tuple[int, int] | None] = []
    begin = 0
    for place, end in enumerate(ends):
        final = next((later for later in ends[place:] if later > begin), end)  # where the letter it begins is whole
        spans.append((begin, final) if final > begin else None)
        begin = max(begin, end)
    return text, spans


# --- files ------------------------------------------------------------------------------------------------------------


def generation_to_html(made: Generation) -> bytes:
    """The continuation to click on; under it the text before the chosen token, in colour."""
    first = made.panels()[0]
    options: list[tuple[Any, Html]] = []
    for case in made.panels():
        heading = make_element("h3", f"Why {name_target(case.target)}? {format_certainty(case.target)}")
        options.append((case.target.label, report.join_html([heading, *page.make_text_blocks(case)])))
    chooser, style = report.make_chooser(options, name="said", legend="Which token to explain", prose=True)
    given = first.pieces.text or ""
    parts = [
        report.make_section("The prompt", make_element("div", given, class_="text", dir="auto")),
        report.make_section("What the model says", chooser, remark="Choose a token, by click or with the arrow keys."),
    ]
    lead = f"{first.model}, token by token, explained by {first.label}. {page.describe_colours(first)}"
    return report.make_page(
        "Why did it say that?", parts, lead=lead, about=page.collect_facts(first), style=style
    ).encode("utf-8")


FORMATS: dict[str, Callable[[Generation], bytes]] = {
    ".html": generation_to_html,
    ".png": lambda w: w.draw().png(),
    ".svg": lambda w: w.draw().svg().encode("utf-8"),
    ".pdf": lambda w: w.draw().pdf(),
    ".txt": lambda w: (w.render(Screen(width=100, colours=None)) + "\n").encode("utf-8", "backslashreplace"),
    ".csv": lambda w: score_rows.as_csv(score_rows.list_score_rows(w.panels())),
    ".parquet": lambda w: score_rows.as_parquet(score_rows.list_score_rows(w.panels())),
}
