"""The tokens of a text that continues another one.

The tokens before it are fixed, as they are when a model generates: they are never split differently because of what
follows. Where the tokenizer would join the end of the prompt and the start of the continuation in one token, the
continuation is tokenised on its own.
"""

from typing import Any

ANCHORS = ("\n", ":", "a", ")")  # texts to continue instead, so that no blank is put before the continuation


def encode_continuation(tokenizer: Any, before: str, text: str, *, special: bool = False) -> tuple[list[int], bool]:
    """The ids of `text` after the text `before`, and whether the tokenizer splits the joined text just there.

    special: what looks like a special token in the text is that token.
    """

    def encode(one: str) -> list[int]:
        found = tokenizer(one, add_special_tokens=False, split_special_tokens=not special, verbose=False)
        return [int(i) for i in found["input_ids"]]

    for anchor in (before, *ANCHORS):
        start, whole = encode(anchor), encode(anchor + text)
        if whole[: len(start)] == start and len(whole) > len(start):
            return whole[len(start) :], anchor == before
    return encode(text), False
