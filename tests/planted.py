"""Planted truth: models whose weights are set by hand, so that the one token or patch that decides is known.

Nothing is trained and the truth is exact: each model is a few lines of wiring between named channels, and everything
but one token or patch can be changed without changing the answer by more than a few percent. The rest of each item is
there to mislead: words that get attention and carry nothing, words that carry much and get no attention, strong colours
everywhere.

    lookup    text     CLS looks for the one word with the right key; a second head looks at a decoy
    minus     text     the same, with evidence for one class encoded as a negative number
    bag       text     words are averaged; attention carries nothing that is read
    spot      image    CLS looks for the one marked patch and reads its colour
    courier   image    a register reads the marked patch in the first block, CLS reads the register in the second
    recall    decoder  "... c4 ... c?" is answered by "4": the last token looks for its own letter

`FINDS` lists the methods that must find the planted token, by their definition; `BLIND` those that cannot, with the
reason. A hit is the strictly highest score among the tokens or patches that could have been planted; a tie is a miss.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn

import whyformer as why
from whyformer._plain.tokens import Pieces
from whyformer.results.explanation import Explanation

ITEMS = 200
SHARPNESS = 6.0  # the pre-softmax score of what attention looks for; everything else has 0
NOISE = 0.03  # evidence in ordinary words, where the planted word has 1

# --- parts -----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention and an MLP, each with a skip connection.

    All weights are 0 until wired: attention is uniform and nothing is added.
    """

    def __init__(self, width: int, heads: int = 2, slots: int = 12, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.slots, self.causal = heads, slots, causal
        self.query, self.key, self.value = (nn.Linear(width, heads * slots, bias=False) for _ in range(3))
        self.out = nn.Linear(heads * slots, width, bias=False)
        self.up, self.down = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.used = {"match": [0] * heads, "carry": [0] * heads}
        for weight in self.parameters():
            nn.init.zeros_(weight)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = (
            linear(x).unflatten(-1, (self.heads, self.slots)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(x)))

    def match(self, asks: int, offers: int, *, head: int = 0, sharpness: float = SHARPNESS) -> "Block":
        """A token with 1 in channel `asks` attends to tokens with 1 in channel `offers`."""
        slot = self._next("match", head)
        self.query.weight.data[slot, asks] = sharpness
        self.key.weight.data[slot, offers] = 1.0
        return self

    def carry(self, takes: int, gives: int, *, head: int = 0) -> "Block":
        """Channel `takes` of the attended token is added to channel `gives`."""
        slot = self._next("carry", head)
        self.value.weight.data[slot, takes] = 1.0
        self.out.weight.data[gives, slot] = 1.0
        return self

    def think(self, takes: int, gives: int) -> "Block":
        """Half of the positive part of channel `takes` is added to channel `gives`."""
        self.up.weight.data[takes, takes] = 1.0
        self.down.weight.data[gives, takes] = 0.5
        return self

    def _next(self, what: str, head: int) -> int:
        self.used[what][head] += 1
        assert self.used[what][head] <= self.slots
        return head * self.slots + self.used[what][head] - 1


class Reader(nn.Module):
    """Words, blocks, and an answer read at the first token, at the last, or at the mean."""

    def __init__(self, words: Tensor, blocks: Sequence[Block], answer: Tensor, at: str) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(words, freeze=False)
        self.blocks, self.at = nn.ModuleList(blocks), at
        self.answer = nn.Linear(answer.size(1), answer.size(0), bias=False)
        self.answer.weight.data.copy_(answer)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.words(input_ids)
        mask = attention_mask[:, None, None, :].bool()
        if self.at == "last":
            mask = mask & torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).tril()
        for block in self.blocks:
            x = block(x, mask)
        if self.at == "last":
            return self.answer(x)
        if self.at == "mean":
            weights = attention_mask[..., None].to(x.dtype)
            return self.answer((x * weights).sum(1) / weights.sum(1))
        return self.answer(x[:, 0])


