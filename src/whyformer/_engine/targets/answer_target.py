r"""The answer that follows a prompt as the target: one score for any of its tokens, in one pass.

$$ s = \sum_{t \in T} w_t \; z_{t-1}[a_t] \qquad\text{or}\qquad s = \sum_{t \in T} w_t \; \log p(a_t \mid a_{<t})
   \qquad\text{or}\qquad s = \sum_{t \in T} w_t \; \log \frac{p(a_t \mid a_{<t})}{1 - p(a_t \mid a_{<t})} $$

z_{t-1} are the logits after the token before a_t. The sum is linear in the logits, so its explanation by a linear
method is the sum of the explanations of its tokens; for log-probabilities, of their log-probabilities. A token that the
model is sure of counts in log-odds, not in log-probabilities, whose slope is 1 - p (terms.py). A contrast with other
tokens b in the same place subtracts z_{t-1}[b_t]: at every token in which they differ if there are as many, with the
tokens of a before each; otherwise at the first in which they differ, since after it the contexts differ too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeGuard

from whyformer._engine.targets.answer_view import AnswerView
from whyformer._engine.targets.target import expand_pair
from whyformer._engine.targets.target_kinds import LogProbability, refuse_task
from whyformer._engine.targets.target_like import OneTarget, Settled, TargetKind, TargetLike
from whyformer._engine.targets.terms import Scale, Term
from whyformer._model import AnswerPart, EncodedBatch
from whyformer._model.prompt import Prompt, encode_continuation
from whyformer._plain.words import find_sentence_starts
from whyformer.errors import TargetError

SCORE_NAMES: dict[Scale, str] = {
    "logit": "{}", "logp": "log p({})", "log_odds": "log-odds of {}", "tempered": "log-odds of {}",
}  # fmt: skip
UNITS = ("token", "character", "sentence")
LONGEST_LABEL = 60  # characters of an answer in its name


@dataclass(frozen=True)
class Answer(TargetKind):
    """The sum of the logits (or log-probabilities, or log-odds) of the tokens of a prompt's answer, all or some.

    select: which tokens: None for all, numbers (0 is the first token of the answer), a range or slice, or a text that
    occurs in the answer. unit="character": (start, stop) in characters of the answer; unit="sentence": numbers of its
    sentences.
    weights: one for each selected token, by default 1.
    score: "logit", "logp" or "log_odds"; "tempered", log-odds with a slope for sharp models (terms.py).
    versus: what the model could have said instead of the selected tokens, a text or token ids. White space before the
    selected tokens is put before a text that begins without it. With as many tokens, both are contrasted at each token
    in which they differ; otherwise at the first one, and a note says so.
    """

    select: AnswerPart = None
    weights: tuple[float, ...] | None = None
    score: Scale = "logit"
    versus: OneTarget | tuple[int, ...] = None
    unit: Literal["token", "character", "sentence"] = "token"

    def __post_init__(self) -> None:
        for name in ("select", "weights", "versus"):
            value = getattr(self, name)
            if hasattr(value, "tolist"):
                try:
                    value = value.tolist()
                except RuntimeError:  # sparse, or without data
                    raise TargetError(f"{name} must have values, got {value!r:.80}.") from None
            object.__setattr__(self, name, tuple(value) if isinstance(value, list | range) else value)
        if not isinstance(self.score, str) or self.score not in SCORE_NAMES:
            raise TargetError(f"score must be one of {', '.join(SCORE_NAMES)}, got {self.score!r}.")
        if not isinstance(self.unit, str) or self.unit not in UNITS:
            raise TargetError(f"unit must be one of {', '.join(UNITS)}, got {self.unit!r}.")
        if not (self.versus is None or isinstance(self.versus, str | tuple)):
            raise TargetError(f"versus must be a text or token ids, got {self.versus!r:.80}.")
        if self.weights is not None:
            object.__setattr__(self, "weights", check_weights(self.weights))

    def settle(self, view: AnswerView, row: int) -> Settled:
        positions, ids = self.find_answer(view, row)
        chosen = self.choose_tokens(AnswerText.of(view, row))
        weights = (1.0,) * len(chosen) if self.weights is None else self.weights
        if len(weights) != len(chosen):
            raise TargetError(
                f"The answer has {len(chosen)} selected tokens, but {len(weights)} weights. Pass one for each."
            )
        answer = [ids[position] for position in positions[1:]]
        pairs, note = self.contrast(view, row, [(token, answer[token]) for token in chosen])
        terms = []
        for i, other in pairs:
            before = positions[chosen[i]]  # positions[0] is the last token of the prompt
            terms.append(Term((before, answer[chosen[i]]), weights[i], scale=self.score, has_token=True))
            if other is not None:
                terms.append(Term((before, other), -weights[i], scale=self.score, has_token=True))
        kept = [chosen[i] for i, _ in pairs]
        label = name_tokens(view, row, [positions[token + 1] for token in kept])
        others = tuple(other for _, other in pairs if other is not None)
        if others:
            label += f" rather than {shorten(name_ids(view, others))!r}"
        fixed_weights = None if self.weights is None else tuple(weights[i] for i, _ in pairs)
        fixed = Answer(tuple(kept), fixed_weights, self.score, others or None)
        return Settled(tuple(terms), SCORE_NAMES[self.score].format(label), fixed, note)

    def find_answer(self, view: AnswerView, row: int) -> tuple[list[int], list[int]]:
        """The places of the last token of the prompt and of the answer, and the ids of the example."""
        if view.task.kind != "next token" or view.logits.dim() != 3:
            raise refuse_task(view, "Answer", "a causal language model that answers at every position")
        found = view.encoded.answers[row] if view.encoded.answers else None
        if found is None:
            raise TargetError(
                "Answer needs a prompt with an answer, and this input has none. Pass explain(model, text, "
                "answer=...), or a Prompt with an answer: Prompt.from_text(model, text, answer)."
            )
        return view.places(row)[found[0] - 1 : found[1]], view.ids(row)

    def find_tokens(self, prompt: Prompt) -> list[int]:
        """The selected tokens of the answer of a prompt."""
        return self.choose_tokens(AnswerText.from_prompt(prompt))

    def choose_tokens(self, answer: "AnswerText") -> list[int]:
        """The selected tokens, counted from the start of the answer, in its order."""
        if self.select is None:
            return list(range(answer.length))
        if isinstance(self.select, str):
            return answer.find_text(self.select)
        if self.unit == "character":
            return answer.find_characters(*check_pair(self.select))
        if self.unit == "sentence":
            return answer.find_sentences(as_numbers(self.select))
        every = range(answer.length)
        numbers = list(every[self.select]) if isinstance(self.select, slice) else as_numbers(self.select)
        for number in numbers:
            if not -answer.length <= number < answer.length:
                raise TargetError(
                    f"There is no token {number} in the answer {shorten(answer.text)!r}. Its tokens are 0 to "
                    f"{answer.length - 1}."
                )
        numbers = [number % answer.length for number in numbers]
        if not numbers or len(set(numbers)) < len(numbers):
            raise TargetError(f"Select every token of the answer at most once, and at least one, got {self.select!r}.")
        return numbers

    def contrast(
        self, view: AnswerView, row: int, chosen: Sequence[tuple[int, int]]
    ) -> tuple[list[tuple[int, int | None]], str]:
        """Which of the chosen tokens are explained, each with the id of the token it is contrasted with; and a note."""
        if self.versus is None:
            return [(i, None) for i in range(len(chosen))], ""
        other = self.encode_other(view, row, [token for token, _ in chosen])
        differing = [(i, b) for i, ((_, a), b) in enumerate(zip(chosen, other, strict=False)) if a != b]
        if not differing:
            raise TargetError(
                f"The answer and versus are both {shorten(name_ids(view, other))!r} as far as both go. Choose an "
                "answer that differs."
            )
        if len(chosen) == len(other):
            return list(differing), ""
        first = differing[0][0]
        note = (
            f"The answer has {len(chosen)} tokens here and versus {len(other)}, so they are contrasted at the first "
            f"token in which they differ, token {chosen[first][0]} of the answer."
        )
        return [differing[0]], note

    def encode_other(self, view: AnswerView, row: int, chosen: Sequence[int]) -> list[int]:
        """The ids of the other answer."""
        if isinstance(self.versus, tuple):
            return [view.names.index(one) for one in self.versus]
        assert isinstance(self.versus, str)
        if view.model.tokenizer is None:
            raise TargetError("versus is a text, but the model has no tokenizer. Pass token ids.")
        answer = AnswerText.of(view, row)
        before, own = answer.split_before(chosen[0])
        blank = own[: len(own) - len(own.lstrip())]
        text = self.versus if self.versus[:1].isspace() else blank + self.versus
        if not text.strip():
            raise TargetError("versus is empty. Pass another answer.")
        return encode_continuation(view.model.tokenizer, before, text)[0]

    def __str__(self) -> str:
        """As on the command line: answer-tokens:0-3/weights:1,1,2,2/versus:Rome."""
        text = SCORE_PREFIXES[self.score] + write_selection(self.select, self.unit)
        if self.weights is not None:
            text += WEIGHTS + ",".join(f"{weight:.17g}" for weight in self.weights)
        if isinstance(self.versus, tuple):
            return text + VERSUS + ",".join(f"#{i}" for i in self.versus)
        return text if self.versus is None else f"{text}{VERSUS}{self.versus}"


# --- the answer as text -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnswerText:
    """The answer of one example as text, and where its tokens are in it."""

    before: str  # the text of the prompt
    text: str
    spans: tuple[tuple[int, int] | None, ...]  # of its tokens, in characters of the answer

    @classmethod
    def of(cls, view: AnswerView, row: int) -> "AnswerText":
        found = view.encoded.answers[row]
        assert found is not None
        positions = view.places(row)
        known = view.encoded.spans[row] if view.encoded.spans is not None else None
        whole = view.encoded.texts[row] if view.encoded.texts else None
        if known is None or whole is None:
            return cls("", "", (None,) * (found[1] - found[0]))
        spans = [known[position] for position in positions]
        start = max((span[1] for span in spans[: found[0]] if span is not None), default=0)
        own = tuple(None if span is None else (span[0] - start, span[1] - start) for span in spans[found[0] : found[1]])
        return cls(whole[:start], whole[start:], own)

    @classmethod
    def from_prompt(cls, prompt: Prompt) -> "AnswerText":
        start = prompt.answer_start
        spans = [prompt.pieces.spans[position] for position in prompt.answer]
        own = tuple(None if span is None else (span[0] - start, span[1] - start) for span in spans)
        return cls(prompt.text[:start], prompt.answer_text, own)

    @property
    def length(self) -> int:
        return len(self.spans)

    def split_before(self, token: int) -> tuple[str, str]:
        """The text before a token, prompt included, and the text from this token on."""
        start = max((span[1] for span in self.spans[:token] if span is not None), default=0)
        return self.before + self.text[:start], self.text[start:]

    def find_text(self, wanted: str) -> list[int]:
        """The tokens of the first place at which this text occurs."""
        start = self.text.find(wanted) if wanted else -1
        start = self.text.casefold().find(wanted.casefold()) if start < 0 and wanted else start
        if start < 0:
            raise TargetError(
                f"{wanted!r} does not occur in the answer, which is {shorten(self.text)!r}. Select a part of it, or to "
                "explain another next token, pass targets.Token(...)."
            )
        return self.find_characters(start, start + len(wanted))

    def find_characters(self, start: int, stop: int) -> list[int]:
        """The tokens that cover these characters."""
        if not 0 <= start < stop <= len(self.text):
            raise TargetError(f"The answer has the characters 0 to {len(self.text)}, not {start} to {stop}.")
        trimmed = start + len(self.text[start:stop]) - len(self.text[start:stop].lstrip())
        start = trimmed if trimmed < stop else start
        return [
            token for token, span in enumerate(self.spans) if span is not None and span[0] < stop and span[1] > start
        ]

    def find_sentences(self, numbers: Sequence[int]) -> list[int]:
        starts = find_sentence_starts(self.text)
        for number in numbers:
            if not -len(starts) <= number < len(starts):
                raise TargetError(
                    f"There is no sentence {number} in the answer: it has {len(starts)}, 0 to {len(starts) - 1}."
                )
        ends = [*starts[1:], len(self.text)]
        chosen = [(starts[number], ends[number]) for number in {number % len(starts) for number in numbers}]
        return [  # a token belongs to the sentence that it ends in, so that none is in two
            token
            for token, span in enumerate(self.spans)
            if span is not None and any(start < span[1] <= end for start, end in chosen)
        ]


def name_tokens(view: AnswerView, row: int, positions: Sequence[int]) -> str:
    """The text of these tokens, with ... where others between them are left out."""
    parts: list[str] = []
    ordered, start = sorted(positions), 0
    for i, position in enumerate(ordered):
        if i + 1 == len(ordered) or ordered[i + 1] != position + 1:
            parts.append(view.text(row, ordered[start], position))
            start = i + 1
    return f"{shorten(' ... '.join(parts))!r}"


def name_ids(view: AnswerView, ids: Sequence[int]) -> str:
    tokenizer = view.model.tokenizer
    return tokenizer.decode(list(ids)).strip() if tokenizer is not None else " ".join(map(str, ids))


def shorten(text: str) -> str:
    return text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 3]}..."


# --- what is asked for ------------------------------------------------------------------------------------------------


def check_weights(weights: Iterable[float | str]) -> tuple[float, ...]:
    try:
        return tuple(float(weight) for weight in weights)
    except (TypeError, ValueError):
        raise TargetError(f"weights must be numbers, one for each selected token, got {weights!r}.") from None


def is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def as_numbers(select: int | slice | Sequence[int]) -> list[int]:
    given = select if isinstance(select, tuple) else (select,)
    numbers = [number for number in given if is_number(number)]
    if len(numbers) < len(given):
        raise TargetError(
            f"select must be None, numbers of tokens or sentences, a range, a slice or a text, got {select!r}."
        )
    return numbers


def check_pair(select: int | slice | Sequence[int]) -> tuple[int, int]:
    if not isinstance(select, tuple) or len(select) != 2 or not all(is_number(one) for one in select):
        raise TargetError(f'With unit="character", select must be (start, stop), got {select!r}.')
    return select


def aim_at_answers(encoded: EncodedBatch, target: TargetLike, versus: TargetLike) -> tuple[TargetLike, TargetLike]:
    """The targets of a batch; where a prompt has an answer, no target is the whole answer, and a text is part of it."""
    if not any(encoded.answers) or callable(target):
        return target, versus
    wanted, against = expand_pair(target, versus, encoded.batch)
    pairs = [
        (one, other) if found is None else aim_at_answer(one, other)
        for one, other, found in zip(wanted, against, encoded.answers, strict=True)
    ]
    others = [other for _, other in pairs]
    return [one for one, _ in pairs], others if any(other is not None for other in others) else None


def aim_at_answer(wanted: OneTarget, versus: OneTarget) -> tuple[OneTarget, OneTarget]:
    """The target of a prompt with an answer, and what is subtracted from it."""
    if isinstance(wanted, LogProbability) and (wanted.of is None or isinstance(wanted.of, str | Answer)):
        inner = aim_at_answer(wanted.of, None)[0]
        assert isinstance(inner, Answer)
        wanted = replace(inner, score="logp")
    if wanted is None or isinstance(wanted, str):
        wanted = Answer(wanted)
    if is_number(wanted):
        raise TargetError(
            f"The prompt has an answer, so the target {wanted} could be a token of the answer or the id of a token "
            f"after it. Pass targets.Answer({wanted}) or targets.Token({wanted})."
        )
    if not isinstance(wanted, Answer) or versus is None or isinstance(versus, TargetKind):
        return wanted, versus
    if wanted.versus is not None:
        raise TargetError("versus is given twice, in the target and beside it. Leave one out.")
    return replace(wanted, versus=versus), None


# --- as text ----------------------------------------------------------------------------------------------------------

SCORE_PREFIXES: dict[Scale, str] = {"logit": "", "logp": "logp:", "log_odds": "logodds:", "tempered": "tempered:"}
WEIGHTS, VERSUS = "/weights:", "/versus:"  # what follows the selection


def write_selection(select: Any, unit: str) -> str:
    if select is None:
        return "answer-tokens"
    if isinstance(select, str):
        return f"answer-text:{select}"
    if isinstance(select, slice):
        ends = (select.start, select.stop, *([select.step] if select.step is not None else []))
        return f"answer-tokens:[{':'.join('' if one is None else str(one) for one in ends)}]"
    if unit == "character":
        return f"answer-characters:{select[0]}-{select[1]}"
    return f"answer-{unit}s:{write_numbers(as_numbers(select))}"


def write_numbers(numbers: Sequence[int]) -> str:
    """0-3,7 for 0, 1, 2, 3 and 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1 and number > 0 and runs[-1][0] >= 0:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def parse_answer(text: str, unit: str) -> Answer:
    """The answer that a text describes, without the kind before the colon; ValueError if it describes none."""
    text, has_other, other = text.partition(VERSUS)
    text, has_weights, weights = text.partition(WEIGHTS)
    versus: Any = None
    if has_other:
        are_ids = all(part[:1] == "#" and part[1:].isdigit() for part in other.split(","))
        versus = tuple(int(part[1:]) for part in other.split(",")) if are_ids else other
    chosen = tuple(float(weight) for weight in weights.split(",")) if has_weights else None
    if unit == "text":
        if not text:
            raise ValueError
        return Answer(text, chosen, versus=versus)
    select = parse_selection(text, unit)
    known: dict[str, Any] = {"tokens": "token", "characters": "character", "sentences": "sentence"}
    return Answer(select, chosen, versus=versus, unit=known[unit] if select is not None else "token")


def parse_selection(text: str, unit: str) -> Any:
    if not text and unit == "tokens":
        return None
    if text.startswith("[") and text.endswith("]") and unit == "tokens":
        ends = [int(part) if part else None for part in text[1:-1].split(":")]
        if len(ends) not in (2, 3):
            raise ValueError
        return slice(*ends)
    if unit == "characters":
        start, _, stop = text.partition("-")
        return int(start), int(stop)
    return tuple(number for part in text.split(",") for number in parse_run(part))


def parse_run(text: str) -> range:
    """'3-7', '3' or '-1'."""
    first, dash, last = text.partition("-") if text[:1] != "-" else (text, "", "")
    return range(int(first), int(last if dash else first) + 1)
