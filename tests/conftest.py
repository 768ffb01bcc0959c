"""The zoo: a small random model of every family, in float64, and a batch for each with examples of several lengths."""

import gc
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor, nn

torch.set_num_threads(1)


def pytest_configure() -> None:
    gc.disable()  # until all tests are collected: modules and test items live to the end, and there are many


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


# Settings that make methods with many forward passes fast enough to run on every family.
QUICK: dict[str, dict[str, object]] = {
    "bi_attribution": {"steps": 3},
    "context_cite": {"budget": 12},
    "integrated_gradients": {"steps": 3},
    "kernel_shap": {"budget": 16},
    "lime": {"budget": 16},
    "partition_shap": {"budget": 12},
    "rise": {"budget": 8, "cells": 3},
    "smooth_grad": {"samples": 2},
    "vit_cx": {"budget": 4},
}
# Methods that only work on images.
IMAGES_ONLY = {"vit_cx"}


class CausalSelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, longest: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.register_buffer("allowed", torch.ones(longest, longest).tril().view(1, 1, longest, longest))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.size()
        query, key, value = self.c_attn(x).split(width, dim=2)
        query, key, value = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (query, key, value))
        scores = (query @ key.transpose(-2, -1)) * (1.0 / key.size(-1) ** 0.5)
        scores = scores.masked_fill(self.allowed[:, :, :length, :length] == 0, float("-inf"))
        y = scores.softmax(dim=-1) @ value
        return self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width))


def handmade_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))


class HandmadeBlock(nn.Module):
    def __init__(self, width: int, heads: int, longest: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads, longest)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        x += self.down(handmade_gelu(self.up(self.ln_2(x))))
        return x


