"""Does any source say the answer? A model may depend on a passage and still make its answer up."""

import re
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
