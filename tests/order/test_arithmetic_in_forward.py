"""A model may compute with its pixels or its ids before it reads them: they stay the pixels and ids of the input."""

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional as F

import whyformer as why

MEAN, SPREAD = torch.tensor([0.4, 0.45, 0.5])[:, None, None], torch.tensor([0.2, 0.22, 0.25])[:, None, None]
WIDTH = 16


# --- pixels -----------------------------------------------------------------------------------------------------------


def tiny_vit() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return hf.ViTForImageClassification(hf.ViTConfig(image_size=16, patch_size=4, num_labels=3, **sizes)).eval()


class Preparing(nn.Module):
    def __init__(self, vit: nn.Module, prepare):
        super().__init__()
        self.vit, self.prepare = vit, prepare

    def forward(self, x: Tensor) -> Tensor:
        return self.vit(pixel_values=self.prepare(x)).logits


def make_batch_norm() -> nn.Module:
    norm = nn.BatchNorm2d(3).eval()
    norm.running_mean += 0.4
    norm.running_var *= 0.1
    return norm


WAYS = {
    "normalised": lambda x: (x - MEAN) / SPREAD,
    "in place": lambda x: x.clone().sub_(MEAN).div_(SPREAD),
    "scaled": lambda x: x / 255,
    "plus nothing": lambda x: x + 0,
    "a batch norm": make_batch_norm(),
    "clipped": lambda x: x.clamp(0.1, 0.9),
    "subtracted from": lambda x: 1 - x,
    "other order of colours": lambda x: (x[:, [2, 1, 0]] - MEAN) / SPREAD,
    "colour by colour, stacked": lambda x: torch.stack([(x[:, i] - 0.4) / 0.2 for i in range(3)], 1),
    "colour by colour, joined": lambda x: torch.cat([2 * x[:, i : i + 1] - i for i in range(3)], 1),
    "channels last": lambda x: ((x.permute(0, 2, 3, 1) - 0.4) / 0.2).permute(0, 3, 1, 2),
    "grey": lambda x: 1.5 * x.mean(1, keepdim=True).expand(-1, 3, -1, -1),
}


@pytest.mark.parametrize("way", WAYS)
def test_pixels_prepared_inside_are_those_prepared_outside(way):
    vit, x = tiny_vit(), torch.rand(2, 3, 16, 16)
    inside, outside = Preparing(vit, WAYS[way]).eval(), Preparing(vit, nn.Identity()).eval()
    for method in ("gamma_attribution", "rollout", "grad_cam"):
        found = why.explain(inside, x, method, target=1)
        wanted = why.explain(outside, WAYS[way](x).detach(), method, target=1)
        assert found.tokens == wanted.tokens and found.tokens[0].special == (False,) * 16
        torch.testing.assert_close(found.scores, wanted.scores, equal_nan=True)
    assert why.explain(inside, x, "leave_one_out", target=1).map().shape == (4, 4)


@pytest.mark.parametrize("size", [8, 32])
def test_a_resized_image_has_its_patches_on_the_given_one(size):
    vit, x = tiny_vit(), torch.rand(1, 3, size, size)

    def resize(x: Tensor) -> Tensor:
        return (F.interpolate(x, size=(16, 16), mode="bilinear") - MEAN) / SPREAD

    found = why.explain(Preparing(vit, resize).eval(), x, "rollout", target=1)
    wanted = why.explain(Preparing(vit, nn.Identity()).eval(), resize(x), "rollout", target=1)
    torch.testing.assert_close(found.scores, wanted.scores)
    assert found.tokens == wanted.tokens and found.map().shape == (4, 4)


def test_patches_of_a_resized_image_cover_their_part_of_the_given_one():
    vit = nn.Sequential(nn.Upsample(size=(18, 18)), nn.Conv2d(3, 8, 4, 4), nn.Flatten(2))

    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.head = vit, nn.Linear(8, 3)
            self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True)

        def forward(self, x):
            return self.head(self.block(self.stem(x).mT).mean(1))

    (grid,) = why.explain(Small().eval(), torch.rand(1, 3, 36, 36), "rollout", target=1).tokens
    assert (grid.rows, grid.columns, grid.covers) == (4, 4, (32, 32))


# --- ids --------------------------------------------------------------------------------------------------------------


