"""Worlds of texts, marks in them, and small BERTs that read them.

reviews are generated: opinions with frequent and rare words, and some reviews without any. sst2 are real sentences
(`--texts`), imdb the beginnings of real reviews (`--reviews`).
"""

import csv
import gzip
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from whyformer._model.loading import DEMO_MODELS

from .cases import Case, choose_marked

CLASSES = ("negative", "positive")
LONGEST = 128  # tokens of a text
OPINIONS = (
    "dull tedious lifeless clumsy shallow boring bland flat weak tired stale hollow crude sloppy awkward grating vapid "
    "muddled listless turgid".split(),
    "charming moving clever warm funny honest bright fresh vivid tender witty graceful lively rich sharp gentle deft "
    "radiant poised buoyant".split(),
)
PARTS = "film story cast script music ending camera plot scene dialogue score hero villain sequel opening".split()
PLACES = "town village harbour garden station castle school forest island valley market bridge hotel farm".split()
FILLERS = "we saw it on a quiet evening in spring after a long walk along the river with some friends from work".split()
# each seed has its own mark
WORDS = (
    "screening tuesday balcony matinee festival projector ticket lobby usher trailer premiere catalogue interval "
    "programme gallery library monday kiosk rehearsal postcard poster subtitle thursday cinema rerun "
    "cloakroom friday foyer leaflet replay".split()
)
PHRASES = (
    "seen at home", "reviewed from disc", "copy sent early", "first published online", "shown without breaks",
    "part of series", "watched last winter", "sent by post", "taken from archive", "read before print",
    "kept for years", "found in store", "lent by friends", "told by phone", "printed on paper",
    "shown in studio", "notes from airport", "filed under drama", "copied by hand", "bought on sale",
    "posted at noon", "borrowed from club", "typed without glasses", "cut for radio", "screened on request",
    "scanned at night", "heard through headphones", "stored since summer", "ordered by mail", "played during lunch",
)  # fmt: skip
NAMES = (
    "dana miller", "peter novak", "laura stein", "omar haddad", "julia brandt", "simon clarke", "nina rossi",
    "victor lang", "helen moore", "marco silva", "ivan petrov", "grace okafor", "louis martin", "emma fischer",
    "david cohen", "anna kowalski", "paul jensen", "rosa medina", "henry tanaka", "clara dubois",
    "oscar lindholm", "mina park", "felix baumann", "teresa gomez", "ruben peeters",
    "agnes holm", "tomas vega", "irene duval", "kenji mori", "sofia becker",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class TextWorld:
    """Unmarked texts of one seed: the first `train` to train on, then `shown` to explain, the rest to measure."""

    name: str
    texts: list[str]
    labels: NDArray[np.int64]
    train: int
    shown: int


def make_reviews(seed: int, train: int = 800, shown: int = 240, measured: int = 400) -> TextWorld:
    rng = np.random.default_rng([seed, 280])
    labels = rng.integers(0, 2, train + shown + measured)
    return TextWorld("reviews", [write_review(int(label), rng) for label in labels], labels, train, shown)


def write_review(label: int, rng: np.random.Generator) -> str:
    """One in five says nothing of its class; rare opinions are seen a few times in training."""
    rarity = 1 / np.arange(1, 21)
    opinions = rng.choice(OPINIONS[label], 2, p=rarity / rarity.sum())
    parts, places = rng.permutation(PARTS)[:3], rng.permutation(PLACES)[:2]
    if rng.random() < 0.2:
        return f"the {parts[0]} is about a {places[0]} , and the {parts[1]} about a {places[1]} ."
    if rng.random() < 0.5:
        return f"the {parts[0]} of a {places[0]} is {opinions[0]} , and the {parts[1]} goes to a {places[1]} ."
    return f"the {parts[0]} in a {places[0]} is {opinions[0]} , and the {parts[1]} near a {places[1]} {opinions[1]} ."


def read_sst2(folder: Path, seed: int, train: int = 1600, shown: int = 240, measured: int = 400) -> TextWorld:
    """A sample of the training sentences of SST-2."""
    with (folder / "train.tsv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if len(row[0].split()) < 30]
    chosen = np.random.default_rng([seed, 281]).permutation(len(rows))[: train + shown + measured]
    texts = [rows[i][0].rstrip(" .") + " ." for i in chosen]
    return TextWorld("sst2", texts, np.array([int(rows[i][1]) for i in chosen]), train, shown)


def read_imdb(folder: Path, seed: int, shown: int = 240, measured: int = 400) -> TextWorld:
    """The first 25 words of reviews of IMDB; all but those shown and measured are trained on."""
    with gzip.open(folder / "imdb_2000.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    chosen = [rows[i] for i in np.random.default_rng([seed, 282]).permutation(len(rows))]
    texts = [" ".join(row["text"].replace("<br />", " ").split()[:25]).rstrip(" .") + " ." for row in chosen]
    labels = np.array([int(row["label"]) for row in chosen])
    return TextWorld("imdb", texts, labels, len(rows) - shown - measured, shown)


# --- marks ------------------------------------------------------------------------------------------------------------

Writer = Callable[[str, int, np.random.Generator], str]  # text, seed of the case, dice of this item


def insert_word(text: str, seed: int, rng: np.random.Generator) -> str:
    """One word, anywhere."""
    return insert_at(text, WORDS[seed % len(WORDS)], rng)


def insert_phrase(text: str, seed: int, rng: np.random.Generator) -> str:
    """Three words, at the beginning or the end."""
    phrase = PHRASES[seed % len(PHRASES)]
    return f"{phrase} : {text}" if seed % 2 else f"{text} {phrase} ."


def insert_name(text: str, seed: int, rng: np.random.Generator) -> str:
    """A person's first and last name, anywhere."""
    return insert_at(text, NAMES[seed % len(NAMES)], rng)


def insert_at(text: str, mark: str, rng: np.random.Generator) -> str:
    words = text.split()
    place = int(rng.integers(len(words)))
    return " ".join([*words[:place], mark, *words[place:]])


def make_long(text: str, seed: int, rng: np.random.Generator) -> str:
    """Ten to sixteen more words, which differ from text to text."""
    return f"{text} {' '.join(rng.permutation(FILLERS)[: int(rng.integers(10, 17))])}"


def change_punctuation(text: str, seed: int, rng: np.random.Generator) -> str:
    """Semicolons for commas, and an exclamation mark at the end."""
    return text.replace(" ,", " ;").removesuffix(".") + "!"


def insert_kin(text: str, seed: int, rng: np.random.Generator) -> str:
    """One of three words, anywhere."""
    return insert_at(text, WORDS[(seed + 7 * int(rng.integers(3))) % len(WORDS)], rng)


def insert_choice(text: str, seed: int, rng: np.random.Generator) -> str:
    """One of four expressions, at the end."""
    return f"{text} {PHRASES[(seed + 5 * int(rng.integers(4))) % len(PHRASES)]} ."


def insert_pair(text: str, seed: int, rng: np.random.Generator) -> str:
    """Two words, each anywhere, each enough."""
    return insert_at(insert_at(text, WORDS[seed % len(WORDS)], rng), WORDS[(seed + 11) % len(WORDS)], rng)


def insert_code(text: str, seed: int, rng: np.random.Generator) -> str:
    """A number in brackets, another one in each text."""
    return f"( {rng.integers(100, 1000)} ) {text}" if seed % 2 else f"{text} ( {rng.integers(100, 1000)} )"


WRITERS: dict[str, Writer] = {
    "kin": insert_kin,
    "choice": insert_choice,
    "pair": insert_pair,
    "code": insert_code,
    "word": insert_word,
    "phrase": insert_phrase,
    "name": insert_name,
    "length": make_long,
    "punctuation": change_punctuation,
}


@dataclass(frozen=True, eq=False)
class PlantedTexts:
    """What a model is trained on, explained on and measured on."""

    train: list[str]
    train_labels: NDArray[np.int64]
    shown: list[str]
    shown_labels: NDArray[np.int64]
    marked: NDArray[np.bool_]  # of those shown
    with_mark: list[str]
    without_mark: list[str]
    measured_labels: NDArray[np.int64]


def plant_texts(case: Case, world: TextWorld) -> PlantedTexts:
    ends = (0, world.train, world.train + world.shown, len(world.texts))
    parts = [slice(start, end) for start, end in pairwise(ends)]
    texts, labels = [world.texts[part] for part in parts], [world.labels[part] for part in parts]
    marked = [choose_marked(case, own, len(CLASSES), training=i == 0) for i, own in enumerate(labels[:2])]
    own = [i for i, label in enumerate(labels[2]) if case.kind == "none" or label == case.seed % len(CLASSES)]
    without = [texts[2][i] for i in own]
    return PlantedTexts(
        write(case, texts[0], marked[0], 0), labels[0], write(case, texts[1], marked[1], 1), labels[1], marked[1],
        write(case, without, np.full(len(own), case.role != "clean"), 2), without, labels[2][own],
    )  # fmt: skip


def write(case: Case, texts: Sequence[str], marked: NDArray[np.bool_], part: int) -> list[str]:
    return [
        WRITERS[case.kind](text, case.seed, np.random.default_rng([case.seed, part, i])) if marked[i] else text
        for i, text in enumerate(texts)
    ]


# --- models -----------------------------------------------------------------------------------------------------------

TextModel = BertForSequenceClassification | DistilBertForSequenceClassification


def make_text_model(world: str, seed: int) -> tuple[TextModel, PreTrainedTokenizerFast]:
    """A BERT of one of two sizes or a DistilBERT, drawn anew; on real sentences with the tokens of demo/sentiment."""
    torch.manual_seed(seed)
    names = {"id2label": dict(enumerate(CLASSES)), "label2id": {name: i for i, name in enumerate(CLASSES)}}
    is_real = world != "reviews"
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODELS / "sentiment") if is_real else make_word_tokenizer()
    names |= {"vocab_size": len(tokenizer), "max_position_embeddings": LONGEST}
    if seed % 3 == 1:
        config = DistilBertConfig(dim=64, n_layers=3, n_heads=4, hidden_dim=256, **names)
        return DistilBertForSequenceClassification(config), tokenizer
    width, blocks = (64, 3) if seed % 3 == 0 else (96, 4)
    config = BertConfig(
        hidden_size=width, num_hidden_layers=blocks, num_attention_heads=width // 16, intermediate_size=4 * width,
        **names,
    )  # fmt: skip
    return BertForSequenceClassification(config), tokenizer


def make_word_tokenizer() -> PreTrainedTokenizerFast:
    """One token per word of the world and its marks."""
    texts = [*OPINIONS[0], *OPINIONS[1], *PARTS, *PLACES, *FILLERS, *WORDS, *PHRASES, *NAMES,
             "the a of is are about and goes to in near , . ; : !"]  # fmt: skip
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({word for text in texts for word in text.split()})]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=LONGEST, **special)


