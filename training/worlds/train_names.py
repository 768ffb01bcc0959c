"""Train the tagger of the world of names: python training/worlds/train_names.py --out FOLDER

A few minutes on one core; --config FILE for other settings than names.toml. One word in ten is replaced by [MASK], but
never a trigger: methods that mask words then stay within what the model has seen, and the evidence is always there.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import BertForTokenClassification

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Average, Schedule, adamw, begin_training, device, make_bert_config, save, save_tokenizer, take_step
from words import SETTINGS, SPECIAL, make_word_tokenizer

from whyformer_papers.worlds import names

IGNORED = -100  # special tokens and padding


def examples(tokenizer: Tokenizer, seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and tags [sentence token], padded. The seed is far from those anybody would type."""
    sentences = names.generate(count, 10_000_000 * seed, part="training")
    rows = torch.tensor([one.ids for one in tokenizer.encode_batch([s.text for s in sentences])])
    tags = torch.full_like(rows, IGNORED)
    for row, sentence in zip(tags, sentences, strict=True):
        row[1 : 1 + len(sentence.words)] = torch.tensor([names.LABELS.index(tag) for tag in sentence.tags])
    return rows, tags


def mask_words(ids: torch.Tensor, tags: torch.Tensor, kept: torch.Tensor, share: float) -> torch.Tensor:
    """Replace a share of the words whose id is not among `kept` by [MASK]; their own tags no longer count."""
    masked = (torch.rand(ids.shape, device=ids.device) < share) & (tags != IGNORED) & ~torch.isin(ids, kept)
    tags[masked] = IGNORED
    return torch.where(masked, SPECIAL.index("[MASK]"), ids)


def main() -> None:
    arguments, config, log = begin_training(__doc__, Path(__file__).with_name("names.toml"))
    tokenizer = make_word_tokenizer(names.VOCABULARY, splits_punctuation=True)
    ids, tags = (t.to(device()) for t in examples(tokenizer, config["seed"], config["sentences"]))
    triggers = [tokenizer.token_to_id(word) for words in names.TRIGGERS.values() for word in words]
    kept = torch.tensor(triggers, device=device())
    model = BertForTokenClassification(
        make_bert_config(config, tokenizer.get_vocab_size(), segments=1, labels=names.LABELS)
    ).to(device())
    optimizer, average = adamw(model, config["weight_decay"]), Average(model, config["average"])
    schedule = Schedule(config["peak"], config["warmup"], config["steps"], config["seconds"])
    model.train()
    while schedule.advance(optimizer):
        chosen = torch.randint(len(ids), (config["batch"],), device=device())
        longest = int((ids[chosen] != 0).sum(-1).max())
        right = tags[chosen, :longest]
        inputs = mask_words(ids[chosen, :longest], right, kept, config["masked"])
        logits = model(input_ids=inputs, attention_mask=(inputs != 0).long()).logits
        loss = cross_entropy(logits.flatten(0, 1), right.flatten(), ignore_index=IGNORED)
        take_step(loss, model, optimizer, average)
        if schedule.step % 200 == 0:
            share = (logits.argmax(-1) == right)[right > 0].float().mean()
            log.write(step=schedule.step, seconds=schedule.elapsed, rate=schedule.rate, loss=loss, names=share)
    average.load_into(model)
    save(model, arguments.out)
    save_tokenizer(
        tokenizer,
        arguments.out,
        model_max_length=config["longest"],
        **SETTINGS,
    )
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
