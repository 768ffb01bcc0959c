"""The BiLSTM of Jain & Wallace in plain torch, trained as their code does, and measured after every epoch.

    python -m training.jain_wallace.plain --data DATA [--vectors FILE --length 5] [--loss sum] [--seed 0]

An independent check of train.py and `audit`: nothing of whyformer measures here. As in the authors' code: the losses of
a batch are summed, the BiLSTM reads a start and an end token that attention leaves out, and words without a vector
start at 0. Printed for each epoch: AUC on dev, accuracy and AUC on test, and Kendall's tau of attention, gradient
(attention held) and leave-one-out (words deleted) over --tests sentences.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import kendalltau
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from training.jain_wallace.tasks import JAIN_WALLACE_TASKS, REVIEW_LABELS, read_task
from training.jain_wallace.train import read_vectors

from whyformer_papers.jain_wallace_models import split_words
from whyformer_papers.jain_wallace_tasks import PARTS

PAD, UNKNOWN, START, END = range(4)
Row = tuple[list[int], int]  # token ids from START to END, label


class PlainReader(nn.Module):
    """Embedding, BiLSTM, additive attention over all tokens but the first and the last, one logit."""

    def __init__(self, vocabulary: int, given: int = 300, hidden: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, given, padding_idx=PAD)
        self.lstm = nn.LSTM(given, hidden, batch_first=True, bidirectional=True)
        self.inner, self.outer = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, 1, bias=False)
        self.answer = nn.Linear(2 * hidden, 1)

    def forward(self, vectors: Tensor, lengths: Tensor, *, holds: bool = False) -> tuple[Tensor, Tensor]:
        """Logits [row] and attention [row token]; holds: no gradient goes through the attention."""
        packed = nn.utils.rnn.pack_padded_sequence(vectors, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        places = torch.arange(states.size(1), device=states.device)
        words = (places >= 1) & (places < lengths[:, None] - 1)
        scores = self.outer(self.inner(states).tanh()).squeeze(-1)
        attention = scores.masked_fill(~words, -torch.inf).softmax(-1)
        mixed = (attention.detach() if holds else attention)[..., None] * states
        return self.answer(mixed.sum(1)).squeeze(-1), attention


def pad(rows: list[Row], device: str) -> tuple[Tensor, Tensor, Tensor]:
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [PAD] * (longest - len(ids)) for ids, _ in rows], device=device)
    lengths = torch.tensor([len(ids) for ids, _ in rows], device=device)
    return ids, lengths, torch.tensor([float(label) for _, label in rows], device=device)


@torch.no_grad()
def predict(model: PlainReader, rows: list[Row], device: str) -> np.ndarray:
    """The probability of the second class."""
    found = []
    for start in range(0, len(rows), 512):
        ids, lengths, _ = pad(rows[start : start + 512], device)
        found.append(model(model.embedding(ids), lengths)[0].sigmoid().cpu().numpy())
    return np.concatenate(found)


def measure_sentence(model: PlainReader, row: Row, device: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Attention, |gradient x input| and |change when the word is deleted|, for each word."""
    ids, lengths, _ = pad([row], device)
    vectors = model.embedding(ids).detach().requires_grad_()
    logits, attention = model(vectors, lengths, holds=True)
    probability = logits.sigmoid()
    (gradient,) = torch.autograd.grad(probability.sum(), vectors)
    without = predict(model, [(row[0][:i] + row[0][i + 1 :], 0) for i in range(1, len(row[0]) - 1)], device)
    scores = (gradient * vectors.detach()).sum(-1)[0].abs()
    return (
        attention[0, 1:-1].detach().cpu().numpy(),
        scores[1:-1].cpu().numpy(),
        np.abs(without - float(probability.detach())),
    )


def measure(model: PlainReader, rows: list[Row], device: str) -> dict[str, float]:
    """The mean of tau over sentences for each pair, and of the largest weight."""
    measured = [measure_sentence(model, row, device) for row in rows]
    pairs = {"attention ~ gradient": (0, 1), "attention ~ leave-one-out": (0, 2), "gradient ~ leave-one-out": (1, 2)}
    found = {
        name: round(float(np.nanmean([kendalltau(one[a], one[b]).statistic for one in measured])), 3)
        for name, (a, b) in pairs.items()
    }
    return {**found, "largest weight": round(float(np.mean([one[0].max() for one in measured])), 3)}


