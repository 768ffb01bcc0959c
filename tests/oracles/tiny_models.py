"""Tiny models with weights that are the same in every library version, for the relevance oracles and for our tests."""

import numpy as np
import torch
from torch import Tensor, nn

IDS = [[7, 19, 33, 5, 42, 11, 28, 50, 3]]
SIZES = dict(vocab_size=60, max_position_embeddings=32)


def filled(module: nn.Module, seed: int, scale: float = 0.15) -> nn.Module:
    """Normal numbers of numpy's frozen generator, by parameter name; scales of norms near 1, so that they matter."""
    random = np.random.RandomState(seed)
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            noise = torch.tensor(random.standard_normal(tuple(parameter.shape)))
            is_scale = parameter.dim() == 1 and "weight" in name
            parameter.copy_(1 + 0.1 * noise if is_scale else scale * noise)
    return module.double().eval()


def llama() -> nn.Module:
    """Grouped queries, rotary positions, RMS norms and a gated MLP."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=24, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40, **SIZES
    )
    return filled(LlamaForCausalLM(config), seed=1)


def gpt2() -> nn.Module:
    """Learned positions, layer norms, biases and GELU in primitives."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=24, n_layer=3, n_head=3, n_positions=32, vocab_size=60, bos_token_id=0, eos_token_id=0)
    return filled(GPT2LMHeadModel(config), seed=2)


def stack() -> nn.Sequential:
    """Linear layers and a convolution, with ReLU between them."""
    layers = (nn.Conv2d(2, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 10), nn.ReLU(), nn.Linear(10, 5))
    return filled(nn.Sequential(*layers), seed=3, scale=0.5)


def stack_without_biases() -> nn.Sequential:
    """The same without biases, to which libraries give different shares."""
    module = stack()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.mul_(0 if name.endswith("bias") else 1)
    return module


def picture() -> Tensor:
    return torch.tensor(np.random.RandomState(4).standard_normal((3, 2, 5, 5)))


def assert_as_stored(again: object, before: object) -> None:
    """The same numbers, in the same lists and dictionaries."""
    if isinstance(before, dict):
        assert isinstance(again, dict) and again.keys() == before.keys()
        for key, value in before.items():
            assert_as_stored(again[key], value)
        return
    found, stored = (torch.tensor(numbers, dtype=torch.double) for numbers in (again, before))
    torch.testing.assert_close(found, stored, rtol=1e-6, atol=1e-7 * float(stored.abs().max()))
