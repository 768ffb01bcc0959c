"""Tokenize texts.

A string in the user's text that looks like a special token ("[SEP]", "<s>") stays text; only the mask of a model that
predicts tokens is read as what it is. Most tokenizers have an option for that. Unigram and word-level models also
list their special tokens as ordinary pieces; for those, such a text is tokenized by a copy of the tokenizer in which
the special pieces have names that no text contains.

A tokenized text that is longer than the model allows is split into overlapping windows:

    [CLS] a b c d e f g [SEP]      at most 6 tokens, 1 shared:
    [CLS] a b c d [SEP]   [CLS] d e f g [SEP]

Each window is a proper input: the special tokens around the text are in all of them. Of a pair, the first text is in
all windows and the second is split. The last window begins earlier than the step asks for, so that it is full too.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from PIL import Image

from whyformer._model.preprocessors import Tokenizer
from whyformer._model.spans import align_pieces, correct_offsets
from whyformer._plain.failure import is_failure
from whyformer._plain.paths import IMAGE_SUFFIXES, is_file_path
from whyformer._plain.tokens import Pieces, name_pair, pad_pieces, take_pieces
from whyformer.errors import InputError, quote_type

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

    from whyformer._model.input_like import InputLike, OneInput

MAX_CHARACTERS = 200_000
PAIR_FIELDS = (  # usual names of the first and the second text of a pair
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question", "context"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text_a", "text_b"),
    ("text", "text_pair"),
)
PAIR_LABELS = ("entail", "contradict", "duplicate", "paraphrase", "equivalent")
PAIR_HEADS = ("ForQuestionAnswering", "ForNextSentencePrediction")
PRIVATE_PREFIX = "\ue000\uf8ff\ue000"  # private-use characters, put before the name of a special piece


class TextPair(NamedTuple):
    """Two texts that a model reads together: premise and hypothesis, question and context, query and document.

    A list or tuple of two texts is a batch of two examples; `TextPair("a premise", "a hypothesis")` is one.
    """

    first: str
    second: str


@dataclass(frozen=True)
class TokenizedText(Pieces):
    """One tokenized text, or pair of texts, with the inputs that the tokenizer makes of it."""

    text: str = ""
    inputs: dict[str, list[int]] = field(default_factory=dict)  # input_ids, attention_mask and what else it returns

    @property
    def name(self) -> str:
        """What to call it: the text itself, or both texts of a pair."""
        return self.text if self.second is None else name_pair(self.text, self.second)

    @property
    def ids(self) -> list[int]:
        return self.inputs["input_ids"]

    @property
    def plain(self) -> Pieces:
        """The pieces alone."""
        return Pieces(self.pieces, self.special, self.padding, self.spans, self.text, self.second)

    @classmethod
    def from_pieces(cls, ids: Sequence[int], tokens: Pieces) -> "TokenizedText":
        """Token ids with what they spell."""
        inputs = {"input_ids": list(ids), "attention_mask": [1] * len(ids)}
        text = tokens.text or ""
        return cls(tokens.pieces, tokens.special, tokens.padding, tokens.spans, text, tokens.second, inputs=inputs)

    def take(self, at: Sequence[int]) -> "TokenizedText":
        """The tokens at these positions as an input of their own."""
        return replace(take_pieces(self, at), inputs={name: [row[i] for i in at] for name, row in self.inputs.items()})


def name_texts(count: int) -> list[str]:
    """What messages call each of several texts."""
    return ["the text"] if count == 1 else [f"text {n}" for n in range(count)]


def tokenize_text(tokenizer: Tokenizer, text: "OneInput", name: str, *, keeps_mask: bool = False) -> TokenizedText:
    """Tokenize a text, with special tokens around it; error messages call it `name`.

    A pair (first, second) becomes one sequence. Its spans refer to both texts joined by a line break.
    keeps_mask: the mask token in the text is that token, a place where the model predicts; it counts as special.
    """
    parts = check_parts(text, name)
    has_mask = keeps_mask and _has_mask(tokenizer, parts, name)
    encoding = _call_tokenizer(tokenizer, parts, name, split=not has_mask)
    inputs, part_of_piece = dict(encoding), encoding.sequence_ids(0) if tokenizer.is_fast else None
    if has_mask:
        marked = zip(inputs["special_tokens_mask"], inputs["input_ids"], strict=True)
        inputs["special_tokens_mask"] = [is_added or i == tokenizer.mask_token_id for is_added, i in marked]
    elif _has_special_lookalike(tokenizer, inputs):
        inputs, part_of_piece = _tokenize_with_renamed(tokenizer, parts, name)
    special = tuple(bool(s) for s in inputs.pop("special_tokens_mask"))
    offsets = inputs.pop("offset_mapping", None)
    shift = len(parts[0]) + 1 if len(parts) == 2 else 0
    if offsets and part_of_piece is not None and shift:
        pairs = zip(offsets, part_of_piece, strict=True)
        offsets = [(start + shift, end + shift) if part == 1 else (start, end) for (start, end), part in pairs]
    text = "\n".join(parts)
    if all(special):
        raise InputError(f"The tokenizer of this model finds no token in {name}.", code="E_TXT_EMPTY")
    pieces = tuple(tokenizer.convert_ids_to_tokens(inputs["input_ids"]))
    if offsets:
        spans = correct_offsets(text, pieces, offsets, special, shift)
    else:
        spans = align_pieces(text, pieces, special, getattr(tokenizer, "convert_tokens_to_string", None))
    return TokenizedText(pieces, special, (False,) * len(pieces), spans, text, shift or None, inputs=inputs)


def _has_mask(tokenizer: Tokenizer, parts: Sequence[str], name: str) -> bool:
    """Whether the text contains the mask token; with another special token beside it, it is refused."""
    mask = getattr(tokenizer, "mask_token", None)
    if not mask or not any(mask in part for part in parts):
        return False
    others = [token for token in tokenizer.all_special_tokens if token != mask and any(token in p for p in parts)]
    if others:
        raise InputError(
            f"{capitalise(name)} contains {mask!r} and {others[0]!r}. A text with a mask cannot have other "
            "special tokens in it. Pass token ids instead."
        )
    return True


def _call_tokenizer(tokenizer: Tokenizer, parts: Sequence[str], name: str, *, split: bool = True) -> Any:
    try:
        return tokenizer(
            *parts, split_special_tokens=split, return_special_tokens_mask=True,
            return_offsets_mapping=tokenizer.is_fast, padding=False, truncation=False, verbose=False,
        )  # fmt: skip
    except BaseException as error:
        if not is_failure(error) or not type(tokenizer).__module__.startswith("transformers."):
            raise  # the user's own tokenizer
        reason = f"The tokenizer of this model fails on {name}: {str(error)[:200]}."
        advice = "Its files may be damaged or belong to another model."
        raise InputError(f"{reason} {advice}", code="E_MODEL_TOKENIZER") from None


def find_pair_fields(item: "InputLike") -> tuple[str, str] | None:
    """The names of the two texts in {"question": ..., "context": ...} and the like."""
    return next((pair for pair in PAIR_FIELDS if isinstance(item, Mapping) and item.keys() == set(pair)), None)


def is_text_record(item: "InputLike") -> "TypeGuard[Mapping[str, str]]":
    """Whether this is {"text": ...} or a pair by usual names, as the pipelines and tables of transformers have it."""
    if not isinstance(item, Mapping) or not all(isinstance(part, str) for part in item.values()):
        return False
    return item.keys() == {"text"} or find_pair_fields(item) is not None


def split_text_columns(item: "InputLike") -> "list[TextPair] | None":
    """The pairs of {"premise": [...], "hypothesis": [...]}, a batch by columns."""
    if (names := find_pair_fields(item)) is None:
        return None
    columns: list[Any] = [item[name] for name in names]  # type: ignore[index, call-overload]
    if not all(isinstance(column, list | tuple) for column in columns) or len({*map(len, columns)}) > 1:
        return None
    return [TextPair(*texts) for texts in zip(*columns, strict=True)]


def read_text_item(item: "OneInput", model: str) -> "OneInput":
    """The text or pair that an item stands for; the name of an image file is refused unless it is called a text."""
    if is_text_record(item):
        names = find_pair_fields(item)
        return item["text"] if names is None else TextPair(item[names[0]], item[names[1]])
    if isinstance(item, str) and names_image_file(item):
        raise InputError(
            f"{item!r} is an image file, but {model} takes texts. Use a model for images, such as demo/pets. To "
            f'explain these words as a text, pass {{"text": {item!r}}}.',
            code="E_TXT_TYPE",
        )
    if isinstance(item, Image.Image):
        raise InputError(f"Got an image, but {model} takes texts. Use a model for images.", code="E_TXT_TYPE")
    return item


def names_image_file(text: str) -> bool:
    """Whether there is an image file of this name."""
    return text.lower().endswith(IMAGE_SUFFIXES) and is_file_path(text)


def is_pair_label(label: str) -> bool:
    """Whether a class says how two texts are related."""
    return label.casefold().replace("not_", "").replace("not ", "").startswith(PAIR_LABELS)


def is_text_pair(text: "OneInput") -> TypeGuard[tuple[str, str]]:
    """Whether this is a pair of texts that a model reads together: question and answer, premise and hypothesis."""
    return isinstance(text, TextPair) or (
        isinstance(text, tuple) and len(text) == 2 and all(isinstance(part, str) for part in text)
    )


def check_parts(text: "OneInput", name: str) -> list[str]:
    """The text, or both texts of a pair; refuses what is no text."""
    if not is_text_pair(text):
        return [check_text(text, name)]
    pair = name.replace("text", "pair", 1)
    return [check_text(part, f"the {n} text of {pair}") for part, n in zip(text, ("first", "second"), strict=True)]


def check_text(text: Any, name: str) -> str:
    """Refuse anything but a non-empty string of valid Unicode that is not too long."""
    what = capitalise(name)
    if not isinstance(text, str):
        advice = ""
        if isinstance(text, list):
            are_ids = bool(text) and all(isinstance(item, int) for item in text)
            is_pair = len(text) == 2 and not are_ids
            advice = ' Pass token ids as {"input_ids": tensor}.' if are_ids else " Pass one flat list of texts."
            advice += " Two texts that are read together are TextPair(first, second)." if is_pair else ""
        raise InputError(f"{what} must be a string, got {quote_type(text)}.{advice}", code="E_TXT_TYPE")
    if not text.strip():
        raise InputError(f"{what} is empty.", code="E_TXT_EMPTY")
    if len(text) > MAX_CHARACTERS:
        limit = f"the limit is {MAX_CHARACTERS:,}"
        raise InputError(f"{what} has {len(text):,} characters; {limit}.", code="E_TXT_TOO_LONG")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"{what} is not valid Unicode at character {error.start}"
        raise InputError(f"{problem}. Decode it with the right encoding.", code="E_TXT_ENCODING") from None
    return text


def capitalise(name: str) -> str:
    return name[:1].upper() + name[1:]


def pad_texts(texts: Sequence[TokenizedText], *, fill: int, piece: str, side: str) -> list[TokenizedText]:
    """Pad all texts to the length of the longest; `fill` is the token id of padding, `piece` its name."""
    longest, is_left = max(map(len, texts)), side == "left"

    def pad_row(name: str, row: list[int]) -> list[int]:
        filling = [fill if name == "input_ids" else 0] * (longest - len(row))
        return filling + row if is_left else row + filling

    padded = (pad_pieces(text, longest, piece, is_left=is_left) for text in texts)
    return [replace(one, inputs={name: pad_row(name, row) for name, row in one.inputs.items()}) for one in padded]


# --- text that looks like a special token -----------------------------------------------------------------------------


def _find_special_ids(tokenizer: Tokenizer) -> set[int]:
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


def _has_special_lookalike(tokenizer: Tokenizer, inputs: Mapping[str, list[int]]) -> bool:
    """Whether a special id comes from the text and not from the tokenizer."""
    known = _find_special_ids(tokenizer)
    return any(i in known and not s for i, s in zip(inputs["input_ids"], inputs["special_tokens_mask"], strict=True))


def _tokenize_with_renamed(
    tokenizer: Tokenizer, parts: Sequence[str], name: str
) -> tuple[dict[str, Any], list[int | None]]:
    """Tokenize a text or pair with the special pieces renamed; also returns which text each piece belongs to."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        token = next((t for t in tokenizer.all_special_tokens if any(t in part for part in parts)), "a special token")
        raise InputError(
            f"{capitalise(name)} contains {token!r}, which this tokenizer always reads as a special token. "
            "Remove it from the text.",
            code="E_MODEL_TOKENIZER",
        )
    renamed = _rename_special_pieces(backend, _find_special_ids(tokenizer))
    encodings = [renamed.encode(part, add_special_tokens=False) for part in parts]
    encoding = backend.post_process(encodings[0], encodings[1] if len(encodings) == 2 else None, True)
    fields = {
        "input_ids": encoding.ids,
        "attention_mask": encoding.attention_mask,
        "special_tokens_mask": encoding.special_tokens_mask,
        "offset_mapping": encoding.offsets,
    }
    if "token_type_ids" in tokenizer.model_input_names:
        fields["token_type_ids"] = encoding.type_ids
    return fields, encoding.sequence_ids


