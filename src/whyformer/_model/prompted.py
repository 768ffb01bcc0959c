"""PromptedTransformer: a model with a learned prompt (PEFT prompt tuning, p-tuning); its virtual tokens are tokens too.

PEFT puts the vectors of the virtual tokens before the embeddings of the text. The model then reads more tokens than it
was given, so a score per token of the text would leave some out. Here virtual tokens have ids of their own, after those
of the vocabulary, so every token has a name, an embedding and a score.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whyformer._model.encoded import EncodedBatch, shift_regions
from whyformer._model.unwrap import is_peft_model, name_adapter
from whyformer.errors import UnsupportedModel

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel

KINDS = ("PROMPT_TUNING", "P_TUNING")


class PromptedTransformer(nn.Module):
    """Computes what the PEFT model computes, from ids that begin with those of the virtual tokens.

    Made by `wrap_prompted`, which names the class after that of the model: PromptedBertForSequenceClassification.
    """

    main_input_name = "input_ids"

    def __init__(self, peft_model: "PeftModel") -> None:
        super().__init__()
        self.peft_model = peft_model
        self.config = peft_model.config
        self.virtual_tokens: int = peft_model.active_peft_config.num_virtual_tokens
        self.vocabulary: int = peft_model.word_embeddings.num_embeddings

    def __reduce__(self) -> "tuple[Callable[[PeftModel], PromptedTransformer], tuple[PeftModel]]":
        return wrap_prompted, (self.peft_model,)

    def get_input_embeddings(self) -> nn.Module:
        return self.peft_model.word_embeddings

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Any:
        words = self.peft_model.word_embeddings.weight
        prompt = self.peft_model.get_prompt(batch_size=1)[0].detach().to(words.dtype)
        optional = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return self.peft_model.base_model(
            inputs_embeds=F.embedding(input_ids, torch.cat([words, prompt])),
            **{name: tensor for name, tensor in optional.items() if tensor is not None},
        )


def wrap_prompted(peft_model: "PeftModel") -> PromptedTransformer:
    return type(f"Prompted{type(peft_model.base_model).__name__}", (PromptedTransformer,), {})(peft_model)


def has_learned_prompt(module: nn.Module) -> bool:
    """Whether this is a PEFT model that puts virtual tokens before the text; others with prompts are refused."""
    if not is_peft_model(module) or not module.active_peft_config.is_prompt_learning:  # type: ignore[union-attr]
        return False
    config: PeftConfig = module.active_peft_config
    kind = name_adapter(config)
    if kind in KINDS and config.task_type is None:
        raise UnsupportedModel(
            "This PeftModel has a learned prompt but no task type, so PEFT runs the model without the prompt. "
            "Set task_type in its config, or open the base model."
        )
    if kind in KINDS and (config.num_transformer_submodules or 1) > 1:
        raise UnsupportedModel("A learned prompt for a model with an encoder and a decoder is not supported yet.")
    return kind in KINDS


def refuse_learned_prompt(module: nn.Module, verb: str) -> None:
    """For verbs that count tokens from the first one of the text."""
    if isinstance(module, PromptedTransformer):
        raise UnsupportedModel(
            f"{verb}() does not support the virtual tokens of a learned prompt yet. Use explain(model, prompt), which "
            "scores them like the tokens of the text."
        )


def add_virtual_tokens(model: PromptedTransformer, encoded: EncodedBatch) -> EncodedBatch:
    """The batch with the virtual tokens before every example."""
    number, ids = model.virtual_tokens, encoded.inputs["input_ids"]
    virtual = torch.arange(model.vocabulary, model.vocabulary + number, device=ids.device).expand(len(ids), -1)
    fills = {"input_ids": virtual, "attention_mask": torch.ones_like(virtual)}
    inputs = {
        name: torch.cat([fills.get(name, torch.zeros_like(virtual)).to(tensor.dtype), tensor], dim=1)
        for name, tensor in encoded.inputs.items()
    }
    names = tuple(f"<prompt {i}>" for i in range(1, number + 1))
    real, special = (
        None if mask is None else F.pad(mask, (number, 0), value=True)
        for mask in (encoded.token_mask, encoded.special_mask)
    )
    return replace(
        encoded,
        inputs=inputs,
        token_mask=real,
        special_mask=special,
        words=None if encoded.words is None else tuple((*names, *words) for words in encoded.words),
        spans=None if encoded.spans is None else tuple(((None,) * number + spans) for spans in encoded.spans),
        answers=tuple(None if found is None else (found[0] + number, found[1] + number) for found in encoded.answers),
        regions=tuple(shift_regions(regions, number) for regions in encoded.regions),
    )
