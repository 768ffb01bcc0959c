r"""Prefix reuse: variants of a prompt share its first tokens, and a causal model has to read those only once.

    prompts = read_prompts(shadow, encoded)                one run, with the keys and values of every token kept
    length = prompts.count_shared(variants, of)            tokens at the start that all variants share with their prompt
    tail = cut_prefix(variants, length)                    the tokens after them
    returned = prompts.run_tails(shadow, tail, of, length)

In a causal model the keys and values of a token depend on the tokens before it alone:

$$ K_{1..m}(x) = K_{1..m}(x') \quad\text{if}\quad x_{1..m} = x'_{1..m} $$

so what the model returns for the tail is what it returns for those tokens of the whole variant, but for rounding. Keys
and values are never copied for variants of one prompt: every layer joins them to those of the tail when its turn comes.

For models that take `past_key_values`, in the cache of transformers. Whether the answers are the same is tried out
(batching.py); models that cannot do it raise NoPrefix.
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from whyformer._engine.run.forward import run_plain_returned
from whyformer._engine.run.returned import Returned
from whyformer._model import EncodedBatch, cut_tokens, unwrap

CUT_INPUTS = ("input_ids", "token_type_ids", "position_ids")  # one entry per token of the tail
WHOLE_INPUTS = ("attention_mask",)  # one entry per token, also for those before the tail


class NoPrefix(Exception):
    """This model, or this input, has no prefix that could be reused."""


def takes_cache(module: nn.Module) -> bool:
    """Whether forward() takes keys and values of earlier tokens."""
    return {"past_key_values", "use_cache"} <= set(inspect.signature(unwrap(module).forward).parameters)


class CacheLayer(Protocol):
    """Keys and values of one block, in a cache of transformers."""

    keys: Tensor
    values: Tensor
    cumulative_length: int
    update: Callable[..., tuple[Tensor, Tensor]]


class KeyValueCache(Protocol):
    layers: list[CacheLayer]


@dataclass(frozen=True)
class Prompts:
    """A batch of prompts, what the model returned for them, and the keys and values of their tokens."""

    encoded: EncodedBatch
    returned: Returned
    cache: KeyValueCache

    def count_shared(self, variants: EncodedBatch, of: Tensor) -> int:
        """How many tokens at the start all variants share with their prompts; at least one is left after them."""
        own, given = self.encoded.inputs, variants.inputs
        length = min(own[self.encoded.main].size(1), given[variants.main].size(1))
        differs = torch.zeros(length, dtype=torch.bool, device=given[variants.main].device)
        for name in (*CUT_INPUTS, *WHOLE_INPUTS):
            if name in own and name in given:
                differs |= (pick_prompts(own[name], of)[:, :length] != given[name][:, :length]).any(0)
            elif name in WHOLE_INPUTS and name in given:  # a prompt without a mask is attended to as a whole
                differs |= ~given[name][:, :length].bool().all(0)
            elif name in own or name in given:
                return 0
        first = differs.nonzero()
        return min(int(first[0]) if len(first) else length, given[variants.main].size(1) - 1)

    def run_tails(self, shadow: nn.Module, tail: EncodedBatch, of: Tensor, length: int) -> Returned:
        """What the model returns for these tokens, which follow the first `length` tokens of the prompts."""
        cache = copy.copy(self.cache)
        cache.layers = [take_prefix(layer, of, length) for layer in self.cache.layers]
        return run_plain_returned(shadow, tail, past_key_values=cache, use_cache=True)


def read_prompts(shadow: nn.Module, encoded: EncodedBatch) -> Prompts:
    """Run the model on the prompts and keep keys and values."""
    if not set(encoded.inputs) <= {*CUT_INPUTS, *WHOLE_INPUTS} or encoded.main != "input_ids":
        raise NoPrefix(f"The inputs are {', '.join(encoded.inputs)}.")
    if any(given.dim() != 2 for given in encoded.inputs.values()):
        raise NoPrefix("An input has other axes than example and token.")
    returned = run_plain_returned(shadow, encoded, use_cache=True)
    cache = getattr(returned, "past_key_values", None)
    layers = getattr(cache, "layers", None)
    if cache is None or not isinstance(layers, list) or not layers:
        raise NoPrefix("The model returned no cache of layers.")
    batch, length = encoded.inputs[encoded.main].shape
    if not all(holds_every_token(layer, batch, length) for layer in layers):
        raise NoPrefix("The cache does not hold every token.")
    return Prompts(encoded, returned, cache)


def holds_every_token(layer: CacheLayer, batch: int, length: int) -> bool:
    """A layer that keeps keys and values [batch head token channel], of a window only if it is not full yet."""
    if type(layer).__name__ not in ("DynamicLayer", "DynamicSlidingWindowLayer"):
        return False
    if getattr(layer, "sliding_window", length + 1) <= length:
        return False
    tensors = (layer.keys, layer.values)
    return all(isinstance(t, Tensor) and t.dim() == 4 and (t.size(0), t.size(2)) == (batch, length) for t in tensors)


def take_prefix(layer: CacheLayer, of: Tensor, length: int) -> CacheLayer:
    """A layer of a cache with the first tokens of these prompts. It is not changed by a run, so nothing piles up."""
    keys, values = (pick_prompts(tensor, of)[:, :, :length] for tensor in (layer.keys, layer.values))
    taken = copy.copy(layer)
    taken.keys, taken.values = keys, values
    if hasattr(taken, "cumulative_length"):
        taken.cumulative_length = length

    def join(new_keys: Tensor, new_values: Tensor, *_: Returned, **__: Returned) -> tuple[Tensor, Tensor]:
        return torch.cat([keys, new_keys], dim=-2), torch.cat([values, new_values], dim=-2)

    taken.update = join
    return taken


def pick_prompts(tensor: Tensor, of: Tensor) -> Tensor:
    """The rows `of` of a tensor; a view if they are all the same one."""
    first = int(of[0])
    if bool((of == first).all()):
        return tensor[first : first + 1].expand(len(of), *tensor.shape[1:])
    return tensor.index_select(0, of.to(tensor.device))


def cut_prefix(variants: EncodedBatch, length: int) -> EncodedBatch:
    """The variants without their first `length` tokens; `origin` says which tokens are left."""
    tokens = variants.inputs[variants.main].size(1)
    origin = variants.origin if variants.origin is not None else torch.arange(tokens).expand(variants.batch, -1)
    return replace(cut_tokens(variants, slice(length, None), WHOLE_INPUTS), origin=origin[:, length:])
