"""Distils the pets ViT on one GPU: a frozen teacher speaks about every random view, the student learns to see the same.

    w_1 KL(teacher / T, student / T) + w_2 |A s_8 - z_14|^2 + w_3 |B pool(s_12) - z_7|^2 + w_4 |C cls - z|^2 + w_5 CE

s_8 and s_12: the student's patch tokens after block 8 and after the last norm; z_14, z_7, z: the teacher's 14 x 14,
7 x 7 and pooled features, standardised per channel; A, B, C: linear maps thrown away after training; squares are means
over all numbers. The teacher's head is refitted on the training fold, so nothing is fitted to a held-out photo: their
accuracy is only logged.

    python training/pets/train.py --stage first --data PREPARED --out FIRST
    python training/pets/train.py --stage second --data PREPARED --out SECOND --weights FIRST/average.safetensors

With --seconds it stops in time; the same command goes on from the state it left in --out.
"""

import argparse
import json
import math
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import views
from guide import Guide
from photos import Memory, Photos
from safetensors.torch import load_file, save_file
from student import BREEDS, GRID, WIDTH, Student
from teacher import Teacher
from torch import Tensor, nn

CONFIG = Path(__file__).parent / "config.toml"
LOG_EVERY, TEST_EVERY, SAVE_EVERY = 200, 1000, 5000  # steps


