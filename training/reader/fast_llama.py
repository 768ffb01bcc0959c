"""One training step of a small Llama with little to wait for: the forward pass in few operations, recorded once.

A model of three million weights keeps a GPU busy for a few milliseconds a step; launching its operations one by one
from Python takes longer. So the loss and its gradient are recorded as a CUDA graph, one for each shape of a batch, and
replayed. The weights are those of the `LlamaForCausalLM`; on the CPU the same code runs as it is.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding, linear, rms_norm, scaled_dot_product_attention, silu
from transformers import LlamaForCausalLM

CPU_TEXT = 0.15  # share of the tokens that are no answers whose loss is computed, on a CPU


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-second, first), dim=-1) * sines


def compute_states(model: LlamaForCausalLM, ids: Tensor, cosines: Tensor, sines: Tensor, dtype: torch.dtype) -> Tensor:
    """The states [row token channel] from which logits are read; matrix products in `dtype`, all sums in float32."""
    config, table = model.config, model.model.embed_tokens.weight
    rows, tokens = ids.shape
    if ids.is_cuda:  # as a product, its gradient is one as well, and can be recorded
        words = torch.arange(len(table), device=ids.device)
        stream = linear((ids[..., None] == words).to(dtype), table.T.to(dtype)).float()
    else:
        stream = embedding(ids, table)

    def norm(layer: torch.nn.Module) -> Tensor:
        return rms_norm(stream, (config.hidden_size,), layer.weight, config.rms_norm_eps).to(dtype)

    def split(heads: Tensor) -> Tensor:
        return heads.view(rows, tokens, config.num_attention_heads, -1).transpose(1, 2)

    for block in model.model.layers:
        attention, states = block.self_attn, norm(block.input_layernorm)
        q, k, v = (
            split(linear(states, part.weight.to(dtype)))
            for part in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        mixed = scaled_dot_product_attention(rotate(q, cosines, sines), rotate(k, cosines, sines), v, is_causal=True)
        stream = stream + linear(mixed.transpose(1, 2).flatten(2), attention.o_proj.weight.to(dtype))
        mlp, states = block.mlp, norm(block.post_attention_layernorm)
        gate, up = (linear(states, part.weight.to(dtype)) for part in (mlp.gate_proj, mlp.up_proj))
        stream = stream + linear(silu(gate) * up, mlp.down_proj.weight.to(dtype))
    return norm(model.model.norm)


def compute_angles(model: LlamaForCausalLM, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary positions, [token channel]."""
    place = model.device
    cosines, sines = model.model.rotary_emb(torch.zeros(1, device=place), torch.arange(tokens, device=place)[None])
    return cosines[0].to(dtype), sines[0].to(dtype)


class Stepper:
    """Puts the gradient of the loss of a batch into the weights of a model."""

    def __init__(self, model: LlamaForCausalLM, text: float) -> None:
        self.model, self.text = model, text
        self.is_cuda = model.device.type == "cuda"
        self.dtype = torch.bfloat16 if self.is_cuda else torch.float32
        self.recorded: dict[tuple[int, int], Callable[[Tensor, Tensor], Tensor]] = {}
        self.weights = list(model.parameters())
        for weight in self.weights:
            weight.grad = torch.zeros_like(weight)

    def compute_gradient(self, ids: Tensor, answers: Tensor) -> Tensor:
        """The loss: of the answers, and of all other tokens with the weight `text`."""
        shape = (ids.size(0), ids.size(1))
        if shape not in self.recorded:
            self.recorded[shape] = self._prepare(*shape)
        return self.recorded[shape](ids, answers)

    def _prepare(self, rows: int, tokens: int) -> Callable[[Tensor, Tensor], Tensor]:
        if not self.is_cuda:
            return self._make_step(tokens)
        try:
            return self._record(rows, tokens)
        except RuntimeError as error:
            print(f"Not recorded, runs operation by operation: {error}", flush=True)
            self.is_cuda = False
            return self._make_step(tokens)

    def _make_step(self, tokens: int) -> Callable[[Tensor, Tensor], Tensor]:
        cosines, sines = compute_angles(self.model, tokens, self.dtype)

        def step(ids: Tensor, answers: Tensor) -> Tensor:
            torch._foreach_zero_([weight.grad for weight in self.weights])
            states = compute_states(self.model, ids, cosines, sines, self.dtype)[:, :-1]
            wanted, is_answer = ids[:, 1:], answers[:, 1:]
            if not self.is_cuda:  # logits only where they count; on a GPU the shape must not depend on the batch
                is_counted = is_answer | ((torch.rand(wanted.shape) < CPU_TEXT) & (wanted != 0))
                states, wanted, is_answer = states[is_counted], wanted[is_counted], is_answer[is_counted]
            logits = linear(states, self.model.model.embed_tokens.weight.to(self.dtype))
            losses = cross_entropy(logits.flatten(0, -2).float(), wanted.flatten(), reduction="none").view_as(wanted)
            is_text = ~is_answer & (wanted != 0)
            parts = [(losses * chosen).sum() / chosen.sum() for chosen in (is_answer, is_text)]
            loss = parts[0] + self.text * parts[1]
            loss.backward()
            return loss.detach()

        return step

    def _record(self, rows: int, tokens: int) -> Callable[[Tensor, Tensor], Tensor]:
        step = self._make_step(tokens)
        ids = torch.ones(rows, tokens, dtype=torch.long, device=self.model.device)
        answers = torch.zeros_like(ids, dtype=torch.bool)
        answers[:, tokens // 2 :] = True
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step(ids, answers)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step(ids, answers)

        def replay(new_ids: Tensor, new_answers: Tensor) -> Tensor:
            ids.copy_(new_ids)
            answers.copy_(new_answers)
            graph.replay()
            return loss

        return replay
