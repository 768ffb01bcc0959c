r"""Explain a text that is longer than the model allows, in overlapping windows that are put together again.

Let $w$ be the windows, $n$ their number, $s_w(t)$ the score of token $t$ in window $w$, and $m(t)$ the number of
windows that $t$ is in. The score of a token is its mean over these windows, all with the same weight:

$$ s(t) = \frac{1}{m(t)} \sum_{w \ni t} s_w(t) \qquad
\frac{1}{n} \sum_t m(t)\, s(t) = \frac{1}{n} \sum_w \sum_t s_w(t) $$

The second equation is the rule for sums: weighted by how many windows they are in, the scores add up to the mean of the
sums of the windows. So where the scores of a window add up to its logit, those of the text add up to the mean logit,
which is what is explained: all windows have the same target, by default the class with the largest mean logit.

The windows of a language model do not vote: what follows the text is predicted from its last tokens. There only the
last window is explained, and the tokens before it score 0.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from whyformer._engine import (
    Target,
    TargetLike,
    TargetNames,
    expand_per_example,
    find_task,
    is_causal,
    probabilities_of,
    read_logits,
    record,
    run_forward,
)
from whyformer._explain.method_call import MethodCall
from whyformer._explain.sharing import ErrorTypes, explain_by_each, record_for_methods, share_captures
from whyformer._model import EncodedBatch, InputLike, Model, TextWindow, TokenizedText
from whyformer._plain.tokens import Pieces, pad_pieces
from whyformer.errors import InputError, MethodError
from whyformer.results.conditioning import DETAIL_PREFIX as ROUNDING_PREFIX
from whyformer.results.explanation import Explanation
from whyformer.results.windows import Window, to_window_details

WINDOWS_AT_ONCE = 8  # windows that go through the model together


@dataclass(frozen=True)
class PlacedWindow:
    """A window, and the text it belongs to."""

    owner: int
    window: TextWindow


class WindowedTexts:
    """Texts in windows, with the answer of the model to each window."""

    def __init__(self, model: Model, inputs: InputLike, windows: bool | int, *, at_once: int = WINDOWS_AT_ONCE) -> None:
        self.model = model
        split = model.tokenize_windows(inputs, windows)
        self.texts = [text for text, _ in split]
        placed = [PlacedWindow(owner, window) for owner, (_, own) in enumerate(split) for window in own]
        task = find_window_task(model, self.encode(placed[:1]))
        self.has_classes, self.is_language = task != "representation", task == "next token"
        if self.is_language:
            placed = list({one.owner: one for one in placed}.values())  # the last of each text
        size = at_once if model.takes_batches_of_texts else 1
        self.batches = [placed[start : start + size] for start in range(0, len(placed), size)]
        self.encoded = [self.encode(batch) for batch in self.batches]
        self.logits = self.read_answers() if self.has_classes else []

    def encode(self, batch: Sequence[PlacedWindow]) -> EncodedBatch:
        return self.model.encode_tokens([one.window.text for one in batch], self.model.notes)

    def read_answers(self) -> list[list[Tensor]]:
        """The logits of each window of each text."""
        answers: list[list[Tensor]] = [[] for _ in self.texts]
        for batch, encoded in zip(self.batches, self.encoded, strict=True):
            capture = record(self.model, encoded, keep={"mask"})
            logits = read_logits(encoded, capture.logits)[0].detach().cpu()
            for one, row in zip(batch, logits, strict=True):
                answers[one.owner].append(row)
        return answers

    @property
    def mean_logits(self) -> Tensor | None:
        """[text class]: the mean over the windows of each text; None without classes."""
        return torch.stack([torch.stack(own).mean(0) for own in self.logits]) if self.has_classes else None

    def choose_targets(self, target: TargetLike) -> list[TargetLike]:
        """The target of each text: the one given, else the class with the largest mean logit."""
        wanted = expand_per_example(target, len(self.texts), "target")
        best = self.mean_logits.argmax(-1).tolist() if self.mean_logits is not None else [None] * len(wanted)
        return [best[i] if own is None else own for i, own in enumerate(wanted)]

    def explain(
        self, calls: Mapping[str, MethodCall], target: TargetLike, versus: TargetLike, tolerate: ErrorTypes = ()
    ) -> tuple[dict[str, Explanation], dict[str, Exception]]:
        """The explanation by each method, and the errors of the methods that failed on a window; both by label."""
        for call in calls.values():
            refuse_settings_of_one_window(call)
        targets, against = self.choose_targets(target), expand_per_example(versus, len(self.texts), "versus")
        parts: dict[str, list[Explanation]] = {label: [] for label in calls}
        failures: dict[str, Exception] = {}
        for batch, encoded in zip(self.batches, self.encoded, strict=True):
            left = {label: call for label, call in calls.items() if label not in failures}
            own, others = ([column[one.owner] for one in batch] for column in (targets, against))
            run = partial(record_for_methods, model=self.model, encoded=encoded, target=own, versus=others)
            captures = share_captures(list(left.values()), run, tolerate=tolerate) if left else []
            made, failed = explain_by_each(left, captures, self.model, encoded, tolerate=tolerate)
            failures |= failed
            for label, explanation in made.items():
                parts[label].append(explanation)
        return {label: self.stitch(own) for label, own in parts.items() if label not in failures}, failures

    def explain_by_one(self, call: MethodCall, target: TargetLike, versus: TargetLike) -> Explanation:
        return self.explain({call.method.name: call}, target, versus)[0][call.method.name]

    def stitch(self, parts: Sequence[Explanation]) -> Explanation:
        """One explanation of the whole texts, from those of their windows."""
        owned: list[list[tuple[PlacedWindow, Explanation]]] = [[] for _ in self.texts]
        for batch, part in zip(self.batches, parts, strict=True):
            for one, e in zip(batch, part, strict=True):
                owned[one.owner].append((one, e))
        averaged = [average_windows(text, own) for text, own in zip(self.texts, owned, strict=True)]
        scores = pad_sequence([mean for mean, _ in averaged], batch_first=True)
        targets = tuple(self.merge_targets(i, own) for i, own in enumerate(owned))
        windows = [[self.describe_window(one, e, n) for n, (one, e) in enumerate(own)] for own in owned]
        names = ["the text"] if len(self.texts) == 1 else [f"text {n}" for n in range(len(self.texts))]
        notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
        notes += self.model.note_unknown(self.texts, names)
        return replace(
            parts[0],
            scores=scores,
            tokens=tuple(pad_pieces(text.plain, scores.size(1)) for text in self.texts),
            targets=targets,
            names=tuple(text.text for text in self.texts),
            notes=(*notes, *(note for i, own in enumerate(owned) if (note := self.note_windows(i, own)))),
            details={**keep_worst_rounding(owned), **to_window_details(windows, [count for _, count in averaged])},
            spent=self.count_passes(parts),
        )

    def merge_targets(self, owner: int, own: Sequence[tuple[PlacedWindow, Explanation]]) -> Target:
        """The target of a text: its score is the mean over the windows."""
        first = own[0][1].targets[0]
        merged = replace(first, score=sum(e.targets[0].score for _, e in own) / len(own))
        if first.position is not None:  # in the window, with its padding
            places = own[0][0].window.places
            padding = sum(own[0][1].tokens[0].padding[: first.position])  # type: ignore[union-attr]
            merged = replace(merged, position=places[first.position - padding])
        if len(own) == 1 or self.mean_logits is None:
            return merged
        if first.index < 0:  # no plain class: a group, a function of the output
            return replace(merged, probability=None)
        mean = self.mean_logits[owner : owner + 1]
        probabilities = probabilities_of(self.model.module, mean)
        return replace(
            merged,
            probability=None if probabilities is None else float(probabilities[0, first.index]),
            predicted=int(mean.argmax()) == first.index,
        )

    def describe_window(self, one: PlacedWindow, e: Explanation, number: int) -> Window:
        answer = int(self.logits[one.owner][number].argmax()) if self.has_classes else -1
        return Window(one.window.span, answer, e.targets[0].score)

    def note_windows(self, owner: int, own: Sequence[tuple[PlacedWindow, Explanation]]) -> str:
        """What was done with a text that is too long; nothing for a text that fits."""
        size, length = len(own[0][0].window.text), len(self.texts[owner])
        if size == length:
            return ""
        name = "The text" if len(self.texts) == 1 else f"Text {owner}"
        verb = "was made for" if self.model.max_length is None else "accepts"
        too_long = f"{name} is {length} tokens long, and the model {verb} {self.model.trained_length}"
        if self.is_language:
            return f"{too_long}: it predicts from the last {size} tokens, and those before them score 0."
        note = f"{too_long}: it was explained in {len(own)} overlapping windows, and a score is the mean over windows."
        return f"{note} {self.count_answers(owner)}" if self.has_classes else note

    def count_answers(self, owner: int) -> str:
        """How many windows predict which class."""
        names = TargetNames(self.model, len(self.logits[owner][0]), is_language=False)
        votes = Counter(names.label(int(logits.argmax())) for logits in self.logits[owner])
        return f"Predictions of the windows: {', '.join(f'{label} ({count})' for label, count in votes.most_common())}."

    def count_passes(self, parts: Sequence[Explanation]) -> dict[str, float]:
        """Passes through the model per text, with the forward pass that found the target."""
        kinds = dict.fromkeys(kind for part in parts for kind in part.spent)
        sums = {kind: sum(part.spent.get(kind, 0.0) * len(part) for part in parts) for kind in kinds}
        sums["forward"] = sums.get("forward", 0.0) + sum(map(len, parts))
        return {kind: total / len(self.texts) for kind, total in sums.items()}


def find_window_task(model: Model, encoded: EncodedBatch) -> str:
    """What the model answers; refused where an answer belongs to some tokens, and so to some windows only."""
    with run_forward(model, encoded, asks_gradient=False) as run:
        task = find_task(model, encoded, run.returned, lambda: is_causal(run)).kind
    if task in ("class", "next token", "representation"):
        return task
    raise InputError(
        f"Windows need a model with one answer for the whole text, but an answer of {model.name} ({task}) belongs to "
        "some tokens. Cut the text to the part around the answer, and leave windows out.",
        code="E_OPTION",
    )


def refuse_settings_of_one_window(call: MethodCall) -> None:
    """Checks and scores per layer belong to one pass through the model, not to a mean over windows."""
    if call.wants_health or call.selected.get("per_layer"):
        setting = "health" if call.wants_health else "per_layer"
        raise MethodError(
            f"{setting}=True cannot be combined with windows. Leave one of them out, or explain a part of the text "
            "that the model accepts.",
            code="E_OPTION",
        )


def average_windows(text: TokenizedText, own: Sequence[tuple[PlacedWindow, Explanation]]) -> tuple[Tensor, Tensor]:
    """[token]: the mean score of each token over the windows it is in, and their number; 0 where there is none."""
    total = own[0][1].scores.new_zeros(len(text))
    count = torch.zeros(len(text), dtype=torch.float64)
    for one, e in own:
        pieces = e.tokens[0]
        assert isinstance(pieces, Pieces)
        real = [place for place, is_padding in enumerate(pieces.padding) if not is_padding]
        total[list(one.window.places)] += e.scores[0, real]
        count[list(one.window.places)] += 1
    return total / count.clamp_min(1).to(total), count


def keep_worst_rounding(owned: Sequence[Sequence[tuple[PlacedWindow, Explanation]]]) -> dict[str, Tensor]:
    """[text]: the estimate of rounding errors of the window with the largest."""
    name = f"{ROUNDING_PREFIX}estimate"
    if not all(name in e.details for own in owned for _, e in own):
        return {}
    return {name: torch.stack([torch.cat([e.details[name] for _, e in own]).amax() for own in owned])}
