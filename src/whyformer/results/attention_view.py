"""Inside a model: what every head of every layer attends to, and how far the answer follows it.

i = inside(model, "cat.jpg")
i.draw("attention"); i.draw("gradient"); i.draw("relevance")      # layers x heads
i.tokens(layer=-1, head=2)                                        # who looks at whom
i.save("inside.html")
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.capture import record
from whyformer._engine.relevance.recipes import make_recipe
from whyformer._engine.target import Target
from whyformer._plain import archive
from whyformer._plain.tokens import Tokens
from whyformer.errors import InputError, ModelError, NonFinite
from whyformer.results.explanation import ModelLike, as_model
from whyformer.show import head_figures, overlay, report
from whyformer.show.drawing import Drawing
from whyformer.show.panel import Panel
from whyformer.show.report import make_element
from whyformer.show.visible import make_visible
from whyformer.show.wording import format_headline

KIND_MEANINGS = {
    "attention": "how much attention each head pays to each token",
    "gradient": "how far the answer follows each weight of attention",
    "relevance": "how much of the answer each weight of attention accounts for",
}


@dataclass(frozen=True, eq=False, repr=False)
class AttentionView:
    """The attention of one example, with its gradient and relevance: [layer head query key] each."""

    parts: Mapping[str, Tensor]
    readout: Tensor  # [token]: where the answer is read
    input_tokens: Tokens
    patches: tuple[int, ...] | None  # pictures: where the patches are among the tokens, row by row
    pieces: tuple[str, ...]  # what to call every token
    target: Target
    name: str
    model: str
    image: Any = None
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        layers, count = self.parts["attention"].shape[:2]
        return f"<Inside of {make_visible(self.model)}: {layers} layers x {count} heads, {', '.join(self.parts)}>"

    def part(self, kind: str) -> Tensor:
        if kind not in self.parts:
            raise InputError(f"There is no {kind!r} here. There are: {', '.join(self.parts)}.")
        return self.parts[kind]

    def rows(self, kind: str = "attention") -> Tensor:
        """[layer head token]: the row of every head where the answer is read."""
        found = self.part(kind)
        return torch.einsum("q,lhqk->lhk", self.readout.to(found), found)

    def maps(self, kind: str = "attention") -> Tensor:
        """What is drawn of every head: of a picture the patches at the readout, of a text all tokens by all tokens."""
        if self.patches is None:
            return self.part(kind)
        grid: Any = self.input_tokens
        return self.rows(kind)[..., list(self.patches)].unflatten(-1, (grid.rows, grid.columns))

    def draw(self, kind: str = "attention") -> Drawing:
        """Layers from top to bottom, heads from left to right."""
        return head_figures.draw_head_grid(
            self.maps(kind), title=f"{self.title}: {kind}", note=self.note(kind), signed=is_signed(kind)
        )

    def tokens(self, layer: int = -1, head: int | None = None, kind: str = "attention") -> Drawing:
        """Who looks at whom: every token at the left, what it attends to at the right; without a head, their mean."""
        found = self.part(kind)
        chosen = found[layer].mean(0) if head is None else found[layer, head]
        which = f"layer {range(len(found))[layer]}, " + ("mean over heads" if head is None else f"head {head}")
        return head_figures.draw_attention_links(
            chosen, self.pieces, title=f"{self.title}: {kind}, {which}", signed=is_signed(kind)
        )

    def matrix(self, layer: int = -1, head: int | None = None, kind: str = "attention") -> Drawing:
        """The same as a table of colours: queries in rows, keys in columns."""
        found = self.part(kind)
        chosen = found[layer].mean(0) if head is None else found[layer, head]
        which = f"layer {range(len(found))[layer]}, " + ("mean over heads" if head is None else f"head {head}")
        return head_figures.draw_attention_matrix(
            chosen, self.pieces, title=f"{self.title}: {kind}, {which}", signed=is_signed(kind)
        )

    @cached_property
    def title(self) -> str:
        return format_headline(self._panel)

    @property
    def _panel(self) -> Panel:
        zero = torch.zeros(len(self.input_tokens))
        return Panel("", self.name, self.input_tokens, zero, self.target, False, True, model=self.model)

    def note(self, kind: str) -> str:
        what = "patches, at the readout" if self.patches is not None else "queries in rows, keys in columns"
        said = f"{KIND_MEANINGS[kind]}; {what}. Colours end at each head's own largest value."
        return said[0].upper() + said[1:]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file: .html with everything, or the attention of all heads as .png, .svg or .pdf."""
        archive.write_file(path, FORMATS[archive.suffix_of(path, FORMATS)](self))

    def _repr_html_(self) -> str:
        return report.embed_png(self.draw().png(110), f"Inside {self.model}: {self.title}")


