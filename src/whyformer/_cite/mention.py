r"""Does any source say the answer, of what was asked? A model may depend on a passage and still make its answer up.

The match with the question of the sources $B$ that an answer rests on is

$$ \max_w \; 1 - \log\bigl(n_w / n_w^B\bigr) / \log n $$

over the words $w$ of the prompt outside its $n$ sources, with $n_w$ the sources that contain $w$ and $n_w^B$ those of
$B$: 1 if a word of the question is in $B$ and in no other source, 0 if all sources contain it or none of $B$ does.
"""

import math
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from whyformer._cite.estimate import Table
from whyformer._model.prompt import Prompt, Region

SHORT = 5  # words: as many are looked for as they are written
LEAST_WORDS = 0.5  # of a longer answer: so many of its words occur in the sources


def is_mentioned(prompt: Prompt, tokens: Sequence[int], sources: Sequence[Region]) -> bool:
    """Whether a source contains these tokens of the answer as they are written, or the sources most of their words."""
    spans = [prompt.pieces.spans[prompt.prompt_length + token] for token in tokens]
    known = [span for span in spans if span is not None]
    if not known or not any(one.text for one in sources):
        return True  # no text is known
    words = list_answer_words(prompt.text[min(span[0] for span in known) : max(span[1] for span in known)])
    texts = [list_answer_words(one.text) for one in sources]
    if len(words) <= SHORT:
        return any(" ".join(words) in " ".join(text) for text in texts)  # it may begin or end inside a word
    there = {word for text in texts for word in text}
    return sum(word in there for word in words) >= LEAST_WORDS * len(words)


def list_answer_words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def find_asked_words(prompt: Prompt, sources: Sequence[Region]) -> Table:
    """[word source]: which sources contain each word of the question, and of what else is no source.

    Of a prompt without text, tokens are taken for words.
    """
    places = [one.characters for one in sources if one.characters is not None]
    own: list[frozenset[str] | frozenset[int]]
    asked: list[str] | list[int]
    if len(places) == len(sources):
        starts, stops = [0, *(stop for _, stop in places)], [*(start for start, _ in places), prompt.answer_start]
        outside = " ".join(prompt.text[start:stop] for start, stop in zip(starts, stops, strict=True))
        own = [frozenset(list_answer_words(one.text)) for one in sources]
        asked = sorted(set(list_answer_words(outside)))
    else:
        ids = prompt.ids[: prompt.prompt_length]
        inside = {place for one in sources for place in range(one.start, one.stop)}
        own = [frozenset(ids[one.start : one.stop]) for one in sources]
        asked = sorted({token for place, token in enumerate(ids) if place not in inside})
    return np.array([[word in some for some in own] for word in asked], dtype=bool).reshape(-1, len(own))


def match_question(asked: Table, basis: Sequence[int]) -> float:
    """How well a word of the question, asked [word source], tells these sources from the others."""
    here = asked[:, list(basis)].sum(1)
    return tell_from_others(asked, here, here > 0)


def match_each(asked: Table, basis: Sequence[int]) -> float:
    """The same, by a word that every one of these sources contains."""
    here = asked[:, list(basis)].sum(1)
    return tell_from_others(asked, here, here == len(basis))


def tell_from_others(asked: Table, here: NDArray[np.int64], counts: Table) -> float:
    rare = 1 - np.log(asked[counts].sum(1) / here[counts]) / math.log(asked.shape[1])
    return float(rare.max(initial=0.0))
