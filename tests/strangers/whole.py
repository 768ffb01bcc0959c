"""Kinds that are whole models, of libraries or of a shape that the grammar cannot say."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
import transformers as hf
from strangers import anatomy as a
from strangers.draft import Rules
from strangers.oracle import content, is_close, shorten
from torch import Tensor, nn

import whyformer as why
from whyformer.errors import WhyformerError
from whyformer.targets import AnswerSpan

BERT = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=60)


@dataclass(kw_only=True)
class Whole(Rules):
    """A model with its inputs, and the same question asked plainly."""

    kinds: tuple[str, ...]
    ask: Callable[..., why.Explanation]  # of a method and its settings
    ask_plainly: Callable[..., why.Explanation] | None = None
    by_hand: dict[str, Callable[[], Tensor]] = field(default_factory=dict)  # of the first row
    check: Callable[[why.Explanation], str | None] | None = None
    methods: tuple[str, ...] = ()  # "" is the default

    @property
    def rules(self) -> Rules:
        return self

    def explain(self, method: str | None, **settings: Any) -> why.Explanation:
        return self.ask(method, **settings)

    def may_be_refused(self, method: str | None) -> bool:
        if self.ask_plainly is None:
            return False
        try:
            self.ask_plainly(method)
        except WhyformerError:
            return True
        return False

    def find_mistake(self, e: why.Explanation, settings: dict[str, Any]) -> str | None:
        if self.check is not None:
            return self.check(e)
        if e.method in self.by_hand:
            wanted = [self.by_hand[e.method]()]
        elif self.ask_plainly is not None:
            plain = self.ask_plainly(e.method, **settings)
            wanted = [content(plain, row) for row in range(len(plain.tokens))]
        else:
            return None
        for row, right in enumerate(wanted):
            if not is_close(content(e, row), right):
                return f"{e.method} gives {shorten(content(e, row))}, right is {shorten(right)}."
        return ""


# --- an answer span --------------------------------------------------------------------------------------------------


class SpanScore(nn.Module):
    """The score of one span as the first of two classes."""

    def __init__(self, model: nn.Module, first: int, last: int) -> None:
        super().__init__()
        self.model, self.first, self.last = model, first, last

    def forward(self, input_ids: Tensor) -> Tensor:
        out = self.model(input_ids=input_ids)
        score = out.start_logits[:, self.first] + out.end_logits[:, self.last]
        return torch.stack([score, 0 * score], 1)


def answer_span(dice: random.Random) -> Whole:
    torch.manual_seed(dice.randrange(2**31))
    config = hf.BertConfig(**BERT, initializer_range=0.3)
    model = hf.BertForQuestionAnswering._from_config(config, attn_implementation="eager").double().eval()
    ids = torch.randint(5, 60, (1, 10))
    first = dice.randrange(8)
    last = min(first + dice.choice((1, 2, 3)), 9)
    with torch.no_grad():
        attention = [layer[0].mean(0) for layer in model(ids, output_attentions=True).attentions]

    def roll() -> Tensor:
        row = readout = torch.zeros(10, dtype=torch.float64)
        readout[[first, last]] = 0.5
        for layer in reversed(attention):
            row = (row + row @ layer) / 2
        return row

    return Whole(
        kinds=("a span of an answer",),
        ask=partial(why.explain, model, {"input_ids": ids}, target=AnswerSpan(first, last)),
        ask_plainly=partial(why.explain, SpanScore(model, first, last).eval(), {"input_ids": ids}, target=0),
        by_hand={"raw_attention": lambda: attention[-1][[first, last]].mean(0), "rollout": roll},
        methods=("raw_attention", "rollout", "attcat", "generic_attention", "attnlrp", "gradient_x_input"),
    )


# --- labels, to a model of a library ---------------------------------------------------------------------------------


def labels_of_library(dice: random.Random) -> Whole:
    torch.manual_seed(dice.randrange(2**31))
    model = hf.BertForSequenceClassification(hf.BertConfig(**BERT, num_labels=3, initializer_range=0.3)).double().eval()
    given = {"input_ids": torch.randint(5, 60, (2, 8)), "attention_mask": torch.ones(2, 8, dtype=torch.long)}
    target = dice.randrange(3)
    return Whole(
        kinds=("labels to a model of a library",),
        ask=partial(why.explain, model, {**given, "labels": torch.tensor([1, 0])}, target=target),
        ask_plainly=partial(why.explain, model, given, target=target),
        methods=("attnlrp", "transformer_attribution", "gradient_x_input", "leave_one_out", "rollout"),
    )


# --- pairs of texts --------------------------------------------------------------------------------------------------

WORDS = "The fair is held in Lisbon . A nurse was not there last year and the river was quiet".split()


@cache
def entailment() -> why.Model:
    return why.open("demo/entailment")


def pair_of_texts(dice: random.Random, passed: Callable[[str, str], Any], name: str) -> Whole:
    first, second = (" ".join(dice.choices(WORDS, k=dice.choice((4, 6)))) for _ in range(2))
    return Whole(
        kinds=(name,),
        ask=partial(why.explain, entailment(), passed(first, second)),
        ask_plainly=partial(why.explain, entailment(), why.TextPair(first, second)),
        names=["pair"],
        true_refusals=[("", "TextPair")],
        methods=("attnlrp", "rollout", "gradient_x_input"),
    )


def one_text(dice: random.Random) -> Whole:
    """A model that reads pairs is given one text: its answer is about nothing, and a note says so."""
    text = " ".join(dice.choices(WORDS, k=6))
    return Whole(
        kinds=("one text to a model of pairs",),
        ask=partial(why.explain, entailment(), text),
        check=lambda e: "",
        must=[("", "pair|two texts|second text|hypothesis")],
        methods=("attnlrp", "rollout"),
    )


# --- a series cut into patches ---------------------------------------------------------------------------------------


def sum_to_six(scores: Tensor) -> Tensor:
    """[patch]: the sizes of scores of steps, or of the patches of two channels."""
    size = scores.abs().double()
    return size.view(2, 6, -1).sum((0, 2)) if len(size) == 12 else size.view(6, -1).sum(1)


def patched_series(dice: random.Random) -> Whole:
    """PatchTST: a burst decides, in one patch of one channel."""
    torch.manual_seed(dice.randrange(2**31))
    config = hf.PatchTSTConfig(
        num_input_channels=2, context_length=24, patch_length=4, patch_stride=4, d_model=16, num_attention_heads=2,
        num_hidden_layers=2, ffn_dim=32, num_targets=3, use_cls_token=False, pooling_type="mean", scaling=None,
        init_std=0.3,
    )  # fmt: skip
    model, target, patch = hf.PatchTSTForClassification(config).double().eval(), dice.randrange(3), dice.randrange(6)
    x = 0.05 * torch.randn(1, 24, 2, dtype=torch.float64)
    x[:, 4 * patch : 4 * patch + 4, dice.randrange(2)] += torch.tensor([3.0, -3, 3, -3], dtype=torch.float64)

    with torch.no_grad():
        parts = torch.eye(6, dtype=torch.bool).repeat_interleave(4, 1)[..., None]
        logits = [model(past_values=y).prediction_logits[0, target] for y in (x, *torch.where(parts, 0, x).split(1))]
    lost = (logits[0] - torch.stack(logits[1:])).abs()
    is_decided = float(lost[patch]) > 3 * float(lost[torch.arange(6) != patch].max())

    def check(e: why.Explanation) -> str | None:
        """Whether the scores in the patch are larger than any beside it; scores may be of steps or of patches."""
        if not is_decided:
            return None
        scores = e.scores[0]
        if len(scores) % 6:
            return f"{e.method} gives {len(scores)} scores for 24 steps or 6 patches."
        own = sum_to_six(scores)
        if int(own.argmax()) == patch:
            return ""
        quiet = torch.where(parts[patch], 0, x)  # scores of states have a part that every patch has
        change = sum_to_six((e.scores - why.explain(model, {"past_values": quiet}, e.method, target=target).scores)[0])
        return "" if int(change.argmax()) == patch else f"{e.method} gives {shorten(own)}, patch {patch} decides."

    return Whole(
        kinds=("a series cut into patches",),
        ask=partial(why.explain, model, {"past_values": x}, target=target),
        check=check,
        methods=("leave_one_out", "gradient_x_input", "attnlrp", "rollout"),
    )


# --- a quantised model -----------------------------------------------------------------------------------------------


class SmallText(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.make, self.mix, self.head = a.Words(places=True), a.Blocks(2), nn.Linear(a.WIDTH, a.CLASSES)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.mix(self.make(input_ids)).mean(1))


def quantised(dice: random.Random) -> Whole:
    """Dynamic int8 of torch: the scale of each layer's input is that of the whole batch."""
    torch.manual_seed(dice.randrange(2**31))
    plain = SmallText().eval()
    model = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear})
    ids, target = torch.randint(1, a.VOCABULARY, (1, 7)), dice.randrange(3)

    def leave_one_out() -> Tensor:
        with torch.no_grad():
            variants = [ids.clone().index_fill_(1, torch.tensor([j]), 0) for j in range(7)]
            return torch.stack([model(ids)[0, target] - model(one)[0, target] for one in variants]).double()

    def check(e: why.Explanation) -> str:
        """By hand, or nearly what the model is explained by before it is quantised."""
        scores = content(e, 0)
        if e.method == "leave_one_out":
            right, close = leave_one_out(), is_close(scores, leave_one_out())
        else:
            right = content(why.explain(plain, {"input_ids": ids}, e.method, target=target), 0)
            close = float(torch.corrcoef(torch.stack([scores, right]))[0, 1]) > 0.8
        return "" if close else f"{e.method} gives {shorten(scores)}, right is {shorten(right)}."

    return Whole(
        kinds=("dynamic int8",),
        ask=partial(why.explain, model, {"input_ids": ids}, target=target),
        check=check,
        methods=("leave_one_out", "attnlrp", "gradient_x_input", "rollout"),
    )


