"""AnswerView: what a model answered to a batch, as targets look at it: tokens, labels, probabilities.

Positions count the tokens of an example as they are shown, special tokens included, padding left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import SupportsIndex

from torch import Tensor

from whyformer._engine.run.returned import Returned, get_field
from whyformer._engine.targets.target import TargetNames
from whyformer._engine.targets.task import Task
from whyformer._model import EncodedBatch, Model, unwrap
from whyformer.errors import TargetError

OUTSIDE = "O"  # the label of tokens that belong to no entity


@dataclass(frozen=True, eq=False)
class AnswerView:
    """What the model returned for a batch."""

    model: Model
    encoded: EncodedBatch
    returned: Returned
    task: Task

    @cached_property
    def logits(self) -> Tensor:
        """[batch ... class], detached; [batch, class] if the model computed only the last position."""
        output = self.task.output.detach()
        if output.dim() == 1:
            return output[:, None]
        return output[:, -1] if output.dim() == 3 and self.task.kind == "next token" and output.size(1) == 1 else output

    @cached_property
    def names(self) -> TargetNames:
        """The names of the classes or tokens."""
        is_language = self.task.kind in ("next token", "masked token", "frame")
        return TargetNames(self.model, self.logits.size(-1) - self.names_nothing, is_language=is_language)

    @property
    def names_nothing(self) -> bool:
        """Whether the last class means that there is no object (DETR): it is one more than the model has labels."""
        labels = getattr(getattr(unwrap(self.model.module), "config", None), "num_labels", None)
        return self.task.kind == "query" and self.logits.size(-1) - 1 == labels

    @property
    def model_name(self) -> str:
        return type(unwrap(self.model.module)).__name__

    def field(self, name: str) -> Tensor:
        tensor = get_field(self.returned, name)
        assert tensor is not None
        return tensor.detach()

    # --- tokens -------------------------------------------------------------------------------------------------------

    def places(self, row: int) -> list[int]:
        """Where the tokens of an example are in the batch: all places that are not padding."""
        length, mask = self.task.output.size(1), self.encoded.token_mask
        if mask is None or mask.size(1) != length:
            return list(range(length))
        return mask[row].nonzero()[:, 0].tolist()

    def place(self, row: int, position: int) -> int:
        """Where the token with this position is in the batch; negative positions count from the end."""
        places = self.places(row)
        if isinstance(position, bool) or not isinstance(position, int) or not -len(places) <= position < len(places):
            raise TargetError(
                f"There is no token {position!r} in {self.encoded.names[row]!r}. Tokens are 0 to {len(places) - 1}: "
                f"{self.list_tokens(row)}."
            )
        return places[position]

    def range(self, row: int, start: int, end: int | None) -> list[int]:
        """The places from one token to another, both included."""
        first, last = self.place(row, start), self.place(row, start if end is None else end)
        if last < first:
            raise TargetError(f"A span must not end before it starts, got {start} to {end}.")
        return list(range(first, last + 1))

    def content_places(self, row: int) -> list[int]:
        """The places of words; all tokens if all are special."""
        special = self.encoded.special_mask
        places = self.places(row)
        if special is None or special.size(1) <= max(places):
            return places
        return [place for place in places if not bool(special[row, place])] or places

    def text_places(self, row: int) -> list[int]:
        """The places of words that an answer may be marked in: of a question and a text, those of the text."""
        places = self.content_places(row)
        types = self.encoded.inputs.get("token_type_ids")
        second = self.encoded.seconds[row] if self.encoded.seconds else None
        if second is not None and self.encoded.spans is not None:
            spans = self.encoded.spans[row]
            inside = [place for place in places if (span := spans[place]) is not None and span[0] >= second]
        else:
            inside = [] if types is None else [place for place in places if int(types[row, place]) == 1]
        return inside or places

    def position(self, row: int, place: int) -> int:
        return self.places(row).index(place)

    def piece(self, row: int, place: int) -> str:
        words = self.encoded.words
        return words[row][place] if words is not None and len(words[row]) > place else f"token {place}"

    def text(self, row: int, first: int, last: int) -> str:
        """The text from one place to another; the pieces if the text is not known."""
        spans = self.encoded.spans[row] if self.encoded.spans is not None else ()
        text = self.encoded.texts[row] if self.encoded.texts else None
        known = [spans[place] for place in range(first, last + 1) if place < len(spans)]
        inside = [span for span in known if span is not None]
        if text is not None and inside:
            return text[inside[0][0] : inside[-1][1]].strip()
        return " ".join(self.piece(row, place) for place in range(first, last + 1))

    def find_word(self, row: int, word: str) -> list[int]:
        """The places of the tokens of the first occurrence of a word."""
        text = self.encoded.texts[row] if self.encoded.texts else None
        if text is not None and self.encoded.spans is not None:
            start = text.find(word)
            start = text.casefold().find(word.casefold()) if start < 0 else start
            if start >= 0:
                return self.find_characters(row, start, start + len(word))
        else:
            found = [place for place in self.places(row) if self.piece(row, place) == word]
            if found:
                return found[:1]
        raise TargetError(f"{word!r} does not occur in the text. Its tokens are: {self.list_tokens(row)}.")

    def find_characters(self, row: int, start: int, end: int) -> list[int]:
        """The places of the tokens that cover the characters from `start` up to `end`."""
        spans = self.encoded.spans[row] if self.encoded.spans is not None else ()
        places = [i for i, span in enumerate(spans) if span is not None and span[0] < end and span[1] > start]
        if not places:
            known = "The text is not known: the model was given ids." if not spans else "No token covers them."
            raise TargetError(f"There are no tokens for the characters {start} to {end}. {known}")
        return places

    def list_tokens(self, row: int) -> str:
        shown = [f"{position} {self.piece(row, place)!r}" for position, place in enumerate(self.places(row)[:40])]
        return ", ".join(shown) + (" ..." if len(self.places(row)) > 40 else "")

    # --- ids ----------------------------------------------------------------------------------------------------------

    def ids(self, row: int) -> list[int]:
        """The token ids of an example, padding included."""
        ids = self.encoded.inputs[self.encoded.main]
        if ids.is_floating_point():
            raise TargetError(f"{self.model_name} was given {self.encoded.main}, no token ids. Name a token by its id.")
        return [int(i) for i in ids[row].tolist()]

    def mask_places(self, row: int) -> list[int]:
        """The places of the mask token."""
        mask = getattr(self.model.tokenizer, "mask_token_id", None)
        if mask is None:
            mask = getattr(getattr(unwrap(self.model.module), "config", None), "mask_token_id", None)
        if mask is None or self.encoded.inputs[self.encoded.main].is_floating_point():
            return []
        return [place for place, token in enumerate(self.ids(row)) if token == mask]

    def find_token(self, word: str | SupportsIndex) -> int:
        """The id of a token. For a masked model a word stands on its own, after a space."""
        tokenizer = self.model.tokenizer
        if isinstance(word, str) and self.task.kind == "masked token" and tokenizer is not None:
            for text in (f" {word.strip()}", word):
                ids = tokenizer.encode(text, add_special_tokens=False)
                if len(ids) == 1 and ids[0] < self.names.classes and ids[0] != tokenizer.unk_token_id:
                    return int(ids[0])
        if isinstance(word, str) and self.task.kind == "frame" and tokenizer is not None:
            found = tokenizer.get_vocab().get(word)
            if found is None:
                raise TargetError(
                    f"There is no character {word!r}. Available: {' '.join(sorted(tokenizer.get_vocab()))}."
                )
            return int(found)
        return self.names.index(word)

    # --- labels -------------------------------------------------------------------------------------------------------

    @property
    def labels(self) -> Sequence[str]:
        return self.names.labels or [str(i) for i in range(self.logits.size(-1))]

    @property
    def outside(self) -> int | None:
        """The class of tokens that belong to no entity, if the model has one."""
        return list(self.labels).index(OUTSIDE) if OUTSIDE in self.labels else None

    def find_entity_classes(self, label: str | SupportsIndex, count: int) -> list[int]:
        """The class of each token of an entity: B-PER, I-PER ... for the label PER."""
        if isinstance(label, str) and label not in self.labels:
            begin, inside = (
                [i for i, name in enumerate(self.labels) if name.casefold() == f"{tag}-{label}".casefold()]
                for tag in ("b", "i")
            )
            if begin or inside:
                first, later = (begin or inside)[0], (inside or begin)[0]
                return [first] + [later] * (count - 1)
        try:
            return [self.names.index(label)] * count
        except TargetError as error:
            word = f" A word of the text is Entity({label!r}), or 'entity:{label}'." if isinstance(label, str) else ""
            raise TargetError(f"{error}{word}") from None


def split_entity_label(label: str) -> tuple[str, str]:
    """('B', 'PER') of B-PER; ('', 'PER') without a tag."""
    tag, dash, kind = label.partition("-")
    return (tag, kind) if dash and tag in ("B", "I", "E", "S", "L", "U") else ("", label)