def _rename_special_pieces(backend: "Backend", special: set[int]) -> "Backend":
    """A copy of the tokenizer whose special pieces cannot occur in a text; all ids stay the same."""
    from tokenizers import Tokenizer

    parts = json.loads(backend.to_str())
    vocabulary = parts["model"]["vocab"]
    if isinstance(vocabulary, dict):
        parts["model"]["vocab"] = {(PRIVATE_PREFIX + p if i in special else p): i for p, i in vocabulary.items()}
    else:  # unigram: [piece, score]; the id is the position
        parts["model"]["vocab"] = [
            [PRIVATE_PREFIX + p if i in special else p, s] for i, (p, s) in enumerate(vocabulary)
        ]
    parts["added_tokens"] = [token for token in parts["added_tokens"] if token["id"] not in special]
    return Tokenizer.from_str(json.dumps(parts | {"post_processor": None, "padding": None, "truncation": None}))


# --- windows of long texts --------------------------------------------------------------------------------------------


SHARED = 4  # by default neighbouring windows share a quarter of their text


@dataclass(frozen=True)
class TextWindow:
    """A part of a text as an input of its own."""

    text: TokenizedText
    places: tuple[int, ...]  # of its tokens among the tokens of the whole text
    span: tuple[int, int]  # the characters that only some windows have; the whole text if it fits


