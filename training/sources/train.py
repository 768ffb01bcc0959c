"""Train the readers of sources: python training/sources/train.py --out FOLDER [--shape llama neox qwen]

Each shape learns in a process of its own, from the same rows, which other processes generate meanwhile; on one H200
with 16 cores all three take eight minutes together (with CUDA's multi-process service, by which their steps share the
GPU; without it they take turns, and fewer steps). The other processes need a core each: from 150,000 rows every shape
only learnt half of the answers, from 700,000 they learn to read. Short rows come first, and those of similar length
make a batch. The loss is that of the answers, and with a smaller weight that of other tokens. On a GPU a step is one
CUDA graph for each length of rows; a shape whose steps cannot be recorded starts again without. The log has the share
of held-out questions that are answered right, by kind and world; the weights are saved as it goes.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from source_rows import make_source_tokenizer, start_writing
from torch import Tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.utils import clip_grad_norm_
from transformers import AttentionInterface, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Average, Log, Schedule, adamw, device, make_decoder, read_config, save_decoder
from rows import BEGIN, CHAT_TEMPLATE, END, PAD, Rows, arrange, encode_rows, find_special_ids

from whyformer_papers.worlds import sources
from whyformer_papers.worlds.sources_words import SOURCE_WORLDS

SAVE_EVERY = 60  # seconds
PARTS_FIRST = 4  # of rows from each worker, before the first step: of fewer rows, answers are learnt by heart
CANNOT_RECORD = 75  # exit status
MOST_RECORDINGS = 300  # steps in which a recording may fail


def attend_causally(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, *, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Attention to all earlier tokens. No mask is made, and nothing waits for the GPU to look at one."""
    groups = query.shape[1] // key.shape[1]
    key, value = (one.repeat_interleave(groups, 1) if groups > 1 else one for one in (key, value))
    mixed = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    return mixed.transpose(1, 2).contiguous(), None


AttentionInterface.register("causal", attend_causally)


def make_model(config: dict[str, Any]) -> PreTrainedModel:
    tokenizer = make_source_tokenizer()
    special = find_special_ids(tokenizer)
    model = make_decoder(config, config["decoder"], tokenizer.get_vocab_size(), **special)
    model.set_attn_implementation("causal")
    return model


def compute_loss(logits: Tensor, ids: Tensor, answers: Tensor, text: float) -> Tensor:
    """The mean loss of the answers, and with the weight `text` that of the other tokens. Waits for nothing."""
    wanted, is_answer = ids[:, 1:], answers[:, 1:].float()
    is_text = (1 - is_answer) * (wanted != 0)
    losses = cross_entropy(logits[:, :-1].flatten(0, 1).float(), wanted.flatten(), reduction="none").view_as(wanted)
    return sum(
        weight * (losses * of).sum() / of.sum().clamp(min=1) for weight, of in ((1.0, is_answer), (text, is_text))
    )


class Steps:
    """Steps down the loss, with the gradient clipped at norm 1, and the average of the weights.

    recorded: a step for each shape of a batch is recorded as a CUDA graph when that shape comes for the first time. The
    graphs share their memory: none needs what another one has left there.
    """

    def __init__(self, model: PreTrainedModel, config: dict[str, Any], *, recorded: bool) -> None:
        self.model, self.text, self.recorded = model, config["text"], recorded
        self.optimizer = adamw(model, config["weight_decay"], recorded=recorded)
        self.average = Average(model, config["average"])
        self.graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Tensor]] = {}
        self.pool = torch.cuda.graph_pool_handle() if recorded else None
        self.done = torch.cuda.Event(blocking=True) if recorded else None

    def take(self, ids: Tensor, answers: Tensor) -> Tensor:
        """The loss before the step."""
        if self.recorded and ids.shape not in self.graphs:
            self._record(ids, answers)
        if not self.recorded:
            loss = self._go_down(ids, answers)
        else:
            graph, own_ids, own_answers, loss = self.graphs[ids.shape]
            own_ids.copy_(ids)
            own_answers.copy_(answers)
            self.done.synchronize()  # asleep: the core is free for those that write rows
            graph.replay()
            self.done.record()
        self.average.update()
        return loss

    def _go_down(self, ids: Tensor, answers: Tensor) -> Tensor:
        with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda", cache_enabled=False):
            logits = self.model(input_ids=ids, use_cache=False).logits
        loss = compute_loss(logits, ids, answers, self.text)
        self.optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def _record(self, ids: Tensor, answers: Tensor) -> None:
        """A step that is taken, so that all is there that a first step makes, and one that is only recorded."""
        now, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(now)
        with torch.cuda.stream(aside):
            self._go_down(ids, answers)
        now.wait_stream(aside)
        self.optimizer.zero_grad()
        graph, own = torch.cuda.CUDAGraph(), (ids.clone(), answers.clone())
        with torch.cuda.graph(graph, pool=self.pool):
            loss = self._go_down(*own)
        self.optimizer.zero_grad()
        self.graphs[ids.shape] = (graph, *own, loss)


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