def is_signed(kind: str) -> bool:
    return kind != "attention"


def inspect_attention(model: ModelLike, inputs: Any, *, target: Any = None, versus: Any = None) -> AttentionView:
    """What all heads do on one example: their attention, its gradient and its relevance for the target."""
    model = as_model(model)
    encoded = model.encode(inputs)
    if encoded.batch != 1:
        raise InputError(f"{encoded.batch} examples were given. One at a time can be looked into.")
    rules = make_recipe("chefer", "signed")
    keep = {"attention", "attention_grad", "attention_relevance", "readout", "mask", "special"}
    notes: tuple[str, ...] = ()
    try:
        capture = record(model, encoded, target=target, versus=versus, keep=keep, recipes=[rules])
    except (ModelError, NonFinite) as error:
        keep.remove("attention_relevance")
        capture = record(model, encoded, target=target, versus=versus, keep=keep)
        notes = (f"No relevance here. {error}",)
    sites = {"attention": "attention", "gradient": "attention_grad", "relevance": "attention_relevance"}
    parts = {
        kind: torch.stack([layer[0].detach().float().cpu() for layer in capture.get(site, rules)])
        for kind, site in sites.items()
        if site in keep
    }
    length = parts["attention"].shape[-1]
    return AttentionView(
        parts=parts,
        readout=capture["readout"][0].detach().float().cpu(),
        input_tokens=capture.tokens[0],
        patches=capture.patches,
        pieces=head_figures.name_tokens(capture.tokens[0], capture.patches, length),
        target=capture.targets[0],
        name=encoded.names[0],
        model=model.name,
        image=encoded.images[0] if encoded.images else None,
        notes=(*capture.notes, *notes),
    )


# --- files ------------------------------------------------------------------------------------------------------------


def attention_to_html(found: AttentionView) -> bytes:
    """All heads by kind, then who looks at whom by layer."""
    options = []
    for kind in found.parts:
        note = make_element("p", found.note(kind), class_="dim")
        options.append(
            (kind, report.join_html([note, head_figures.make_head_table(found.maps(kind), signed=is_signed(kind))]))
        )
    chooser, style = report.make_chooser(options, name="kind", legend="What to show of every head")
    parts = [report.make_section("Every head", chooser)]
    if found.image is not None:
        seen = overlay.shrink_image(overlay.frame_view(found.image.image, found.image.view), 320)
        drawn = report.embed_image(seen, found.name, found.name)
        parts.insert(0, report.make_section(found.name, report.arrange_figures([drawn])))
    if found.patches is None and len(found.pieces) <= 64:
        layers = [
            (f"layer {layer}", report.embed_drawing(found.tokens(layer)))
            for layer in range(len(found.parts["attention"]))
        ]
        links, more = report.make_chooser(layers, name="links", legend="Which layer")
        parts.append(report.make_section("Who looks at whom", links, remark="The mean over the heads of a layer."))
        style += more
    parts.append(report.make_notes(found.notes))
    lead = f"Inside {found.model}."
    return report.make_page(found.title, parts, lead=lead, style=style).encode("utf-8")


FORMATS: dict[str, Callable[[AttentionView], bytes]] = {
    ".html": attention_to_html,
    ".png": lambda i: i.draw().png(),
    ".svg": lambda i: i.draw().svg().encode("utf-8"),
    ".pdf": lambda i: i.draw().pdf(),
}
