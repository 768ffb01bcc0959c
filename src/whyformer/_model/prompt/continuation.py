"""The tokens of a text that continues another one.

The tokens before it are fixed, as they are when a model generates: they are never split differently because of what
follows. Where the tokenizer would join the end of the prompt and the start of the continuation in one token, the
continuation is tokenised on its own. An unknown token is checked by its place: whatever it swallows, it looks the same.
"""

from whyformer._model.preprocessors import Tokenizer

ANCHORS = ("\n", ":", "a", ")")  # texts to continue instead, so that no blank is put before the continuation


def encode_continuation(
    tokenizer: Tokenizer, before: str, text: str, *, special: bool = False
) -> tuple[list[int], bool]:
    """The ids of `text` after the text `before`, and whether the tokenizer splits the joined text just there.

    special: what looks like a special token in the text is that token.
    """

    def encode(one: str) -> list[int]:
        found = tokenizer(one, add_special_tokens=False, split_special_tokens=not special, verbose=False)
        return [int(i) for i in found["input_ids"]]

    for anchor in (before, *ANCHORS):
        start, whole = encode(anchor), encode(anchor + text)
        if whole[: len(start)] != start or len(whole) == len(start):
            continue
        if not start or start[-1] != tokenizer.unk_token_id or ends_at(tokenizer, anchor, text, len(start)):
            return whole[len(start) :], anchor == before
    return encode(text), False


def ends_at(tokenizer: Tokenizer, before: str, text: str, count: int) -> bool:
    """Whether the first `count` tokens of the joined text cover the text before and nothing of what follows it."""
    if not tokenizer.is_fast:
        return False
    joined = tokenizer(before + text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return bool(joined["offset_mapping"][count - 1][1] <= len(before))
