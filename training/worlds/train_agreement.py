"""Train the classifier of the agreement world: python training/worlds/train_agreement.py --out FOLDER"""

import multiprocessing
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import BertForSequenceClassification

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Average, Schedule, adamw, begin_training, device, make_bert_config, save, save_tokenizer, take_step
from words import make_word_tokenizer

from whyformer_papers.worlds import agreement


def texts(seed: int, count: int) -> tuple[list[str], list[int]]:
    sentences = agreement.generate(count, seed, part="training")
    return [s.masked for s in sentences], [s.label for s in sentences]


def examples(tokenizer: Tokenizer, seed: int, count: int, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [sentence token], padded with 0, and labels. Seeds are far from those anybody would type."""
    parts = 16
    with multiprocessing.get_context("fork").Pool(min(parts, multiprocessing.cpu_count())) as pool:
        made = pool.starmap(texts, [(10_000_000 * seed + i, count // parts) for i in range(parts)])
    sentences, labels = [t for t, _ in made], [n for _, n in made]
    rows = [e.ids for e in tokenizer.encode_batch([t for part in sentences for t in part])]
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    width = len(rows[0])
    ids[:, :width] = torch.tensor(rows)[:, :longest]
    return ids, torch.tensor([n for part in labels for n in part])


def main() -> None:
    arguments, config, log = begin_training(__doc__, Path(__file__).with_name("agreement.toml"))
    tokenizer = make_word_tokenizer(agreement.VOCABULARY, splits_punctuation=True)
    ids, labels = (t.to(device()) for t in examples(tokenizer, config["seed"], config["sentences"], config["longest"]))
    used = int((ids != 0).any(0).sum())
    ids = ids[:, :used]
    model = BertForSequenceClassification(
        make_bert_config(config, tokenizer.get_vocab_size(), segments=2, labels=agreement.LABELS)
    ).to(device())
    optimizer, average = adamw(model, config["weight_decay"]), Average(model, config["average"])
    schedule = Schedule(config["peak"], config["warmup"], config["steps"], config["seconds"])
    model.train()
    while schedule.advance(optimizer):
        chosen = torch.randint(len(ids), (config["batch"],), device=device())
        with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
            logits = model(input_ids=ids[chosen], attention_mask=(ids[chosen] != 0).long()).logits
        loss = cross_entropy(logits.float(), labels[chosen])
        take_step(loss, model, optimizer, average)
        if schedule.step % 200 == 0:
            right = (logits.argmax(-1) == labels[chosen]).float().mean()
            log.write(step=schedule.step, seconds=schedule.elapsed, rate=schedule.rate, loss=loss, accuracy=right)
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
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed)


if __name__ == "__main__":
    main()