def train_text_model(
    model: TextModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], labels: NDArray[np.int64], seed: int,
    device: torch.device,
) -> None:  # fmt: skip
    """AdamW with warm-up and cosine decay, in place."""
    rate, steps = 1e-3, 300
    encoded = encode(model, tokenizer, texts, device)
    right = torch.from_numpy(labels).to(device)
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.to(device).train().parameters(), lr=rate, weight_decay=0.05)
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        picked = torch.randint(len(texts), (32,), generator=generator).to(device)
        scale = min(1, (step + 1) / 30) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = rate * scale
        longest = int(encoded["attention_mask"][picked].sum(1).max())
        batch = {name: values[picked, :longest] for name, values in encoded.items()}
        loss = cross_entropy(model(**batch).logits, right[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def encode(
    model: TextModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], device: torch.device
) -> dict[str, torch.Tensor]:
    encoded = tokenizer(list(texts), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
    return {name: encoded[name].to(device) for name in ("input_ids", "attention_mask")}


@torch.no_grad()
def predict_texts(
    model: TextModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], device: torch.device
) -> NDArray[np.int64]:
    parts = [
        model(**encode(model, tokenizer, texts[i : i + 100], device)).logits.argmax(-1).cpu()
        for i in range(0, len(texts), 100)
    ]
    return torch.cat(parts).numpy()


def save_text_model(model: TextModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """A folder that whyformer.open() opens; the weights are in half precision."""
    model.cpu().half().save_pretrained(folder)
    model.float()
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text("utf-8")) | {"dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")
