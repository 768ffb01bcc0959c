"""Distil the sentiment model: python training/sentiment/train.py --prepared FOLDER --teacher FOLDER --out FOLDER

`prepared` is what prepare.py wrote. The model imitates the teacher's answer on texts that people labelled, and on
crops, thinned-out and joined texts that nobody did; it also imitates, word by word, two of the teacher's blocks
through linear maps that are thrown away.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, kl_div
from transformers import BertForSequenceClassification

sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Average, Log, Schedule, adamw, device, make_bert_config, read_config, save, save_tokenizer, take_step
from tokenizers import Tokenizer

LABELS = ("negative", "positive")
SENTENCE, PHRASE, REVIEW_SENTENCE, REVIEW, DEV = range(5)


@dataclass(frozen=True)
class Reader:
    """How one of the two models cuts words into pieces."""

    table: Tensor  # word piece
    first: int  # [CLS]
    last: int  # [SEP]

    def __call__(self, words: Tensor, real: Tensor, tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Ids and mask [text token], where each word begins [text word], and which words are there whole or in part."""
        pieces = self.table[words]  # text word piece
        there = (pieces != 0) & real[:, :, None]
        count = there.sum(-1)
        begin = count.cumsum(-1) - count + 1
        places = begin[:, :, None] + torch.arange(pieces.size(-1), device=words.device)
        there = there & (places < tokens - 1)
        ids = torch.zeros(
            len(words), tokens + 1, dtype=torch.long, device=words.device
        )  # the last column takes what is cut off
        ids.scatter_(1, torch.where(there, places, tokens).flatten(1), pieces.flatten(1))
        end = (1 + there.sum((1, 2)))[:, None]
        ids[:, 0] = self.first
        ids.scatter_(1, end, self.last)
        mask = torch.arange(tokens, device=words.device)[None] <= end
        return ids[:, :tokens] * mask, mask.long(), begin.clamp(max=tokens - 1), real & there.any(-1)


