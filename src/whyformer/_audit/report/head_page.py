"""The page on which heads are swapped: one file, no network, the answers computed beforehand (head_swaps.py).

The script (head_page.js) runs under a policy that allows nothing else, and writes text as text: tokens, labels and
names are never markup. The choice is in the address, as `#example=0&block=3&head=1&swap=uniform`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from whyformer._audit.checks import SwapExample, rebuild_tokens
from whyformer._audit.report.findings import write_indented_json
from whyformer._audit.report.summary import label_class
from whyformer._plain import archive
from whyformer._plain.json_value import JsonValue
from whyformer._plain.tokens import Grid
from whyformer.results.result import Result
from whyformer.show import report as html
from whyformer.show.chips import make_chips
from whyformer.show.page_colours import COLOUR_LEVELS
from whyformer.show.page_facts import format_settings, list_facts
from whyformer.show.report import Html
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible

TITLE = "What if this head attended elsewhere?"
SCRIPT = Path(__file__).with_name("head_page.js").read_text("utf-8")
CHOOSERS = {"example": "Example", "block": "Block", "head": "Head", "swap": "Attends to instead"}
SAVED = ("model", "labels", "blocks", "settings", "versions", "notes", "examples")  # in this order
KIND_TITLES = dict(
    uniform="uniform weights", permuted="its weights in a random order", adversarial="adversarial weights"
)
STYLE = """
.chooser { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(11rem, 46%), 1fr)); gap: .6rem 1rem; }
.chooser label { display: block; font-size: .85rem; color: var(--dim); }
.chooser label.whole { grid-column: 1 / -1; }
select { width: 100%; font: inherit; color: var(--ink); background: var(--raised); border: 1px solid var(--line);
  border-radius: 4px; padding: .3rem .4rem; text-overflow: ellipsis; }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1rem 2rem; margin: 1rem 0; }
@media (max-width: 44rem) { .pair { grid-template-columns: minmax(0, 1fr); } }
.answer { display: grid; grid-template-columns: minmax(4rem, max-content) minmax(0, 1fr) 4.5rem; gap: .25rem .6rem;
  align-items: center; margin-top: .6rem; font-size: .9rem; font-variant-numeric: tabular-nums; }
.answer .track { background: var(--raised); border: 1px solid var(--line); border-radius: 3px; height: .9rem; }
.answer .fill { background: var(--c0); height: 100%; border-radius: 2px; }
.answer .first { font-weight: 600; }
.patches { display: grid; gap: 1px; max-width: 16rem; }
.patches span { aspect-ratio: 1; border-radius: 1px; }
.cells td { padding: 0; border: 0; }
.cells button { font: inherit; font-size: .75rem; width: 3.6rem; padding: .3rem 0; border: 2px solid transparent;
  border-radius: 3px; cursor: pointer; font-variant-numeric: tabular-nums; }
.cells button[aria-pressed=true] { border-color: var(--accent); }
.cells th { font-weight: 400; font-size: .75rem; padding: 0 .4rem 0 0; border: 0; white-space: nowrap;
  vertical-align: middle; }
