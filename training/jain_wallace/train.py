"""Train the models of Jain & Wallace: python -m training.jain_wallace.train --task sst2 --data DATA --out FOLDER

Trains one model per task, encoder, attention and seed, each in seconds on a GPU or minutes on one CPU thread, and saves
it as FOLDER/<task>-<encoder>-<attention>-<seed>. Tasks: sst2 and imdb (DATA has the folders sst2/ and imdb/), and
babi-1, babi-2, babi-3, snli and cnn, which are generated.

The settings are those of the authors' code: Adam (amsgrad) at 0.001, weight decay 1e-5 except on attention, batches of
32 (100 with questions), 8 epochs for classifiers, punctuation removed, only texts of more than five words, balanced
classes; the epoch with the best ROC AUC on dev is kept (best accuracy with questions), test is only reported. Word
vectors start at random unless --vectors names a file of pretrained ones (theirs were pretrained).

--vectors, --punctuation, --word-dropout, --select and --keep-short change one of these at a time, to see what makes a
difference; give such models a --suffix. --training, --hidden, --rate, --cosine, --clip, --forget-bias, --curriculum and
--also make readers of long stories learn.
"""

import argparse
import copy
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import f1_score, roc_auc_score
from torch import Tensor, nn
from training.jain_wallace.tasks import JAIN_WALLACE_TASKS, JainWallaceTask, read_sst2, read_task

from whyformer import Model
from whyformer_papers.jain_wallace_models import (
    ATTENTIONS,
    ENCODERS,
    PADDING,
    SEPARATOR,
    UNKNOWN,
    JainWallaceModel,
    JainWallaceReader,
    build_vocabulary,
    save_jain_wallace,
    split_words,
    wrap_jain_wallace,
)
from whyformer_papers.jain_wallace_tasks import PARTS, TaskExample, generate_task
from whyformer_papers.worlds.reading import READING_TASKS

Inputs = dict[str, Tensor]
LEARNING = ("also", "curriculum", "rate", "cosine", "clip", "forget_bias", "spread", "loss")  # saved with the model


