"""An attention view: what every head of every layer attends to, and how strongly the answer depends on it.

    view = inspect_attention(model, "cat.jpg")
    view.draw("attention"); view.draw("gradient"); view.draw("relevance")      # layers x heads
    view.tokens(layer=-1, head=2)                                              # which token attends to which

`view.save("attention.html")` writes a page with all of these.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from whyformer._engine import Target
from whyformer._model import KeptImage
from whyformer._plain.tokens import Grid, ScoredTokens
from whyformer.errors import InputError
from whyformer.results.result import Result, choose_formats
from whyformer.show import head_figures
from whyformer.show.blocks import Block, Charts, ImageRow, Notes, PageSection, Paragraph, Picture, Report, Tabs
from whyformer.show.drawing import Drawing
from whyformer.show.html import Html
from whyformer.show.page_facts import list_facts
from whyformer.show.panel_images import make_original_image
from whyformer.show.visible import make_visible
from whyformer.show.wording import ask_why

KIND_MEANINGS = {
    "attention": "the attention weight of each head on each token",
    "gradient": "the gradient of the answer with respect to each attention weight",
    "relevance": "the share of the answer that each attention weight accounts for",
}
WHAT_IT_IS_NOT = (
    "Attention is no explanation by itself: a weight says how much of a token is mixed in, not what the answer depends "
    "on, and quite different weights often give the same answer. The gradient and the relevance of a weight say more; "
    "whyformer audit measures, on your data, whether this model's attention explains anything."
)
MOST_LINKED_TOKENS = 64  # longer texts get no drawing of links on the page


@dataclass(frozen=True, eq=False, repr=False)
class AttentionView(Result):
    """The attention of one example, with its gradient and relevance: each [layer head query key].

    Files: .html has everything; .png, .svg and .pdf show the attention of all heads.
    """

    formats = choose_formats(".html .png .svg .pdf")

    parts: Mapping[str, Tensor]  # by kind: attention, gradient and, where available, relevance
    readout: Tensor  # [token]: the weight of each token position in the pooling that the answer is read from
    input_tokens: ScoredTokens
    patches: tuple[int, ...] | None  # images: the positions of the patches among the tokens, row by row
    pieces: tuple[str, ...]  # the name of every token
    target: Target
    name: str
    model: str
    image: KeptImage | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        layers, heads = self.parts["attention"].shape[:2]
        kinds = ", ".join(self.parts)
        return f"<AttentionView of {make_visible(self.model)}: {layers} layers x {heads} heads, {kinds}>"

    def records(self) -> list[dict[str, object]]:
        """One mapping per layer, head and token: the row of the head at the position where the answer is read."""
        rows = {kind: self.rows(kind) for kind in self.parts}
        layers, heads, tokens = rows["attention"].shape
        return [
            {"layer": layer, "head": head, "position": i, "token": self.pieces[i]}
            | {kind: float(values[layer, head, i]) for kind, values in rows.items()}
            for layer in range(layers)
            for head in range(heads)
            for i in range(tokens)
        ]

    def part(self, kind: str) -> Tensor:
        if not isinstance(kind, str) or kind not in self.parts:
            raise InputError(f"kind must be one of {', '.join(self.parts)}, got {kind!r}.", code="E_OPTION")
        return self.parts[kind]

    def rows(self, kind: str = "attention") -> Tensor:
        """[layer head token]: the row of every head at the position where the answer is read."""
        part = self.part(kind)
        return torch.einsum("q,lhqk->lhk", self.readout.to(part), part)

    def maps(self, kind: str = "attention") -> Tensor:
        """What `draw` shows of every head: [rows columns] of patches at the readout, or for texts [query key]."""
        if self.patches is None:
            return self.part(kind)
        assert isinstance(self.input_tokens, Grid)
        size = (self.input_tokens.rows, self.input_tokens.columns)
        return self.rows(kind)[..., list(self.patches)].unflatten(-1, size)

    def draw(self, kind: str = "attention") -> Drawing:
        """A figure of all heads: layers from top to bottom, heads from left to right."""
        maps, title = self.maps(kind), f"{self.title}: {kind}"
        return head_figures.draw_head_grid(maps, title=title, note=self.note(kind), signed=is_signed(kind))

    def tokens(self, layer: int = -1, head: int | None = None, kind: str = "attention") -> Drawing:
        """Links from every token on the left to the tokens it attends to; without `head`, the mean over heads."""
        weights, title = self._select_head(layer, head, kind)
        return head_figures.draw_attention_links(weights, self.pieces, title=title, signed=is_signed(kind))

    def matrix(self, layer: int = -1, head: int | None = None, kind: str = "attention") -> Drawing:
        """The same as a heat map: queries in rows, keys in columns."""
        weights, title = self._select_head(layer, head, kind)
        return head_figures.draw_attention_matrix(weights, self.pieces, title=title, signed=is_signed(kind))

    def _select_head(self, layer: int, head: int | None, kind: str) -> tuple[Tensor, str]:
        """[query key] of one head, or the mean over the heads of a layer, with a title."""
        part = self.part(kind)
        check_head_or_layer("layer", layer, part.shape[0])
        if head is not None:
            check_head_or_layer("head", head, part.shape[1])
        weights = part[layer].mean(0) if head is None else part[layer, head]
        which = f"layer {range(len(part))[layer]}, " + ("mean over heads" if head is None else f"head {head}")
        return weights, f"{self.title}: {kind}, {which}"

    @cached_property
    def title(self) -> str:
        return ask_why(self.target)

    def note(self, kind: str) -> str:
        """What a figure of this kind shows."""
        what = "patches, at the readout" if self.patches is not None else "queries in rows, keys in columns"
        note = f"{KIND_MEANINGS[kind]}; {what}. Each head has its own colour scale."
        return note[0].upper() + note[1:]

    def _report(self) -> Report:
        """All heads of every kind, then for texts the links between tokens, layer by layer."""
        layers, heads = self.parts["attention"].shape[:2]
        kinds: list[tuple[str, list[Block]]] = [
            (kind, [Paragraph(self.note(kind), "dim"), self._tabulate_heads(kind)]) for kind in self.parts
        ]
        blocks: list[Block] = [PageSection("Every head", [Tabs(kinds, "What to show of every head")])]
        image = self.image
        if image is not None:
            picture = lambda: [Picture(make_original_image(image, max_side=320), self.name, self.name)]  # noqa: E731
            blocks.insert(0, PageSection(self.name, [ImageRow(picture)], is_example=True))
        if self.patches is None and len(self.pieces) <= MOST_LINKED_TOKENS:
            links = [(f"layer {one}", [Charts(partial(self._draw_links, one))]) for one in range(layers)]
            remark = "Mean over the heads."
            blocks.append(PageSection("Which token attends to which", [Tabs(links, "Which layer")], remark))
        shown = f"{', '.join(self.parts)} of {layers} layers x {heads} heads"
        notes = Notes(self.notes)
        lead = f"Attention in {self.model}. {WHAT_IT_IS_NOT}"
        brief: list[Block] = [WHAT_IT_IS_NOT, shown, Charts(lambda: [self.draw()]), notes]
        return Report(self.title, [*blocks, notes], lead, list_facts(self.model, {}, self.versions), brief=brief)

    def _tabulate_heads(self, kind: str) -> Html:
        return head_figures.make_head_table(self.maps(kind), signed=is_signed(kind))

    def _draw_links(self, layer: int) -> list[Drawing]:
        return [self.tokens(layer)]


def check_head_or_layer(name: str, index: Any, count: int) -> None:
    """Refuse all but the number of a layer or head; negative numbers count from the end."""
    if isinstance(index, bool) or not isinstance(index, Integral) or not -count <= int(index) < count:
        raise InputError(f"{name} must be a whole number from 0 to {count - 1}, got {index!r}.", code="E_OPTION")


def is_signed(kind: str) -> bool:
    return kind != "attention"
