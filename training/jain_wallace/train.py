"""Train the models of Jain & Wallace: python -m training.jain_wallace.train --task sst2 --data DATA --out FOLDER

Trains one model per task, encoder, attention and seed, each in seconds on a GPU or minutes on one CPU thread, and saves
it as FOLDER/<task>-<encoder>-<attention>-<seed>. Tasks: sst2 and imdb (DATA has the folders sst2/ and imdb/), and
babi-1, babi-2, babi-3, snli and cnn, which are generated.

The settings are those of the authors' code: Adam (amsgrad) at 0.001, weight decay 1e-5 except on attention, batches of
32 (100 with questions), 8 epochs for classifiers, punctuation removed, only texts of more than five words, balanced
classes; the epoch with the best ROC AUC on dev is kept (best accuracy with questions), test is only reported. Word
vectors start at random unless --vectors names a file of pretrained ones (theirs were pretrained).

--vectors, --punctuation, --word-dropout, --select and --keep-short change one of these at a time, to see what makes a
difference; give such models a --suffix.
"""

import argparse
import copy
import json
import math
import time
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
from whyformer._reproduce.jain_wallace_models import (
    ATTENTIONS,
    ENCODERS,
    PADDING,
    SEPARATOR,
    UNKNOWN,
    JainWallaceModel,
    JainWallaceReader,
    build_tokenizer,
    build_vocabulary,
    save_jain_wallace,
    wrap_jain_wallace,
)
from whyformer._reproduce.jain_wallace_tasks import PARTS, TaskExample

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Part:
    """The examples of train, dev or test as tokens."""

    rows: list[dict[str, list[int]]]
    labels: Tensor

    def make_batches(self, size: int, device: str) -> list[tuple[Inputs, Tensor]]:
        """Batches of examples of similar length, in random order."""
        order = torch.randperm(len(self.rows)).tolist()
        order.sort(key=lambda i: len(self.rows[i]["input_ids"]) // 4)
        groups = [order[start : start + size] for start in range(0, len(order), size)]
        return [self._pad(groups[at], device) for at in torch.randperm(len(groups)).tolist()]

    def _pad(self, group: list[int], device: str) -> tuple[Inputs, Tensor]:
        longest = max(len(self.rows[i]["input_ids"]) for i in group)
        names = self.rows[group[0]]
        padded = {
            name: [self.rows[i][name] + [0] * (longest - len(self.rows[i][name])) for i in group] for name in names
        }
        return {name: torch.tensor(rows, device=device) for name, rows in padded.items()}, self.labels[group].to(device)


def encode_part(tokenizer: Any, examples: list[TaskExample], labels: tuple[str, ...]) -> Part:
    rows = [dict(tokenizer(*(text if isinstance(text, tuple) else (text,)))) for text, _ in examples]
    for row in rows:
        row.pop("token_type_ids" if not isinstance(examples[0][0], tuple) else "", None)
    return Part(rows, torch.tensor([labels.index(label) for _, label in examples]))


@torch.no_grad()
def predict(module: nn.Module, part: Part, device: str) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities [example class] and labels, in the order of the batches."""
    module.eval()
    found = [(module(**inputs).softmax(-1).cpu(), labels.cpu()) for inputs, labels in part.make_batches(128, device)]
    return torch.cat([p for p, _ in found]).numpy(), torch.cat([y for _, y in found]).numpy()


def measure(module: nn.Module, part: Part, device: str) -> dict[str, float]:
    """Accuracy; for two classes also F1 of the second and ROC AUC, as in the authors' files."""
    probabilities, labels = predict(module, part, device)
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
    vocabulary = build_words(task, sets["train"], letters_only=letters_only)
    tokenizer = build_tokenizer(vocabulary, letters_only=letters_only, takes_pairs=task.is_generated)
    parts = {part: encode_part(tokenizer, sets[part], task.labels) for part in PARTS}
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
    module.to(settings.device)
    start = time.monotonic()
    best, weights = fit(module, parts, task, settings)
    module.load_state_dict(weights)
    module.cpu()
    facts = {
        "task": task.name, "encoder": encoder, "attention": attention, "seed": seed, "suffix": settings.suffix,
        "epochs": task.epochs, **best, "test": measure(module, parts["test"], "cpu"),
        "training": len(sets["train"]), "vocabulary": len(vocabulary), "seconds": round(time.monotonic() - start),
    }  # fmt: skip
    name = f"{task.name}-{encoder}-{attention}-{seed}"
    return wrap_jain_wallace(module, vocabulary, task.labels, name, letters_only=letters_only), facts


def fit(
    module: nn.Module, parts: dict[str, Part], task: JainWallaceTask, settings: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The weights of the best epoch on dev, and what was measured there."""
    decayed = [p for name, p in module.named_parameters() if not name.startswith("attention.")]
    others = [p for name, p in module.named_parameters() if name.startswith("attention.")]
    groups = [{"params": decayed, "weight_decay": 1e-5}, *([{"params": others, "weight_decay": 0.0}] if others else [])]
    optimizer = torch.optim.Adam(groups, lr=1e-3, amsgrad=True, fused=True)
    counts = parts["train"].labels.bincount(minlength=len(task.labels)).float()
    balance = (counts.sum() / (len(counts) * counts)).to(settings.device)
    selected = settings.select or ("accuracy" if task.is_generated else "auc")
    best: dict[str, Any] = {}
    weights: dict[str, Tensor] = {}
    end = time.monotonic() + 60 * settings.minutes
    for epoch in range(task.epochs):  # the first of several is never kept, as in the authors' code
        if time.monotonic() > end:
            break
        module.train()
        for inputs, labels in parts["train"].make_batches(task.batch, settings.device):
            if settings.word_dropout:
                dropped = torch.rand(inputs["input_ids"].shape, device=settings.device) < settings.word_dropout
                dropped &= inputs["attention_mask"].bool()
                inputs = {**inputs, "input_ids": inputs["input_ids"].masked_fill(dropped, 1)}
            losses = F.cross_entropy(module(**inputs), labels, weight=balance, reduction="none")
            loss = losses.sum() if settings.loss == "sum" else losses.sum() / balance[labels].sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found = measure(module, parts["dev"], settings.device)
        print(f"{task.name} epoch {epoch + 1}: {found} on dev", flush=True)
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
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no epoch after so many")
    parser.add_argument("--batch", type=int, help="examples in a batch; by default those of the task")
    parser.add_argument("--training", type=int, help="generated tasks: number of training texts")
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
