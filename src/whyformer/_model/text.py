"""Text in: the pieces a tokenizer cuts it into, or a clear error.

What looks like a special token in a user's text ("[SEP]", "<s>") stays text. Most tokenizers can be asked for that. A
unigram model, or one that looks up whole words, knows its special tokens as ordinary pieces too; for these such a text
is cut by a copy of the tokenizer in which the special pieces carry names that no text contains.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whyformer._model.encoded import OptionalSpan
from whyformer.errors import InputError

MAX_CHARACTERS = 200_000
PRIVATE_PREFIX = "\ue000\uf8ff\ue000"  # private use: put before the name of a special piece


@dataclass(frozen=True)
class TokenizedText:
    """One text as a tokenizer cuts it."""

    text: str
    inputs: dict[str, list[int]]  # input_ids, attention_mask, and what else the tokenizer makes of it
    pieces: tuple[str, ...]
    special: tuple[bool, ...]
    spans: tuple[OptionalSpan, ...]
    padding: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def ids(self) -> list[int]:
        return self.inputs["input_ids"]


def tokenize_text(tokenizer: Any, text: Any, name: str) -> TokenizedText:
    """The pieces of a text, special tokens around them; `name` is what messages call it.

    Of a pair of texts, (first, second), the pieces of both; the text they point into has each on a line of its own.
    """
    parts = list(text) if is_text_pair(text) else [text]
    for part in parts:
        check_text(part, name)
    encoding = tokenizer(
        *parts, split_special_tokens=True, return_special_tokens_mask=True, return_offsets_mapping=tokenizer.is_fast,
        padding=False, truncation=False, verbose=False,
    )  # fmt: skip
    made, belong = dict(encoding), encoding.sequence_ids(0) if tokenizer.is_fast else None
    if _has_special_lookalike(tokenizer, made):
        made, belong = _tokenize_with_renamed(tokenizer, parts, name)
    special = tuple(bool(s) for s in made.pop("special_tokens_mask"))
    offsets = made.pop("offset_mapping", None) or [(0, 0)] * len(special)
    if belong is not None and len(parts) == 2:
        later = len(parts[0]) + 1
        offsets = [(a + later, b + later) if of == 1 else (a, b) for (a, b), of in zip(offsets, belong, strict=True)]
    text = "\n".join(parts)
    if all(special):
        raise InputError(f"There is no token in {name}: it is empty for this model's tokenizer.")
    spans = tuple(None if hidden or a == b else (a, b) for (a, b), hidden in zip(offsets, special, strict=True))
    pieces = tuple(tokenizer.convert_ids_to_tokens(made["input_ids"]))
    return TokenizedText(text, made, pieces, special, spans, (False,) * len(pieces))


def is_text_pair(text: Any) -> bool:
    """Two texts that a model reads together: a question and an answer, a premise and what may follow from it."""
    return isinstance(text, tuple) and len(text) == 2 and all(isinstance(part, str) for part in text)


def check_text(text: Any, name: str) -> None:
    """Refuse what is no text, holds none, or is too much of it."""
    if not isinstance(text, str):
        raise InputError(f"{capitalise_name(name)} is a {type(text).__name__}, not a text.")
    if not text.strip():
        raise InputError(f"{capitalise_name(name)} is empty.")
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"{capitalise_name(name)} has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{capitalise_name(name)} is not valid Unicode at character {error.start}. Decode it with its right "
            "encoding."
        ) from None


def capitalise_name(name: str) -> str:
    return name[:1].upper() + name[1:]


def pad_texts(cuts: Sequence[TokenizedText], *, fill: int, piece: str, side: str) -> list[TokenizedText]:
    """The same texts, all as long as the longest; `fill` is the id of the padding, `piece` its name."""
    longest = max(len(one) for one in cuts)

    def extended(row: Sequence[Any], filling: Any) -> list[Any]:
        missing = [filling] * (longest - len(row))
        return [*missing, *row] if side == "left" else [*row, *missing]

    return [
        TokenizedText(
            one.text,
            {name: extended(row, fill if name == "input_ids" else 0) for name, row in one.inputs.items()},
            tuple(extended(one.pieces, piece)),
            tuple(extended(one.special, False)),
            tuple(extended(one.spans, None)),
            tuple(extended(one.padding, True)),
        )
        for one in cuts
    ]


# --- what looks like a special token ----------------------------------------------------------------------------------


def _find_special_ids(tokenizer: Any) -> set[int]:
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


def _has_special_lookalike(tokenizer: Any, made: dict[str, Any]) -> bool:
    """A special id where the tokenizer itself put none."""
    known = _find_special_ids(tokenizer)
    return any(i in known and not s for i, s in zip(made["input_ids"], made["special_tokens_mask"], strict=True))


def _tokenize_with_renamed(tokenizer: Any, parts: Sequence[str], name: str) -> tuple[dict[str, Any], Any]:
    """The same text or pair of texts, cut with the special pieces renamed, and which text each piece belongs to."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        found = next((t for t in tokenizer.all_special_tokens if any(t in part for part in parts)), "a special token")
        raise InputError(
            f"{capitalise_name(name)} holds {found!r}, which this tokenizer can only read as a special token. Take it "
            "out."
        )
    renamed = _rename_special_pieces(backend, _find_special_ids(tokenizer))
    cuts = [renamed.encode(part, add_special_tokens=False) for part in parts]
    made = backend.post_process(cuts[0], cuts[1] if len(cuts) == 2 else None, True)
    fields = {
        "input_ids": made.ids,
        "attention_mask": made.attention_mask,
        "special_tokens_mask": made.special_tokens_mask,
        "offset_mapping": made.offsets,
    }
    if "token_type_ids" in tokenizer.model_input_names:
        fields["token_type_ids"] = made.type_ids
    return fields, made.sequence_ids


def _rename_special_pieces(backend: Any, special: set[int]) -> Any:
    """A copy of a tokenizer whose special pieces no text can contain; ids stay as they are."""
    from tokenizers import Tokenizer

    parts = json.loads(backend.to_str())
    vocabulary = parts["model"]["vocab"]
    if isinstance(vocabulary, dict):
        parts["model"]["vocab"] = {(PRIVATE_PREFIX + p if i in special else p): i for p, i in vocabulary.items()}
    else:  # unigram: [piece, score], the id is the place
        parts["model"]["vocab"] = [
            [PRIVATE_PREFIX + p if i in special else p, s] for i, (p, s) in enumerate(vocabulary)
        ]
    parts["added_tokens"] = [token for token in parts["added_tokens"] if token["id"] not in special]
    return Tokenizer.from_str(json.dumps(parts | {"post_processor": None, "padding": None, "truncation": None}))
