"""Train the model of the entailment world: python training/worlds/train_entailment.py --out FOLDER

Some minutes on one core; --config FILE for other settings than entailment.toml. One word in ten is replaced by [MASK],
but never evidence: methods that mask words then stay within what the model has seen, and the evidence is always there.
Training begins with premises of two facts (`easy`), where it takes off sooner.
"""

import argparse
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import BertForSequenceClassification

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Average, Log, Schedule, adamw, device, make_bert_config, read_config, save, save_tokenizer, take_step
from words import SETTINGS, SPECIAL, make_word_tokenizer

from whyformer.demo import entailment


def examples(tokenizer: Tokenizer, seed: int, count: int) -> tuple[torch.Tensor, ...]:
    """Token ids, segment ids, which words may be masked [pair token], padded; labels and number of facts [pair]."""
    pairs = entailment.generate(count, 10_000_000 * seed, part="training")
    encodings = tokenizer.encode_batch([pair.texts for pair in pairs])
    ids = torch.tensor([one.ids for one in encodings])
    segments = torch.tensor([one.type_ids for one in encodings])
    may_mask = ~torch.tensor([one.special_tokens_mask for one in encodings]).bool()
    for row, pair in zip(may_mask, pairs, strict=True):
        second = 2 + len(pair.premise_words)
        row[[1 + i for i in pair.premise_evidence] + [second + i for i in pair.hypothesis_evidence]] = False
    labels = torch.tensor([entailment.LABELS.index(pair.label) for pair in pairs])
    return ids, segments, may_mask, labels, torch.tensor([len(pair.facts) for pair in pairs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("entailment.toml"))
    arguments = parser.parse_args()
    config = read_config(arguments.config)
    log = Log(arguments.out / "training.jsonl")
    log.write(config=config, torch=torch.__version__, device=str(device()))

    torch.manual_seed(config["seed"])
    tokenizer = make_word_tokenizer(entailment.list_vocabulary(), splits_punctuation=True)
    made = examples(tokenizer, config["seed"], config["pairs"])
    ids, segments, may_mask, labels, facts = (tensor.to(device()) for tensor in made)
    easy, every = (facts == min(entailment.FACTS)).nonzero()[:, 0], torch.arange(len(ids), device=device())
    model = BertForSequenceClassification(
        make_bert_config(config, tokenizer.get_vocab_size(), segments=2, labels=entailment.LABELS)
    ).to(device())
    optimizer, average = adamw(model, config["weight_decay"]), Average(model, config["average"])
    schedule = Schedule(config["peak"], config["warmup"], config["steps"], config["seconds"])
    model.train()
    while schedule.advance(optimizer):
        pool = easy if schedule.progress < config["easy"] else every
        chosen = pool[torch.randint(len(pool), (config["batch"],), device=device())]
        longest = int((ids[chosen] != 0).sum(-1).max())
        masked = (torch.rand(len(chosen), longest, device=device()) < config["masked"]) & may_mask[chosen, :longest]
        inputs = ids[chosen, :longest].masked_fill(masked, SPECIAL.index("[MASK]"))
        logits = model(
            input_ids=inputs, attention_mask=(inputs != 0).long(), token_type_ids=segments[chosen, :longest]
        ).logits
        loss = cross_entropy(logits, labels[chosen])
        take_step(loss, model, optimizer, average)
        if schedule.step % 200 == 0:
            share = (logits.argmax(-1) == labels[chosen]).float().mean()
            log.write(step=schedule.step, seconds=schedule.elapsed, rate=schedule.rate, loss=loss, right=share)
    average.load_into(model)
    save(model, arguments.out)
    save_tokenizer(
        tokenizer,
        arguments.out,
        model_max_length=config["longest"],
        **SETTINGS | {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]},
    )
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
