"""Train the decoder of the world of assignments: python training/tracking/train.py --out FOLDER

Two and a half minutes on a GPU; --config FILE for other settings than config.toml. The loss counts the chain and the
answer only: names, values and the order of statements in a prompt are random.
"""

import multiprocessing
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Average, Schedule, adamw, begin_training, device, make_decoder, save_decoder, take_step

from whyformer_papers.worlds import tracking

PAD, UNKNOWN, END = "[PAD]", "[UNK]", "[END]"
IGNORED = -100  # what the loss does not count
PARTS = 16


def make_tokenizer() -> Tokenizer:
    """One token a word; the words of a text are separated by blanks."""
    ids = {word: i for i, word in enumerate((PAD, UNKNOWN, END, *tracking.VOCABULARY))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([PAD, UNKNOWN, END])
    return tokenizer


def write_texts(seed: int, count: int, prints_two: bool) -> list[tuple[str, str]]:
    """Prompts and what follows them."""
    made = tracking.generate(count, seed, prints_two=prints_two, part="training")
    return [(program.prompt, f"{program.continuation} {END}") for program in made]


def read_rows(tokenizer: Tokenizer, seed: int, count: int, prints_two: bool) -> tuple[Tensor, Tensor]:
    """Token ids and what the loss counts [program token], padded. Seeds are far from those anybody would type.

    prints_two: every other part has programs that print two names.
    """
    with multiprocessing.get_context("fork").Pool(min(PARTS, multiprocessing.cpu_count())) as pool:
        jobs = [(30_000_000 * seed + i, count // PARTS, prints_two and i % 2 == 1) for i in range(PARTS)]
        texts = [text for part in pool.starmap(write_texts, jobs) for text in part]
    starts = [len(one.ids) for one in tokenizer.encode_batch([prompt for prompt, _ in texts])]
    whole = [one.ids for one in tokenizer.encode_batch([prompt + rest for prompt, rest in texts])]
    ids = torch.full((len(whole), max(map(len, whole))), tokenizer.token_to_id(PAD))
    wanted = torch.full_like(ids, IGNORED)
    for row, (start, tokens) in enumerate(zip(starts, whole, strict=True)):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        wanted[row, start : len(tokens)] = torch.tensor(tokens[start:])
    return ids, wanted


def make_model(config: dict, tokenizer: Tokenizer) -> PreTrainedModel:
    ids = {f"{name}_token_id": tokenizer.token_to_id(token) for name, token in (("eos", END), ("pad", PAD))}
    sizes = {**config, "positions": config["longest"]}
    return make_decoder(sizes, config.get("shape", "llama"), tokenizer.get_vocab_size(), bos_token_id=None, **ids)


def main() -> None:
    arguments, config, log = begin_training(__doc__, Path(__file__).with_name("config.toml"))
    schedule = Schedule(config["peak"], config["warmup"], config["steps"], config["seconds"])  # making the texts counts
    tokenizer = make_tokenizer()
    made = read_rows(tokenizer, config["seed"], config["programs"], config.get("prints_two", False))
    ids, wanted = (t.to(device()) for t in made)
    model = make_model(config, tokenizer)
    log.write(programs=len(ids), weights=sum(p.numel() for p in model.parameters()), seconds=schedule.elapsed)
    optimizer, average = adamw(model, config["weight_decay"]), Average(model, config["average"])
    model.train()
    while schedule.advance(optimizer):
        chosen = torch.randint(len(ids), (config["batch"],), device=device())
        right = wanted[chosen, 1:]
        with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
            logits = model(input_ids=ids[chosen, :-1], use_cache=False).logits
        loss = cross_entropy(logits.float().flatten(0, 1), right.flatten(), ignore_index=IGNORED)
        take_step(loss, model, optimizer, average)
        if schedule.step % 200 == 0:
            share = (logits.argmax(-1) == right)[right != IGNORED].float().mean()
            log.write(step=schedule.step, seconds=schedule.elapsed, rate=schedule.rate, loss=loss, tokens=share)
    average.load_into(model)
    tokens = {"unk_token": UNKNOWN, "eos_token": END, "pad_token": PAD}
    save_decoder(model, tokenizer, arguments.out, config["longest"], **tokens)
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed)


if __name__ == "__main__":
    main()
