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

from whyformer import archive
from whyformer.capture import record
from whyformer.errors import InputError, TargetError
from whyformer.explanation import Explanation, MethodLike, Source, choose, explained, opened, record_for
from whyformer.model import Encoded, Model
from whyformer.progress import bar
from whyformer.show import page, plate, report, rows, terminal
from whyformer.show.case import Case
from whyformer.show.drawing import Drawing
from whyformer.show.report import Html, element
from whyformer.show.said import called, certainty
from whyformer.show.terminal import Screen
from whyformer.show.visible import visible
from whyformer.tokens import Pieces

BATCH = 16  # beginnings explained at once


@dataclass(frozen=True, eq=False, repr=False)
class Writing:
    """A text, and for each token of its continuation why it was said."""

    text: str  # all of it, the prompt first; empty without a tokenizer
    prompt: int  # how many tokens were given
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
        return f"<Writing of {len(self)} tokens by {visible(self.steps[0].method)}: {visible(''.join(self.words))!r}>"

    def __str__(self) -> str:
        return self.render()

    def render(self, screen: Screen | None = None) -> str:
        """As text for a terminal: every said token with its reasons."""
        screen = screen or Screen.here()
        parts: list[Any] = []
        for step in self.steps:
            parts.append(terminal.title(step.targets[0], None, name=None, class_specific=step.class_specific))
            tokens = step.tokens[0]
            assert isinstance(tokens, Pieces)
            parts += [*terminal.text_parts(tokens, step.scores[0], signed=step.signed, screen=screen), ""]
        return terminal.printed(parts, screen)

    def cases(self) -> list[Case]:
        return [step.cases()[0] for step in self.steps]

    def draw(self) -> Drawing:
        """Every said token a line: the text before it in colour."""
        lines = [(called(case.target), case) for case in self.cases()]
        names = [name for name, _ in lines]
        alt = f"Why {', '.join(names)}, by {self.steps[0].method}"
        return plate.sheet([("", [case for _, case in lines])], names, title="", alt=alt)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file: .html to click through, .png, .svg, .pdf, .txt, or .csv and .parquet for the numbers."""
        archive.write(path, FORMATS[archive.suffix_of(path, FORMATS)](self))

    def _repr_html_(self) -> str:
        return page.comparison_fragment([{called(case.target): case for case in self.cases()}])


def written(
    model: Source,
    prompt: str,
    method: MethodLike = "attcat",
    *,
    tokens: int = 20,
    continuation: str | None = None,
    **settings: Any,
) -> Writing:
    """Why each token was said: of what the model goes on with, at most `tokens`, or of a continuation that is given."""
    chosen = choose(method, settings)
    model = opened(model)
    if tokens < 1:
        raise InputError(f"{tokens} tokens cannot be explained; give 1 or more.")
    if model.kind != "text":
        raise InputError(f"{model.name} does not write text: it was opened without a tokenizer.")
    start, ids = beginning(model, prompt, continuation)
    if continuation is None:
        ids = continued(model, start, tokens)
    if len(ids) == len(start):
        raise InputError("The model says nothing after this text: its first token would be the end.")
    steps = []
    with bar(len(ids) - len(start), "explaining") as progress:
        for first in range(len(start), len(ids), BATCH):
            places = list(range(first, min(first + BATCH, len(ids))))
            encoded = encode_ids(model, [ids[:place] for place in places])
            capture = record_for([chosen], model, encoded, [ids[place] for place in places], None)
            found = explained(chosen, model, encoded, capture)
            steps += [trimmed(found[i], model, ids[:place]) for i, place in enumerate(places)]
            progress.advance(len(places))
    return Writing(model.tokenizer.decode(ids), len(start), tuple(steps))


def beginning(model: Model, prompt: str, continuation: str | None) -> tuple[list[int], list[int]]:
    """The ids of the prompt, and those of the whole text if its continuation is given."""
    start = ids_of(model.encode(prompt))
    if continuation is None:
        return start, start
    whole = ids_of(model.encode(prompt + continuation))
    if whole[: len(start)] != start or len(whole) == len(start):
        raise TargetError(
            f"{continuation!r} does not continue the prompt token by token: together the tokenizer cuts them "
            "differently. Begin it with the blank that stands between them, or end the prompt elsewhere."
        )
    return start, whole


def ids_of(encoded: Encoded) -> list[int]:
    return [int(i) for i in encoded.inputs[encoded.main][0]]


def continued(model: Model, start: Sequence[int], tokens: int) -> list[int]:
    """What the model goes on with, always the likeliest token, until it ends."""
    ends = {model.tokenizer.eos_token_id, model.tokenizer.pad_token_id} - {None}
    most = len(start) + tokens if model.longest is None else min(len(start) + tokens, model.longest)
    ids = list(start)
    with bar(most - len(ids), "writing") as progress:
        while len(ids) < most:
            target = record(model, encode_ids(model, [ids]), keep={"mask"}).targets[0]
            if target.position is None:
                raise InputError(f"{model.name} answers with classes, not with a next token.")
            if target.index in ends:
                break
            ids.append(target.index)
            progress.advance()
    return ids


def encode_ids(model: Model, rows: Sequence[Sequence[int]]) -> Encoded:
    """Token ids as a batch."""
    return model.encode([{"input_ids": torch.tensor(row)} for row in rows])


def trimmed(e: Explanation, model: Model, ids: Sequence[int]) -> Explanation:
    """One example without its padding, its tokens with the letters they stand for."""
    tokens = e.tokens[0]
    assert isinstance(tokens, Pieces)
    real = [i for i, padding in enumerate(tokens.padding) if not padding]
    text, spans = letters_of(model.tokenizer, ids)
    cut = Pieces(
        pieces=tuple(tokens.pieces[i] for i in real),
        special=tuple(tokens.special[i] for i in real),
        padding=(False,) * len(real),
        spans=tuple(None if tokens.special[i] else spans[place] for place, i in enumerate(real)),
        text=text,
    )
    details = {name: found[..., real] for name, found in e.details.items() if found.shape[-1] == len(tokens)}
    return replace(e, scores=e.scores[:, real], tokens=(cut,), names=(text,), details=details)


def letters_of(tokenizer: Any, ids: Sequence[int]) -> tuple[str, list[tuple[int, int] | None]]:
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


def html(made: Writing) -> bytes:
    """The continuation to click on; under it the text before the chosen token, in colour."""
    first = made.cases()[0]
    options: list[tuple[Any, Html]] = []
    for case in made.cases():
        heading = element("h3", f"Why {called(case.target)}? {certainty(case.target)}")
        options.append((case.target.label, report.joined([heading, *page.text_parts(case)])))
    chooser, style = report.choice(options, name="said", legend="Which token to explain", prose=True)
    given = first.pieces.text or ""
    parts = [
        report.section("The prompt", element("div", given, class_="text", dir="auto")),
        report.section("What the model says", chooser, remark="Choose a token, by click or with the arrow keys."),
    ]
    lead = f"{first.model}, token by token, explained by {first.label}. {page.read_as(first)}"
    return report.page("Why did it say that?", parts, lead=lead, about=page.about(first), style=style).encode("utf-8")


FORMATS: dict[str, Callable[[Writing], bytes]] = {
    ".html": html,
    ".png": lambda w: w.draw().png(),
    ".svg": lambda w: w.draw().svg().encode("utf-8"),
    ".pdf": lambda w: w.draw().pdf(),
    ".txt": lambda w: (w.render(Screen(width=100, colours=None)) + "\n").encode("utf-8", "backslashreplace"),
    ".csv": lambda w: rows.as_csv(rows.rows(w.cases())),
    ".parquet": lambda w: rows.as_parquet(rows.rows(w.cases())),
}
