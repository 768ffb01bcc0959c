"""What is passed: second inputs, biases for attention, masks the other way round."""

from collections.abc import Sequence

import torch
from strangers import anatomy as a
from strangers.draft import Draft, Given, remove_tokens
from strangers.kinds import kind
from torch import Tensor, nn

# --- second inputs ---------------------------------------------------------------------------------------------------

SECOND = (
    "other_ids headline_ids message_ids language_ids runtime_ids type_text order_items image_words categories".split()
)


class Beside(nn.Module):
    """A second sequence is read: its states follow those of the first, or their mean is added to each."""

    def __init__(self, mix: nn.Module, appends: bool, weight: float) -> None:
        super().__init__()
        self.mix, self.table = mix, nn.Embedding(a.VOCABULARY, a.WIDTH)
        self.appends, self.weight = appends, weight

    def forward(self, x: Tensor, second: Tensor) -> Tensor:
        other = self.weight * self.table(second)
        return self.mix(torch.cat([x, other], 1) if self.appends else x + other.mean(1, keepdim=True))


class Holding(nn.Module):
    """The same with the second sequence fixed."""

    def __init__(self, beside: Beside, second: Tensor) -> None:
        super().__init__()
        self.beside = beside
        self.register_buffer("second", second)

    def forward(self, x: Tensor) -> Tensor:
        return self.beside(x, self.second[:1].expand(len(x), -1))


def read_second(d: Draft, name: str, second: Tensor, weight: float, appends: bool) -> None:
    mix = Beside(d.plain.mix, appends, weight)
    d.strange.mix, d.plain.mix = mix, Holding(mix, second)
    d.strange.given = {**d.strange.given, name: second}


@kind("a second input", "8 second", "passed", ["ids", "series"], batch=1, takes_over=True)
def second_input(d: Draft) -> None:
    name, values = d.dice.choice(SECOND), d.dice.choice((2, 3, a.VOCABULARY))
    second = torch.randint(1, values + 1 if values < 4 else values, (1, d.dice.choice((2, 4, 6))))
    read_second(d, name, second, 1.0, d.dice.random() < 0.5)
    d.must.append(("", name))


@kind("a second input of numbers for each row", "8 second", "passed", ["ids"], takes_over=True)
def second_numbers(d: Draft) -> None:
    """[batch 4]: a gate for all tokens, as with the features of a person beside a text."""
    name = d.dice.choice(("features", "age_and_income", "time_features", "order_sizes"))
    numbers = torch.rand(1, 4).expand(d.batch, -1).contiguous().double()
    mix = Gated(d.plain.mix)
    d.strange.mix, d.plain.mix = mix, HeldGate(mix, numbers[:1])
    d.strange.given = {**d.strange.given, name: numbers}
    d.must.append(("", name))


class Gated(nn.Module):
    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.mix, self.line = mix, nn.Linear(4, a.WIDTH)

    def forward(self, x: Tensor, numbers: Tensor) -> Tensor:
        return self.mix(x + self.line(numbers)[:, None])


class HeldGate(nn.Module):
    def __init__(self, gated: Gated, numbers: Tensor) -> None:
        super().__init__()
        self.gated = gated
        self.register_buffer("numbers", numbers)

    def forward(self, x: Tensor) -> Tensor:
        return self.gated(x, self.numbers.expand(len(x), -1))


class Ignoring(nn.Module):
    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.mix = mix

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.mix(x)


@kind("a second input that changes nothing", "8 second", "passed", ["ids"], takes_over=True)
def unread_input(d: Draft) -> None:
    d.strange.mix = Ignoring(d.plain.mix)
    d.strange.given = {**d.strange.given, d.dice.choice(SECOND): torch.randint(1, 30, (d.batch, 5))}
    d.false_notes.append("no scores")


# --- what attention is told ------------------------------------------------------------------------------------------


