"""Train the models of Jain & Wallace on SST-2: python training/jain_wallace/train.py --data DATA/sst2 --out FOLDER

Trains one model per encoder, attention and seed (by default all encoders with additive and dot attention), each in a
minute or two on one CPU thread. The settings are those of the paper: Adam (amsgrad) at 0.001, weight decay 1e-5 except
on attention, batches of 32, 8 epochs, balanced classes. Word vectors start at random, so word dropout is our addition.
The epoch with the best accuracy on dev is kept; test accuracy is only reported.
"""

import argparse
import copy
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer import Model
from whyformer.demo.jain_wallace import (
    JainWallaceModel,
    build_tokenizer,
    build_vocabulary,
    save_jain_wallace,
    wrap_jain_wallace,
)

Examples = list[tuple[str, int]]
Batch = tuple[Tensor, Tensor, Tensor]  # ids, mask, labels


def read_sentences(file: Path) -> Examples:
    rows = (line.rsplit("\t", 1) for line in file.read_text("utf-8").splitlines())
    return [(text, int(label)) for text, label in rows]


def make_batches(rows: list[list[int]], labels: Tensor, size: int, order: Tensor) -> list[Batch]:
    """Batches of sentences of similar length, in random order."""
    noisy = sorted(order.tolist(), key=lambda i: len(rows[i]) // 4)
    groups = [noisy[start : start + size] for start in range(0, len(noisy), size)]
    batches = []
    for at in torch.randperm(len(groups)).tolist():
        group = groups[at]
        longest = max(len(rows[i]) for i in group)
        ids = torch.tensor([rows[i] + [0] * (longest - len(rows[i])) for i in group])
        mask = torch.tensor([[1] * len(rows[i]) + [0] * (longest - len(rows[i])) for i in group])
        batches.append((ids, mask, labels[group]))
    return batches


@torch.no_grad()
def measure_accuracy(module: JainWallaceModel, batches: list[Batch]) -> float:
    module.eval()
    correct = sum(int((module(ids, mask).argmax(-1) == labels).sum()) for ids, mask, labels in batches)
    return correct / sum(len(labels) for _, _, labels in batches)


def train(encoder: str, attention: str, seed: int, data: Path, settings: argparse.Namespace) -> tuple[Model, dict]:
    torch.manual_seed(seed)
    sets = {part: read_sentences(data / f"{part}.tsv") for part in ("train", "dev", "test")}
    vocabulary = build_vocabulary((text for text, _ in sets["train"]), least=settings.least)
    tokenizer = build_tokenizer(vocabulary)
    rows = {part: tokenizer([text for text, _ in examples])["input_ids"] for part, examples in sets.items()}
    labels = {part: torch.tensor([label for _, label in examples]) for part, examples in sets.items()}
    module = JainWallaceModel(len(vocabulary), encoder=encoder, attention=attention)
    torch.nn.init.normal_(module.embedding.weight, std=0.1)
    with torch.no_grad():
        module.embedding.weight[0] = 0
    others = [p for name, p in module.named_parameters() if not name.startswith("attention.")]
    attention_weights = [p for name, p in module.named_parameters() if name.startswith("attention.")]
    groups = [{"params": others, "weight_decay": 1e-5}]
    if attention_weights:
        groups.append({"params": attention_weights, "weight_decay": 0.0})
    optimizer = torch.optim.Adam(groups, lr=1e-3, amsgrad=True)
    counts = labels["train"].bincount().float()
    balance = counts.sum() / (2 * counts)
    held_out = {
        part: make_batches(rows[part], labels[part], 64, torch.arange(len(rows[part]))) for part in ("dev", "test")
    }
    best: dict = {"dev": 0.0}
    weights = None
    start = time.monotonic()
    for epoch in range(settings.epochs):
        module.train()
        for ids, mask, wanted in make_batches(rows["train"], labels["train"], 32, torch.randperm(len(rows["train"]))):
            dropped = torch.rand(ids.shape) < settings.word_dropout
            answers = module(ids.masked_fill(dropped & mask.bool(), 1), mask)
            loss = F.cross_entropy(answers, wanted, weight=balance)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = measure_accuracy(module, held_out["dev"])
        if accuracy > best["dev"]:
            best = {"dev": accuracy, "epoch": epoch + 1}
            weights = copy.deepcopy(module.state_dict())
    module.load_state_dict(weights)
    best["test"] = measure_accuracy(module, held_out["test"])
    facts = {
        "encoder": encoder,
        "attention": attention,
        "seed": seed,
        **best,
        "seconds": round(time.monotonic() - start),
    }
    return wrap_jain_wallace(module, vocabulary, ("negative", "positive"), f"{encoder}-{attention}-{seed}"), facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder sst2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--encoder", nargs="+", default=["bilstm", "cnn", "average"])
    parser.add_argument("--attention", nargs="+", default=["additive", "dot"])
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--least", type=int, default=1, help="how often a word must occur in the training set")
    parser.add_argument("--word-dropout", type=float, default=0.3)
    parser.add_argument("--threads", type=int, default=1)
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    settings.out.mkdir(parents=True, exist_ok=True)
    with (settings.out / "log.jsonl").open("a", encoding="utf-8") as log:
        for seed in settings.seed:
            for encoder in settings.encoder:
                for attention in settings.attention:
                    model, facts = train(encoder, attention, seed, settings.data, settings)
                    save_jain_wallace(model, settings.out / f"{encoder}-{attention}-{seed}")
                    print(json.dumps(facts), flush=True)
                    print(json.dumps(facts), file=log, flush=True)


if __name__ == "__main__":
    main()
