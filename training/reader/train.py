"""Train the reader of passages: python training/reader/train.py --out FOLDER [--rows ROWS.npz]

Rows of similar length make a batch, short rows first. The loss is that of the answers, and with a smaller weight that
of other tokens. --start goes on from an earlier model, whose vocabulary may have had more words. What shipped took four
stages (config.toml, second.toml, third.toml, fourth.toml); the card says which.
"""

import multiprocessing
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rows import (
    BEGIN,
    CHAT_TEMPLATE,
    END,
    FORMS,
    PAD,
    Rows,
    arrange,
    encode_rows,
    find_special_ids,
    make_rows,
    make_tokenizer,
)
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Average, Schedule, adamw, begin_training, device, make_decoder, save_decoder, take_step

from whyformer.demo import reader

TEXT_SHARE = 0.15  # of the tokens that are no answers, drawn anew for each batch


def make_model(config: dict[str, Any], tokenizer: Tokenizer) -> PreTrainedModel:
    return make_decoder(config, "llama", tokenizer.get_vocab_size(), **find_special_ids(tokenizer))


def compute_loss(model: PreTrainedModel, ids: Tensor, answers: Tensor, text: float) -> Tensor:
    """The loss of the answers, and of some of the other tokens with the weight `text`; logits only for these."""
    wanted, is_answer = ids[:, 1:], answers[:, 1:]
    is_text = ~is_answer & (wanted != 0) & (torch.rand(wanted.shape, device=ids.device) < TEXT_SHARE)
    with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        losses = [cross_entropy(model.lm_head(states[at]).float(), wanted[at]) for at in (is_answer, is_text)]
    return losses[0] + text * losses[1]


@torch.no_grad()
def share_right(model: PreTrainedModel, ids: Tensor, answers: Tensor) -> Tensor:
    """The share of rows of which every answer token is the most likely one."""
    with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
        best = torch.cat([model(input_ids=part, use_cache=False).logits[:, :-1].argmax(-1) for part in ids.split(128)])
    return ((best == ids[:, 1:]) | ~answers[:, 1:]).all(-1).float().mean()


def hold_out(tokenizer: Tokenizer, form: str, count: int) -> tuple[Tensor, Tensor]:
    """Held-out rows of one question each."""
    rng = random.Random(form)
    ids, answers = encode_rows(tokenizer, [arrange(rng, [one], form) for one in reader.generate(count, 99)])
    longest = max(map(len, ids))
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    return padded.to(device()), torch.tensor([row + [False] * (longest - len(row)) for row in answers]).to(device())


def load_start(model: PreTrainedModel, tokenizer: Tokenizer, folder: Path) -> None:
    """The weights of an earlier run, whose vocabulary may have had more words or another order."""
    weights = {name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()}
    earlier = Tokenizer.from_file(str(folder / "tokenizer.json"))
    names = sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id)
    table = "model.embed_tokens.weight"
    weights[table] = weights[table][[earlier.token_to_id(name) for name in names]]
    model.load_state_dict(weights | {"lm_head.weight": weights[table]})


def main() -> None:
    arguments, config, log = begin_training(
        __doc__, Path(__file__).with_name("config.toml"), rows="rows made by rows.py", start="a model to go on from"
    )
    tokenizer, generator = make_tokenizer(), np.random.default_rng(config["seed"])
    if arguments.rows is None:
        made = make_rows(config["rows"], config["seed"], config["longest"], multiprocessing.cpu_count())
    else:
        made = dict(np.load(arguments.rows))
    rows = Rows(made)
    log.write(rows=len(made["lengths"]), tokens=len(made["ids"]), vocabulary=tokenizer.get_vocab_size())
    held_out = {form: hold_out(tokenizer, form, config["held_out"]) for form in FORMS}
    model = make_model(config, tokenizer)
    if arguments.start is not None:
        load_start(model, tokenizer, arguments.start)
    log.write(weights=sum(p.numel() for p in model.parameters()), before=share_right(model, *held_out["text"]))
    optimizer, average = adamw(model, config["weight_decay"]), Average(model, config["average"])
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape
    schedule = Schedule(config["peak"], config["warmup"], config["steps"], config["seconds"])
    model.train()
    while schedule.advance(optimizer):
        share = min(1.0, config["short"] + (1 - config["short"]) * schedule.progress / config["growing"])
        loss = compute_loss(model, *rows.draw_batch(generator, config["tokens"], share), config["text"])
        take_step(loss, model, optimizer, average)
        if schedule.step % config["every"] == 0:
            right = share_right(model, *held_out["text"])
            log.write(step=schedule.step, seconds=schedule.elapsed, rate=schedule.rate, loss=loss, right=right)
    average.load_into(model)
    tokens = {"bos_token": BEGIN, "eos_token": END, "pad_token": PAD}
    save_decoder(model, tokenizer, arguments.out, config["positions"], **tokens, chat_template=CHAT_TEMPLATE)
    right = {form: share_right(model, *rows) for form, rows in held_out.items()}
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed, **right)


if __name__ == "__main__":
    main()