@kind("a bias between all tokens", "11 passed", "passed", ["series", "ids"], takes_over=True)
def bias_of_graph(d: Draft) -> None:
    """[batch token token], added to the scores: the edges of a graph. A token that goes takes its edges along."""
    d.plain.mix = a.Blocks(d.dice.choice((1, 2)))
    d.strange.mix = Biased(d.plain.mix)
    length = d.plain.given[next(iter(d.plain.given))].size(1)
    bias = torch.rand(1, length, length).double()
    d.plain.mix = HeldBias(d.strange.mix, bias)
    name = d.dice.choice(("adj", "edges", "distances"))
    d.strange.given = {**d.strange.given, name: bias.expand(d.batch, -1, -1).contiguous()}
    d.remove = lambda given, tokens: remove_with_edges(d.modality, given, tokens)
    d.true_notes.append("adj|edges|distances")


class Biased(nn.Module):
    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.mix = mix

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        return self.mix(x, bias[:, None] if bias.dim() == 3 else bias)


class HeldBias(nn.Module):
    def __init__(self, biased: Biased, bias: Tensor) -> None:
        super().__init__()
        self.biased = biased
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.biased(x, self.bias)


def remove_with_edges(modality: str, given: Given, tokens: Sequence[int]) -> list[Given]:
    (main, x), (name, bias) = given.items()
    replaced = remove_tokens(modality, {main: x}, main, tokens)
    filled = [{**one, name: bias} for one in replaced if one[main].shape == x.shape]
    left = torch.ones(x.size(1), dtype=torch.bool)
    left[list(tokens)] = False
    if left.any():
        filled.append({main: x[:, left], name: bias[..., left, :][..., left]})
    return filled


@kind("an additive mask", "11 passed", "passed", ["ids"], takes_over=True)
def additive_mask(d: Draft) -> None:
    """[batch 1 1 token], 0 where a token is seen."""
    d.plain.mix = a.Blocks(d.dice.choice((1, 2)))
    d.strange.mix = Biased(d.plain.mix)
    length = d.plain.given["input_ids"].size(1)
    mask = torch.zeros(d.batch, 1, 1, length).double()
    d.strange.given = {**d.strange.given, "attention_mask": mask}
    d.remove = remove_behind_mask
    d.true_refusals.append(("", "numbers for each example, but there are"))  # also one for a start token


def remove_behind_mask(given: Given, tokens: Sequence[int]) -> list[Given]:
    """Replaced, hidden from attention, or both; or taken out."""
    (main, x), (name, mask) = given.items()
    (blank,) = remove_tokens("ids", {main: x}, main, tokens)
    hidden = mask.clone()
    hidden[..., list(tokens)] = float("-inf") if len(tokens) < x.size(1) else 0
    left = torch.ones(x.size(1), dtype=torch.bool)
    left[list(tokens)] = False
    filled = [{**blank, name: mask}, {**blank, name: hidden}, {main: x, name: hidden}]
    return [*filled, {main: x[:, left], name: mask[..., left]}] if left.any() else filled


class Hiding(nn.Module):
    """True where a token is hidden."""

    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.mix = mix

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        bias = torch.zeros(hidden.shape, dtype=x.dtype).masked_fill(hidden.bool(), float("-inf"))
        return self.mix(x, bias[:, None, None])


@kind("a mask that is true where hidden", "11 passed", "passed", ["ids"], takes_over=True)
def inverted_mask(d: Draft) -> None:
    mix = a.Blocks(d.dice.choice((1, 2)))
    d.plain.mix, d.strange.mix = mix, Hiding(mix)
    hidden = torch.zeros(d.strange.given["input_ids"].shape, dtype=d.dice.choice((torch.bool, torch.long)))
    name = d.dice.choice(("attention_mask", "padding_mask", "key_padding_mask"))
    d.strange.given = {**d.strange.given, name: hidden}
    d.remove = remove_hidden


def remove_hidden(given: Given, tokens: Sequence[int]) -> list[Given]:
    (main, x), (name, hidden) = given.items()
    (blank,) = remove_tokens("ids", {main: x}, main, tokens)
    more = hidden.clone()
    more[:, list(tokens)] = len(tokens) < x.size(1)
    left = torch.ones(x.size(1), dtype=torch.bool)
    left[list(tokens)] = False
    filled = [{**blank, name: hidden}, {**blank, name: more}, {main: x, name: more}]
    return [*filled, {main: x[:, left], name: hidden[:, left]}] if left.any() else filled