def split_into_windows(one: TokenizedText, size: int | None, windows: int, name: str) -> list[TextWindow]:
    """The windows of at most `size` tokens. windows: True, or how many tokens neighbouring windows share."""
    if size is None or len(one) <= size:
        return [TextWindow(one, tuple(range(len(one))), (0, len(one.text)))]
    # `start` and `end` are of the last run of tokens that are not special.
    end = max(place for place in range(len(one)) if not one.special[place]) + 1
    start = max((place for place in range(end) if one.special[place]), default=-1) + 1
    room = size - start - (len(one) - end)
    if room < 1:
        raise InputError(
            f"{capitalise(name)} is {len(one)} tokens long; the model accepts at most {size}, and the tokens "
            f"that every window needs (special tokens, the first text of a pair) are {size - room}. Shorten the first "
            "text.",
            code="E_TXT_TOO_LONG",
        )
    shared = room // SHARED if windows is True else int(windows)
    if shared >= room:
        raise InputError(f"windows must be below {room}, the tokens of a window, got {shared}.", code="E_OPTION")
    last = end - room
    windows_of_text = [range(a, a + room) for a in (*range(start, last, room - shared), last)]
    return [take_window(one, own, [*range(start), *own, *range(end, len(one))]) for own in windows_of_text]


def take_window(one: TokenizedText, own: range, places: Sequence[int]) -> TextWindow:
    """The tokens at these places as an input, of which it alone has those in `own`."""
    spans = [span for span in one.spans[own.start : own.stop] if span is not None]
    return TextWindow(one.take(places), tuple(places), (spans[0][0], spans[-1][1]) if spans else (0, len(one.text)))


def check_windows(windows: int) -> int:
    """False, True, or how many tokens neighbouring windows share."""
    if not isinstance(windows, int) or windows < 0:
        wanted = "True, False or the number of tokens that neighbouring windows share"
        raise InputError(f"windows must be {wanted}, got {windows!r}.", code="E_OPTION")
    return windows