class Watcher(nn.Module):
    """Patches, a CLS token, optionally a register, blocks, and an answer read at CLS."""

    def __init__(self, patches: Tensor, starts: Tensor, blocks: Sequence[Block], answer: Tensor) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, patches.size(0), patches.size(-1), stride=patches.size(-1), bias=False)
        self.patches.weight.data.copy_(patches)
        self.starts = nn.Parameter(starts)
        self.blocks = nn.ModuleList(blocks)
        self.answer = nn.Linear(answer.size(1), answer.size(0), bias=False)
        self.answer.weight.data.copy_(answer)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat([self.starts.expand(len(x), -1, -1), x], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.answer(x[:, 0])


def tokenizer(words: Sequence[str], *, around: bool) -> hf.PreTrainedTokenizerFast:
    """One token per word; with `around`, [CLS] and [SEP] at the ends."""
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if around:
        ends = [(word, words.index(word)) for word in ("[CLS]", "[SEP]")]
        made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    there = {name: word for name, word in names.items() if word in words}
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, **there)


# --- constructions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planted:
    """A model, items for it, and the position of the deciding token or patch in each."""

    name: str
    model: why.Model
    inputs: Any
    truth: Tensor  # [item] index of the deciding token in the scores
    leaves_out: int = 0  # tokens at the end that ask the question and are not candidates

    def part(self, wanted: slice) -> "Planted":
        """A slice of the items."""
        some = {name: t[wanted] for name, t in self.inputs.items()} if isinstance(self.inputs, dict) else None
        return replace(self, inputs=some or self.inputs[wanted], truth=self.truth[wanted])

    def hits(self, e: Explanation) -> Tensor:
        """[item] whether the planted token has the strictly highest score."""
        scores = e.scores.double().clone()
        for i, tokens in enumerate(e.tokens):
            if isinstance(tokens, Pieces):
                real = [place for place, padding in enumerate(tokens.padding) if not padding]
                asks = real[len(real) - self.leaves_out :]
                out = torch.tensor([s or p for s, p in zip(tokens.special, tokens.padding, strict=True)])
                out[asks] = True
                scores[i, out] = -torch.inf
        planted = scores.gather(1, self.truth[:, None])[:, 0]
        others = scores.scatter(1, self.truth[:, None], -torch.inf).amax(1)
        return planted > others


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WIDTH = 16
FOR, AGAINST = 4, 5  # channels: evidence for class 1, and for class 0
IDLE = slice(8, 16)  # channels that nothing reads, filled with noise in every word and patch


def lookup(items: int = ITEMS, *, minus: bool = False) -> Planted:
    """The word with the key decides.

    The other head attends to a decoy that carries nothing that is read. A loud word has twice the evidence of the
    planted one but gets no attention.
    """
    cls, key, decoy = 0, 1, 2
    bad = {FOR: -1.0} if minus else {AGAINST: 1.0}
    groups: dict[str, dict[int, float]] = {
        "good": {key: 1.0, FOR: 1.0},
        "bad": {key: 1.0, **bad},
        "look": {decoy: 1.0},
        "great": {FOR: 2.0},
        "awful": {channel: 2 * says for channel, says in bad.items()},
        "word": {},
    }
    words, table = vocabulary(groups, {"[CLS]": {cls: 1.0}}, noisy=[FOR] if minus else [FOR, AGAINST])
    reads = carries_verdict(Block(WIDTH).match(cls, key))
    blocks = [mixes(Block(WIDTH)), mixes(reads.match(cls, decoy, head=1, sharpness=9.0))]
    module = Reader(table, blocks, two_classes(), at="first")
    generator = torch.Generator().manual_seed(1)
    texts, truth = [], []
    for item in range(items):
        kinds = [["good", "bad"][item % 2], "look", ["great", "awful"][draw(2, generator)]]
        text, place = shuffled([f"{kind}{draw(5, generator)}" for kind in kinds], 6 + draw(6, generator), generator)
        texts.append(text)
        truth.append(place + 1)  # after CLS
    name = "minus" if minus else "lookup"
    return Planted(name, opened(module, words, around=True), texts, torch.tensor(truth))