def order_by_noisy_length(rows: list[Row], random: np.random.RandomState) -> np.ndarray:
    """By length up to a tenth, as the authors form batches."""
    return np.argsort([n + random.randint(np.floor(-0.1 * n), np.ceil(0.1 * n)) for n in (len(ids) for ids, _ in rows)])


def read_rows(task: str, data: Path) -> tuple[dict[str, list[Row]], list[str]]:
    """The sentences of each part as token ids, and the vocabulary."""
    parts = read_task(task, data)
    words = {part: [split_words(str(text), letters_only=True) for text, _ in parts[part]] for part in PARTS}
    counts = Counter(word for text in words["train"] for word in text)
    least = JAIN_WALLACE_TASKS[task].least
    vocabulary = ["", "", "", "", *(word for word, count in counts.items() if count >= least)]
    place = {word: i for i, word in enumerate(vocabulary) if word}
    rows = {
        part: [
            ([START, *(place.get(word, UNKNOWN) for word in text), END], REVIEW_LABELS.index(label))
            for text, (_, label) in zip(words[part], parts[part], strict=True)
        ]
        for part in PARTS
    }
    return rows, vocabulary


def build_reader(vocabulary: list[str], settings: argparse.Namespace) -> PlainReader:
    model = PlainReader(len(vocabulary))
    with torch.no_grad():
        if settings.vectors is None:
            model.embedding.weight.normal_(std=0.1)
        else:
            model.embedding.weight.copy_(read_vectors(settings.vectors, vocabulary, 300) * settings.length)
        model.embedding.weight[:4] = 0
    return model.to(settings.device)


def train_epoch(
    model: PlainReader, rows: list[Row], optimizer: torch.optim.Optimizer, random: np.random.RandomState,
    settings: argparse.Namespace,
) -> None:  # fmt: skip
    labels = np.array([label for _, label in rows])
    weight = len(labels) / labels.sum() - 1  # of the second class
    order = order_by_noisy_length(rows, random)
    starts = np.arange(0, len(order), settings.batch)
    random.shuffle(starts)
    for start in starts:
        batch = [rows[i] for i in order[start : start + settings.batch]]
        ids, lengths, wanted = pad(batch, settings.device)
        logits, _ = model(model.embedding(ids), lengths)
        losses = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        losses = losses * (wanted * weight + 1 - wanted)
        optimizer.zero_grad()
        (losses.sum() if settings.loss == "sum" else losses.mean()).backward()
        optimizer.step()


def make_optimizer(model: PlainReader) -> torch.optim.Optimizer:
    attention = [*model.inner.parameters(), *model.outer.parameters()]
    others = [*model.embedding.parameters(), *model.lstm.parameters(), *model.answer.parameters()]
    return torch.optim.Adam([{"params": others, "weight_decay": 1e-5}, {"params": attention}], lr=1e-3, amsgrad=True)


def parse_settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with sst2/ and imdb/")
    parser.add_argument("--task", default="sst2", choices=("sst2", "imdb"))
    parser.add_argument("--vectors", type=Path, help="word vectors: .npz, or text; by default random ones")
    parser.add_argument("--length", type=float, default=1.0, help="multiply the vectors by this")
    parser.add_argument("--loss", choices=("sum", "mean"), default="sum")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tests", type=int, default=300, help="number of test sentences measured after each epoch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    settings = parse_settings()
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    random = np.random.RandomState(settings.seed)
    rows, vocabulary = read_rows(settings.task, settings.data)
    model = build_reader(vocabulary, settings)
    optimizer = make_optimizer(model)
    shown = [rows["test"][i] for i in np.random.RandomState(0).permutation(len(rows["test"]))[: settings.tests]]
    truth = {part: np.array([label for _, label in rows[part]]) for part in ("dev", "test")}
    for epoch in range(settings.epochs):
        train_epoch(model, rows["train"], optimizer, random, settings)
        answers = {part: predict(model, rows[part], settings.device) for part in ("dev", "test")}
        found = {
            "epoch": epoch + 1,
            "dev AUC": round(float(roc_auc_score(truth["dev"], answers["dev"])), 4),
            "test AUC": round(float(roc_auc_score(truth["test"], answers["test"])), 4),
            "test accuracy": round(float(((answers["test"] > 0.5) == truth["test"]).mean()), 4),
            **measure(model, shown, settings.device),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