class Texts:
    """All texts as words, and how batches are drawn from them."""

    def __init__(self, stored: Any) -> None:
        self.words, self.lengths, self.kinds, self.labels = (
            torch.from_numpy(stored[name]).to(device()) for name in ("words", "lengths", "kinds", "labels")
        )
        self.lengths = self.lengths.long()
        self.offsets = self.lengths.cumsum(0) - self.lengths

    def of(self, kinds: tuple[int, ...], shortest: int, longest: int) -> Tensor:
        """Indices of the texts of these kinds and lengths."""
        is_kind = torch.isin(self.kinds, torch.tensor(kinds, dtype=self.kinds.dtype, device=self.kinds.device))
        return (is_kind & (self.lengths >= shortest) & (self.lengths <= longest)).nonzero()[:, 0]

    def read(self, chosen: Tensor, width: int, *, shortest_crop: int | None = None) -> tuple[Tensor, Tensor]:
        """Words [text width] of the texts chosen, a random stretch of those too long; with `shortest_crop`, of any."""
        length = self.lengths[chosen]
        kept = length.clamp(max=width)
        if shortest_crop is not None:
            least = kept.clamp(max=shortest_crop)
            kept = least + (torch.rand(len(chosen), device=chosen.device) * (kept - least + 1)).long()
        start = (torch.rand(len(chosen), device=chosen.device) * (length - kept + 1)).long()
        places = torch.arange(width, device=chosen.device)[None]
        real = places < kept[:, None]
        return self.words[(self.offsets[chosen] + start)[:, None] + places * real].long(), real

    def disturbed(self, words: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Some words left out, some replaced by any others; in a quarter of the texts two are joined."""
        batch, width = words.shape
        half = width // 2
        is_joined = torch.rand(batch, 1, device=words.device) < 0.25
        other, other_real = words.roll(1, 0)[:, :half], real.roll(1, 0)[:, :half]
        padding = (0, width - 2 * half)
        joined = torch.cat([words[:, :half], nn.functional.pad(other, padding)], 1)
        joined_real = torch.cat([real[:, :half], nn.functional.pad(other_real, padding)], 1)
        words, real = torch.where(is_joined, joined, words), torch.where(is_joined, joined_real, real)
        rate = 0.25 * torch.rand(batch, 1, device=words.device) * (torch.rand(batch, 1, device=words.device) < 0.7)
        kept = real & (torch.rand(words.shape, device=words.device) >= rate)
        kept[:, 0] |= ~kept.any(-1)
        rate = 0.15 * torch.rand(batch, 1, device=words.device) * (torch.rand(batch, 1, device=words.device) < 0.5)
        anything = self.words[torch.randint(len(self.words), words.shape, device=words.device)].long()
        words = torch.where(torch.rand(words.shape, device=words.device) < rate, anything, words)
        order = (~kept).to(torch.uint8).argsort(dim=1, stable=True)
        return words.gather(1, order), kept.gather(1, order)


class Batches:
    """Half of each batch as people labelled it, half disturbed; long batches are stretches of reviews."""

    def __init__(self, texts: Texts, config: dict[str, Any]) -> None:
        self.texts, self.config = texts, config
        self.pools = {}
        for name, shortest in (("short", 1), ("middle", 8)):
            longest = config[name]["words"]
            self.pools[name] = [
                texts.of((SENTENCE,), shortest, longest),
                texts.of((PHRASE,), shortest, longest),
                texts.of((REVIEW_SENTENCE,), shortest, 60),
                texts.of((SENTENCE, PHRASE), shortest, 60),
            ]
        self.reviews = texts.of((REVIEW,), 20, 10**6)

    def draw(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Words, which of them are real, and people's labels (-1: none)."""
        width, batch = self.config[name]["words"], self.config[name]["batch"]
        if name == "long":
            words, real = self.texts.read(any_of(self.reviews, batch), width, shortest_crop=40)
            return words, real, torch.full((batch,), -1.0, device=words.device)
        sentences, phrases, review_sentences, labelled = self.pools[name]
        fourth = batch // 4
        chosen = torch.cat([any_of(sentences, fourth), any_of(phrases, fourth)])
        clean, clean_real = self.texts.read(chosen, width)
        unlabelled = torch.cat([any_of(review_sentences, fourth), any_of(labelled, fourth)])
        unlabelled = unlabelled[torch.randperm(len(unlabelled), device=unlabelled.device)]
        rough, rough_real = self.texts.disturbed(*self.texts.read(unlabelled, width, shortest_crop=3))
        labels = torch.cat([self.texts.labels[chosen], torch.full((2 * fourth,), -1.0, device=chosen.device)])
        return torch.cat([clean, rough]), torch.cat([clean_real, rough_real]), labels


def any_of(pool: Tensor, count: int) -> Tensor:
    return pool[torch.randint(len(pool), (count,), device=pool.device)]


class Imitation(nn.Module):
    """How far maps of the model's blocks are from the teacher's, standardised, at [CLS] and where words begin."""

    def __init__(self, width: int, teacher_width: int, layers: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(width, teacher_width) for _ in range(layers))
        self.register_buffer("mean", torch.zeros(layers, teacher_width))
        self.register_buffer("spread", torch.ones(layers, teacher_width))

    @torch.no_grad()
    def standardise(self, features: list[Tensor], real: Tensor) -> None:
        for i, layer in enumerate(features):
            self.mean[i], self.spread[i] = layer[real].float().mean(0), layer[real].float().std(0) + 1e-3

    def forward(self, features: list[Tensor], wanted: list[Tensor], real: Tensor) -> Tensor:
        loss = torch.zeros((), device=real.device)
        for i, (ours, theirs) in enumerate(zip(features, wanted, strict=True)):
            standard = (theirs.float() - self.mean[i]) / self.spread[i]
            squares = ((self.maps[i](ours).float() - standard) ** 2).mean(-1)
            loss = loss + (squares * real).sum() / real.sum()
        return loss / len(features)


def at_words(hidden: tuple[Tensor, ...], layers: list[int], begin: Tensor) -> list[Tensor]:
    """States after these blocks at [CLS] and at the first piece of each word."""
    places = torch.cat([torch.zeros_like(begin[:, :1]), begin], 1)
    return [hidden[layer].gather(1, places[:, :, None].expand(-1, -1, hidden[layer].size(-1))) for layer in layers]


def start_embeddings(model: Any, teacher: Any, spelt: Tensor) -> None:
    """Begin with the teacher's word embeddings, reduced to the model's width by their principal axes."""
    there = (spelt != 0)[:, :, None]
    theirs = teacher.bert.embeddings.word_embeddings.weight.float()
    mean = (theirs[spelt] * there).sum(1) / there.sum(1).clamp(min=1)
    centred = mean - mean.mean(0)
    _, _, axes = torch.linalg.svd(centred, full_matrices=False)
    model.bert.embeddings.word_embeddings.weight.data.copy_(centred @ axes[: model.config.hidden_size].T)
    model.bert.embeddings.word_embeddings.weight.data[0] = 0


@torch.no_grad()
def accuracy(model: Any, texts: Texts, reader: Reader) -> float:
    """On SST-2 dev, for the log: nothing is chosen by it."""
    dev = texts.of((DEV,), 1, 10**6)
    words, real = texts.read(dev, int(texts.lengths[dev].max()))
    model.eval()
    ids, mask, _, _ = reader(words, real, 96)
    answers = torch.cat(
        [
            model(input_ids=i, attention_mask=m).logits.argmax(-1)
            for i, m in zip(ids.split(218), mask.split(218), strict=True)
        ]
    )
    model.train()
    return float((answers == texts.labels[dev]).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepared", type=Path, required=True)
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("config.toml"))
    arguments = parser.parse_args()
    config = read_config(arguments.config)
    log = Log(arguments.out / "training.jsonl")
    log.write(config=config, torch=torch.__version__, device=str(device()))
    is_cuda = device().type == "cuda"

    torch.manual_seed(config["seed"])
    schedule = Schedule(config["peak"], config["warmup"], config["steps"], config["seconds"])
    stored = np.load(arguments.prepared / "corpus.npz")
    tokenizer = Tokenizer.from_file(str(arguments.prepared / "tokenizer.json"))
    pieces = {
        name: torch.from_numpy(stored[name].astype(np.int64)).to(device())
        for name in ("student", "teacher", "vocabulary")
    }
    texts = Texts(stored)
    batches = Batches(texts, config)
    reader = Reader(pieces["student"], tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]"))
    teacher_reader = Reader(pieces["teacher"], 101, 102)
    teacher = BertForSequenceClassification.from_pretrained(
        arguments.teacher, dtype=torch.bfloat16 if is_cuda else torch.float32
    )
    teacher = teacher.to(device()).eval()
    model = BertForSequenceClassification(
        make_bert_config(config, tokenizer.get_vocab_size(), segments=2, labels=LABELS)
    ).to(device())
    start_embeddings(model, teacher, pieces["vocabulary"])
    imitation = Imitation(config["width"], teacher.config.hidden_size, len(config["teacher_blocks"])).to(device())
    both = nn.ModuleList([model, imitation])
    optimizer, average = adamw(both, config["weight_decay"]), Average(model, config["average"])
    log.write(
        texts=len(texts.lengths),
        vocabulary=tokenizer.get_vocab_size(),
        seconds=schedule.elapsed,
        dev_of_teacher=accuracy(teacher, texts, teacher_reader),
    )
    teacher.eval()
    model.train()
    while schedule.advance(optimizer):
        name = config["pattern"][(schedule.step - 1) % len(config["pattern"])]
        words, real, labels = batches.draw(name)
        with torch.no_grad():
            ids, mask, begin, there = teacher_reader(words, real, config[name]["tokens"])
            answer = teacher(input_ids=ids, attention_mask=mask, output_hidden_states=True)
            wanted = at_words(answer.hidden_states, config["teacher_blocks"], begin)
        ids, mask, begin, ours_there = reader(words, real, config[name]["tokens"])
        both_there = torch.cat([torch.ones_like(there[:, :1]), there & ours_there], 1)
        if schedule.step == 1:
            imitation.standardise(wanted, both_there)
        with torch.autocast(device().type, torch.bfloat16, enabled=is_cuda):
            output = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
            imitated = imitation(at_words(output.hidden_states, config["student_blocks"], begin), wanted, both_there)
        logits, soft = output.logits.float(), answer.logits.float() / config["temperature"]
        answered = config["temperature"] ** 2 * kl_div(
            (logits / config["temperature"]).log_softmax(-1),
            soft.log_softmax(-1),
            log_target=True,
            reduction="batchmean",
        )
        labelled = (labels >= 0).float()
        felt = binary_cross_entropy_with_logits(
            logits[:, 1] - logits[:, 0], labels.clamp(0.02, 0.98), weight=labelled, reduction="sum"
        )
        felt = felt / labelled.sum().clamp(min=1)
        first, last = config["features"]
        loss = answered + config["human"] * felt + (first + (last - first) * min(1.0, schedule.progress)) * imitated
        take_step(loss, both, optimizer, average)
        if schedule.step % 100 == 2:
            log.write(
                step=schedule.step,
                seconds=schedule.elapsed,
                rate=schedule.rate,
                answered=answered,
                felt=felt,
                imitated=imitated,
            )
        if schedule.step % 1000 == 0:
            log.write(step=schedule.step, seconds=schedule.elapsed, dev=accuracy(model, texts, reader))
            save(model, arguments.out)
    average.load_into(model)
    save(model, arguments.out)
    save_tokenizer(
        tokenizer,
        arguments.out,
        model_max_length=config["longest"],
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed, dev=accuracy(model, texts, reader))


if __name__ == "__main__":
    main()
