"""Train the model of the entailment world: python training/worlds/train_entailment.py --out FOLDER

Some minutes on one core; --config FILE for other settings than entailment.toml. One word in ten is replaced by [MASK],
but never evidence: methods that mask words then stay within what the model has seen, and the evidence is always there.

To tell entailment from contradiction a model must look up the colour of a thing, which it learns late from three
answers alone. So in part of each batch (`recall`) the colour of the hypothesis is masked and a second head, which is
thrown away afterwards, names the colour that the thing has in the premise.
"""

import argparse
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import BertForSequenceClassification

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Average, Log, Schedule, adamw, device, make_bert_config, read_config, save, save_tokenizer, take_step
from words import SETTINGS, SPECIAL, make_word_tokenizer

from whyformer.demo import entailment

IGNORED = -100  # pairs whose premise does not say the colour of the thing


def examples(tokenizer: Tokenizer, seed: int, count: int) -> tuple[torch.Tensor, ...]:
    """Ids, segment ids, which words may be masked [pair token], padded; labels, place of the claimed colour and the
    true colour (-100 if the premise does not say it) [pair]."""
    pairs = entailment.generate(count, 10_000_000 * seed, part="training")
    encodings = tokenizer.encode_batch([pair.texts for pair in pairs])
    ids = torch.tensor([one.ids for one in encodings])
    segments = torch.tensor([one.type_ids for one in encodings])
    may_mask = ~torch.tensor([one.special_tokens_mask for one in encodings]).bool()
    claimed, true = [], []
    for row, pair in zip(may_mask, pairs, strict=True):
        second = 2 + len(pair.premise_words)
        row[[1 + i for i in pair.premise_evidence]] = False
        row[[second + i for i in pair.hypothesis_evidence]] = False
        claimed.append(second + pair.claim.colour)
        true.append(IGNORED if pair.fact is None else entailment.COLOURS.index(pair.facts[pair.fact].shade))
    labels = torch.tensor([entailment.LABELS.index(pair.label) for pair in pairs])
    return ids, segments, may_mask, labels, torch.tensor(claimed), torch.tensor(true)


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
    ids, segments, may_mask, labels, claimed, true = (tensor.to(device()) for tensor in made)
    model = BertForSequenceClassification(
        make_bert_config(config, tokenizer.get_vocab_size(), segments=2, labels=entailment.LABELS)
    ).to(device())
    recall = nn.Linear(config["width"], len(entailment.COLOURS)).to(device())
    both = nn.ModuleList([model, recall])
    optimizer, average = adamw(both, config["weight_decay"]), Average(both, config["average"])
    schedule = Schedule(config["peak"], config["warmup"], config["steps"], config["seconds"])
    model.train()
    masked_rows = int(config["batch"] * config["recall"])
    while schedule.advance(optimizer):
        chosen = torch.randint(len(ids), (config["batch"],), device=device())
        longest = int((ids[chosen] != 0).sum(-1).max())
        masked = (torch.rand(len(chosen), longest, device=device()) < config["masked"]) & may_mask[chosen, :longest]
        masked[torch.arange(masked_rows), claimed[chosen[:masked_rows]]] = True
        inputs = ids[chosen, :longest].masked_fill(masked, SPECIAL.index("[MASK]"))
        states = model.bert(
            input_ids=inputs, attention_mask=(inputs != 0).long(), token_type_ids=segments[chosen, :longest]
        )
        at = states.last_hidden_state[torch.arange(masked_rows), claimed[chosen[:masked_rows]]]
        named = recall(at)
        wanted = true[chosen[:masked_rows]]
        logits = model.classifier(states.pooler_output[masked_rows:])
        right = labels[chosen[masked_rows:]]
        loss = cross_entropy(logits, right) + cross_entropy(named, wanted, ignore_index=IGNORED)
        take_step(loss, both, optimizer, average)
        if schedule.step % 200 == 0:
            log.write(
                step=schedule.step,
                seconds=schedule.elapsed,
                rate=schedule.rate,
                loss=loss,
                right=(logits.argmax(-1) == right).float().mean(),
                recalled=(named.argmax(-1) == wanted)[wanted >= 0].float().mean(),
            )
    average.load_into(both)
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