def bag(items: int = ITEMS) -> Planted:
    """The mean of all words is read; attention moves only channels that are never read."""
    words, table = vocabulary({"good": {FOR: 1.0}, "bad": {AGAINST: 1.0}, "word": {}}, {})
    module = Reader(table, [mixes(Block(WIDTH)), mixes(Block(WIDTH))], two_classes(), at="mean")
    generator = torch.Generator().manual_seed(2)
    texts, truth = [], []
    for item in range(items):
        text, place = shuffled([f"{['good', 'bad'][item % 2]}{draw(5, generator)}"], 7 + draw(6, generator), generator)
        texts.append(text)
        truth.append(place)
    return Planted("bag", opened(module, words, around=False), texts, torch.tensor(truth))


def recall(items: int = ITEMS) -> Planted:
    """The last token "c?" asks for the digit of the pair "c4", found by its letter.

    Another pair has the same digit under another letter.
    """
    letters, digits = "abcdefgh", "01234"
    asks, offers, holds, says = 0, 8, 16, 21  # where the channels of letters asked for, offered, digits, answers begin
    width = 26
    pairs = {f"{a}{d}": {offers + i: 1.0, holds + j: 1.0} for i, a in enumerate(letters) for j, d in enumerate(digits)}
    questions = {f"{a}?": {asks + i: 1.0} for i, a in enumerate(letters)}
    words = ["[PAD]", "[UNK]", *pairs, *questions, *digits]
    table = torch.zeros(len(words), width, dtype=torch.double)
    for word, channels in (pairs | questions).items():
        for channel, value in channels.items():
            table[words.index(word), channel] = value
    finds = Block(width, slots=8)
    for i in range(len(letters)):
        finds.match(asks + i, offers + i)
    for j in range(len(digits)):
        finds.carry(holds + j, says + j).think(says + j, says + j)
    answer = torch.zeros(len(words), width, dtype=torch.double)
    for j, digit in enumerate(digits):
        answer[words.index(digit), says + j] = 4.0
    module = Reader(table, [Block(width, slots=8), finds], answer, at="last")
    generator = torch.Generator().manual_seed(3)
    texts, truth = [], []
    for _ in range(items):
        some = torch.randperm(len(letters), generator=generator)[: 5 + draw(4, generator)].tolist()
        values = [draw(len(digits), generator) for _ in some]
        place = draw(len(some), generator)
        values[(place + 1) % len(some)] = values[place]
        texts.append(
            " ".join([f"{letters[i]}{j}" for i, j in zip(some, values, strict=True)] + [f"{letters[some[place]]}?"])
        )
        truth.append(place)
    return Planted("recall", opened(module, words, around=False), texts, torch.tensor(truth), leaves_out=1)


def spot(items: int = ITEMS) -> Planted:
    """All patches have strong colours. CLS looks at the one that is also blue; whether it is red or green decides."""
    cls, mark = 0, 1
    looks = carries_verdict(Block(WIDTH).match(cls, mark))
    blocks = [mixes(Block(WIDTH)), mixes(looks.match(cls, mark, head=1))]
    module = Watcher(patch_channels(mark), starts(cls), blocks, two_classes())
    pictures, truth = marked_pictures(items, seed=4)
    return Planted("spot", why.open(module.double().eval()), {"pixel_values": pictures}, truth)


def courier(items: int = ITEMS) -> Planted:
    """A register reads the colour of the marked patch in the first block, CLS reads the register in the second.

    What CLS itself collects in the first block goes to other channels and is not read.
    """
    cls, mark, register = 0, 1, 2
    parcel = 6  # and the one after it
    fetches = mixes(carries_verdict(Block(WIDTH).match(register, mark), gives=parcel))
    asks = mixes(carries_verdict(Block(WIDTH).match(cls, register), takes=parcel))
    module = Watcher(patch_channels(mark), starts(cls, register), [fetches, asks], two_classes())
    pictures, truth = marked_pictures(items, seed=5)
    return Planted("courier", why.open(module.double().eval()), {"pixel_values": pictures}, truth)


