"""Train the sentence encoder of the shared-words world: python training/similarity/train_shared_words.py --out FOLDER

Contrastive: the mean of a sentence's tokens must be nearer to that of its partner than to those of the other sentences
of the batch. Other sentences with a thing in common are left out, since they are alike as well.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize
from transformers import BertModel

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Average, Schedule, adamw, begin_training, make_bert_config, save, save_tokenizer, take_step
from words import SETTINGS, make_word_tokenizer

from whyformer_papers.worlds import shared_words

TRAINING_SEED = 10_000_000  # times the seed of the config: far from those anybody would type


def encode(model: BertModel, ids: Tensor) -> Tensor:
    """[sentence channel]: the normalised mean of the states of all tokens."""
    mask = (ids != 0).float()
    states = model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    return normalize((states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True), dim=-1)


def find_nouns(ids: Tensor, nouns: Tensor) -> Tensor:
    """[sentence noun]: which things a sentence is about."""
    return (ids[:, :, None] == nouns).any(1)


def main() -> None:
    arguments, config, log = begin_training(__doc__, Path(__file__).with_name("shared_words.toml"))
    torch.set_num_threads(1)
    schedule = Schedule(config["peak"], config["warmup"], config["steps"], config["seconds"])
    pairs = shared_words.generate(config["pairs"], TRAINING_SEED * config["seed"])
    tokenizer = make_word_tokenizer(shared_words.VOCABULARY)
    nouns = torch.tensor([tokenizer.token_to_id(noun) for noun in shared_words.NOUNS])
    sides = [
        torch.tensor([e.ids for e in tokenizer.encode_batch(texts)])
        for texts in ([pair.first for pair in pairs], [pair.second for pair in pairs])
    ]
    model = BertModel(make_bert_config(config, tokenizer.get_vocab_size(), segments=1))
    optimizer, average = adamw(model, config["weight_decay"]), Average(model, config["average"])
    model.train()
    own = torch.eye(config["batch"], dtype=torch.bool)
    while schedule.advance(optimizer):
        chosen = torch.randint(len(pairs), (config["batch"],))
        first, second = (side[chosen] for side in sides)
        alike = (find_nouns(first, nouns).float() @ find_nouns(second, nouns).float().T > 0) & ~own
        cosines = encode(model, first) @ encode(model, second).T
        logits = (cosines / config["temperature"]).masked_fill(alike, -torch.inf)
        answers = torch.arange(len(logits))
        loss = (cross_entropy(logits, answers) + cross_entropy(logits.T, answers)) / 2
        take_step(loss, model, optimizer, average)
        if schedule.step % 100 == 0:
            right = (logits.argmax(-1) == answers).float().mean()
            log.write(step=schedule.step, seconds=schedule.elapsed, rate=schedule.rate, loss=loss, accuracy=right)
    average.load_into(model)
    save(model, arguments.out)
    save_tokenizer(tokenizer, arguments.out, model_max_length=config["longest"], **SETTINGS)
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed)


if __name__ == "__main__":
    main()