@dataclass(frozen=True)
class Part:
    """The examples of train, dev or test as tokens, padded to one length."""

    inputs: Inputs
    lengths: Tensor
    labels: Tensor

    def to(self, device: str) -> "Part":
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        return Part(inputs, self.lengths.to(device), self.labels.to(device))

    def make_batches(self, size: int, longest: int | None = None) -> Iterator[tuple[Inputs, Tensor]]:
        """Batches of examples of similar length, in random order; longest: without texts of more tokens."""
        near = torch.argsort(self.lengths // 4 + torch.rand(len(self.lengths), device=self.lengths.device))
        order = near if longest is None else near[self.lengths[near] <= longest]
        groups = order.split(size)
        ends = [int(self.lengths[group].max()) for group in groups]
        for at in torch.randperm(len(groups)).tolist():
            inputs = {name: tensor[groups[at], : ends[at]].long() for name, tensor in self.inputs.items()}
            yield inputs, self.labels[groups[at]]


def encode_part(
    vocabulary: list[str], examples: list[TaskExample], labels: tuple[str, ...], *, letters_only: bool
) -> Part:
    """As the tokenizer of `build_tokenizer` does, many times as fast."""
    index = {word: i for i, word in enumerate(vocabulary)}

    def encode(text: str) -> list[int]:
        return [index.get(word, 1) for word in split_words(text, letters_only=letters_only)]

    are_pairs = isinstance(examples[0][0], tuple)
    first = [encode(text[0] if isinstance(text, tuple) else text) for text, _ in examples]
    second = [[index[SEPARATOR], *encode(text[1])] if isinstance(text, tuple) else [] for text, _ in examples]
    lengths = torch.tensor([len(a) + len(b) for a, b in zip(first, second, strict=True)])
    ids = np.zeros((len(examples), int(lengths.max())), dtype=np.int16)
    for row, a, b in zip(ids, first, second, strict=True):
        row[: len(a) + len(b)] = a + b
    positions = torch.arange(ids.shape[1])
    mask = positions < lengths[:, None]
    inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": mask}
    if are_pairs:
        inputs["token_type_ids"] = mask & (positions >= torch.tensor([len(a) for a in first])[:, None])
    return Part(inputs, lengths, torch.tensor([labels.index(label) for _, label in examples]))


@torch.no_grad()
def predict(module: nn.Module, part: Part) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities [example class] and labels, in the order of the batches."""
    module.eval()
    found = [(module(**inputs).softmax(-1).cpu(), labels.cpu()) for inputs, labels in part.make_batches(128)]
    return torch.cat([p for p, _ in found]).numpy(), torch.cat([y for _, y in found]).numpy()


def measure(module: nn.Module, part: Part) -> dict[str, float]:
    """Accuracy; for two classes also F1 of the second and ROC AUC, as in the authors' files."""
    probabilities, labels = predict(module, part)
    predicted = probabilities.argmax(-1)
    found = {"accuracy": float((predicted == labels).mean())}
    if probabilities.shape[1] == 2:
        found |= {"f1": float(f1_score(labels, predicted)), "auc": float(roc_auc_score(labels, probabilities[:, 1]))}
    return found


def read_vectors(file: Path, vocabulary: list[str], width: int) -> Tensor:
    """Word vectors of an .npz (words, vectors, scale) or of a text file (word2vec, fastText, GloVe); others 0."""
    vectors = torch.zeros(len(vocabulary), width)
    place = {word: i for i, word in enumerate(vocabulary)}
    if file.suffix == ".npz":
        held = np.load(file)
        for word, row in zip(held["words"].tolist(), held["vectors"], strict=True):
            if word in place:
                vectors[place[word], : len(row)] = torch.tensor(row * held["scale"], dtype=torch.float32)[:width]
        return vectors
    with file.open(encoding="utf-8", errors="ignore") as lines:
        for line in lines:
            word, *numbers = line.rstrip().split(" ")
            if word in place and len(numbers) >= width:
                vectors[place[word]] = torch.tensor([float(number) for number in numbers[:width]])
    return vectors


def build_words(task: JainWallaceTask, examples: list[TaskExample], *, letters_only: bool) -> list[str]:
    if not task.is_generated:
        return build_vocabulary((str(text) for text, _ in examples), least=task.least, letters_only=letters_only)
    words = build_vocabulary(part for text, _ in examples for part in text)
    return [PADDING, UNKNOWN, SEPARATOR, *sorted(words[2:])]


def train(
    task: JainWallaceTask, sets: dict[str, list[TaskExample]], encoder: str, attention: str, seed: int,
    settings: argparse.Namespace,
) -> tuple[Model, dict[str, Any]]:  # fmt: skip
    torch.manual_seed(seed)
    letters_only = not (task.is_generated or settings.punctuation)
    texts = {**sets, "train": sets["train"] + sets["also"]}
    vocabulary = build_words(task, texts["train"], letters_only=letters_only)
    parts = {part: encode_part(vocabulary, texts[part], task.labels, letters_only=letters_only) for part in PARTS}
    kind = JainWallaceReader if task.is_generated else JainWallaceModel
    module = kind(
        len(vocabulary), encoder=encoder, attention=attention, given=task.given, width=task.find_width(encoder),
        classes=len(task.labels),
    )  # fmt: skip
    with torch.no_grad():
        if settings.vectors is not None:
            module.embedding.weight.copy_(read_vectors(settings.vectors, vocabulary, task.given))
        else:
            module.embedding.weight.normal_(std=settings.spread)
        module.embedding.weight[0] = 0
        for name, weight in module.named_parameters():
            if "lstm.bias_ih" in name:
                weight.chunk(4)[1].add_(settings.forget_bias)  # gates: input, forget, cell, output
    module.to(settings.device)
    start = time.monotonic()
    best, weights = fit(module, parts, task, settings)
    module.load_state_dict(weights)
    module.cpu()
    facts = {
        "task": task.name, "encoder": encoder, "attention": attention, "seed": seed, "suffix": settings.suffix,
        "epochs": task.epochs, **best, "test": measure(module, parts["test"]),
        "training": len(sets["train"]), "vocabulary": len(vocabulary), "seconds": round(time.monotonic() - start),
        "learning": {name: getattr(settings, name) for name in LEARNING},
    }  # fmt: skip
    name = f"{task.name}-{encoder}-{attention}-{seed}"
    return wrap_jain_wallace(module, vocabulary, task.labels, name, letters_only=letters_only), facts


class Course:
    """How far training is, by epochs or by time; the rate and the longest texts that belong there."""

    def __init__(self, epochs: int, seconds: float, settings: argparse.Namespace) -> None:
        self.epochs, self.seconds, self.settings = epochs, seconds, settings
        self.start, self.epoch = time.monotonic(), 0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    @property
    def progress(self) -> float:
        return max(self.epoch / self.epochs, self.elapsed / self.seconds)

    def set_rate(self, optimizer: torch.optim.Optimizer) -> None:
        """The same throughout, or falling as half a cosine."""
        if self.settings.cosine:
            for group in optimizer.param_groups:
                group["lr"] = self.settings.rate * (0.5 + 0.5 * math.cos(math.pi * min(self.progress, 1.0)))

    def find_longest(self, lengths: Tensor) -> int | None:
        """Short texts first: the shortest fifth at the start, all of them once the curriculum is over."""
        if self.progress >= self.settings.curriculum:
            return None
        share = 0.2 + 0.8 * self.progress / self.settings.curriculum
        return int(lengths.sort().values[int(share * (len(lengths) - 1))])


def fit(
    module: nn.Module, parts: dict[str, Part], task: JainWallaceTask, settings: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The weights of the best epoch on dev, and what was measured there."""
    decayed = [p for name, p in module.named_parameters() if not name.startswith("attention.")]
    others = [p for name, p in module.named_parameters() if name.startswith("attention.")]
    groups = [{"params": decayed, "weight_decay": 1e-5}, *([{"params": others, "weight_decay": 0.0}] if others else [])]
    optimizer = torch.optim.Adam(groups, lr=settings.rate, amsgrad=True, fused=True)
    training, dev = parts["train"].to(settings.device), parts["dev"].to(settings.device)
    counts = training.labels.bincount(minlength=len(task.labels)).float()
    balance = counts.sum() / (len(counts) * counts)
    selected = settings.select or ("accuracy" if task.is_generated else "auc")
    best: dict[str, Any] = {}
    weights: dict[str, Tensor] = {}
    course = Course(task.epochs, 60 * settings.minutes, settings)
    for epoch in range(task.epochs):  # the first of several is never kept, as in the authors' code
        if course.progress >= 1:
            break
        module.train()
        for inputs, labels in training.make_batches(task.batch, course.find_longest(training.lengths)):
            if settings.word_dropout:
                dropped = torch.rand(inputs["input_ids"].shape, device=settings.device) < settings.word_dropout
                dropped &= inputs["attention_mask"].bool()
                inputs = {**inputs, "input_ids": inputs["input_ids"].masked_fill(dropped, 1)}
            losses = F.cross_entropy(module(**inputs), labels, weight=balance, reduction="none")
            loss = losses.sum() if settings.loss == "sum" else losses.sum() / balance[labels].sum()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), settings.clip)
            course.set_rate(optimizer)
            optimizer.step()
            if course.elapsed > course.seconds:
                break
        course.epoch += 1
        found = measure(module, dev)
        print(f"{task.name} epoch {epoch + 1}, {course.elapsed:.0f} s: {found} on dev", flush=True)
        is_best = selected == "last" or len(best) == 0 or epoch == 1 or found[selected] > best["dev"][selected]
        if is_best:
            best, weights = {"dev": found, "epoch": epoch + 1}, copy.deepcopy(module.state_dict())
    return best, weights


def parse_settings(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", default=["sst2"], choices=list(JAIN_WALLACE_TASKS))
    parser.add_argument("--data", type=Path, help="the folder with sst2/ and imdb/")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--encoder", nargs="+", default=["bilstm"], choices=ENCODERS)
    parser.add_argument("--attention", nargs="+", default=["additive"], choices=ATTENTIONS)
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, help="by default those of the task")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after so many")
    parser.add_argument("--batch", type=int, help="examples in a batch; by default those of the task")
    parser.add_argument("--training", type=int, help="generated tasks: number of training texts")
    parser.add_argument("--also", nargs="*", default=[], choices=list(READING_TASKS), help="train on these too")
    parser.add_argument("--curriculum", type=float, default=0.0, help="share of training in which long texts come in")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--cosine", action="store_true", help="the rate falls to 0")
    parser.add_argument("--clip", type=float, default=1e9, help="largest norm of a gradient")
    parser.add_argument("--forget-bias", type=float, default=0.0, help="added to the forget gates at the start")
    parser.add_argument("--loss", choices=("mean", "sum"), default="mean", help="of a batch")
    parser.add_argument("--least", type=int, help="how often a word must occur; by default that of the task")
    parser.add_argument("--given", type=int, help="width of word vectors; by default that of the task")
    parser.add_argument("--hidden", type=int, help="width of an encoder; by default that of the task")
    parser.add_argument("--vectors", type=Path, help="pretrained word vectors: .npz, or text with one word per line")
    parser.add_argument("--spread", type=float, default=0.1, help="standard deviation of random word vectors")
    parser.add_argument("--punctuation", action="store_true", help="keep punctuation as words")
    parser.add_argument("--keep-short", action="store_true", help="sst2: also sentences of up to five words")
    parser.add_argument("--word-dropout", type=float, default=0.0, help="share of words replaced by the unknown one")
    parser.add_argument("--select", choices=("accuracy", "auc", "f1", "last"), help="which epoch is kept")
    parser.add_argument("--suffix", default="", help="added to the name of each folder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args(arguments)


def main() -> None:
    settings = parse_settings()
    torch.set_num_threads(settings.threads)
    settings.out.mkdir(parents=True, exist_ok=True)
    for name in settings.task:
        changed = {what: getattr(settings, what) for what in ("epochs", "batch", "least", "given", "hidden")}
        task = replace(JAIN_WALLACE_TASKS[name], **{what: n for what, n in changed.items() if n is not None})
        if settings.training is not None and task.is_generated:
            task = replace(task, sizes=(settings.training, *task.sizes[1:]))
        sets = read_sst2(settings.data) if settings.keep_short and name == "sst2" else read_task(task, settings.data)
        sets["also"] = [one for other in settings.also for one in generate_task(other, task.sizes)["train"]]
        for seed in settings.seed:
            for encoder in settings.encoder:
                for attention in settings.attention:
                    model, facts = train(task, sets, encoder, attention, seed, settings)
                    suffix = f"-{settings.suffix}" if settings.suffix else ""
                    save_jain_wallace(model, settings.out / f"{name}-{encoder}-{attention}-{seed}{suffix}", **facts)
                    print(json.dumps(facts), flush=True)
                    with (settings.out / "log.jsonl").open("a", encoding="utf-8") as log:
                        print(json.dumps(facts), file=log, flush=True)


if __name__ == "__main__":
    main()