class Reader(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change, self.table, self.places = change, nn.Embedding(80, WIDTH), nn.Embedding(20, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        ids = self.change(input_ids)
        x = self.table(ids) + self.places(torch.arange(ids.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def make_readers(*changes) -> list[nn.Module]:
    torch.manual_seed(0)
    first, *others = (Reader(change).eval() for change in changes)
    for other in others:
        other.load_state_dict(first.state_dict())
    return [first, *others]


def put_by_mask(ids: Tensor) -> Tensor:
    changed = ids.clone()
    changed[ids > 15] = 2
    return changed


CHANGES = {
    "clamped below": lambda ids: ids.clamp(min=0),
    "clamped above": lambda ids: ids.clamp(max=10),
    "masked by a product": lambda ids: ids * (ids < 20),
    "hashed": lambda ids: ids % 7,
    "divided": lambda ids: ids // 3,
    "shifted": lambda ids: ids + 30,
    "mirrored": lambda ids: 39 - ids,
    "replaced": lambda ids: torch.where(ids > 15, 1, ids),
    "cast": lambda ids: ids.int().long(),
    "clamped in place": lambda ids: ids.clone().clamp_(max=9),
    "written in place": put_by_mask,
}


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_ids_changed_inside_are_those_changed_outside(change, batch):
    inside, outside = make_readers(CHANGES[change], lambda ids: ids)
    ids = torch.randint(1, 40, (batch, 9))
    for method in ("libragrad", "attnlrp", "rollout"):
        found = why.explain(inside, {"input_ids": ids}, method, target=1)
        wanted = why.explain(outside, {"input_ids": CHANGES[change](ids)}, method, target=1)
        assert found.notes == wanted.notes
        torch.testing.assert_close(found.scores, wanted.scores)


STARTS = {
    "full_like": lambda ids: torch.cat([torch.full_like(ids[:, :1], 3), ids], 1),
    "new_full": lambda ids: torch.cat([ids.new_full((len(ids), 1), 3), ids], -1),
    "hstack": lambda ids: torch.hstack([torch.full_like(ids[:, :1], 3), ids]),
    "pad": lambda ids: F.pad(ids, (1, 0), value=3),
    "a tensor of its own": lambda ids: torch.cat([torch.tensor([[3]]).expand(len(ids), 1), ids], 1),
}


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("start", STARTS)
def test_a_start_token_is_none_of_the_input(start, batch):
    inside, outside = make_readers(STARTS[start], lambda ids: ids)
    ids = torch.randint(4, 40, (batch, 9))
    for method in ("libragrad", "attnlrp", "rollout"):
        found = why.explain(inside, {"input_ids": ids}, method, target=1)
        wanted = why.explain(outside, {"input_ids": STARTS[start](ids)}, method, target=1)
        torch.testing.assert_close(found.scores, wanted.scores[:, 1:])


# --- other ways to embed ----------------------------------------------------------------------------------------------


class OneHotRows(Reader):
    def forward(self, input_ids: Tensor) -> Tensor:
        x = F.one_hot(input_ids, 80).to(self.table.weight.dtype) @ self.table.weight
        return self.read(x + self.places(torch.arange(input_ids.size(1))))

    def read(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class RowsByIndex(OneHotRows):
    def forward(self, input_ids: Tensor) -> Tensor:
        return self.read(self.table.weight[input_ids] + self.places(torch.arange(input_ids.size(1))))


class LimitedRows(Reader):
    def __init__(self, change):
        super().__init__(change)
        self.table.max_norm = 1.0


@pytest.mark.parametrize("kind", [OneHotRows, RowsByIndex, LimitedRows])
def test_every_way_to_embed_is_an_embedding(kind):
    torch.manual_seed(0)
    module, plain, ids = kind(None).eval(), Reader(lambda ids: ids).eval(), torch.randint(1, 40, (2, 9))
    module.change = plain.change
    plain.load_state_dict(module.state_dict())
    if kind is LimitedRows:
        plain.table.weight.data = torch.renorm(plain.table.weight.data, 2, 0, 1.0)
    before = module.table.weight.clone()
    for method in ("libragrad", "attnlrp", "rollout", "leave_one_out"):
        found = why.explain(module, {"input_ids": ids}, method, target=1)
        wanted = why.explain(plain, {"input_ids": ids}, method, target=1)
        torch.testing.assert_close(found.scores, wanted.scores)
    assert torch.equal(module.table.weight, before)


class Returning(OneHotRows):
    """Adds the embedding again before each block, by a learned share."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.read(self.table(input_ids))

    def read(self, x: Tensor) -> Tensor:
        first = x
        for block in self.blocks:
            x = block(0.7 * x + self.head.bias[0] * first)
        return self.head(x.mean(1))


def test_an_embedding_that_returns_is_one_input():
    torch.manual_seed(0)
    module, ids = Returning(None).eval(), torch.randint(1, 40, (2, 9))
    found = why.explain(module, {"input_ids": ids}, "gradient_x_input", target=1)
    first = module.table(ids).detach().requires_grad_()
    (slope,) = torch.autograd.grad(module.read(first)[:, 1].sum(), first)
    torch.testing.assert_close(found.scores, (slope * first).sum(-1))
    assert found.notes == why.explain(module, {"input_ids": ids}, target=1).notes == ()


def test_random_forwards_do_not_read_the_ids_twice():
    class Random(OneHotRows):
        def forward(self, input_ids: Tensor) -> Tensor:
            return self.read(F.dropout(self.table(input_ids), 0.1, training=True))

    notes = why.explain(Random(None).eval(), {"input_ids": torch.randint(1, 40, (1, 9))}, "attnlrp", target=1).notes
    assert not any("in another way" in note for note in notes)


def test_a_head_is_no_block_without_attention():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

        def forward(self, x):
            return self.linear(self.norm(x).mean(1))

    block = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0, batch_first=True)
    module = nn.Sequential(nn.Sequential(nn.Embedding(40, WIDTH), block), Head()).eval()
    assert why.explain(module, torch.randint(1, 40, (1, 9)), "rollout", target=1).notes == ()


def test_pixels_hidden_inside_are_those_hidden_outside():
    vit, x = tiny_vit(), torch.rand(1, 3, 16, 16)
    for way in ("normalised", "a batch norm", "other order of colours", "channels last"):
        inside, outside = Preparing(vit, WAYS[way]).eval(), Preparing(vit, nn.Identity()).eval()
        found = why.explain(inside, x, "leave_one_out", target=1)
        wanted = why.explain(outside, WAYS[way](x).detach(), "leave_one_out", target=1)
        torch.testing.assert_close(found.scores, wanted.scores, rtol=1e-4, atol=1e-6)