def train(out: Path, folder: Path, config: dict[str, Any], *, recorded: bool, begun: float) -> None:
    """One model, from the rows that come into the folder.

    begun: when everything began, on the clock of time.monotonic(); the seconds of the configuration count from there.
    """
    torch.manual_seed(config["seed"])
    log, generator = Log(out / "training.jsonl"), np.random.default_rng(config["seed"])
    held_out, model = HeldOut(config["held_out"]), make_model(config)
    weights = sum(p.numel() for p in model.parameters())
    log.write(config=config, weights=weights, device=str(device()), recorded=recorded)
    taken = wait_for_rows(folder, PARTS_FIRST * config["workers"])
    rows = Rows(load_parts(taken))
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape
    steps = Steps(model, config, recorded=recorded)
    schedule = Schedule(config["peak"], config["warmup"], 10**9, config["seconds"] - (time.monotonic() - begun))
    model.train()
    logged = saved = highest = 0.0
    while schedule.advance(steps.optimizer):
        share = min(1.0, config["short"] + (1 - config["short"]) * schedule.progress / config["growing"])
        ids, answers = rows.draw_batch(generator, config["tokens"], share)
        try:
            loss = steps.take(ids, answers)
        except RuntimeError as error:
            if not recorded or schedule.step > MOST_RECORDINGS:
                raise
            give_up_recording(log, str(error))
        highest = max(highest, float(loss)) if schedule.step < 10 else highest
        if schedule.elapsed - logged > config["every"]:
            if recorded and not logged and not loss < highest / 2:
                give_up_recording(log, f"the loss is {float(loss)} after {schedule.step} steps")
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
            save_average(model, steps.average, out, config)
    save_average(model, steps.average, out, config)
    steps.average.load_into(model)
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed, right=held_out.measure(model))


def give_up_recording(log: Log, reason: str) -> NoReturn:
    log.write(cannot_record=reason[:500])
    sys.exit(CANNOT_RECORD)


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
    parser.add_argument("--shape", nargs="+", help="some of those in the configuration; by default all")
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("config.toml"))
    parser.add_argument("--rows", type=Path, help="a folder that rows come into; for the processes that this starts")
    parser.add_argument("--recorded", action="store_true", help="steps as CUDA graphs; for the same processes")
    parser.add_argument("--begun", type=float, default=time.monotonic(), help="for the same processes")
    arguments = parser.parse_args()
    config = read_config(arguments.config)
    shapes = config.pop("shapes")
    disable_progress_bar()
    if arguments.rows:
        own = config | shapes[arguments.shape[0]]
        train(arguments.out, arguments.rows, own, recorded=arguments.recorded, begun=arguments.begun)
        return
    with tempfile.TemporaryDirectory() as rows, start_writing(Path(rows), config):

        def start(shape: str, *, recorded: bool) -> "subprocess.Popen[bytes]":
            own = [sys.executable, __file__, "--config", str(arguments.config), "--rows", rows, "--shape", shape]
            own += ["--out", str(arguments.out / shape), "--begun", str(arguments.begun)]
            return subprocess.Popen([*own, *["--recorded"] * recorded])

        learning = {shape: start(shape, recorded=device().type == "cuda") for shape in arguments.shape or shapes}
        while any(one.poll() in (None, CANNOT_RECORD) for one in learning.values()):
            again = [shape for shape, one in learning.items() if one.returncode == CANNOT_RECORD]
            learning |= {shape: start(shape, recorded=False) for shape in again}
            time.sleep(0.5)
        sys.exit(max(one.returncode for one in learning.values()))


if __name__ == "__main__":
    main()
