"""Train a BERT on ERASER movies: python training/movies/train.py --data movies/ --out FOLDER [--start NAME]

The recipe of Chefer, Gur & Wolf (CVPR 2021): documents cut to 512 word pieces, no question, gradients clipped at norm
1, at most 10 epochs, the weights of the best epoch on the validation split. Theirs starts from bert-base-uncased with a
learning rate of 1e-5 and batches of 10 (`--start bert-base-uncased --rate 1e-5 --batch 10`). Without --start this one
starts from demo/sentiment, whose 256 positions are stretched to 512 by linear interpolation; several rates are tried
and the validation split chooses.
"""

import argparse
import copy
import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Log, device, read_config, save

from whyformer.data import Data, read

BUNDLED = Path(__file__).parents[2] / "demo" / "src" / "whyformer_demo" / "models" / "sentiment"
LABELS = ("NEG", "POS")
LENGTH = 512


def open_start(start: str) -> Any:
    """A BERT with two answers and 512 positions, and its tokenizer."""
    model = AutoModelForSequenceClassification.from_pretrained(start, num_labels=len(LABELS), dtype=torch.float32)
    model.config.id2label, model.config.label2id = dict(enumerate(LABELS)), {name: i for i, name in enumerate(LABELS)}
    stretch_positions(model)
    return model


def stretch_positions(model: Any) -> None:
    """Positions for 512 tokens, interpolated between those of a shorter model."""
    embeddings = model.base_model.embeddings
    weight = embeddings.position_embeddings.weight.detach()
    if len(weight) >= LENGTH:
        return
    longer = nn.functional.interpolate(weight.T[None], size=LENGTH, mode="linear", align_corners=True)[0].T
    embeddings.position_embeddings = nn.Embedding.from_pretrained(longer.contiguous(), freeze=False)
    embeddings.register_buffer("position_ids", torch.arange(LENGTH)[None], persistent=False)
    embeddings.register_buffer("token_type_ids", torch.zeros(1, LENGTH, dtype=torch.long), persistent=False)
    model.config.max_position_embeddings = LENGTH


def encode(tokenizer: Any, data: Data) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask and label of every document."""
    texts = [str(example.load()) for example in data.examples]
    made = tokenizer(texts, truncation=True, max_length=LENGTH, padding="max_length", return_tensors="pt")
    labels = torch.tensor([LABELS.index(str(example.label)) for example in data.examples])
    return tuple(t.to(device()) for t in (made["input_ids"], made["attention_mask"], labels))  # type: ignore[return-value]


@torch.no_grad()
def measure_accuracy(model: Any, documents: tuple[Tensor, Tensor, Tensor], batch: int) -> float:
    model.eval()
    ids, mask, labels = documents
    right = sum(
        int((model(input_ids=i, attention_mask=m).logits.argmax(-1) == y).sum())
        for i, m, y in zip(ids.split(batch), mask.split(batch), labels.split(batch), strict=True)
    )
    return right / len(labels)


def train(
    start: Any, rate: float, config: dict[str, Any], documents: dict[str, tuple[Tensor, Tensor, Tensor]], log: Log
) -> tuple[float, Any]:
    """The best validation accuracy, and the model of that epoch."""
    torch.manual_seed(config["seed"])
    model = copy.deepcopy(start).to(device())
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    ids, mask, labels = documents["train"]
    best: tuple[float, Any] = (-1.0, None)
    for epoch in range(config["epochs"]):
        model.train()
        order = torch.randperm(len(labels), device=device())
        total = 0.0
        for chosen in order.split(config["batch"]):
            with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
                logits = model(input_ids=ids[chosen], attention_mask=mask[chosen]).logits
            loss = cross_entropy(logits.float(), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += float(loss.detach()) * len(chosen)
        accuracy = measure_accuracy(model, documents["val"], config["batch"])
        log.write(rate=rate, epoch=epoch, loss=total / len(labels), val=accuracy)
        if accuracy > best[0]:
            best = accuracy, copy.deepcopy(model).cpu()
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder with docs/ and train.jsonl")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", default=str(BUNDLED), help="a BERT: a folder or a name on the hub")
    parser.add_argument("--rate", type=float, help="one learning rate instead of those of the config")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("config.toml"))
    arguments = parser.parse_args()
    config = read_config(arguments.config)
    config |= {"rates": [arguments.rate]} if arguments.rate else {}
    config |= {"batch": arguments.batch} if arguments.batch else {}
    random.seed(config["seed"])
    log = Log(arguments.out / "training.jsonl")
    log.write(config=config, torch=torch.__version__, device=str(device()))
    tokenizer = AutoTokenizer.from_pretrained(arguments.start)
    documents = {split: encode(tokenizer, read(arguments.data, split=split)) for split in ("train", "val")}
    start = open_start(arguments.start)
    runs = {rate: train(start, rate, config, documents, log) for rate in config["rates"]}
    rate = max(runs, key=lambda rate: runs[rate][0])
    accuracy, model = runs[rate]
    save(model, arguments.out)
    tokenizer.model_max_length = LENGTH
    tokenizer.save_pretrained(arguments.out)
    log.write(chosen=rate, val=accuracy)
    (arguments.out / "card.json").write_text(json.dumps({"rate": rate, "val": accuracy, "epochs": config["epochs"]}))


if __name__ == "__main__":
    main()