class HandmadeGPT(nn.Module):
    """A typical handwritten language model: custom attention, custom activation, an in-place addition."""

    def __init__(
        self, vocabulary: int = 40, width: int = 24, heads: int = 3, blocks: int = 2, longest: int = 16
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.h = nn.ModuleList(HandmadeBlock(width, heads, longest) for _ in range(blocks))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, idx: Tensor) -> Tensor:
        positions = torch.arange(idx.size(1), device=idx.device)
        x = self.wte(idx) + self.wpe(positions)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class TorchEncoder(nn.Module):
    """`nn.TransformerEncoder` between an embedding and mean pooling; [token batch channel] unless batch_first."""

    def __init__(self, batch_first: bool, norm_first: bool = False) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embed = nn.Embedding(40, 24)
        layer = nn.TransformerEncoderLayer(24, 3, 48, batch_first=batch_first, norm_first=norm_first, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(24, 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed(input_ids)
        x = x if self.batch_first else x.transpose(0, 1)
        padding = attention_mask == 0 if attention_mask is not None else None
        x = self.encoder(x, src_key_padding_mask=padding)
        x = x if self.batch_first else x.transpose(0, 1)
        if attention_mask is None:
            return self.head(x.mean(1))
        weights = attention_mask[..., None].to(x.dtype)
        return self.head((x * weights).sum(1) / weights.sum(1))


TEXT = dict(
    vocab_size=60,
    hidden_size=24,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=48,
    max_position_embeddings=32,
    num_labels=4,
)
IMAGE = dict(
    image_size=16,
    patch_size=4,
    num_channels=3,
    hidden_size=24,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=48,
    num_labels=4,
)


def build(name: str, attention: str = "sdpa") -> nn.Module:
    import transformers as hf

    def make(config: type, model: type, **settings: object) -> nn.Module:
        return model._from_config(config(**settings), attn_implementation=attention)

    makers = {
        "vit": lambda: make(hf.ViTConfig, hf.ViTForImageClassification, **IMAGE),
        "deit": lambda: make(hf.DeiTConfig, hf.DeiTForImageClassificationWithTeacher, **IMAGE),
        "dinov2": lambda: make(
            hf.Dinov2WithRegistersConfig, hf.Dinov2WithRegistersForImageClassification, **IMAGE | {"mlp_ratio": 2}
        ),
        "beit": lambda: make(
            hf.BeitConfig, hf.BeitForImageClassification, use_relative_position_bias=True, use_mean_pooling=True,
            **IMAGE,
        ),
        "bert": lambda: make(hf.BertConfig, hf.BertForSequenceClassification, **TEXT),
        "roberta": lambda: make(hf.RobertaConfig, hf.RobertaForSequenceClassification, pad_token_id=1, **TEXT),
        "distilbert": lambda: make(
            hf.DistilBertConfig, hf.DistilBertForSequenceClassification, vocab_size=60, dim=24, n_layers=3, n_heads=3,
            hidden_dim=48, max_position_embeddings=32, num_labels=4,
        ),
        "electra": lambda: make(hf.ElectraConfig, hf.ElectraForSequenceClassification, embedding_size=16, **TEXT),
        "albert": lambda: make(hf.AlbertConfig, hf.AlbertForSequenceClassification, embedding_size=16, **TEXT),
        "gpt2": lambda: make(
            hf.GPT2Config, hf.GPT2LMHeadModel, vocab_size=60, n_embd=24, n_layer=3, n_head=3, n_positions=32,
        ),
        "llama": lambda: make(
            hf.LlamaConfig, hf.LlamaForCausalLM, num_key_value_heads=1, **TEXT | {"num_attention_heads": 2}
        ),
        "encoder": lambda: TorchEncoder(batch_first=True),
        "encoder_token_first": lambda: TorchEncoder(batch_first=False, norm_first=True),
        "gpt": lambda: HandmadeGPT(),
    }  # fmt: skip
    torch.manual_seed(0)
    module = makers[name]()
    with torch.no_grad():  # random biases and scales: the initial values 0 and 1 would hide mistakes
        for key, parameter in module.named_parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(
                1 + 0.1 * noise
                if parameter.dim() == 1 and "weight" in key
                else 0.1 * noise
                if parameter.dim() < 2
                else 0.15 * noise
            )
    return module.double().eval()


IMAGE_FAMILIES = ("vit", "deit", "dinov2", "beit")
TEXT_FAMILIES = (
    "bert",
    "roberta",
    "distilbert",
    "electra",
    "albert",
    "encoder",
    "encoder_token_first",
    "gpt2",
    "llama",
)
FAMILIES = (*IMAGE_FAMILIES, *TEXT_FAMILIES, "gpt")


@dataclass(frozen=True)
class Animal:
    """A model of the zoo and a batch of three examples; texts have 9, 6 and 4 tokens."""

    name: str
    module: nn.Module
    inputs: dict[str, Tensor]

    def alone(self, i: int) -> dict[str, Tensor]:
        """Example i in a batch of one, without padding."""
        example = {key: value[i : i + 1] for key, value in self.inputs.items()}
        if "attention_mask" in example:
            length = int(example["attention_mask"].sum())
            example = {key: value[:, :length] for key, value in example.items()}
        return example


LENGTHS = (9, 6, 4)


@cache
def animal(name: str, attention: str = "sdpa") -> Animal:
    module = build(name, attention)
    generator = torch.Generator().manual_seed(7)
    if name in IMAGE_FAMILIES:
        return Animal(
            name, module, {"pixel_values": torch.randn(3, 3, 16, 16, generator=generator, dtype=torch.float64)}
        )
    if name == "gpt":
        return Animal(name, module, {"idx": torch.randint(3, 40, (3, 9), generator=generator)})
    ids = torch.randint(5, 40, (3, 9), generator=generator)
    mask = torch.arange(9)[None] < torch.tensor(LENGTHS)[:, None]
    padding = 1 if name == "roberta" else 0
    return Animal(name, module, {"input_ids": torch.where(mask, ids, padding), "attention_mask": mask.long()})


@pytest.fixture(scope="session")
def zoo():
    return animal


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Animal:
    return animal(request.param)


def name_value(value: object) -> str:
    """The id of a parameter: its repr, or its type where the repr holds an address, which differs between processes."""
    return type(value).__name__ if " at 0x" in repr(value) else repr(value)
