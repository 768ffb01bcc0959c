r"""Does any source say the answer, of what was asked? A model may depend on a passage and still make its answer up.

The match with the question of the sources $B$ that an answer rests on is

$$ \max_w \; 1 - \log\bigl(n_w / n_w^B\bigr) / \log n $$

over the tokens $w$ of the prompt outside its $n$ sources, with $n_w$ the sources that contain $w$ and $n_w^B$ those of
$B$: 1 if a token of the question is in $B$ and in no other source, 0 if all sources contain it or none of $B$ does.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

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


def match_question(prompt: Prompt, sources: Sequence[Region], basis: Sequence[int]) -> float:
    """How well a token of the question, or of what else is no source, tells these sources from the others."""
    ids = prompt.ids[: prompt.prompt_length]
    own = [frozenset(ids[one.start : one.stop]) for one in sources]
    inside = {place for one in sources for place in range(one.start, one.stop)}
    asked = {token for place, token in enumerate(ids) if place not in inside}
    everywhere = Counter(token for some in own for token in some)
    here = Counter(token for source in basis for token in own[source] if token in asked)
    rare = [1 - math.log(everywhere[token] / count) / math.log(len(own)) for token, count in here.items()]
    return max(rare, default=0.0)