CONSTRUCTIONS: dict[str, Callable[[int], Planted]] = {
    "lookup": lookup,
    "minus": partial(lookup, minus=True),
    "bag": bag,
    "spot": spot,
    "courier": courier,
    "recall": recall,
}


@cache
def planted(name: str, items: int = ITEMS) -> Planted:
    return CONSTRUCTIONS[name](items)


# --- what they are made of --------------------------------------------------------------------------------------------


def vocabulary(
    groups: dict[str, dict[int, float]],
    special: dict[str, dict[int, float]],
    *,
    noisy: Sequence[int] = (FOR, AGAINST),
) -> tuple[list[str], Tensor]:
    """Five words of each kind (thirty ordinary ones) and their evidence per channel. Every word has noise in the idle
    channels, and a little in the channels that are read.
    """
    generator = torch.Generator().manual_seed(0)
    said = {f"{kind}{i}": channels for kind, channels in groups.items() for i in range(30 if kind == "word" else 5)}
    words = [*SPECIAL, *said]
    table = torch.zeros(len(words), WIDTH, dtype=torch.double)
    for word, channels in (said | special).items():
        row = table[words.index(word)]
        if word in said:
            row[IDLE] = torch.randn(8, dtype=torch.double, generator=generator)
            row[list(noisy)] = NOISE * torch.rand(len(noisy), dtype=torch.double, generator=generator)
        for channel, value in channels.items():
            row[channel] += value
    return words, table


def carries_verdict(block: Block, *, takes: int = FOR, gives: int = FOR) -> Block:
    """The first head carries the evidence for and against."""
    return block.carry(takes, gives).carry(takes + 1, gives + 1)


def mixes(block: Block) -> Block:
    """The second head and the MLP move content among the idle channels."""
    for channel in range(8):
        takes, gives = IDLE.start + channel, IDLE.start + (channel + 1) % 8
        block.carry(takes, gives, head=1).think(takes, gives)
    return block


def two_classes() -> Tensor:
    """Evidence for class 1 is evidence against class 0."""
    answer = torch.zeros(2, WIDTH, dtype=torch.double)
    answer[1, FOR] = answer[0, AGAINST] = 4.0
    answer[0, FOR] = answer[1, AGAINST] = -4.0
    return answer


def starts(*channels: int) -> Tensor:
    """Tokens before the patches, each with 1 in a channel of its own."""
    tokens = torch.zeros(1, len(channels), WIDTH, dtype=torch.double)
    for token, channel in enumerate(channels):
        tokens[0, token, channel] = 1.0
    return tokens


def opened(module: nn.Module, words: Sequence[str], *, around: bool) -> why.Model:
    return why.open(module.double().eval(), tokenizer=tokenizer(words, around=around))


def shuffled(kinds: list[str], others: int, generator: torch.Generator) -> tuple[str, int]:
    """The given words shuffled among ordinary ones, and the position of the first of them."""
    words = kinds + [f"word{draw(30, generator)}" for _ in range(others)]
    order = torch.randperm(len(words), generator=generator).tolist()
    return " ".join(words[i] for i in order), order.index(0)


def draw(below: int, generator: torch.Generator) -> int:
    return int(torch.randint(below, (), generator=generator))


def patch_channels(mark: int) -> Tensor:
    """Blue is the mark, red is evidence for, green against; random pixel patterns fill the idle channels."""
    weights = torch.zeros(WIDTH, 3, 4, 4, dtype=torch.double)
    for colour, channel in enumerate((FOR, AGAINST, mark)):
        weights[channel, colour] = 1 / 16
    weights[IDLE] = torch.randn(8, 3, 4, 4, dtype=torch.double, generator=torch.Generator().manual_seed(6)) / 16
    return weights


