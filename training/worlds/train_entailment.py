"""Train the model of the entailment world: python training/worlds/train_entailment.py --out FOLDER

Some minutes on one core; --config FILE for other settings than entailment.toml. One word in ten is replaced by [MASK],
but never evidence: methods that mask words then stay within what the model has seen, and the evidence is always there.
Training begins with premises of two facts (`easy`), where it takes off sooner.

To tell entailment from contradiction a model must find the one word of the premise that matters and compare it, which
three answers alone teach late. So a second head, which is thrown away afterwards, names that word at the place of the
claimed property.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import BertForSequenceClassification

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Average, Schedule, adamw, begin_training, device, make_bert_config, save, save_tokenizer, take_step
from words import SETTINGS, SPECIAL, make_word_tokenizer

from whyformer_papers.worlds import entailment

PROPERTIES = tuple(entailment.OPPOSITE_OF)


def examples(tokenizer: Tokenizer, seed: int, count: int) -> tuple[torch.Tensor, ...]:
    """Token ids, segment ids, which words may be masked [pair token], padded; then for each pair its label, how many
    facts it has, the place of the claimed property and the deciding word of the premise (0: none)."""
    pairs = entailment.generate(count, 10_000_000 * seed, part="training")
    encodings = tokenizer.encode_batch([pair.texts for pair in pairs])
    ids = torch.tensor([one.ids for one in encodings])
    segments = torch.tensor([one.type_ids for one in encodings])
    may_mask = ~torch.tensor([one.special_tokens_mask for one in encodings]).bool()
    places, words = [], []
    for row, pair in zip(may_mask, pairs, strict=True):
        second = 2 + len(pair.premise_words)
        row[[1 + i for i in pair.premise_evidence] + [second + i for i in pair.hypothesis_evidence]] = False
        places.append(second + pair.claim.place)
        words.append(0 if pair.fact is None else 1 + PROPERTIES.index(pair.facts[pair.fact].property))
    labels = torch.tensor([entailment.LABELS.index(pair.label) for pair in pairs])
    facts = torch.tensor([len(pair.facts) for pair in pairs])
    return ids, segments, may_mask, labels, facts, torch.tensor(places), torch.tensor(words)


def load_start(model: nn.Module, tokenizer: Tokenizer, folder: Path) -> None:
    """The weights of an earlier run, whose vocabulary may have had more words."""
    weights = {name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()}
    earlier = Tokenizer.from_file(str(folder / "tokenizer.json"))
    names = sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id)
    rows = [earlier.token_to_id(name) for name in names]
    table = "bert.embeddings.word_embeddings.weight"
    model.load_state_dict(weights | {table: weights[table][rows]})


def main() -> None:
    arguments, config, log = begin_training(
        __doc__, Path(__file__).with_name("entailment.toml"), start="continue with the weights in this folder"
    )
    tokenizer = make_word_tokenizer(entailment.VOCABULARY, splits_punctuation=True)
    made = examples(tokenizer, config["seed"], config["pairs"])
    ids, segments, may_mask, labels, facts, places, words = (tensor.to(device()) for tensor in made)
    easy, every = (facts == min(entailment.FACTS)).nonzero()[:, 0], torch.arange(len(ids), device=device())
    model = BertForSequenceClassification(
        make_bert_config(config, tokenizer.get_vocab_size(), segments=2, labels=entailment.LABELS)
    ).to(device())
    if arguments.start is not None:
        load_start(model, tokenizer, arguments.start)
    finder = nn.Linear(config["width"], 1 + len(PROPERTIES)).to(device())
    both = nn.ModuleList([model, finder])
    optimizer, average = adamw(both, config["weight_decay"]), Average(both, config["average"])
    schedule = Schedule(config["peak"], config["warmup"], config["steps"], config["seconds"])
    model.train()
    while schedule.advance(optimizer):
        pool = easy if schedule.progress < config["easy"] else every
        chosen = pool[torch.randint(len(pool), (config["batch"],), device=device())]
        longest = int((ids[chosen] != 0).sum(-1).max())
        masked = (torch.rand(len(chosen), longest, device=device()) < config["masked"]) & may_mask[chosen, :longest]
        inputs = ids[chosen, :longest].masked_fill(masked, SPECIAL.index("[MASK]"))
        states = model.bert(
            input_ids=inputs, attention_mask=(inputs != 0).long(), token_type_ids=segments[chosen, :longest]
        )
        logits = model.classifier(states.pooler_output)
        named = finder(states.last_hidden_state[torch.arange(len(chosen)), places[chosen]])
        loss = cross_entropy(logits, labels[chosen]) + cross_entropy(named, words[chosen])
        take_step(loss, both, optimizer, average)
        if schedule.step % 200 == 0:
            right = (logits.argmax(-1) == labels[chosen]).float().mean()
            found = (named.argmax(-1) == words[chosen]).float().mean()
            log.write(
                step=schedule.step, seconds=schedule.elapsed, rate=schedule.rate, loss=loss, right=right, found=found
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
