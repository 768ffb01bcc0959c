"""Hops: an answer traced through the tokens that the model generated, hop by hop, to the prompt.

    h = trace_reasoning(model, prompt, select=-1)
    h[0].scores                   relevance per token in hop 0: what `explain` gives
    h[1].received, h[1].to_prompt, h[1].to_generated, h[1].absorbed
    h.total                       relevance per token over all hops
    h.matrix(), h.shares()        [hop region]

In every hop, received = to_prompt + to_generated + absorbed. How a hop is sent: _explain/hops.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from whyformer._model.prompt import Prompt, Region
from whyformer._plain import archive
from whyformer._plain.tokens import number_repeated
from whyformer.results.explanation import Explanation
from whyformer.results.result import Result, choose_formats
from whyformer.show import figures
from whyformer.show.blocks import Block, DataTable, ExampleView, Notes, PromptRegions, Report
from whyformer.show.chips import get_piece_text
from whyformer.show.drawing import Drawing
from whyformer.show.page_facts import collect_facts
from whyformer.show.panel import Panel
from whyformer.show.prompt_view import HopRow, PromptView, list_panel_fields, view_prompt
from whyformer.show.score_rows import CellValue
from whyformer.show.visible import make_visible
from whyformer.show.wording import name_target, shorten_text

MOST_REGIONS = 12  # in the printed table
LONGEST_REGION = 60  # characters of its name and text there


@dataclass(frozen=True)
class Hop:
    """What was sent in one hop, and where it arrived."""

    explanation: Explanation  # of one example: relevance at each token, prompt and generated
    generated: range  # which tokens the model generated
    received: float  # what the hop had to send: the explained score, then what generated tokens received in the last
    sent_by: Mapping[int, float] = field(default_factory=dict)  # generated token -> what it received; empty for hop 0
    absorbed_by: Mapping[str, float] | None = None  # measured step by step, with health=True

    @property
    def scores(self) -> Tensor:
        """[token]: the relevance that arrived, in float64."""
        return self.explanation.scores[0].double()

    @property
    def to_prompt(self) -> float:
        return float(self.scores[: self.generated.start].sum())

    @property
    def to_generated(self) -> float:
        return float(self.scores[self.generated.start :].sum())

    @property
    def absorbed(self) -> float:
        """What arrived at no token: biases, the remainder of softmax and the like took it (negative: they added it)."""
        return self.received - self.to_prompt - self.to_generated

    @property
    def unaccounted(self) -> float | None:
        """Received relevance that neither arrived nor was seen to be absorbed; None without health=True."""
        return None if self.absorbed_by is None else self.absorbed - sum(self.absorbed_by.values())

    @property
    def magnitude(self) -> float:
        """The sum of the absolute relevance at all tokens."""
        return float(self.scores.abs().sum())

    @property
    def magnitude_left(self) -> float:
        """The sum of the absolute relevance at tokens that can send it on."""
        return float(sum(abs(amount) for amount in self.find_senders().values()))

    def find_senders(self) -> dict[int, float]:
        """Generated token -> what it received. The first token of all was predicted from nothing and sends nothing."""
        first = max(self.generated.start, 1)
        scores = self.scores.tolist()
        return {t: scores[t] for t in range(first, len(scores)) if scores[t]}


@dataclass(frozen=True, eq=False, repr=False)
class Hops(Result):
    """The hops of one answer, with the prompt and its regions.

    Files: .html is a page with every hop; .png, .svg and .pdf show the text once for each hop; .json has everything;
    .csv one row for each hop and token; .txt is what is printed.
    """

    formats = choose_formats(".json .csv .html .png .svg .pdf .txt")
    csv_columns = ("hop", "place", "token", "region", "generated", "sent", "score")

    hops: tuple[Hop, ...]
    prompt: Prompt
    regions: tuple[Region, ...]  # parts of the prompt, in order

    def __iter__(self) -> Iterator[Hop]:
        return iter(self.hops)

    def __getitem__(self, number: int) -> Hop:
        return self.hops[number]

    def __repr__(self) -> str:
        return f"<Hops of {make_visible(name_target(self.first.targets[0]))} by {self.method}: {len(self)} hops>"

    def __len__(self) -> int:
        return len(self.hops)

    @property
    def first(self) -> Explanation:
        """Hop 0: the explanation of the target."""
        return self.hops[0].explanation

    @property
    def method(self) -> str:
        return self.first.method

    @property
    def score(self) -> float:
        """The relevance that was put in: the explained score."""
        return self.hops[0].received

    @property
    def total(self) -> Tensor:
        """[token]: relevance over all hops, at the prompt; at generated tokens what was not sent on after the last."""
        total = torch.stack([hop.scores for hop in self.hops]).sum(0)
        start = self.prompt.prompt_length
        total[start:] = self.hops[-1].scores[start:]
        return total

    @property
    def absorbed(self) -> float:
        """What the hops absorbed together: score = sum of total + absorbed."""
        return sum(hop.absorbed for hop in self.hops)

    @property
    def left(self) -> float:
        """The part of the relevance of hop 0, by magnitude, that is left on generated tokens after the last hop."""
        magnitude = self.hops[0].magnitude
        return self.hops[-1].magnitude_left / magnitude if magnitude else 0.0

    @property
    def spent(self) -> dict[str, float]:
        """Passes through the model, all hops together."""
        kinds = dict.fromkeys(kind for hop in self.hops for kind in hop.explanation.spent)
        return {kind: sum(hop.explanation.spent.get(kind, 0.0) for hop in self.hops) for kind in kinds}

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(note for hop in self.hops for note in hop.explanation.notes))

    def matrix(self) -> Tensor:
        """[hop region]: the relevance that arrived at each region of the prompt in each hop."""
        return sum_by_region(torch.stack([hop.scores for hop in self.hops]), self.regions)

    def shares(self) -> Tensor:
        """[hop region]: the same by magnitude, as shares of what arrived at all tokens in that hop.

        They sum to 1 with what arrived at generated tokens and outside of all regions. A region of k of n tokens would
        have k / n by chance.
        """
        sizes = torch.stack([hop.scores for hop in self.hops]).abs()
        return sum_by_region(sizes, self.regions) / sizes.sum(1, keepdim=True).clamp_min(1e-300)

    def by_region(self) -> dict[str, float]:
        """The relevance of each region over all hops, the largest first; regions of one name are numbered: user (2)."""
        sums = sum_by_region(self.total[None], self.regions)[0].tolist()
        pairs = zip(number_repeated([region.name for region in self.regions], "{} ({})"), sums, strict=True)
        return dict(sorted(pairs, key=lambda pair: -pair[1]))

    # --- displaying ---

    def _report(self) -> Report:
        """What went where, hop by hop and region by region, and the text with all hops."""
        view, panel = self.view(), self.first.panels()[0]
        count = len(self.hops) - 1
        words = f"sent on {count} {'time' if count == 1 else 'times'} by the {len(self.prompt.answer)} generated tokens"
        whole = replace(panel, scores=self.total, signed=True, notes=(), check=())
        # One row for each hop: what it received, and where that went.
        rows = [(str(i), hop.received, hop.to_prompt, hop.to_generated, hop.absorbed) for i, hop in enumerate(self)]
        rows += [("all", self.score, sum(hop.to_prompt for hop in self), self.hops[-1].to_generated, self.absorbed)]
        brief: list[Block] = [
            f"{words[0].upper()}{words[1:]}; {self.left:.1%} of the relevance is left on them.",
            DataTable(("hop", "received", "to prompt", "to generated", "absorbed"), rows),
            *([describe_absorbers(self)] if self.hops[0].absorbed_by is not None else []),
            *([tabulate_regions(self)] if self.regions else []),
            *(["All hops together:", ExampleView(whole, is_titled=False)] if view.is_short else [PromptRegions(view)]),
            Notes(self.notes),
        ]
        return Report(view.headline, [PromptRegions(view)], facts=collect_facts(panel), brief=brief)

    def panels(self) -> list[Panel]:
        """One panel per hop."""
        return [hop.explanation.panels(f"hop {number}")[0] for number, hop in enumerate(self.hops)]

    def draw(self) -> Drawing:
        """A figure with the text once for each hop, coloured by the relevance that arrived in it."""
        panels = self.panels()
        names = [panel.label for panel in panels]
        alt = f"{len(panels)} hops from {name_target(panels[0].target)}, by {self.method}"
        return figures.draw_panel_table([("", panels)], names, title="", alt=alt)

    def view(self) -> PromptView:
        """The prompt with its scores over all hops, for display."""
        return view_prompt(
            self.prompt,
            self.regions,
            headline=f"Where does {name_target(self.first.targets[0])} come from?",
            scores=self.total,
            hops=[HopRow(f"hop {i}", hop.scores, hop.received, hop.absorbed) for i, hop in enumerate(self.hops)],
            **list_panel_fields(self.first.panels()[0]) | {"signed": True, "notes": self.notes},
        )

    def to_fields(self) -> archive.WrittenFields:
        """Everything as plain values, for a file."""
        return {
            **{name: getattr(self.first, name) for name in ("model", "method", "settings", "versions")},
            "target": self.first.targets[0],
            "text": self.prompt.text,
            "tokens": [get_piece_text(self.prompt.pieces, i) for i in range(len(self.prompt.ids))],
            "ids": self.prompt.ids,
            "prompt_length": self.prompt.prompt_length,
            "regions": [
                {name: getattr(one, name) for name in ("name", "kind", "start", "stop")} for one in self.regions
            ],
            "score": self.score,
            "total": self.total.tolist(),
            **{name: getattr(self, name) for name in ("absorbed", "left", "spent", "notes")},
            "matrix": self.matrix().tolist(),
            "shares": self.shares().tolist(),
            "hops": [list_hop_fields(hop) for hop in self.hops],
        }

    def _list_rows(self) -> Iterator[tuple[CellValue, ...]]:
        """One row for each hop and token."""
        names = {index: region.name for region in self.regions for index in range(region.start, region.stop)}
        for number, hop in enumerate(self):
            for index, score in enumerate(hop.scores.tolist()):
                token = get_piece_text(self.prompt.pieces, index)
                is_generated = index in hop.generated
                yield number, index, token, names.get(index), is_generated, hop.sent_by.get(index), score


def list_hop_fields(hop: Hop) -> archive.Fields:
    """What a file has of one hop."""
    amounts = {name: getattr(hop, name) for name in ("received", "to_prompt", "to_generated", "absorbed")}
    return {**amounts, "absorbed_by": hop.absorbed_by, "scores": hop.scores.tolist(), "sent_by": hop.sent_by}


def sum_by_region(scores: Tensor, regions: tuple[Region, ...]) -> Tensor:
    """[hop region] from [hop token]."""
    sums = [scores[:, region.start : region.stop].sum(1) for region in regions]
    return torch.stack(sums, dim=1) if sums else scores.new_zeros(len(scores), 0)


# --- tables ---------------------------------------------------------------------------------------------------------


def describe_absorbers(hops: Hops) -> str:
    """What absorbed how much over all hops, and whether the totals balance; with health=True."""
    sums: dict[str, float] = {}
    for hop in hops:
        for what, amount in (hop.absorbed_by or {}).items():
            sums[what] = sums.get(what, 0.0) + amount
    scale = max(hop.magnitude for hop in hops)
    largest = sorted(sums.items(), key=lambda pair: -abs(pair[1]))
    named = ", ".join(f"{what} {amount:.3g}" for what, amount in largest if abs(amount) > 1e-3 * scale)
    error = max(abs(hop.unaccounted or 0.0) for hop in hops) / max(scale, 1e-300)
    return f"Absorbed by {named or 'nothing'}; relevance totals balance to {error:.0e}."


def tabulate_regions(hops: Hops) -> DataTable:
    """One row for each region: its share in each hop; those with the most relevance over all hops."""
    shares, totals = hops.shares(), sum_by_region(hops.total[None], hops.regions)[0]
    shown = totals.abs().argsort(descending=True, stable=True)[:MOST_REGIONS].sort().values.tolist()
    rows = [
        [
            shorten_text(make_visible(f"{hops.regions[i].name}: {hops.regions[i].text}"), LONGEST_REGION),
            float(totals[i]),
            *(f"{share:.1%}" for share in shares[:, i].tolist()),
        ]
        for i in shown
    ]
    rest = f" (the strongest {len(shown)} of {len(hops.regions)})" if len(shown) < len(hops.regions) else ""
    head = ("region", "all hops", *(f"hop {number}" for number in range(len(hops))))
    return DataTable(head, rows, caption=f"Relevance of regions over all hops, and shares of each hop{rest}")