def marked_pictures(items: int, seed: int) -> tuple[Tensor, Tensor]:
    """[item 3 16 16] of 4 x 4 patches, each red or green, up to twice as strong as the one that is also blue."""
    generator = torch.Generator().manual_seed(seed)
    truth, each = torch.randint(16, (items,), generator=generator), torch.arange(items)
    hue = 4 * torch.rand(items, 16, generator=generator, dtype=torch.double) - 2
    hue[each, truth] = torch.where(each % 2 == 0, 1.0, -1.0).double()
    blue = torch.zeros_like(hue)
    blue[each, truth] = 1.0
    colours = torch.stack([hue.clamp(min=0), (-hue).clamp(min=0), blue], dim=1).unflatten(2, (4, 4))
    pictures = colours.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)
    return pictures + 0.02 * torch.rand(pictures.shape, dtype=torch.double, generator=generator), truth


# --- what theory says -------------------------------------------------------------------------------------------------

BY_ATTENTION = ("transformer_attribution", "gamma_attribution", "generic_attention")
BY_VALUE = (
    "attcat",
    "cat",
    "gradient_x_input",
    "integrated_gradients",
    "attnlrp",
    "cp_lrp",
    "libragrad",
    "lrp_epsilon",
    "decompx",
    "leave_one_out",
    "kernel_shap",
    "partition_shap",
    "lime",
)
SENTENCES = {
    "lookup": "CLS attends to one word by its key and reads its value. A decoy gets more attention, a loud word none.",
    "minus": "The same, but evidence for class 0 is a negative number instead of a channel of its own.",
    "bag": "Every word adds its own evidence to a mean, through the skip connections. Attention has no effect.",
    "spot": "CLS attends to one marked patch, with both heads. Other patches have stronger colours.",
    "courier": "The colour of the patch reaches CLS through a register.",
    "recall": "The last token attends to the pair with its letter. Another pair has the same answer.",
}
FINDS: dict[str, tuple[str, ...]] = {
    "lookup": (*BY_ATTENTION, *BY_VALUE, "lrp", "partial_lrp", "attgrads"),
    "minus": ("gamma_attribution", "generic_attention", *BY_VALUE, "attgrads"),
    "bag": (*BY_VALUE, "lrp"),
    "spot": (*BY_ATTENTION, *BY_VALUE, "lrp", "partial_lrp", "attgrads", "raw_attention", "rollout"),
    "courier": (*BY_ATTENTION, *BY_VALUE, "lrp", "rollout"),
    "recall": (*BY_ATTENTION, *BY_VALUE, "lrp", "partial_lrp", "attgrads", "raw_attention", "rollout"),
}
PAID = "uses the amount of attention, not what it carries, and the decoy gets more"
MORE = "uses the effect of additional attention, which is as large or larger for a louder patch, word or pair"
NOTHING = "attention carries nothing to the answer: its gradients and relevances are 0, changing it has no effect"
POSITIVE = "positive products only: negative evidence for class 0, half of the items, is lost"
LAST = "uses only the row of the readout, which attends to the register alone"
BLIND: dict[str, dict[str, str]] = {
    "lookup": {"raw_attention": PAID, "rollout": PAID, "grads": MORE, "legrad": MORE},
    "minus": {
        **dict.fromkeys(("raw_attention", "rollout"), PAID),
        **dict.fromkeys(("grads", "legrad"), MORE),
        **dict.fromkeys(("transformer_attribution", "partial_lrp", "lrp"), POSITIVE),
    },
    "bag": {
        **dict.fromkeys(
            (*BY_ATTENTION, "partial_lrp", "attgrads", "grads", "legrad", "agcam", "grad_cam", "atman"), NOTHING
        ),
        **dict.fromkeys(("raw_attention", "rollout"), "all words get the same attention"),
        "saliency": "the gradient of a mean is the same at every word",
    },
    "spot": {"grads": MORE, "legrad": MORE},
    "courier": {
        **dict.fromkeys(("raw_attention", "grads", "grad_cam", "partial_lrp", "attgrads", "agcam"), LAST),
        "legrad": MORE,
    },
    "recall": {"grads": MORE, "legrad": MORE},
}
LIMITS = """\
These models have no norms, their evidence is in one channel, and nothing in them is redundant. A method that fails here
can be expected to fail elsewhere; a method that succeeds here is not necessarily right on a trained model. To find out,
judge the methods on your own data.

Next: [Which metric to believe](which-metric.md)."""
