"""Tiny random models with an encoder and a decoder, in float64, and a tokenizer for them."""

from functools import cache

import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = "<pad> </s> <unk> <s> the red house is big a small cat sees dog la maison rouge est un petit chat".split()
IDS = dict(decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, bos_token_id=3)
T5 = dict(vocab_size=len(WORDS), d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, **IDS)
BART = dict(
    vocab_size=len(WORDS), d_model=16, encoder_layers=2, decoder_layers=3, encoder_attention_heads=2,
    decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64,
    forced_eos_token_id=None, **IDS,
)  # fmt: skip
MAKERS = {
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**BART)),
    "marian": lambda: hf.MarianMTModel(hf.MarianConfig(**BART | {"decoder_vocab_size": len(WORDS)})),
    "pegasus": lambda: hf.PegasusForConditionalGeneration(hf.PegasusConfig(**BART)),
    "mbart": lambda: hf.MBartForConditionalGeneration(hf.MBartConfig(**BART)),
    "bart, classes": lambda: hf.BartForSequenceClassification(hf.BartConfig(**BART, num_labels=3)),
    "t5, classes": lambda: hf.T5ForSequenceClassification(hf.T5Config(**T5, num_labels=3)),
}
WRITERS = [name for name in MAKERS if "classes" not in name]


def make_seq2seq(kind: str) -> hf.PreTrainedModel:
    torch.manual_seed(0)
    module = MAKERS[kind]().eval().double()
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return module


@cache
def make_tokenizer() -> hf.PreTrainedTokenizerFast:
    """One token a word, </s> behind the last."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    names = dict(pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
