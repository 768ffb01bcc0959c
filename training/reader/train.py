"""Train the reader of passages: python training/reader/train.py --out FOLDER [--rows ROWS.npz]

Minutes on a GPU. Rows of similar length make a batch, short rows (two or three passages) first: looking up an answer in
few passages is learned sooner and is the same as in many. The loss is that of the answers, and with a smaller weight
that of all other tokens: passages that repeat a name teach the model to look back.
"""

import multiprocessing
import random
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rows import BEGIN, CHAT_TEMPLATE, END, PAD, arrange, encode_rows, make_rows, make_tokenizer
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Average, Schedule, adamw, begin_training, device, save, save_tokenizer, take_step

from whyformer.demo import reader

TEXT_SHARE = 0.25  # of the tokens that are no answers, drawn anew for each batch


class Batch(NamedTuple):
    """Token ids [row token], 0 where a row is over; flat indices into [row, token - 1] of what is predicted."""

    ids: Tensor
    answers: Tensor
    text: Tensor  # a part of all other tokens


class Rows:
    """All rows, sorted by length, from which batches are cut; on the CPU, so that the GPU never waits for a size."""

    def __init__(self, rows: dict[str, np.ndarray], seed: int) -> None:
        order = np.argsort(rows["lengths"], kind="stable")
        self.lengths = rows["lengths"][order]
        self.starts = (np.cumsum(rows["lengths"], dtype=np.int64) - rows["lengths"])[order]
        self.ids, self.answers = rows["ids"], rows["answers"]
        self.random = np.random.default_rng(seed)

    def draw_batch(self, tokens: int, share: float) -> Batch:
        """About `tokens` tokens in rows of similar length, from the shortest `share` of the rows."""
        first = int(self.random.integers(max(1, int(len(self.lengths) * share))))
        last = min(len(self.lengths), first + max(1, tokens // int(self.lengths[first])))
        places = np.arange(self.lengths[last - 1])
        is_inside = places < self.lengths[first:last, None]
        index = np.minimum(self.starts[first:last, None] + places, len(self.ids) - 1)
        ids = np.where(is_inside, self.ids[index], 0)
        is_answer = (self.answers[index] & is_inside)[:, 1:]
        is_text = is_inside[:, 1:] & ~is_answer & (self.random.random(is_answer.shape) < TEXT_SHARE)
        return Batch(*(send(part) for part in (ids, np.flatnonzero(is_answer), np.flatnonzero(is_text))))


def send(array: np.ndarray) -> Tensor:
    tensor = torch.from_numpy(array.astype(np.int64))
    return tensor.pin_memory().to(device(), non_blocking=True) if device().type == "cuda" else tensor


def make_model(config: dict[str, Any], tokenizer: Tokenizer) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=config["width"],
            intermediate_size=config["inner"],
            num_hidden_layers=config["blocks"],
            num_attention_heads=config["heads"],
            max_position_embeddings=config["positions"],
            tie_word_embeddings=True,
            pad_token_id=tokenizer.token_to_id(PAD),
            bos_token_id=tokenizer.token_to_id(BEGIN),
            eos_token_id=tokenizer.token_to_id(END),
        )
    ).to(device())


def compute_loss(model: LlamaForCausalLM, batch: Batch, text: float) -> Tensor:
    """The loss of the answers, and of some of the other tokens with the weight `text`."""
    wanted = batch.ids[:, 1:].flatten()
    with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
        states = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)
        losses = [cross_entropy(model.lm_head(states[i]).float(), wanted[i]) for i in (batch.answers, batch.text)]
    return losses[0] + text * losses[1]


@torch.no_grad()
def share_right(model: LlamaForCausalLM, ids: Tensor, answers: Tensor) -> Tensor:
    """The share of rows of which every answer token is the most likely one."""
    with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
        best = torch.cat([model(input_ids=part, use_cache=False).logits[:, :-1].argmax(-1) for part in ids.split(128)])
    return ((best == ids[:, 1:]) | ~answers[:, 1:]).all(-1).float().mean()


def hold_out(tokenizer: Tokenizer, kind: reader.QuestionKind, form: str, count: int) -> tuple[Tensor, Tensor]:
    """Held-out rows of one question each."""
    rng = random.Random(f"{kind} {form}")
    asked = reader.generate(count, 99, kind=kind)
    ids, answers = encode_rows(tokenizer, [arrange(rng, [one], form) for one in asked])
    longest = max(map(len, ids))
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    return padded.to(device()), torch.tensor([row + [False] * (longest - len(row)) for row in answers]).to(device())


def main() -> None:
    arguments, config, log = begin_training(
        __doc__, Path(__file__).with_name("config.toml"), rows="rows made by rows.py", start="a model to go on from"
    )
    tokenizer = make_tokenizer()
    if arguments.rows is None:
        made = make_rows(config["rows"], config["seed"], config["longest"], multiprocessing.cpu_count())
    else:
        made = dict(np.load(arguments.rows))
    rows = Rows(made, config["seed"])
    log.write(rows=len(made["lengths"]), tokens=len(made["ids"]), vocabulary=tokenizer.get_vocab_size())
    held_out = {
        name: hold_out(tokenizer, kind, form, config.get("held_out", 512))
        for name, kind, form in (
            ("direct", "direct", "text"),
            ("chat", "direct", "chat"),
            ("documents", "direct", "documents"),
            ("chain", "chain", "text"),
            ("unstated", "unstated", "text"),
        )
    }
    model = make_model(config, tokenizer)
    if arguments.start is not None:
        model.load_state_dict(LlamaForCausalLM.from_pretrained(arguments.start, dtype=torch.float32).state_dict())
    log.write(weights=sum(p.numel() for p in model.parameters()))
    optimizer, average = adamw(model, config["weight_decay"]), Average(model, config["average"])
    schedule = Schedule(config["peak"], config["warmup"], config["steps"], config["seconds"])
    model.train()
    while schedule.advance(optimizer):
        share = min(1.0, config["short"] + (1 - config["short"]) * schedule.progress / config["growing"])
        loss = compute_loss(model, rows.draw_batch(config["tokens"], share), config["text"])
        take_step(loss, model, optimizer, average)
        if schedule.step % config.get("every", 250) == 0:
            right = {name: share_right(model, *held_out[name]) for name in ("direct", "chain", "unstated")}
            log.write(step=schedule.step, seconds=schedule.elapsed, rate=schedule.rate, loss=loss, share=share, **right)
    average.load_into(model)
    save(model, arguments.out)
    save_tokenizer(
        tokenizer,
        arguments.out,
        model_max_length=config["positions"],
        model_input_names=["input_ids", "attention_mask"],
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
    )
    (arguments.out / "generation_config.json").unlink(missing_ok=True)
    right = {name: share_right(model, *rows) for name, rows in held_out.items()}
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed, **right)


if __name__ == "__main__":
    main()
