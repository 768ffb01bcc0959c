"""Makes a folder of transformers from a GGUF file: tensors one by one, so that memory holds the result alone."""

import re
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from real.checks import SENTENCE, tokenize

NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
LLAMA_NORMS = {"ffn_norm": "post_attention_layernorm"}
GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip


def convert_gguf(file: Path, folder: Path) -> None:
    """Writes config, tokenizer and float16 weights."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = AutoConfig.from_pretrained(file.parent, gguf_file=file.name).to_dict()
    dropped = ("quantization_config", "_name_or_path", "_model_name_or_path", "model_type", "transformers_version")
    config = AutoConfig.for_model(settings["model_type"], **{k: v for k, v in settings.items() if k not in dropped})
    weights = read_gguf(file, config)
    config.dtype = torch.float16
    config.architectures = ["Gemma3ForCausalLM" if "gemma" in config.model_type else "LlamaForCausalLM"]
    config.tie_word_embeddings = "lm_head.weight" not in weights
    config.save_pretrained(folder)
    GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    ).save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    make_tokenizer(file).save_pretrained(folder)


def read_gguf(file: Path, config: AutoConfig) -> dict[str, torch.Tensor]:
    is_gemma = "gemma" in config.model_type
    names = NAMES | (GEMMA_NORMS if is_gemma else LLAMA_NORMS)
    weights = {}
    for tensor in gguf.GGUFReader(file).tensors:
        layer, part = re.fullmatch(r"(?:blk\.(\d+)\.)?(.+)\.weight", tensor.name).groups()
        name = f"{f'model.layers.{layer}.' if layer else ''}{names[part]}.weight"
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if is_gemma and part.endswith("norm"):
            values = values - 1  # the file stores the whole factor, Gemma's norms multiply by 1 + weight
        if not is_gemma and part in ("attn_q", "attn_k"):
            values = unpermute(values, config.num_attention_heads if part == "attn_q" else config.num_key_value_heads)
        weights[name] = torch.from_numpy(values).half()
    return weights


def unpermute(values: np.ndarray, heads: int) -> np.ndarray:
    """Rotary halves beside each other again; llama.cpp interleaves them."""
    rows, width = values.shape
    return values.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def make_tokenizer(file: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of the file, and its first token where the file asks for one: transformers leaves it out."""
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    asked = gguf.GGUFReader(file).get_field("tokenizer.ggml.add_bos_token")
    if asked is None or not asked.contents() or tokenizer("a").input_ids[0] == tokenizer.bos_token_id:
        return tokenizer
    inner, first = tokenizer.backend_tokenizer, tokenizer.bos_token
    inner.post_processor = TemplateProcessing(
        single=f"{first} $A", pair=f"{first} $A {first}:1 $B:1", special_tokens=[(first, tokenizer.bos_token_id)]
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=first, eos_token=tokenizer.eos_token,
        pad_token=tokenizer.pad_token or tokenizer.eos_token, unk_token=tokenizer.unk_token,
    )  # fmt: skip
    made.chat_template = tokenizer.chat_template
    return made


def check_gguf(file: Path, folder: Path, dtype: torch.dtype = torch.float32, read_again: bool = True) -> str:
    """The loss on a plain sentence, and the logits beside those of transformers' own reading of the file."""
    asked = tokenize(folder, SENTENCE)
    ours = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    with torch.no_grad():
        found = ours(**asked, labels=asked["input_ids"])
    del ours
    assert found.loss < 3, found.loss
    text = f"loss {found.loss:.2f} on a plain sentence"
    if not read_again:
        return text
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=dtype).eval()
    with torch.no_grad():
        difference = (theirs(**asked).logits - found.logits).abs().max().item()
    assert difference < 0.05, difference  # float16 against float32 weights
    return f"{text}, logits within {difference:.1g} of transformers' reading of the GGUF"