# --- windows, of which no token sees all -----------------------------------------------------------------------------


class Windowed(nn.Module):
    """64 patches in windows of 16, then, if asked for, merged by four; without a class token."""

    def __init__(self, merges: bool) -> None:
        super().__init__()
        self.merges = merges
        self.make = a.Patches(class_token=False, patch=2, side=16)
        self.near = nn.ModuleList(a.Block() for _ in range(2))
        self.merge = nn.Linear(4 * a.WIDTH, a.WIDTH)
        self.far = nn.ModuleList(a.Block() for _ in range(2))
        self.head = nn.Linear(a.WIDTH, a.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.make(x).unflatten(1, (2, 4, 2, 4)).transpose(2, 3).reshape(-1, 16, a.WIDTH)
        for block in self.near:
            h = block(h)
        h = h.reshape(len(x), 2, 2, 4, 4, a.WIDTH).transpose(2, 3)
        if self.merges:
            h = self.merge(h.reshape(len(x), 4, 2, 4, 2, a.WIDTH).transpose(2, 3).flatten(-3))
        h = h.reshape(len(x), -1, a.WIDTH)
        for block in self.far:
            h = block(h)
        return self.head(h.mean(1))


def windowed(dice: random.Random) -> Whole:
    torch.manual_seed(dice.randrange(2**31))
    model, target = Windowed(dice.random() < 0.5).double().eval(), dice.randrange(3)
    x = 0.1 * torch.randn(1, 3, 16, 16, dtype=torch.float64)
    i, j = 2 * dice.randrange(8), 2 * dice.randrange(8)
    x[:, :, i : i + 2, j : j + 2] += 3

    def check(e: why.Explanation) -> str:
        scores = content(e, 0)
        if bool((scores.max() - scores.min()).abs() > 1e-4 * scores.abs().max()):
            return ""
        return f"{e.method}: {len(scores)} scores between {float(scores.min()):.8f} and {float(scores.max()):.8f}."

    return Whole(
        kinds=("windows without a class token",),
        ask=partial(why.explain, model, x, target=target),
        check=check,
        names=["spread|constant|nearly (equal|the same)|hardly differ"],
        methods=("gamma_attribution", "attnlrp", "transformer_attribution"),
    )


PAIRS = {
    "a tuple of two texts": lambda one, two: (one, two),
    "premise and hypothesis": lambda one, two: {"premise": one, "hypothesis": two},
    "text and text_pair": lambda one, two: {"text": one, "text_pair": two},
}
WHOLE: dict[str, tuple[str, Callable[[random.Random], Whole]]] = {
    "a span of an answer": ("9 readout", answer_span),
    "labels to a model of a library": ("11 passed", labels_of_library),
    "one text to a model of pairs": ("11 passed", one_text),
    "a series cut into patches": ("12 refused", patched_series),
    "dynamic int8": ("12 false alarm", quantised),
    "windows without a class token": ("10 constant", windowed),
    **{
        name: ("11 passed", lambda dice, passed=passed, name=name: pair_of_texts(dice, passed, name))
        for name, passed in PAIRS.items()
    },
}
