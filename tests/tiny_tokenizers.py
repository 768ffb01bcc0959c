"""Tokenizers of every kind, trained on a few lines: what a token covers is known from the text."""

from functools import cache

import transformers as hf
from tiny_text import CORPUS
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

MANY_SCRIPTS = [*CORPUS, *["naïve café déjà vu 你好世界。我喜欢电影！ 👨‍👩‍👧 שלום עולם مرحبا بالعالم fine 1"] * 3]
AROUND = [("<s>", 0), ("</s>", 1)]
SPECIAL = ["<s>", "</s>", "<pad>", "<unk>"]
NAMES = dict(bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>")


def finish(tokenizer: Tokenizer) -> hf.PreTrainedTokenizerFast:
    """With <s> and </s> around each text."""
    if tokenizer.post_processor is None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=AROUND
        )
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **NAMES)


def train_wordpiece(normalizer: normalizers.Normalizer) -> hf.PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(MANY_SCRIPTS, trainer)
    return finish(tokenizer)


def train_bytes(*, prefix: bool, trim: bool) -> hf.PreTrainedTokenizerFast:
    """prefix: a blank is put before the text (RoBERTa). trim: spans do not include the blank (GPT-2)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return finish(tokenizer)


def train_byte_fallback() -> hf.PreTrainedTokenizerFast:
    """Like that of Llama 2: a mark before the text, unknown letters as bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    every_byte = [f"<0x{i:02X}>" for i in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=[*SPECIAL, *every_byte], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return finish(tokenizer)


def train_unigram(normalizer: normalizers.Normalizer | None = None) -> hf.PreTrainedTokenizerFast:
    """Like SentencePiece: blanks become a mark, and one is put before the text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(MANY_SCRIPTS, trainer)
    return finish(tokenizer)


MAKERS = {
    "wordpiece": lambda: train_wordpiece(normalizers.BertNormalizer(lowercase=True)),
    "wordpiece, cased": lambda: train_wordpiece(normalizers.BertNormalizer(lowercase=False)),
    "bytes": lambda: train_bytes(prefix=False, trim=True),
    "bytes, blank before": lambda: train_bytes(prefix=True, trim=True),
    "bytes, untrimmed": lambda: train_bytes(prefix=True, trim=False),
    "byte fallback": train_byte_fallback,
    "unigram": train_unigram,
    "unigram, NFKC": lambda: train_unigram(normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])),
    "unigram, no accents": lambda: train_unigram(normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])),
}


@cache
def make_tokenizer(kind: str) -> hf.PreTrainedTokenizerFast:
    return MAKERS[kind]()


class SlowPieces:
    """A slow tokenizer like that of BERT, without offsets: lower case, no accents, pieces of at most three letters."""

    is_fast, padding_side, pad_token, unk_token, unk_token_id = False, "right", "[PAD]", "[UNK]", 1
    all_special_ids, all_special_tokens, model_input_names = [0, 2, 3], ["[PAD]", "[CLS]", "[SEP]"], ["input_ids"]

    def __init__(self) -> None:
        self.pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]

    def __call__(self, *parts: str, **_: object) -> dict[str, list[int]]:
        pieces = ["[CLS]"]
        for part in parts:
            for word in part.lower().replace("é", "e").split():
                pieces += ["[UNK]"] if word == "zzz" else [
                    ("##" if start else "") + word[start : start + 3] for start in range(0, len(word), 3)
                ]  # fmt: skip
            pieces.append("[SEP]")
        self.pieces += [piece for piece in dict.fromkeys(pieces) if piece not in self.pieces]
        ids = [self.pieces.index(piece) for piece in pieces]
        return {"input_ids": ids, "special_tokens_mask": [int(i in (0, 2, 3)) for i in ids]}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [self.pieces[i] for i in ids]
