"""Strange models written by hand, not drawn: each with the same function written plainly, or what is to be refused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, CLASSES, VOCABULARY, TARGET = 16, 3, 40, 1
Given = dict[str, Tensor]


@dataclass
class Hand:
    """A model and what it is given. What is not known of it is None."""

    model: nn.Module
    given: Given
    read: Callable[[Any], Tensor] | None = None  # [row]: the explained number, from what the model returns
    twin: nn.Module | None = None
    twin_given: Given | None = None
    own_tokens: slice | None = None  # of the twin's tokens, those of the model
    untrue: str = ""  # a note that would be
    refused: str = ""  # by every method, for this reason
    refused_by: tuple[str, ...] = ()  # by these, for a reason of theirs

    def remove(self, row: Given, token: int) -> Given:
        name = next(iter(row))
        changed = row[name].clone()
        changed[:, token] = 0
        return {**row, name: changed}


HANDS: dict[str, Callable[[], Hand]] = {}


def hand(make: Callable[[], Hand]) -> Callable[[], Hand]:
    HANDS[make.__name__] = make
    return make


def draw_ids(rows: int = 2, length: int = 7) -> Tensor:
    return torch.randint(1, VOCABULARY, (rows, length))


def layers(depth: int = 2) -> nn.ModuleList:
    make = lambda: nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0, batch_first=True, norm_first=True)  # noqa: E731
    return nn.ModuleList(make() for _ in range(depth))


class Plain(nn.Module):
    """Embeddings of a table, layers, a reading, a head."""

    def __init__(self, table: Tensor, of: "Base", read: Callable[[Tensor], Tensor] = lambda h: h.mean(1)) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(table.detach().clone())
        self.layers, self.head, self.read = of.layers, of.head, read

    def forward(self, input_ids: Tensor) -> Tensor:
        h = self.table(input_ids)
        for layer in self.layers:
            h = layer(h)
        return self.head(self.read(h))


class Masked(nn.Module):
    """The same with a mask, as libraries have it."""

    def __init__(self, of: "Base") -> None:
        super().__init__()
        self.table, self.layers, self.head = of.table, of.layers, of.head

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = self.table(input_ids)
        for layer in self.layers:
            h = layer(h, src_key_padding_mask=attention_mask == 0)
        weights = attention_mask.to(h.dtype)
        return self.head((h * weights[..., None]).sum(1) / weights.sum(1, keepdim=True))


class Base(nn.Module):
    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.table, self.layers = nn.Embedding(VOCABULARY, WIDTH), layers(depth)
        self.head = nn.Linear(WIDTH, CLASSES)

    def mix(self, h: Tensor, **more: Tensor) -> Tensor:
        for layer in self.layers:
            h = layer(h, **more)
        return h


# --- how tokens are made ---------------------------------------------------------------------------------------------


class Quotients(Base):
    """A factorised vocabulary: one table for ids // 8, one for ids % 8."""

    def __init__(self) -> None:
        super().__init__()
        self.high, self.low = nn.Embedding(5, WIDTH), nn.Embedding(8, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.high(torch.div(tokens, 8, rounding_mode="floor")) + self.low(tokens % 8)
        return self.head(self.mix(h).mean(1))


@hand
def quotient_and_remainder() -> Hand:
    model, ids, all_ids = Quotients(), draw_ids(), torch.arange(VOCABULARY)
    table = model.high.weight[all_ids // 8] + model.low.weight[all_ids % 8]
    return Hand(model, {"tokens": ids}, lambda out: out[:, TARGET], Plain(table, model), {"input_ids": ids})


class Hashes(Base):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Embedding(17, WIDTH), nn.Embedding(13, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.mix(self.one(ids * 31 % 17) / 2 + self.two((ids * 7 + 3) % 13) / 2).mean(1))


@hand
def two_hashes() -> Hand:
    model, ids, all_ids = Hashes(), draw_ids(), torch.arange(VOCABULARY)
    table = (model.one.weight[all_ids * 31 % 17] + model.two.weight[(all_ids * 7 + 3) % 13]) / 2
    return Hand(model, {"ids": ids}, lambda out: out[:, TARGET], Plain(table, model), {"input_ids": ids})


class Prompted(Base):
    """Learned vectors before and behind the tokens; the one behind is read."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.Parameter(torch.randn(2, WIDTH)), nn.Parameter(torch.randn(1, WIDTH))

    def forward(self, ids: Tensor) -> Tensor:
        ends = [part.expand(len(ids), -1, -1) for part in (self.before, self.behind)]
        return self.head(self.mix(torch.cat([ends[0], self.table(ids), ends[1]], 1))[:, -1])


@hand
def vectors_around() -> Hand:
    model, ids = Prompted(), draw_ids()
    twin = Plain(torch.cat([model.table.weight, model.before, model.behind]), model, lambda h: h[:, -1])
    ends = [torch.tensor([numbers] * len(ids)) for numbers in ([VOCABULARY, VOCABULARY + 1], [VOCABULARY + 2])]
    twin_ids = torch.cat([ends[0], ids, ends[1]], 1)
    return Hand(model, {"ids": ids}, lambda out: out[:, TARGET], twin, {"input_ids": twin_ids}, slice(2, -1))


class Summarised(Base):
    """The first state is written over by the mean of the others, and read."""

    def forward(self, ids: Tensor) -> Tensor:
        h = self.table(ids).clone()
        h[:, 0] = h[:, 1:].mean(1)
        return self.head(self.mix(h)[:, 0])


@hand
def first_token_written_over() -> Hand:
    return Hand(
        Summarised(), {"ids": draw_ids()}, lambda out: out[:, TARGET], refused_by=("rollout", "transformer_attribution")
    )


class Bytes(Base):
    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Linear(48, WIDTH)

    def forward(self, image: Tensor) -> Tensor:
        x = image.permute(0, 3, 1, 2).to(self.cut.weight.dtype) / 255
        return self.head(self.mix(self.cut(F.unfold(x, 4, stride=4).mT)).mean(1))


@hand
def bytes_with_channels_last() -> Hand:
    image = torch.randint(0, 256, (1, 16, 16, 3), dtype=torch.uint8)
    return Hand(Bytes(), {"image": image}, refused="channels last")


class Person(Base):
    def __init__(self) -> None:
        super().__init__()
        self.age, self.income, self.job = nn.Linear(1, WIDTH), nn.Linear(1, WIDTH), nn.Embedding(6, WIDTH)

    def forward(self, age: Tensor, income: Tensor, job: Tensor) -> Tensor:
        columns = [self.age(age[:, None]), self.income(income[:, None]), self.job(job)]
        return self.head(self.mix(torch.stack(columns, 1)).mean(1))


@hand
def columns_apart() -> Hand:
    given = {"age": torch.randn(3), "income": torch.randn(3), "job": torch.randint(0, 6, (3,))}
    return Hand(Person(), given, refused="one number for each example")


class Gaps(Base):
    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Linear(6, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.cut(torch.cat([x.nan_to_num(), x.isnan().to(x.dtype)], -1))
        return self.head(self.mix(h).mean(1))


@hand
def missing_numbers() -> Hand:
    x = torch.randn(2, 7, 3)
    x[0, 2, 1] = torch.nan
    return Hand(Gaps(), {"x": x})


# --- how they are mixed and masked -----------------------------------------------------------------------------------


class SequenceFirst(Base):
    def __init__(self) -> None:
        super().__init__()
        self.attentions = nn.ModuleList(nn.MultiheadAttention(WIDTH, 2) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.table(ids.t())
        for attention in self.attentions:
            h = h + attention(h, h, h, need_weights=False)[0]
        return self.head(h.max(0).values)


class BatchFirst(nn.Module):
    def __init__(self, of: SequenceFirst) -> None:
        super().__init__()
        self.table, self.head = of.table, of.head
        self.attentions = nn.ModuleList(nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(2))
        self.attentions.load_state_dict(of.attentions.state_dict())

    def forward(self, input_ids: Tensor) -> Tensor:
        h = self.table(input_ids)
        for attention in self.attentions:
            h = h + attention(h, h, h, need_weights=False)[0]
        return self.head(h.max(1).values)


@hand
def sequence_first_inside() -> Hand:
    model, ids = SequenceFirst(), draw_ids(3)
    return Hand(model, {"ids": ids}, lambda out: out[:, TARGET], BatchFirst(model), {"input_ids": ids})


class Lengths(Base):
    """The mask is made of lengths; what is behind them is filled with 0 and not in the mean."""

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        behind = torch.arange(ids.size(1)) >= lengths[:, None]
        h = self.mix(self.table(ids), src_key_padding_mask=behind)
        return self.head(h.masked_fill(behind[..., None], 0).sum(1) / lengths[:, None])


@hand
def lengths_instead_of_a_mask() -> Hand:
    model, ids, lengths = Lengths(), draw_ids(2, 8), torch.tensor([8, 5])
    mask = (torch.arange(8) < lengths[:, None]).long()
    given = {"ids": ids * mask, "lengths": lengths}
    twin_given = {"input_ids": ids * mask, "attention_mask": mask}
    return Hand(model, given, lambda out: out[:, TARGET], Masked(model), twin_given)


class Negative(Base):
    """-1 is padding."""

    def forward(self, ids: Tensor) -> Tensor:
        real = ids >= 0
        h = self.mix(self.table(ids.clamp(min=0)), src_key_padding_mask=~real)
        return self.head((h * real[..., None]).sum(1) / real.sum(1, keepdim=True))


@hand
def negative_padding() -> Hand:
    model, ids = Negative(), draw_ids()
    ids[1, 5:] = -1
    twin_given = {"input_ids": ids.clamp(min=0), "attention_mask": (ids >= 0).long()}
    return Hand(model, {"ids": ids}, None, Masked(model), twin_given)


class Fourier(Base):
    def forward(self, ids: Tensor) -> Tensor:
        h = self.table(ids)
        return self.head(self.mix(h + torch.fft.fft2(h).real).mean(1))


@hand
def fourier_before_attention() -> Hand:
    return Hand(
        Fourier(1),
        {"ids": draw_ids()},
        lambda out: out[:, TARGET],
        refused_by=("default", "attnlrp", "transformer_attribution"),
    )


class Counted(Base):
    """A set: each word once, weighted by how often it occurs. Only the first row is answered."""

    def forward(self, ids: Tensor) -> Tensor:
        words, counts = torch.unique(ids[0], return_counts=True)
        return self.head(self.mix(self.table(words)[None] * counts.sqrt()[None, :, None]).mean(1))


@hand
def a_set_of_words() -> Hand:
    given = {"ids": torch.tensor([[5, 9, 5, 30, 2, 17, 9]])}
    unread = ("attnlrp", "gradient_x_input", "rollout", "transformer_attribution")
    return Hand(Counted(), given, lambda out: out[:, TARGET], refused_by=(*unread, "default"))


# --- what is returned ------------------------------------------------------------------------------------------------


@dataclass
class Outputs:
    features: Tensor
    class_scores: Tensor


class EndOfText(Base):
    """Causal; read at the largest id, as CLIP reads texts; a dataclass with the features first."""

    def forward(self, text: Tensor) -> Outputs:
        later = torch.full((text.size(1),) * 2, -torch.inf, dtype=self.head.weight.dtype).triu(1)
        features = self.mix(self.table(text), src_mask=later)[torch.arange(len(text)), text.argmax(-1)]
        return Outputs(features, self.head(features))


@hand
def read_at_the_largest_id() -> Hand:
    ids = torch.randint(1, VOCABULARY - 1, (2, 8))
    ids[[0, 1], [5, 7]] = VOCABULARY - 1
    return Hand(EndOfText(), {"text": ids}, lambda out: out.class_scores[:, TARGET])


class Pair(NamedTuple):
    states: Tensor
    answer: Tensor


class Nested(Base):
    def __init__(self, *, is_tuple: bool) -> None:
        super().__init__()
        self.is_tuple = is_tuple

    def forward(self, ids: Tensor) -> Any:
        h = self.mix(self.table(ids))
        logits = self.head(h.mean(1))
        return Pair(h, logits) if self.is_tuple else {"out": {"tokens": h, "cls": [logits]}}


@hand
def a_nested_dictionary() -> Hand:
    model, ids = Nested(is_tuple=False), draw_ids()
    read = lambda out: out["out"]["cls"][0][:, TARGET]  # noqa: E731
    return Hand(model, {"ids": ids}, read, Plain(model.table.weight, model), {"input_ids": ids})


@hand
def a_named_tuple() -> Hand:
    model, ids = Nested(is_tuple=True), draw_ids()
    return Hand(
        model, {"ids": ids}, lambda out: out[1][:, TARGET], Plain(model.table.weight, model), {"input_ids": ids}
    )


class Short(Base):
    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.mix(self.table(ids)).mean(1)).to(torch.bfloat16)


@hand
def bfloat16_at_the_end() -> Hand:
    model, ids = Short(), draw_ids()
    return Hand(model, {"ids": ids}, None, Plain(model.table.weight, model), {"input_ids": ids})


class LogSoftmax(Base):
    def forward(self, ids: Tensor) -> Tensor:
        z = self.head(self.mix(self.table(ids)).mean(1))
        return z - z.logsumexp(-1, keepdim=True)


@hand
def a_log_softmax_written_out() -> Hand:
    model, ids = LogSoftmax(), draw_ids()
    return Hand(model, {"ids": ids}, None, Plain(model.table.weight, model), {"input_ids": ids})


class Watched(Base):
    def forward(self, ids: Tensor, targets: Tensor) -> dict[str, Tensor]:
        z = self.head(self.mix(self.table(ids)).mean(1))
        right = (z.argmax(-1) == targets).float().mean()
        return {"loss": F.cross_entropy(z, targets), "accuracy": right, "scores": z}


@hand
def a_loss_and_an_accuracy_beside_the_scores() -> Hand:
    model, ids = Watched(), draw_ids()
    given = {"ids": ids, "targets": torch.tensor([1, 2])}
    read = lambda out: out["scores"][:, TARGET]  # noqa: E731
    return Hand(model, given, read, Plain(model.table.weight, model), {"input_ids": ids}, untrue="reads all examples")


class Gated(Base):
    """Tokens below the median of the whole batch are dropped."""

    def forward(self, ids: Tensor) -> Tensor:
        h = self.table(ids)
        size = h.norm(dim=-1)
        return self.head(self.mix(h * (size >= size.flatten().median())[..., None]).mean(1))


@hand
def a_median_of_the_batch() -> Hand:
    return Hand(Gated(), {"ids": draw_ids(1)}, lambda out: out[:, TARGET], untrue="gradients of this model's code")


class Heads(Base):
    def __init__(self) -> None:
        super().__init__()
        self.others = nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(4))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        h = self.mix(self.table(ids)).mean(1)
        each = torch.stack([head(h) for head in self.others])
        return each, each.mean(0)


@hand
def several_heads_first() -> Hand:
    return Hand(Heads(), {"ids": draw_ids()}, refused="which token each row belongs to is not known")