.cells .u0 { background: var(--raised); }
"""


@dataclass(frozen=True, eq=False, repr=False)
class HeadSwaps(Result):
    """The answers of a model when one head attends differently: for each example, block, head and replacement."""

    examples: tuple[SwapExample, ...]
    blocks: tuple[int, ...]
    model: str
    labels: tuple[str, ...] | None
    settings: Mapping[str, JsonValue]
    versions: Mapping[str, str]
    notes: tuple[str, ...] = ()

    formats: ClassVar[Mapping[str, Callable[[Any], bytes]]] = {
        ".html": lambda swaps: make_head_page(swaps).encode("utf-8"),
        ".json": lambda swaps: write_indented_json("head swaps", {name: getattr(swaps, name) for name in SAVED}),
        ".txt": lambda swaps: (swaps.render() + "\n").encode("utf-8", "backslashreplace"),
    }

    def __len__(self) -> int:
        return len(self.examples)

    def __repr__(self) -> str:
        return f"<HeadSwaps of {make_visible(self.model)}: {len(self)} examples>"

    def render(self, screen: Screen | None = None) -> str:
        """For each replacement, the head whose swap moves the predicted probability most, over all examples."""
        lines = [f"Swapped heads of {make_visible(self.model)}, {len(self)} examples"]
        for kind, (moved, example, block, head) in sorted(self.find_largest().items()):
            lines.append(f"  {kind}: {moved:+z.3f} at most, example {example}, block {block}, head {head}")
        return "\n".join([*lines, *(f"note: {make_visible(note)}" for note in self.notes)])

    def find_largest(self) -> dict[str, tuple[float, int, int, int]]:
        """For each replacement the largest change of the predicted probability, and its example, block and head."""
        largest: dict[str, tuple[float, int, int, int]] = {}
        for i, example in enumerate(self.examples):
            for block, heads in zip(self.blocks, example["heads"], strict=True):
                for head, one in enumerate(heads):
                    for swap in one["swaps"]:
                        kind = "another head" if swap["head"] is not None else swap["kind"]
                        moved = swap["after"][0] - example["before"][0]
                        if kind not in largest or abs(moved) > abs(largest[kind][0]):
                            largest[kind] = moved, i, block, head
        return largest

    def records(self) -> list[dict[str, object]]:
        """One mapping per example, block, head and replacement: the probability before and after."""
        return [
            {"example": i, "block": block, "head": head, "kind": swap["kind"], "other_head": swap["head"]}
            | {"before": example["before"][0], "after": swap["after"][0]}
            for i, example in enumerate(self.examples)
            for block, heads in zip(self.blocks, example["heads"], strict=True)
            for head, one in enumerate(heads)
            for swap in one["swaps"]
        ]

    def to_html(self) -> str:
        """What a notebook shows: the largest changes. The page itself needs its script."""
        rows = [[kind, *found] for kind, found in sorted(self.find_largest().items())]
        table = html.make_table(["replaced by", "change", "example", "block", "head"], rows, caption="Largest changes")
        hint = html.make_element("p", 'Save it as "heads.html" to swap heads by hand.', class_="dim")
        return html.make_fragment(html.make_section(f"Swapped heads of {self.model}", table, hint))


def make_head_page(swaps: HeadSwaps) -> str:
    """The whole page."""
    element = html.make_element
    choosers = [
        element("label", title, element("select", id=name), class_="whole" if name == "example" else None)
        for name, title in CHOOSERS.items()
    ]
    choose = html.make_section(
        "Choose a head and what it attends to instead",
        element("div", *choosers, class_="chooser"),
        element("p", id="summary", aria_live="polite"),
        anchor="choose",
    )
    columns = [
        element(
            "div",
            element("h3", title, id=f"{side}-title"),
            element("div", id=f"{side}-text", class_="text"),
            element("div", id=f"{side}-answer", class_="answer"),
        )
        for side, title in (("before", "Observed"), ("after", "Replaced"))
    ]
    show = html.make_section("Attention and answer", element("div", *columns, class_="pair"), anchor="show")
    heads = html.make_section(
        "Every head",
        html.make_scrollable(element("table", id="cells", class_="cells"), "Change by block and head"),
        remark="Change of the predicted probability when this head alone is replaced in the chosen way. Click a head.",
        anchor="heads",
    )
    how = html.make_section("How this was computed", *explain_swaps(swaps), anchor="how")
    without = element("noscript", element("p", "This page needs JavaScript to swap heads."))
    return html.make_page(
        TITLE,
        [without, choose, show, heads, how],
        lead=f"{swaps.model}, {len(swaps)} examples. The weights of one head are replaced; everything after it is "
        "computed anew.",
        about=list_facts(swaps.model, {}, swaps.versions, settings=format_settings({"": swaps.settings})),
        style=STYLE,
        script=SCRIPT,
        # What the script reads. Text is made visible here, so that it shows the same everywhere.
        data={
            "blocks": list(swaps.blocks),
            "levels": COLOUR_LEVELS,
            "titles": KIND_TITLES,
            "examples": [describe_shown_example(example, swaps.labels) for example in swaps.examples],
        },
    )


def explain_swaps(swaps: HeadSwaps) -> list[Html]:
    steps, candidates = swaps.settings["steps"], swaps.settings["candidates"]
    lines = [
        "Shown is what the head attends to at the position where the output is read. Replaced are the weights of all "
        "queries that the output depends on: in the last block of a model that reads its output at one token, of that "
        "token alone.",
        f"Adversarial weights are searched for (candidates: {candidates}, steps: {steps}): as far from the head's "
        f"own as possible, with an answer that changes by at most {swaps.settings['tolerance']:g}. Where there was no "
        "search, or it found none, there is no such choice.",
        "That an answer stays the same does not show that the head is not used: other heads and the residual stream "
        "carry the same information.",
    ]
    return [html.make_element("p", line) for line in lines] + ([html.make_notes(swaps.notes)] if swaps.notes else [])


# --- the data of the page ---------------------------------------------------------------------------------------------


def describe_shown_example(example: SwapExample, labels: tuple[str, ...] | None) -> archive.Fields:
    tokens = rebuild_tokens(example)
    shown: dict[str, JsonValue] = {"grid": example["grid"], "chips": None, "tail": ""}
    if not isinstance(tokens, Grid):
        chips, tail = make_chips(tokens, torch.zeros(len(tokens)))
        shown["chips"] = [[chip.text, chip.before, chip.special, list(chip.positions)] for chip in chips]
        shown["tail"] = tail
    text = example["text"] if example["text"] is not None else example["name"]
    return {
        **shown,
        "name": make_visible(" ".join(str(text).split()))[:160],
        "labels": [make_visible(label_class(index, labels, "class ")) for index in example["classes"]],
        "before": example["before"],
        "heads": example["heads"],
    }
