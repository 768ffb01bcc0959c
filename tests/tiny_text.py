"""Tokenizers of three kinds and matching models, all tiny and random."""

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = 3 * [
    "the film is not good at all",
    "a gorgeous, witty, seductive film about Paris and London",
    "The Eiffel Tower is in the city of Paris",
]
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the film is not good bad a [ ] sep go ##od ! . ,".split()


def wordpiece(words: list[str] = WORDS) -> hf.PreTrainedTokenizerFast:
    """Like that of BERT: lower case, with [CLS] and [SEP] around the text."""
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", words.index("[CLS]")), ("[SEP]", words.index("[SEP]"))]
    )
    tokenizer.decoder = decoders.WordPiece()
    names = dict(unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def wordpiece_pairs(
    template: str = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", side: str = "right"
) -> hf.PreTrainedTokenizerFast:
    """The same for pairs of texts: by default [CLS] first [SEP] second [SEP] with two segments, as BERT reads them."""
    tokenizer = wordpiece()
    special = [(token, WORDS.index(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=template, special_tokens=special
    )
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer.padding_side = side
    return tokenizer


def byte_pairs(side: str = "left") -> hf.PreTrainedTokenizerFast:
    """Like that of GPT-2: bytes, a space belongs to the next word, no tokens around the text, no pad token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=380, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side=side, **names)


def unigram() -> hf.PreTrainedTokenizerFast:
    """Like that of XLM-R: its special tokens are also ordinary pieces; <s> and </s> around the text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=80, special_tokens=special, unk_token="<unk>", initial_alphabet=list("<>/s"), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>")
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def bert(words: int = len(WORDS), **changes: object) -> hf.PreTrainedModel:
    torch.manual_seed(0)
    sizes = dict(
        vocab_size=words, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48,
        max_position_embeddings=16, id2label={0: "negative", 1: "neutral", 2: "positive"}, initializer_range=0.3,
    )  # fmt: skip
    return hf.BertForSequenceClassification(hf.BertConfig(**sizes | changes)).double().eval()


def gpt2(**changes: object) -> hf.PreTrainedModel:
    torch.manual_seed(0)
    sizes = dict(vocab_size=400, n_embd=24, n_layer=2, n_head=3, n_positions=32, bos_token_id=0, eos_token_id=0)
    config = hf.GPT2Config(**sizes | {"initializer_range": 0.3} | changes)
    return hf.GPT2LMHeadModel(config).double().eval()


def llama() -> hf.PreTrainedModel:
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=400, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, max_position_embeddings=32, bos_token_id=0, eos_token_id=[0, 5], initializer_range=0.3,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config).double().eval()


def roberta() -> hf.PreTrainedModel:
    torch.manual_seed(0)
    config = hf.RobertaConfig(
        vocab_size=100, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48,
        max_position_embeddings=34, num_labels=3, initializer_range=0.3,
    )  # fmt: skip
    return hf.RobertaForSequenceClassification(config).double().eval()
