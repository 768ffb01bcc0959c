"""Where a look is logged: a folder, TensorBoard, MLflow or Weights & Biases.

A tracker has one method, `log(look)`. Those of other libraries write to what is open there: the writer of TensorBoard
that you pass, the active run of MLflow, the run of W&B.
"""

import json
import os
import re
from collections.abc import Sequence
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from whyformer._plain import archive
from whyformer.errors import OutputError
from whyformer.integrations.watch import Look
from whyformer.show import page
from whyformer.show.blocks import DataTable, Methods, Notes, PageSection, Report
from whyformer.show.page_facts import collect_facts
from whyformer.show.wording import describe_target, format_certainty, shorten_text

PREFIX = "whyformer"


class Tracker(Protocol):
    """What a callback logs to."""

    def log(self, look: Look) -> None:
        """Write the numbers, a figure and, if what the model looks at jumped, a message."""


def import_optional(module: str, extra: str) -> Any:
    """A library that only this tracker needs."""
    try:
        return import_module(module)
    except ImportError as error:
        raise OutputError(
            f"{module} cannot be imported ({error}). Install it: pip install 'whyformer[{extra}]'.", code="E_OPTION"
        ) from None


def draw_look(look: Look) -> Image.Image:
    """One figure of all examples."""
    return Image.open(BytesIO(look.explanation.draw().png())).convert("RGB")


class FolderTracker:
    """Files: `looks.jsonl` with a line per look, and `run.html`, the examples over the steps."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder, self.looks = Path(folder), list[Look]()

    def log(self, look: Look) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.looks.append(look)
        line = {"step": look.step, **look.scalars(), "jumped": look.jumped}
        with (self.folder / "looks.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        archive.write_file(self.folder / "run.html", make_run_page(self.looks).encode("utf-8"))


class TensorBoardTracker:
    """Scalars, a figure and messages in TensorBoard; pass a folder, or the SummaryWriter that you have."""

    def __init__(self, writer: Any) -> None:
        if isinstance(writer, str | os.PathLike):
            import_optional("tensorboard", "tensorboard")
            writer = import_optional("torch.utils.tensorboard", "tensorboard").SummaryWriter(os.fspath(writer))
        self.writer = writer

    def log(self, look: Look) -> None:
        for name, value in look.scalars().items():
            self.writer.add_scalar(f"{PREFIX}/{name}", value, look.step)
        figure = np.asarray(draw_look(look))
        self.writer.add_image(f"{PREFIX}/looks at", figure, look.step, dataformats="HWC")
        if look.message:
            self.writer.add_text(f"{PREFIX}/jumps", look.message, look.step)
        self.writer.flush()


class MlflowTracker:
    """Metrics, and a page for each look as an artifact, in the active run of MLflow or the run with this id."""

    def __init__(self, run_id: str | None = None) -> None:
        self.mlflow, self.run_id = import_optional("mlflow", "mlflow"), run_id

    def log(self, look: Look) -> None:
        numbers = {as_metric_name(f"{PREFIX}/{name}"): value for name, value in look.scalars().items()}
        self.mlflow.log_metrics(numbers, step=look.step, run_id=self.run_id)
        page = look.explanation.formats[".html"](look.explanation).decode("utf-8")
        self.mlflow.log_text(page, f"{PREFIX}/step-{look.step:06d}.html", run_id=self.run_id)
        if look.message:
            self.mlflow.set_tag(f"{PREFIX}.jump", look.message[:500])


class WandbTracker:
    """Numbers and a figure for each look in a run of Weights & Biases; pass it, or the current run is used."""

    def __init__(self, run: Any = None) -> None:
        self.wandb = import_optional("wandb", "wandb")
        self.run = run or self.wandb.run
        if self.run is None:
            raise OutputError("There is no run of W&B. Call wandb.init(mode='offline') first.", code="E_OPTION")

    def log(self, look: Look) -> None:
        numbers = {f"{PREFIX}/{name}": value for name, value in look.scalars().items()}
        self.run.log({**numbers, f"{PREFIX}/looks at": self.wandb.Image(draw_look(look)), f"{PREFIX}/step": look.step})
        if look.message:
            self.run.alert(title="What the model looks at jumped", text=look.message)


def as_metric_name(name: str) -> str:
    """MLflow takes letters, digits, blanks and some signs."""
    return re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII)


# --- the page of a run ------------------------------------------------------------------------------------------------

MOST_STEPS = 8  # with a map each; the table has all


def make_run_page(looks: Sequence[Look]) -> str:
    """The whole file. Maps are those of the first and the last look and of some between, evenly spaced."""
    panels = [look.explanation.panels() for look in looks]
    shown = sorted({round(i * (len(looks) - 1) / (MOST_STEPS - 1)) for i in range(MOST_STEPS)})
    sections = []
    for example, last in enumerate(panels[-1]):
        rows = [describe_step(look, example) for look in looks]
        maps = {name_step(looks[i], example): panels[i][example] for i in reversed(shown)}
        head = ("step", "explained", "probability", "evidence moved since")
        table = DataTable(head, rows, shorten_text(last.title, 60))
        sections.append(PageSection(shorten_text(last.title, 120), [table, Methods(maps)], is_example=True))
    first = panels[-1][0]
    lead = f"{len(looks)} looks at {len(panels[-1])} examples while {first.model} was trained, by {first.label}."
    jumps = [look.message for look in looks if look.message]
    return page.make_report_page(Report("A training run", [Notes(jumps), *sections], lead, collect_facts(first)))


def name_step(look: Look, example: int) -> str:
    return f"step {look.step}: {describe_target(look.explanation.targets[example])}"


def describe_step(look: Look, example: int) -> tuple[int, str, str, str]:
    target = look.explanation.targets[example]
    moved = "" if look.moved is None else f"{look.moved[example]:.0%}"
    return look.step, describe_target(target), format_certainty(target), moved
