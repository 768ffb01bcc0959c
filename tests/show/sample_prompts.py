"""Prompts made by hand, for tests of drawing."""

import torch

from whyformer._plain.tokens import NamedTokens, Pieces
from whyformer.show.prompt_view import CitationRow, HopRow, PromptView


def make_pieces(words: list[str], *, special: frozenset[int] = frozenset()) -> Pieces:
    """Words with a blank between them as tokens; a token that begins with ## continues the word before it."""
    text, spans = "", []
    for i, word in enumerate(words):
        text += " " if i and not word.startswith("##") else ""
        word = word.removeprefix("##")
        spans.append((len(text), len(text) + len(word)))
        text += word
    flags = tuple(i in special for i in range(len(words)))
    return Pieces(tuple(words), flags, (False,) * len(words), tuple(spans), text)


def show_prompt(word: str = "cabinet", **changes) -> PromptView:
    """Two regions of three tokens, and an answer of two; the word stands wherever untrusted text can."""
    words = ["the", word, "here", "no", "key", "there", word, "yes"]
    steps = torch.tensor([[0.0, 3.0, 0.5, -1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.5, 0.0, 0.0, 0.0, 2.0, 0.0]])
    fields = dict(
        headline=f"Why {word}?",
        pieces=make_pieces(words, special=frozenset({0})),
        prompt_length=6,
        regions=(NamedTokens(word, word, 0, 3), NamedTokens("second", "passage", 3, 6)),
        scores=steps.sum(0),
        signed=True,
        method=word,
        model=word,
        steps=steps,
        citations=(CitationRow(word, 0, 3, 0.8, word, (word,) * 4, word), CitationRow("second", 3, 6, -0.2, "")),
        reading_notes=(word,),
        hops=(HopRow("hop 0", steps[1], 4.5, 1.0), HopRow(word, steps[0], 2.0, -0.5)),
        settings={word: word},
        versions={word: word},
        notes=(word,),
    )
    return PromptView(**fields | changes)


def show_long_prompt(tokens: int, answers: int, regions: int, *, steps: bool = True, seed: int = 0) -> PromptView:
    """A prompt of words of four letters in sentences of ten, with random scores."""
    generator = torch.Generator().manual_seed(seed)
    letters = torch.randint(97, 123, (tokens + answers, 4), generator=generator).tolist()
    words = ["".join(map(chr, four)) + "." * (i % 10 == 9) for i, four in enumerate(letters)]
    borders = [round(i * tokens / regions) for i in range(regions + 1)]
    scores = torch.randn(answers, tokens + answers, generator=generator) ** 3
    return PromptView(
        headline="Why?",
        pieces=make_pieces(words),
        prompt_length=tokens,
        regions=tuple(NamedTokens(f"passage {i + 1}", "passage", borders[i], borders[i + 1]) for i in range(regions)),
        scores=scores.sum(0),
        signed=True,
        method="attnlrp",
        model="tiny",
        steps=scores if steps else None,
    )
