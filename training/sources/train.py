"""Train the readers of sources: python training/sources/train.py --out FOLDER [--shape llama neox qwen]

Each shape learns in a process of its own, from the same rows, which other processes generate meanwhile; on one H200 all
three take seven minutes together. Rows of similar length make a batch, short rows first. The loss is that of the
answers, and with a smaller weight that of other tokens. The log has the share of held-out questions that are answered
right, by kind and world; the weights are saved as it goes.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from source_rows import make_source_tokenizer, start_writing
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import DECODERS, Average, Log, Schedule, adamw, device, make_decoder, read_config, save_decoder, take_step
from rows import BEGIN, CHAT_TEMPLATE, END, PAD, Rows, arrange, encode_rows, find_special_ids

from whyformer.demo import sources
from whyformer.demo.sources_words import SOURCE_WORLDS

SAVE_EVERY = 60  # seconds


def make_model(shape: str, config: dict[str, Any]) -> PreTrainedModel:
    tokenizer = make_source_tokenizer()
    return make_decoder(
        {**config, **config["shapes"][shape]}, shape, tokenizer.get_vocab_size(), **find_special_ids(tokenizer)
    )


def compute_loss(logits: Tensor, ids: Tensor, answers: Tensor, text: float) -> Tensor:
    """The mean loss of the answers, and with the weight `text` that of the other tokens. Waits for nothing."""
    wanted, is_answer = ids[:, 1:], answers[:, 1:].float()
    is_text = (1 - is_answer) * (wanted != 0)
    losses = cross_entropy(logits[:, :-1].flatten(0, 1).float(), wanted.flatten(), reduction="none").view_as(wanted)
    return sum(
        weight * (losses * of).sum() / of.sum().clamp(min=1) for weight, of in ((1.0, is_answer), (text, is_text))
    )


class HeldOut:
    """Held-out questions by kind and world, as rows of one question; a contradicted one has two right answers."""

    def __init__(self, count: int) -> None:
        rng, tokenizer = random.Random(0), make_source_tokenizer()
        groups: dict[str, Sequence[sources.SourceQuestion]] = {
            f"{world} {kind}": sources.generate(count, 99, world=world, kind=kind)
            for world in SOURCE_WORLDS
            for kind in sources.SOURCE_KINDS
        }
        groups["50 passages"] = sources.generate(count, 99, kind="one", passages=50)
        self.names, self.rows = list(groups), []
        for questions in groups.values():
            accepted = [list_accepted(asked) for asked in questions]
            ids, answers = encode_rows(tokenizer, [arrange(rng, [one], "text") for some in accepted for one in some])
            owners = [i for i, some in enumerate(accepted) for _ in some]
            longest = max(map(len, ids))
            padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids]).to(device())
            marked = torch.tensor([row + [False] * (longest - len(row)) for row in answers]).to(device())
            self.rows.append((padded, marked, torch.tensor(owners, device=device()), len(questions)))

    @torch.no_grad()
    def measure(self, model: PreTrainedModel) -> dict[str, float]:
        """The share of questions of each group of which every answer token is the most likely one."""
        shares = []
        for ids, answers, owners, count in self.rows:
            with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
                best = model(input_ids=ids, use_cache=False).logits[:, :-1].argmax(-1)
            right = ((best == ids[:, 1:]) | ~answers[:, 1:]).all(-1).float()
            shares.append(torch.zeros(count, device=device()).scatter_reduce(0, owners, right, "amax").mean())
        return {name: round(share, 3) for name, share in zip(self.names, torch.stack(shares).tolist(), strict=True)}


def list_accepted(asked: sources.SourceQuestion) -> list[sources.SourceQuestion]:
    """The question with each of its right answers."""
    if asked.kind != "contradicted":
        return [asked]
    world, (claim,) = SOURCE_WORLDS[asked.world], asked.claims
    found = sources.find_values(world, sources.list_statements(asked.passages), claim.query)
    return [asked.answer_with([value]) for _, value in found]


def wait_for_rows(folder: Path, parts: int) -> list[Path]:
    while len(found := sorted(folder.glob("?????.npz"))) < parts:
        time.sleep(0.1)
    return found


def load_parts(files: Sequence[Path]) -> dict[str, np.ndarray]:
    parts = [dict(np.load(file)) for file in files]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def train(shape: str, out: Path, folder: Path, config: dict[str, Any]) -> None:
    """One model, from the rows that come into the folder."""
    torch.manual_seed(config["seed"])
    log, generator = Log(out / "training.jsonl"), np.random.default_rng(config["seed"])
    held_out, model = HeldOut(config["held_out"]), make_model(shape, config)
    log.write(shape=shape, config=config, weights=sum(p.numel() for p in model.parameters()), device=str(device()))
    taken = wait_for_rows(folder, config["workers"])
    rows = Rows(load_parts(taken))
    optimizer, average = adamw(model, config["weight_decay"]), Average(model, config["average"])
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape
    schedule = Schedule(config["peak"], config["warmup"], 10**9, config["seconds"])
    model.train()
    logged = saved = 0.0
    while schedule.advance(optimizer):
        share = min(1.0, config["short"] + (1 - config["short"]) * schedule.progress / config["growing"])
        ids, answers = rows.draw_batch(generator, config["tokens"], share)
        with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
            logits = model(input_ids=ids, use_cache=False).logits
        loss = compute_loss(logits, ids, answers, config["text"])
        take_step(loss, model, optimizer, average)
        if schedule.elapsed - logged > config["every"]:
            logged = schedule.elapsed
            new = [file for file in sorted(folder.glob("?????.npz")) if file not in taken]
            if new:
                rows.add(load_parts(new))
                taken += new
            log.write(
                step=schedule.step, seconds=logged, rate=schedule.rate, share=share, rows=int(rows.counts.sum()),
                loss=loss, right=held_out.measure(model),
            )  # fmt: skip
        if schedule.elapsed - saved > SAVE_EVERY:
            saved = schedule.elapsed
            save_average(model, average, out, config)
    save_average(model, average, out, config)
    average.load_into(model)
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed, right=held_out.measure(model))


def save_average(model: PreTrainedModel, average: Average, out: Path, config: dict[str, Any]) -> None:
    """The averaged weights; training goes on from its own."""
    own = [p.detach().clone() for p in model.parameters()]
    average.load_into(model)
    tokens = {"bos_token": BEGIN, "eos_token": END, "pad_token": PAD}
    save_decoder(model, make_source_tokenizer(), out, config["positions"], **tokens, chat_template=CHAT_TEMPLATE)
    with torch.no_grad():
        torch._foreach_copy_(list(model.parameters()), own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the models are written, each in a folder")
    parser.add_argument("--shape", nargs="+", choices=DECODERS, default=list(DECODERS))
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("config.toml"))
    parser.add_argument("--rows", type=Path, help="a folder that rows come into; for the processes that this starts")
    arguments = parser.parse_args()
    config = read_config(arguments.config)
    disable_progress_bar()
    if arguments.rows:
        train(arguments.shape[0], arguments.out, arguments.rows, config)
        return
    with tempfile.TemporaryDirectory() as folder, start_writing(Path(folder), config):
        own = [sys.executable, __file__, "--config", str(arguments.config), "--rows", folder]
        learning = [
            subprocess.Popen([*own, "--shape", shape, "--out", str(arguments.out / shape)]) for shape in arguments.shape
        ]
        sys.exit(max(one.wait() for one in learning))


if __name__ == "__main__":
    main()
