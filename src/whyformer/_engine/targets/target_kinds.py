"""The kinds of target, one dataclass each: what it reads from the output, its name, and how it is written as text.

Each is *settled* for one example: it becomes a sum of terms (terms.py) whose places and classes are fixed, so that the
same score can be read from any variant of the example. Public names: whyformer.targets.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, SupportsIndex, TypeAlias

from torch import Tensor

from whyformer._engine.targets.answer_view import AnswerView, split_entity_label
from whyformer._engine.targets.query import Query, find_chances
from whyformer._engine.targets.target import probabilities_of
from whyformer._engine.targets.target_like import Named, OneTarget, Settled, TargetKind
from whyformer._engine.targets.target_words import check_task, refuse_task, write_name, write_range
from whyformer._engine.targets.terms import Term
from whyformer.errors import TargetError

LONGEST_ANSWER = 30  # tokens, when the best answer span is looked for
Position: TypeAlias = int | Literal["mask", "last"]


def write_member(wanted: Named | TargetKind) -> str:
    """A class or another target inside a target."""
    return str(as_kind(wanted)).removeprefix("class:")


def write_weighted(name: str, weight: float, times: str) -> str:
    return name if weight == 1 else f"{weight:g}{times}{name}"


# --- classes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Class(TargetKind):
    """The logit of one class: what a plain name or number means, to be combined with others."""

    name: Named

    def settle(self, view: AnswerView, row: int) -> Settled:
        if view.task.kind in NAMED_TARGETS:
            return NAMED_TARGETS[view.task.kind](self.name).settle(view, row)
        check_task(view, "class", f"The class {self.name!r}", "a classifier")
        index = view.names.index(self.name)
        return Settled((Term((index,)),), view.names.label(index), Class(index))

    def __str__(self) -> str:
        return f"class:{write_name(self.name)}"


@dataclass(frozen=True, init=False)
class Group(TargetKind):
    """A weighted sum of the logits of several classes (or of other targets): all dogs, or cats minus dogs.

    The sum is linear in the logits: relevance is conserved, and the explanation by a linear method is the weighted sum
    of the single explanations. weights: one for each; by default 1. Pass [1 / n] * n for the mean.
    """

    members: tuple[Named | TargetKind, ...]
    weights: tuple[float, ...]

    def __init__(self, *members: Named | TargetKind, weights: Sequence[float] | None = None) -> None:
        if not members:
            raise TargetError("A group needs at least one class.")
        chosen = [1.0] * len(members) if weights is None else [float(weight) for weight in weights]
        if len(chosen) != len(members):
            raise TargetError(f"The group has {len(members)} members, but {len(chosen)} weights. Pass one for each.")
        object.__setattr__(self, "members", members)
        object.__setattr__(self, "weights", tuple(chosen))

    def settle(self, view: AnswerView, row: int) -> Settled:
        settled = [as_kind(member).settle(view, row) for member in self.members]
        pairs = list(zip(settled, self.weights, strict=True))
        terms = [term.multiply(weight) for one, weight in pairs for term in one.terms]
        label = " + ".join(write_weighted(one.label, weight, " x ") for one, weight in pairs)
        return Settled(tuple(terms), label, Group(*(one.fixed for one in settled), weights=self.weights))

    def __str__(self) -> str:
        pairs = zip(self.members, self.weights, strict=True)
        parts = [write_weighted(write_member(member), weight, "*") for member, weight in pairs]
        return "group:" + (json.dumps(parts) if any("," in part for part in parts) else ",".join(parts))


@dataclass(frozen=True)
class Labels(TargetKind):
    """All labels that a multi-label model gives, those with a probability above one half, together: a Group of them.

    If there is none, the likeliest, with a note.
    """

    def settle(self, view: AnswerView, row: int) -> Settled:
        if view.task.kind != "class" or not view.names.is_multi_label:
            raise refuse_task(view, "Labels", "a multi-label classifier (problem_type, or a sigmoid at its end)")
        logits = view.logits[row]
        given = (logits > 0).nonzero()[:, 0].tolist()  # the sigmoid of 0 is one half
        settled = Group(*(given or [int(logits.argmax())])).settle(view, row)
        return settled if given else replace(settled, note="No label is above 50%; the likeliest is explained.")


@dataclass(frozen=True)
class LogProbability(TargetKind):
    """The log-probability of a class, a token or a span of tokens: log-softmax of the logits.

    Relevance starts with its slope, 1 - p at the target and -p elsewhere, so a confident prediction sends little. It is
    not conserved with respect to the log-probability.
    """

    of: Named | TargetKind | None = None

    def settle(self, view: AnswerView, row: int) -> Settled:
        inner = settle_target(self.of, view, row)
        if any(term.field for term in inner.terms):
            raise TargetError("LogProbability does not work for an answer span. Use AnswerSpan.")
        terms = tuple(replace(term, scale="logp") for term in inner.terms)
        return Settled(terms, f"log p({inner.label})", LogProbability(inner.fixed), inner.note)

    def __str__(self) -> str:
        return "logp" if self.of is None else f"logp:{write_member(self.of)}"


@dataclass(frozen=True)
class Value(TargetKind):
    """The value that a regression predicts; `number` says which one if there are several."""

    number: int = 0

    def settle(self, view: AnswerView, row: int) -> Settled:
        if view.task.kind != "class" or not view.names.is_regression:
            raise refuse_task(view, "Value", "a regression")
        index = view.names.index(self.number)
        return Settled((Term((index,)),), view.names.label(index), Value(index))


# --- tokens of language models ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Token(TargetKind):
    """The logit of a token: at a mask, after the last token, or at a position.

    word: a text or the id of a token; by default the one that the model predicts there.
    at: the position at which the logit is read, "mask" (the first one) or "last"; by default what fits the model. A
    causal model predicts at a position the token after it, a masked model the token itself.
    """

    word: Named | None = None
    at: Position | None = None

    def settle(self, view: AnswerView, row: int) -> Settled:
        if view.task.kind not in ("next token", "masked token"):
            raise refuse_task(view, "Token", "a language model")
        place, where, note = self.find_place(view, row)
        has_positions = view.logits.dim() == 3
        logits = view.logits[row, place] if has_positions else view.logits[row]
        index = int(logits.argmax()) if self.word is None else view.find_token(self.word)
        at = (place, index) if has_positions else (index,)
        name = view.names.label(index).strip() or view.names.label(index)
        position: Position = view.position(row, place) if has_positions else "last"
        return Settled((Term(at, has_token=has_positions),), f"{name!r} {where}", Token(index, position), note)

    def find_place(self, view: AnswerView, row: int) -> tuple[int, str, str]:
        """Where the logit is read, in words, and a note."""
        at = self.at if self.at is not None else "last" if view.task.kind == "next token" else "mask"
        if at == "last":
            return view.places(row)[-1], "as the next token", ""
        if at != "mask":
            place = view.place(row, at)
            verb = "after" if view.task.kind == "next token" else "at"
            return place, f"{verb} token {at} ({view.piece(row, place)})", ""
        masks = view.mask_places(row)
        if not masks:
            mask = getattr(view.model.tokenizer, "mask_token", None)
            put = f"Put {mask} where a token should be predicted" if mask else "Pass ids with the mask token"
            raise TargetError(
                f"{view.model_name} predicts the token at a mask, and this text has none. {put}, or say where: "
                "targets.Token(at=3), on the command line token@3."
            )
        note = f"The text has {len(masks)} masks; the first one is explained." if len(masks) > 1 else ""
        return masks[0], "at the mask", note

    def __str__(self) -> str:
        word = "" if self.word is None else f":{write_name(self.word)}"
        return f"token{word}" + ("" if self.at is None else f"@{self.at}")


@dataclass(frozen=True)
class Tokens(TargetKind):
    """The sum of the logits of the tokens of the text from `start` to `end` (included), each at its place, in one pass.

    For a causal model every token is read after those before it (teacher forcing), so `start` is at least 1. Its
    explanation is the sum of those of its tokens. LogProbability(Tokens(4, 7)): the log-probability of the span.
    """

    start: int
    end: int | None = None

    def settle(self, view: AnswerView, row: int) -> Settled:
        if view.task.kind not in ("next token", "masked token") or view.logits.dim() != 3:
            raise refuse_task(view, "Tokens", "a language model that answers at every position")
        places, ids = view.range(row, self.start, self.end), view.ids(row)
        shift = int(view.task.kind == "next token")
        if shift and places[0] - 1 not in view.places(row):
            raise TargetError("A causal model does not predict the first token of a text. Start the span at token 1.")
        terms = tuple(Term((place - shift, ids[place]), has_token=True) for place in places)
        fixed = Tokens(view.position(row, places[0]), view.position(row, places[-1]))
        return Settled(terms, f"{view.text(row, places[0], places[-1])!r}", fixed)


# --- token classes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entity(TargetKind):
    """The sum of the logits of an entity over its tokens, in a model that classifies tokens.

    start, end: the first and the last token, a word of the text as `start`, or characters (unit="character", where the
    end is not included, as in a slice). By default the entity that the model is most confident of; with a label, the
    tokens where this label is likeliest.
    label: its class, PER for B-PER and I-PER; by default what the model predicts for each token.
    """

    start: int | str | None = None
    end: int | None = None
    label: Named | None = None
    unit: Literal["token", "character"] = "token"

    def settle(self, view: AnswerView, row: int) -> Settled:
        check_task(view, "token class", "Entity", "a model that classifies tokens")
        if self.start is None:
            return self.settle_best(view, row)
        if isinstance(self.start, str):
            places = view.find_word(row, self.start)
        elif self.unit == "character":
            places = view.find_characters(row, self.start, self.start + 1 if self.end is None else self.end)
        else:
            places = view.range(row, self.start, self.end)
        predicted = view.logits[row, places].argmax(-1).tolist()
        classes = predicted if self.label is None else view.find_entity_classes(self.label, len(places))
        return make_entity(view, row, places, classes)

    def settle_best(self, view: AnswerView, row: int) -> Settled:
        """The entity (of this label) with the highest probability; with a note if the model predicts another class."""
        places = view.content_places(row)
        probabilities = view.logits[row, places].double().softmax(-1)
        allowed = list(range(probabilities.size(-1)))
        if self.label is not None:
            allowed = sorted({*view.find_entity_classes(self.label, 2)})
        elif view.outside is not None and len(allowed) > 1:
            allowed.remove(view.outside)
        best = int(probabilities[:, allowed].amax(-1).argmax())
        chosen = allowed[int(probabilities[best, allowed].argmax())]
        predicted = probabilities.argmax(-1).tolist()
        if predicted[best] != chosen:
            note = (
                f"The model predicts {view.labels[predicted[best]]} for every token; the likeliest other class is "
                "explained."
                if self.label is None
                else f"The model predicts no {view.labels[chosen]} here; the token where it is likeliest is explained."
            )
            return make_entity(view, row, [places[best]], [chosen], note)
        first, last = extend_entity(best, predicted, view.labels)
        return make_entity(view, row, places[first : last + 1], predicted[first : last + 1])

    def __str__(self) -> str:
        where = self.start if isinstance(self.start, str) else write_range(self.start, self.end)
        if where and self.unit == "character" and not isinstance(self.start, str):
            where = f"characters {where}"
        label = "" if self.label is None else f"={write_name(self.label)}"
        return f"entity:{where}{label}" if where or label else "entity"


@dataclass(frozen=True)
class TokenClasses(TargetKind):
    """The sum of these classes at these tokens: an entity with everything fixed."""

    tokens: tuple[int, ...]
    classes: tuple[int, ...]

    def settle(self, view: AnswerView, row: int) -> Settled:
        check_task(view, "token class", "TokenClasses", "a model that classifies tokens")
        places = [view.place(row, token) for token in self.tokens]
        return make_entity(view, row, places, [view.names.index(index) for index in self.classes])

    def __str__(self) -> str:
        return "classes:" + ",".join(f"{t}=#{c}" for t, c in zip(self.tokens, self.classes, strict=True))


def make_entity(view: AnswerView, row: int, places: Sequence[int], classes: Sequence[int], note: str = "") -> Settled:
    terms = tuple(Term((place, index), has_token=True) for place, index in zip(places, classes, strict=True))
    kinds = dict.fromkeys(split_entity_label(view.labels[index])[1] for index in classes)
    label = f"{' + '.join(kinds)} at {view.text(row, places[0], places[-1])!r}"
    tokens = tuple(view.position(row, place) for place in places)
    return Settled(terms, label, TokenClasses(tokens, tuple(classes)), note)


def extend_entity(best: int, predicted: Sequence[int], labels: Sequence[str]) -> tuple[int, int]:
    """The first and last token of the entity around one of its tokens."""
    _, kind = split_entity_label(labels[predicted[best]])

    def continues(place: int) -> bool:
        """The token at this place belongs to the same entity as the one before it."""
        own, before = (split_entity_label(labels[predicted[p]]) for p in (place, place - 1))
        return own[1] == before[1] == kind and own[0] not in ("B", "S", "U")

    first = last = best
    while first > 0 and continues(first):
        first -= 1
    while last + 1 < len(predicted) and continues(last + 1):
        last += 1
    return first, last


# --- answers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnswerSpan(TargetKind):
    """The start logit of one token plus the end logit of another, in a model that marks an answer in a text.

    start, end: positions of tokens, both included; by default the best span of at most 30 tokens that are no special
    tokens; of a question and a text, in the text.
    """

    start: int | None = None
    end: int | None = None

    def settle(self, view: AnswerView, row: int) -> Settled:
        check_task(view, "answer span", "AnswerSpan", "start_logits and end_logits")
        places = find_best_span(view, row) if self.start is None else view.range(row, self.start, self.end)
        first, last = places[0], places[-1]
        ends = (("start_logits", first), ("end_logits", last))
        terms = tuple(Term((place,), field=field, has_token=True) for field, place in ends)
        fixed = AnswerSpan(view.position(row, first), view.position(row, last))
        return Settled(terms, f"the answer {view.text(row, first, last)!r}", fixed)

    def __str__(self) -> str:
        return "answer" if self.start is None else f"answer:{write_range(self.start, self.end)}"


def find_best_span(view: AnswerView, row: int) -> list[int]:
    """The places of the start and end with the highest sum of logits; the first one of equals."""
    start, end = (view.field(name)[row].double() for name in ("start_logits", "end_logits"))
    places = view.text_places(row)
    pairs = [
        (float(start[first] + end[last]), -first, -last)
        for i, first in enumerate(places)
        for last in places[i : i + LONGEST_ANSWER]
    ]
    _, first, last = max(pairs)
    return [-first, -last]


# --- sounds -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame(TargetKind):
    """The logit of a character at one frame of a sound (CTC).

    By default the first frame at which the model predicts something other than the blank, and what it predicts there;
    with a character alone, the frame at which it is likeliest.
    """

    number: int | None = None
    character: Named | None = None

    def settle(self, view: AnswerView, row: int) -> Settled:
        check_task(view, "frame", "Frame", "a model that answers for every frame of a sound")
        index = None if self.character is None else view.find_token(self.character)
        note = ""
        if self.number is not None:
            place = view.place(row, self.number)
        elif index is not None:
            places = view.places(row)
            place = places[int(view.logits[row, places].log_softmax(-1)[:, index].argmax())]
        elif decoded := decode_characters(view, row):
            place = decoded[0][1][0]
        else:
            place = view.places(row)[0]
            note = "The model reads no character; the blank at the first frame is explained."
        index = int(view.logits[row, place].argmax()) if index is None else index
        number = view.position(row, place)
        label = f"{view.names.label(index)!r} at frame {number}"
        return Settled((Term((place, index), has_token=True),), label, Frame(number, index), note)

    def __str__(self) -> str:
        text = write_range(self.number) + ("" if self.character is None else f"={write_name(self.character)}")
        return f"frame:{text}" if text else "frame"


@dataclass(frozen=True)
class Character(TargetKind):
    """The sum of the logits of the n-th character that CTC decoding reads, over its frames."""

    number: int = 0

    def settle(self, view: AnswerView, row: int) -> Settled:
        check_task(view, "frame", "Character", "a model that answers for every frame of a sound")
        decoded = decode_characters(view, row)
        if not -len(decoded) <= self.number < len(decoded):
            read = "".join(view.names.label(index) for index, _ in decoded)
            raise TargetError(f"There is no character {self.number}: the model reads {len(decoded)}, {read!r}.")
        index, places = decoded[self.number]
        terms = tuple(Term((place, index), has_token=True) for place in places)
        fixed = Group(*(Frame(view.position(row, place), index) for place in places))
        return Settled(terms, f"character {self.number}, {view.names.label(index)!r}", fixed)


def decode_characters(view: AnswerView, row: int) -> list[tuple[int, list[int]]]:
    """The characters of greedy CTC decoding, each with its frames: repeats are merged, blanks left out."""
    decoded: list[tuple[int, list[int]]] = []
    # No character is the padding token, as in transformers, or 0.
    before = blank = int(getattr(getattr(view.model.module, "config", None), "pad_token_id", None) or 0)
    for place in view.places(row):
        index = int(view.logits[row, place].argmax())
        if index == before and index != blank:
            decoded[-1][1].append(place)
        elif index != blank:
            decoded.append((index, [place]))
        before = index
    return decoded


# --- representations --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Representation(TargetKind):
    """What a model without a head returns, as one number: see _engine/targets/representation.py."""

    def settle(self, view: AnswerView, row: int) -> Settled:
        raise refuse_task(view, "Representation", "a model without a head")


# --- any of them ------------------------------------------------------------------------------------------------------


NAMED_TARGETS: dict[str, Callable[[Named | None], TargetKind]] = {  # by task: what a class or token by name means
    "next token": Token,
    "masked token": Token,
    "token class": lambda name: Entity(label=name),
    "frame": lambda name: Frame(character=name),
    "query": lambda name: Query(label=name),
}


def as_kind(wanted: Named | TargetKind) -> TargetKind:
    """A target as it is; a class by name or number as Class."""
    return wanted if isinstance(wanted, TargetKind) else Class(wanted)


def settle_target(wanted: OneTarget, view: AnswerView, row: int) -> Settled:
    """The target of one example; None is what the model itself answers."""
    if wanted is None:
        if view.task.kind == "class":
            wanted = Class(int(view.logits[row].argmax()))
        else:
            wanted = AnswerSpan() if view.task.kind == "answer span" else NAMED_TARGETS[view.task.kind](None)
    elif view.task.kind == "answer span" and not isinstance(wanted, TargetKind):
        raise TargetError(
            f"{view.model_name} answers a span of the text, and {wanted!r} names none. Pass AnswerSpan(first, last), "
            f"'answer:4-7' as text, or nothing for its own answer. Its tokens are: {view.list_tokens(row)}."
        )
    assert isinstance(wanted, TargetKind | str | SupportsIndex)  # functions are not settled
    return as_kind(wanted).settle(view, row)


def predicts_term(view: AnswerView, row: int, term: Term) -> tuple[bool, float | None]:
    """Whether the model predicts the class of a term at its place, and its probability."""
    if view.task.kind == "query":
        chances = find_chances(view, row)[term.at[0]]
        return int(chances.argmax()) == term.at[1], float(chances[term.at[1]])
    logits: Tensor = view.logits[row]
    for place in term.at[:-1]:
        logits = logits[place]
    if logits.dim() != 1 or logits.size(0) < 2:
        return True, None
    index = term.at[-1]
    if view.task.kind == "class":
        probabilities = probabilities_of(view.model.module, logits[None])
        if probabilities is None:
            return True, None
        chance = float(probabilities[0, index])
        return chance > 0.5 if view.names.is_multi_label else int(logits.argmax()) == index, chance
    return int(logits.argmax()) == index, float(logits.double().softmax(-1)[index])
