"""A tiny decoder with a tokenizer, and a prompt of four passages, a question and an answer."""

from functools import cache

import torch
import transformers as hf
from chat_templates import make_chat_tokenizer
from tiny_tokenizers import train_bytes
from tokenizers import decoders

import whyformer as why

PASSAGES = ["the film is good.", "a bad film, not good at all!", "the plot is a mess.", "it is the best film."]
QUESTION = "is the film good?"
TEXT = "\n\n".join([*PASSAGES, QUESTION])


@cache
def decoder():
    tokenizer = train_bytes(prefix=False, trim=False)
    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()
    return open_decoder(tokenizer)


@cache
def chat_decoder(style):
    """The same with the tokenizer of a chat, see chat_templates.py."""
    return open_decoder(make_chat_tokenizer(style))


def open_decoder(tokenizer):
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=160, initializer_range=0.4, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return why.open(hf.LlamaForCausalLM(config).double().eval(), tokenizer=tokenizer)


def make_prompt(answer=" good. not bad."):
    return why.Prompt.from_text(decoder(), TEXT, answer)
