"""Turn the texts into numbers, once: python training/sentiment/prepare.py --data DATA --out FOLDER

DATA holds the folders sst2, sst_trees, imdb, eraser_movies and minilm-l6-sst2. Writes tokenizer.json (the model's own
WordPiece vocabulary) and corpus.npz: every text as a row of words, and for each word its pieces for the model and for
its teacher. Both tokenizers cut text into the same words first, so a text can be cropped, thinned out and joined word
by word and still be read by both.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from corpus import Forbidden, eraser, imdb, phrases, sentences_of, sst2
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import read_config

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECES = 8  # of a word at most; what is longer is cut, in training only
KINDS = ("sentence", "phrase", "review sentence", "review", "dev")

normalizer = normalizers.BertNormalizer(lowercase=True)
pre_tokenizer = pre_tokenizers.BertPreTokenizer()


def words_of(text: str) -> list[str]:
    return [word for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text))]


def collect(data: Path) -> list[tuple[str, int, float]]:
    """Text, kind and label: how positive people found it, from 0 to 1; -1 where nobody said."""
    forbidden = Forbidden(data)
    texts = [(text, 0, float(label)) for text, label in sst2(data, "train") if not forbidden.is_one(text)]
    texts += [(text, 1, label / 4) for text, label in phrases(data, "train").items() if not forbidden.is_one(text)]
    reviews = [text for text, _ in imdb(data, held_out=False)] + eraser(data)
    reviews = [review for review in reviews if not forbidden.is_quoted_in(review)]
    texts += [(s, 2, -1.0) for review in reviews for s in sentences_of(review) if not forbidden.is_one(s)]
    texts += [(review, 3, -1.0) for review in reviews]
    return texts + [(text, 4, float(label)) for text, label in sst2(data, "dev")]  # dev is only watched


def train_tokenizer(texts: list[str], size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=2, special_tokens=list(SPECIAL), limit_alphabet=120, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    return tokenizer


def pieces(tokenizer: Tokenizer, words: list[str]) -> np.ndarray:
    """[word piece], filled up with 0, which is [PAD] for both tokenizers."""
    table = np.zeros((len(words), PIECES), np.uint16)
    for i, encoding in enumerate(tokenizer.encode_batch(words, add_special_tokens=False)):
        cut = encoding.ids[:PIECES]
        table[i, : len(cut)] = cut
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("config.toml"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    texts = collect(arguments.data)
    student = train_tokenizer(
        [text for text, kind, _ in texts if kind in (0, 1, 3)], read_config(arguments.config)["vocabulary"]
    )
    student.save(str(arguments.out / "tokenizer.json"))
    teacher = Tokenizer.from_file(str(arguments.data / "minilm-l6-sst2" / "tokenizer.json"))
    teacher.no_padding()
    teacher.no_truncation()

    rows = [words_of(text) for text, _, _ in texts]
    number = {word: i for i, word in enumerate(sorted({word for row in rows for word in row}))}
    vocabulary = sorted(student.get_vocab().items(), key=lambda item: item[1])
    spelt = [word.removeprefix("##") if word not in SPECIAL else word for word, _ in vocabulary]
    np.savez_compressed(
        arguments.out / "corpus.npz",
        words=np.array([number[word] for row in rows for word in row], np.int32),
        lengths=np.array([len(row) for row in rows], np.int32),
        kinds=np.array([kind for _, kind, _ in texts], np.uint8),
        labels=np.array([label for _, _, label in texts], np.float32),
        student=pieces(student, list(number)),
        teacher=pieces(teacher, list(number)),
        vocabulary=pieces(teacher, spelt),  # each piece of the model, as the teacher would cut it
    )
    for i, kind in enumerate(KINDS):
        print(f"{kind}: {sum(k == i for _, k, _ in texts)}")
    print(f"words: {len(number)}, pieces: {len(vocabulary)}")


if __name__ == "__main__":
    main()
