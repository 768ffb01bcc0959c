"""The steps of what a model wrote: which tokens belong together when relevance is sent on.

A step ends with a sentence, a semicolon or a line. A name in it is why its value was looked up, but relevance of the
value hardly shows that: attention reads the value and only points with the name. So a step answers for its tokens
together: what one of them received, all of them send on, in equal shares.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import groupby

from whyformer._model.prompt import Prompt
from whyformer._plain.sentences import find_sentence_starts

STEP_END = re.compile(r";\s+|\n\s*")


def find_steps(prompt: Prompt) -> list[list[int]]:
    """The tokens of each step of the answer, in order; without a text every token is one."""
    text, begin = prompt.answer_text, prompt.answer_start
    if not text.strip():
        return [[token] for token in prompt.answer]
    starts = sorted({0, *find_sentence_starts(text), *(match.end() for match in STEP_END.finditer(text))})
    ends = [span[1] - begin if (span := prompt.pieces.spans[token]) else 0 for token in prompt.answer]
    numbers, number = [], 0
    for end in ends:  # a token belongs to the step that it ends in; one without characters to the step before it
        number = max(number, bisect_right(starts, end - 1))
        numbers.append(number)
    numbered = zip(numbers, prompt.answer, strict=True)
    return [[token for _, token in step] for _, step in groupby(numbered, key=lambda one: one[0])]


def share_within_steps(received: Mapping[int, float], steps: Sequence[Sequence[int]], last: int) -> dict[int, float]:
    """Token -> what it sends: its share of what its step received. Tokens after `last` had no part in the target."""
    shared = {}
    for step in steps:
        tokens = [token for token in step if 0 < token <= last]  # the first of all was predicted from nothing
        amount = math.fsum(received.get(token, 0.0) for token in tokens)
        if amount:
            shared.update(dict.fromkeys(tokens, amount / len(tokens)))
    return shared
