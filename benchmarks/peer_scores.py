"""Scores of other libraries for the tokens of one text, and what they cost: captum, autoLRP, LXT, shap.

Each takes a plain model and a text as in real_texts.py, and gives a score for every token. They are optional:
python -m pip install captum autolrp lxt shap.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

STEPS = 20  # of captum's integrated gradients
BUDGET = 200  # evaluations of shap


@dataclass
class Counted:
    """Examples that went through the model, and passes back."""

    forwards: int = 0
    backwards: int = 0

    @property
    def cost(self) -> float:
        return self.forwards + 2 * self.backwards


@contextmanager
def count_calls(module: nn.Module) -> Iterator[Counted]:
    counted = Counted()

    def note(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        given = next(one for one in (*args, *kwargs.values()) if isinstance(one, Tensor) and one.dim() > 1)
        counted.forwards += len(given)
        logits = output if isinstance(output, Tensor) else output.logits
        if isinstance(logits, Tensor) and logits.requires_grad:
            counted.backwards += len(given)

    handle = module.register_forward_hook(note, with_kwargs=True)
    try:
        yield counted
    finally:
        handle.remove()


def embed(asked: Any, text: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The embeddings of the text, and what else the model is given."""
    ids = torch.tensor([text.ids])
    rest = {"attention_mask": torch.ones_like(ids)}
    if asked.kind == "title":
        rest["decoder_input_ids"] = torch.tensor([[asked.module.config.decoder_start_token_id]])
    elif text.kinds is not None:
        rest["token_type_ids"] = torch.tensor([text.kinds])
    return asked.module.get_input_embeddings()(ids).detach(), rest


def read_target(asked: Any, output: Any, target: int) -> Tensor:
    logits = output.logits
    return (logits[:, -1] if logits.dim() == 3 else logits)[:, target]


def by_captum(asked: Any, text: Any) -> Tensor:
    from captum.attr import IntegratedGradients

    words, rest = embed(asked, text)

    def read(states: Tensor) -> Tensor:
        more = {name: value.expand(len(states), -1) for name, value in rest.items()}
        return read_target(asked, asked.module(inputs_embeds=states, **more), text.target)

    found = IntegratedGradients(read).attribute(words, n_steps=STEPS, internal_batch_size=1)
    return found[0].sum(-1).detach()


def by_autolrp(asked: Any, text: Any) -> Tensor:
    import autolrp

    words, rest = embed(asked, text)
    leaf = autolrp.tensor(words)
    read_target(asked, asked.module(inputs_embeds=leaf, **rest), text.target)[0].lrp(config=autolrp.LRPConfig.attnlrp())
    return torch.as_tensor(leaf.relevance)[0].sum(-1).detach()


def by_shap(asked: Any, text: Any) -> Tensor:
    import shap

    free = np.array(text.free)

    def read(masks: np.ndarray) -> np.ndarray:
        found = []
        for row in masks:
            share = text.ask([("mask", frozenset(free[~row.astype(bool)].tolist()))])[0]
            found.append(np.log(share) - np.log1p(-min(share, 1 - 1e-12)))
        return np.array(found)

    count = len(text.free)
    explainer = shap.PermutationExplainer(read, np.zeros((1, count)), seed=0)
    values = explainer(np.ones((1, count)), max_evals=max(BUDGET, 2 * count + 1), silent=True).values[0]
    scores = torch.zeros(len(text.ids), dtype=torch.float64)
    scores[text.free] = torch.from_numpy(np.asarray(values, dtype=np.float64))
    return scores


def by_lxt(asked: Any, text: Any) -> Tensor:
    """It replaces code of transformers for the whole process: call it in a process of its own, and last."""
    from multiples import patch_for_lxt

    family = str(asked.module.config.model_type)
    if family not in PATCHED:
        patch_for_lxt(family)
        PATCHED.add(family)
    words, rest = embed(asked, text)
    words.requires_grad_()
    read_target(asked, asked.module(inputs_embeds=words, use_cache=False, **rest), text.target)[0].backward()
    assert words.grad is not None
    return (words * words.grad)[0].sum(-1).detach()


PATCHED: set[str] = set()
PEERS: dict[str, Callable[[Any, Any], Tensor]] = {
    "captum: integrated gradients": by_captum,
    "autoLRP: attnlrp": by_autolrp,
    "shap: permutation": by_shap,
    "LXT: attnlrp": by_lxt,
}
