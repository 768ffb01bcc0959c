"""PEFT adapters on small models of transformers, with and without a task type."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from others.subject import Subject, describe_transformers_model, make_ids, make_images, read_logits
from torch import Tensor, nn

QUERIES = ["query", "value"]


def build_bert(head: str = "BertForSequenceClassification", width: int = 32) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=width, num_hidden_layers=2, num_attention_heads=4, intermediate_size=2 * width,
        num_labels=3,
    )  # fmt: skip
    return getattr(transformers, head)(config)


def build_gpt2(head: str = "GPT2LMHeadModel") -> nn.Module:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, pad_token_id=0, num_labels=3)
    return getattr(transformers, head)(config)


def build_vit(width: int = 32) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=width, num_hidden_layers=2, num_attention_heads=4, intermediate_size=2 * width, image_size=32,
        patch_size=8, num_labels=3,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


# name -> (base model, the class of the config, its arguments)
ADAPTERS: dict[str, tuple[Callable[[], nn.Module], str, dict[str, Any]]] = {
    "BERT, LoRA": (build_bert, "LoraConfig", {"task_type": "SEQ_CLS", "target_modules": QUERIES}),
    "BERT, LoRA without a task type": (build_bert, "LoraConfig", {"target_modules": QUERIES}),
    "BERT, DoRA": (build_bert, "LoraConfig", {"target_modules": QUERIES, "use_dora": True}),
    "BERT, LoRA on the embedding": (build_bert, "LoraConfig", {"target_modules": ["word_embeddings"]}),
    "BERT, IA3": (
        build_bert,
        "IA3Config",
        {
            "task_type": "SEQ_CLS",
            "target_modules": ["key", "value", "output.dense"],
            "feedforward_modules": ["output.dense"],
        },
    ),
    "BERT, AdaLoRA": (
        build_bert,
        "AdaLoraConfig",
        {"task_type": "SEQ_CLS", "target_modules": QUERIES, "total_step": 10},
    ),
    "BERT, LoHa": (build_bert, "LoHaConfig", {"target_modules": QUERIES}),
    "BERT, LoKr": (build_bert, "LoKrConfig", {"target_modules": QUERIES}),
    "BERT, OFT": (build_bert, "OFTConfig", {"target_modules": QUERIES, "oft_block_size": 8}),
    "BERT, BOFT": (build_bert, "BOFTConfig", {"target_modules": QUERIES, "boft_block_size": 8}),
    "BERT, VeRA": (build_bert, "VeraConfig", {"target_modules": QUERIES, "r": 4}),
    "BERT, LN tuning": (build_bert, "LNTuningConfig", {"task_type": "SEQ_CLS", "target_modules": ["LayerNorm"]}),
    "BERT, prompt tuning": (build_bert, "PromptTuningConfig", {"task_type": "SEQ_CLS", "num_virtual_tokens": 3}),
    "BERT, p-tuning": (
        build_bert,
        "PromptEncoderConfig",
        {"task_type": "SEQ_CLS", "num_virtual_tokens": 3, "encoder_hidden_size": 16},
    ),
    "BERT, prefix tuning": (build_bert, "PrefixTuningConfig", {"task_type": "SEQ_CLS", "num_virtual_tokens": 3}),
    "BERT tokens, LoRA": (
        partial(build_bert, "BertForTokenClassification"),
        "LoraConfig",
        {"task_type": "TOKEN_CLS", "target_modules": QUERIES},
    ),
    "GPT-2, LoRA": (build_gpt2, "LoraConfig", {"task_type": "CAUSAL_LM", "target_modules": ["c_attn"]}),
    "GPT-2, IA3": (
        build_gpt2,
        "IA3Config",
        {"task_type": "CAUSAL_LM", "target_modules": ["c_attn", "mlp.c_proj"], "feedforward_modules": ["mlp.c_proj"]},
    ),
    "GPT-2, prompt tuning": (build_gpt2, "PromptTuningConfig", {"task_type": "CAUSAL_LM", "num_virtual_tokens": 3}),
    "GPT-2, prefix tuning": (build_gpt2, "PrefixTuningConfig", {"task_type": "CAUSAL_LM", "num_virtual_tokens": 3}),
    "GPT-2 classifier, LoRA": (
        partial(build_gpt2, "GPT2ForSequenceClassification"),
        "LoraConfig",
        {"task_type": "SEQ_CLS", "target_modules": ["c_attn"]},
    ),
    "ViT, LoRA": (build_vit, "LoraConfig", {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["classifier"]}),
    "ViT, IA3": (build_vit, "IA3Config", {"target_modules": ["k_proj", "v_proj"], "feedforward_modules": []}),
}


def build(name: str) -> Subject:
    import peft

    make, kind, arguments = ADAPTERS[name]
    module = peft.get_peft_model(make(), getattr(peft, kind)(**arguments)).eval()
    randomise_adapter(module)
    inputs = {"pixel_values": make_images()} if "ViT" in name else make_ids()
    if not module.active_peft_config.is_prompt_learning:
        return describe_transformers_model(module, inputs, inner=module.get_base_model())

    def run(given: Mapping[str, Tensor]) -> Tensor:
        with torch.no_grad():
            return read_logits(module(**given))

    return Subject(module, inputs, run=run)


def randomise_adapter(module: nn.Module) -> None:
    """Adapters begin as the identity; here they change what the model computes."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 0.2)


def iterate_cases() -> Iterator[tuple[str, str, Callable[[], Subject]]]:
    for name in ADAPTERS:
        yield "peft", name, partial(build, name)