class Distilled(nn.Module):
    """The student with the linear maps to the teacher's features."""

    def __init__(self, temperature: float, weights: list[float]) -> None:
        super().__init__()
        self.temperature, self.weights = temperature, weights
        self.student = Student()
        self.early, self.late, self.pooled = nn.Linear(WIDTH, 160), nn.Linear(WIDTH, 320), nn.Linear(WIDTH, 320)

    def forward(self, small: Tensor, truth: Tensor, seen: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The loss, and its parts unweighted: logits, 14 x 14, 7 x 7, pooled, true breed."""
        mine = self.student(small)
        logits = mine.logits.float()
        early = self.early(F.layer_norm(mine.early, (WIDTH,)))
        late = self.late(mine.late.unflatten(1, (GRID // 2, 2, GRID // 2, 2)).mean((2, 4)))
        parts = (
            self._divergence(logits, seen[3].float()),
            F.mse_loss(early.float(), seen[0].float().flatten(1, 2)),
            F.mse_loss(late.float(), seen[1].float()),
            F.mse_loss(self.pooled(mine.cls).float(), seen[2].float()),
            F.cross_entropy(logits, truth.float()),
        )
        return sum(w * part for w, part in zip(self.weights, parts, strict=True)), torch.stack(parts).detach()

    def _divergence(self, mine: Tensor, guide: Tensor) -> Tensor:
        mine, guide = ((logits / self.temperature).log_softmax(-1) for logits in (mine, guide))
        return F.kl_div(mine, guide, log_target=True, reduction="batchmean")


def mixed_truth(label: Tensor, keep: Tensor, smoothing: float) -> Tensor:
    one_hot = (label[:, None] == torch.arange(BREEDS, device=label.device)) * (1 - smoothing) + smoothing / BREEDS
    return keep[:, None] * one_hot + (1 - keep[:, None]) * one_hot.roll(-1, 0)


def optimiser_for(model: nn.Module, decay: float, fused: bool) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.999), fused=fused)


class Run:
    """Everything that a stop must not lose, and the loop."""

    def __init__(self, config: dict[str, Any], data: Path, out: Path, weights: Path | None):
        self.config, self.out, self.began = config, out, time.monotonic()
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.type = torch.bfloat16 if self.device == "cuda" else torch.float32
        torch.manual_seed(config["seed"])
        torch.set_float32_matmul_precision("high")
        out.mkdir(parents=True, exist_ok=True)
        self.photos = Photos(data / "photos.npz", self.device)
        self.stream, self.memory = self.photos.batches(config["batch"]), Memory(config["remembered"])
        self.note(event="photos", train=len(self.photos.train), test=len(self.photos.test), side=self.photos.side)
        self._build(data / "teacher.safetensors")
        self._start(weights)

    def _build(self, teacher_file: Path) -> None:
        compiled: Callable[..., Any] = torch.compile if self.device == "cuda" else lambda function, **_: function
        # Without the option the compiler recomputes what a depthwise convolution reads for each of its nine shifts.
        teacher = Teacher(load_file(teacher_file)).to(self.device, self.type).eval()
        look = compiled(teacher, dynamic=False, options={"realize_opcount_threshold": 2})
        self.guide = Guide(torch.no_grad()(lambda large: look(large.to(self.type))), self.device)
        self.camera = views.Camera().to(self.device)
        self.shoot = compiled(self.camera, dynamic=False)
        self.model, self.average = (
            Distilled(self.config["temperature"], self.config["weights"]).to(self.device) for _ in range(2)
        )
        self.average.load_state_dict(self.model.requires_grad_(True).state_dict())
        self.average.requires_grad_(False)
        self.optimiser = optimiser_for(self.model, self.config["weight_decay"], fused=self.device == "cuda")
        self.losses = compiled(self.model, dynamic=False)
        self.step = 0

    def _start(self, weights: Path | None) -> None:
        if (self.out / "state.pt").exists():
            return self._resume()
        if weights:
            started = load_file(weights)
            started.pop("step")
            for model in (self.model, self.average):
                model.load_state_dict({name: tensor.float() for name, tensor in started.items()})
        self.guide.fit(self.photos, self.shoot, self.config["batch"], self.config["probe_views"], self.config["probe"])
        self.note(event="teacher", **self.accuracy(lambda _, large: self.guide(large)[3]))

    def _resume(self) -> None:
        state = torch.load(self.out / "state.pt", map_location=self.device, weights_only=True)
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.guide.restore(state["guide"])
        torch.manual_seed(self.config["seed"] + self.step)
        self.note(event="resumed", step=self.step)

    def go(self, seconds: float) -> None:
        while self.step < self.config["steps"] and time.monotonic() - self.began < seconds:
            parts = self.update()
            if self.step % LOG_EVERY == 0:
                self.note(step=self.step, parts=[round(part, 4) for part in parts.tolist()])
            if self.step % TEST_EVERY == 0:
                self.test()
            if self.step % SAVE_EVERY == 0:
                self.save()
        self.test()
        self.save()

    def update(self) -> Tensor:
        """One step; the parts of its loss."""
        with torch.no_grad():
            small, truth, *seen = self.views()
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            loss, parts = self.losses(small, truth, seen)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config["clip"], foreach=True)
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.step += 1
        keep = min(self.config["average"], self.step / (self.step + 10))
        latest = [p.detach() for p in self.model.parameters()]
        torch._foreach_lerp_(list(self.average.parameters()), latest, 1 - keep)
        return parts

    def views(self) -> list[Tensor]:
        """Small views, true breeds and what the teacher sees: new at every second or third step, else remembered."""
        if self.memory.written > self.config["fresh_first"] and self.step % self.config["fresh_every"]:
            return self.memory.draw()
        chosen = next(self.stream)
        view = views.draw(len(chosen), self.photos.side, self.device)
        small, large = self.shoot(self.photos.train[chosen], view)
        truth = mixed_truth(self.photos.train_label[chosen], view.keep, self.config["smoothing"])
        rows = [row.to(self.type) for row in (small, truth, *self.guide(large))]
        self.memory.write(rows)
        return rows

    def rate(self) -> float:
        """Linear warm-up, then half a cosine to zero."""
        step = self.step + 1
        cosine = 0.5 + 0.5 * math.cos(math.pi * min(step / self.config["schedule"], 1))
        return self.config["rate"] * min(step / self.config["warmup"], cosine)

    def accuracy(self, answer: Callable[[Tensor, Tensor], Tensor]) -> dict[str, float]:
        return self.photos.accuracy(answer, self.camera, self.config["batch"])

    def test(self) -> None:
        last = self.accuracy(lambda small, _: self.model.student(small).logits)
        average = self.accuracy(lambda small, _: self.average.student(small).logits)
        self.note(step=self.step, weights="last", **last)
        self.note(step=self.step, weights="average", **average)

    def save(self) -> None:
        state = {"step": self.step, "model": self.model.state_dict(), "average": self.average.state_dict()}
        state |= {"optimiser": self.optimiser.state_dict(), "guide": self.guide.state()}
        torch.save(state, self.out / "state.pt")
        halved = {name: tensor.half().contiguous() for name, tensor in self.average.state_dict().items()}
        save_file({**halved, "step": torch.tensor(self.step)}, self.out / "average.safetensors")

    def note(self, **entry: Any) -> None:
        rounded = {name: round(value, 5) if isinstance(value, float) else value for name, value in entry.items()}
        line = json.dumps({"t": round(time.monotonic() - self.began, 1), **rounded})
        print(line, flush=True)
        with (self.out / "log.jsonl").open("a") as log:
            log.write(line + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", required=True, help="first or second: a table of the config")
    parser.add_argument("--data", type=Path, required=True, help="folder written by prepare.py")
    parser.add_argument("--out", type=Path, required=True, help="folder of the averaged weights, the state and the log")
    parser.add_argument("--weights", type=Path, help="averaged weights to begin with")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after")
    parser.add_argument("--config", type=Path, default=CONFIG)
    arguments = parser.parse_args()
    config = tomllib.loads(arguments.config.read_text())
    config |= config.pop("stage")[arguments.stage]
    Run(config, arguments.data, arguments.out, arguments.weights).go(arguments.seconds)


if __name__ == "__main__":
    main()
