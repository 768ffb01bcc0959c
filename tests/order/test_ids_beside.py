"""Models that read token ids beside the explained embeddings, and models in 16 bits, written as a stranger would."""

import pytest
import torch
from torch import nn

import whyformer as why

WIDTH = 16
IDS = torch.tensor([[20, 11, 7, 12, 13, 14, 15, 16, 17], [18, 21, 22, 23, 7, 24, 25, 0, 0]])
METHODS = (None, "attnlrp", "gradient_x_input", "attcat", "decompx")


class Reader(nn.Module):
    """A plain encoder over ids that masks id 0 by itself."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(40, WIDTH), nn.Embedding(20, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True, norm_first=True, dropout=0) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 3)
        self.wide = nn.EmbeddingBag(40, 3, mode="sum")
        self.pairs = nn.Embedding(101, WIDTH)

    def embed(self, ids):
        return self.words(ids) + self.places((ids != 0).cumsum(1))

    def encode(self, ids):
        states, padding = self.embed(ids), ids == 0
        for block in self.blocks:
            states = block(states, src_key_padding_mask=padding)
        return states.masked_fill(padding[..., None], 0)

    def forward(self, input_ids):
        return self.head(self.encode(input_ids).mean(1))


class ReadsAtLargestId(Reader):
    def forward(self, input_ids):
        states = self.encode(input_ids)
        return self.head(states[torch.arange(len(states)), input_ids.argmax(1)])


class WideAndDeep(Reader):
    def forward(self, input_ids):
        return super().forward(input_ids) + self.wide(input_ids)


class IndexesItsTable(Reader):
    def forward(self, input_ids):
        return super().forward(input_ids) + self.wide.weight[input_ids].sum(1)


class AddsPairs(Reader):
    def embed(self, ids):
        return super().embed(ids) + self.pairs((ids * 31 + ids.roll(1, 1)) % 101)


class SortsBetweenBlocks(Reader):
    def forward(self, input_ids):
        states = self.blocks[0](self.words(input_ids))
        order = states[..., 0].argsort(1)
        return self.head(self.blocks[1](states.gather(1, order[..., None].expand_as(states)))[:, :4].mean(1))


def make(kind, dtype=torch.float32):
    torch.manual_seed(0)
    return kind().eval().to(dtype)


@pytest.mark.parametrize("kind", [WideAndDeep, IndexesItsTable, AddsPairs])
def test_ids_read_beside_the_embedding_are_noted_on_every_call(kind):
    model = make(kind)
    for method in (*METHODS, *METHODS):
        notes = why.explain(model, {"input_ids": IDS}, method, target=1).notes
        assert sum("reads the token ids in another way too" in note for note in notes) == 1, method


@pytest.mark.parametrize("kind", [Reader, ReadsAtLargestId])
def test_padding_and_marks_found_by_their_id_are_no_second_way(kind):
    model = make(kind)
    for method in METHODS:
        assert why.explain(model, {"input_ids": IDS}, method, target=1).notes == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_order_is_found_in_16_bits_as_in_32(dtype):
    wide = why.explain(make(Reader), {"input_ids": IDS}, target=1)
    short = why.explain(make(Reader, dtype), {"input_ids": IDS}, target=1)
    assert short.method == wide.method == "libragrad" and len(short.notes) == 1  # on the precision
    assert torch.allclose(short.scores, wide.scores, atol=0.05 * float(wide.scores.abs().max()))


def test_tokens_that_move_between_blocks_are_seen_in_16_bits():
    with pytest.raises(why.errors.UnsupportedModel, match="order of the tokens changes between the blocks"):
        why.explain(make(SortsBetweenBlocks, torch.bfloat16), {"input_ids": IDS}, "libragrad", target=1)


class RemovesPadding(Reader):
    """All tokens of all examples in one row, each example attending to itself."""

    def forward(self, input_ids):
        real = input_ids != 0
        of = torch.arange(len(real))[:, None].expand_as(real)[real]
        states = self.words(input_ids[real])[None]
        for block in self.blocks:
            states = block(states, src_mask=of[:, None] != of)
        return self.head(torch.stack([states[0][of == i].mean(0) for i in range(len(real))]))


@pytest.mark.parametrize("method", ["gradient_x_input", "attnlrp", "integrated_gradients"])
def test_embeddings_without_a_batch_axis_are_refused_by_name(method):
    with pytest.raises(why.errors.UnsupportedModel, match="embeds the tokens of all examples in one row"):
        why.explain(make(RemovesPadding), {"input_ids": IDS}, method, target=1)
