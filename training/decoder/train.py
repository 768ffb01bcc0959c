"""Train the tiny language model: python training/decoder/train.py --out FOLDER"""

import multiprocessing
import random
import sys
from pathlib import Path

import torch
from arithmetic import questions
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Average, Schedule, adamw, begin_training, device, save_decoder, take_step

from whyformer_papers.worlds import agreement

END = "<|endoftext|>"
SHORT = 6  # tokens: a row that is one sum


def sentences(seed: int, count: int) -> list[str]:
    """Half of them begin with a capital letter, so that both ways of writing are known."""
    made = [s.text for s in agreement.generate(count, seed, part="training")]
    return [text[0].upper() + text[1:] if i % 2 else text for i, text in enumerate(made)]


def texts(config: dict) -> list[str]:
    """The training texts, shuffled. Seeds are far from those anybody would type."""
    parts = 16
    with multiprocessing.get_context("fork").Pool(min(parts, multiprocessing.cpu_count())) as pool:
        jobs = [(20_000_000 * config["seed"] + i, config["sentences"] // parts) for i in range(parts)]
        made = [text for part in pool.starmap(sentences, jobs) for text in part]
    rng = random.Random(config["seed"])
    sums = [
        f"{question} {answer}."
        for question, answer in rng.choices(questions("training", config["below"]), k=config["sums"])
    ]
    made += sums
    rng.shuffle(made)
    return made


def rows(made: list[str], seed: int, counts: list[int]) -> list[str]:
    """A few texts a row, as somebody would type them one after the other."""
    rng, joined, i = random.Random(seed + 1), [], 0
    while i < len(made):
        count = rng.choice(counts)
        joined.append(" ".join(made[i : i + count]))
        i += count
    return joined


def byte_tokenizer(made: list[str]) -> Tokenizer:
    """Byte-level pieces, merged until every word is one token, its blank included: " are" is a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8000,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    words = " ".join(agreement.VOCABULARY)
    every = [f"{question} {answer}." for part in ("training", "held-out") for question, answer in questions(part, 100)]  # type: ignore[arg-type]
    tokenizer.train_from_iterator([*made[:20_000], *every, *[words, words.title(), f" {words}"] * 2], trainer)
    return tokenizer


def padded(tokenizer: Tokenizer, joined: list[str], length: int) -> Tensor:
    """Token ids [row token]; the end of the text, then more of it, where a row is over."""
    end = tokenizer.token_to_id(END)
    ids = torch.full((len(joined), length), end)
    for i, encoding in enumerate(tokenizer.encode_batch(joined)):
        ids[i, : len(encoding.ids)] = torch.tensor(encoding.ids[:length])
    return ids


def cut(ids: Tensor, end: int, above: int, to: int) -> Tensor:
    """The rows of more than `above` and up to `to` tokens, without the columns that only the others need."""
    lengths = (ids != end).sum(-1)
    kept = (lengths > above) & (lengths <= to)
    return ids[kept, : int(lengths[kept].max()) + 1] if kept.any() else ids[:0]


def main() -> None:
    arguments, config, log = begin_training(
        __doc__, Path(__file__).with_name("config.toml"), start="a model to go on from, with its tokenizer"
    )
    schedule = Schedule(config["peak"], config["warmup"], config["steps"], config["seconds"])  # making the texts counts
    made = texts(config)
    tokenizer = (
        byte_tokenizer(made)
        if arguments.start is None
        else Tokenizer.from_file(str(arguments.start / "tokenizer.json"))
    )
    end = tokenizer.token_to_id(END)
    ids = padded(tokenizer, rows(made, config["seed"], config["texts"]), config["row"]).to(device())
    log.write(texts=len(made), rows=len(ids), vocabulary=tokenizer.get_vocab_size(), seconds=schedule.elapsed)
    pools = {"any": ids, "short": cut(ids, end, 0, SHORT), "long": cut(ids, end, SHORT, config["row"])}
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=tokenizer.get_vocab_size(),
            n_positions=config["longest"],
            n_embd=config["width"],
            n_layer=config["blocks"],
            n_head=config["heads"],
            resid_pdrop=config["dropout"],
            embd_pdrop=config["dropout"],
            attn_pdrop=config["dropout"],
            bos_token_id=end,
            eos_token_id=end,
        )
    ).to(device())
    if arguments.start is not None:
        model.load_state_dict(GPT2LMHeadModel.from_pretrained(arguments.start, dtype=torch.float32).state_dict())
    optimizer, average = adamw(model, config["weight_decay"]), Average(model, config["average"])
    model.train()
    while schedule.advance(optimizer):
        pool = pools[config["pattern"][schedule.step % len(config["pattern"])]]
        batch = pool[torch.randint(len(pool), (config["batch"],), device=device())]
        is_padding = (batch[:, 1:] == end) & (batch[:, :-1] == end)
        wanted = batch[:, 1:].masked_fill(is_padding, -100)
        start = int(torch.randint(config["longest"] - batch.size(1) + 1, ()))  # every position is trained
        start = 0 if schedule.step % 2 else start
        places = torch.arange(start, start + batch.size(1), device=device())[None]
        with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
            logits = model(input_ids=batch, position_ids=places).logits
        loss = cross_entropy(logits[:, :-1].float().flatten(0, 1), wanted.flatten(), ignore_index=-100)
        take_step(loss, model, optimizer, average)
        if schedule.step % 50 == 0:
            log.write(step=schedule.step, seconds=schedule.elapsed, rate=schedule.rate, loss=loss)
    average.load_into(model)
    tokens = {"bos_token": END, "eos_token": END, "pad_token": END}
    save_decoder(model, tokenizer, arguments.out, config["longest"], **tokens)
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed)


if __name__ == "__main__":
    main()
