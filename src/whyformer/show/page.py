"""A page: explanations as one self-contained HTML file. No script, no outside request; every word from anybody is
escaped.

Words are marked with a tint and carry their score as a tooltip; a map lies over its picture. Each section shows the
same input under several methods, side by side.
"""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO

import torch
from PIL import Image
from torch import Tensor

from whyformer.show.colours import ink, limits, paint
from whyformer.show.visible import visible
from whyformer.tokens import Pieces

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1b1b1f; --dim: #60606a; --line: #d9d9e0; }
@media (prefers-color-scheme: dark) { :root { --ground: #17171b; --ink: #ececf1; --dim: #a0a0ac; --line: #3a3a44; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; } h2 { font-size: 1.2rem; margin: 2rem 0 .25rem; }
p { margin: .25rem 0 .75rem; max-width: 46rem; } .dim { color: var(--dim); font-size: .875rem; }
.maps { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; width: 13rem; max-width: 45%; }
figure img { width: 100%; display: block; border-radius: 4px; } figcaption { font-size: .875rem; margin-top: .25rem; }
.rows { display: grid; grid-template-columns: max-content 1fr; gap: .5rem 1rem; align-items: baseline; }
@media (max-width: 40rem) { .rows { grid-template-columns: 1fr; } }
mark { padding: .1em .2em; border-radius: 3px; } .special { opacity: .55; font-size: .85em; }
section { border-top: 1px solid var(--line); padding-bottom: 1.25rem; } code { font-size: .9em; }
"""


@dataclass(frozen=True)
class Section:
    """One input under several methods."""

    title: str
    remark: str
    figures: Sequence[str]  # HTML of ours
    is_text: bool = False

    def html(self) -> str:
        kind = "rows" if self.is_text else "maps"
        body = "\n".join(self.figures)
        head = f"<h2>{said(self.title)}</h2><p>{said(self.remark)}</p>"
        return f"<section>{head}<div class={kind}>\n{body}\n</div></section>"


def page(title: str, lead: str, sections: Iterable[Section]) -> str:
    """The whole file."""
    body = "\n".join(section.html() for section in sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{said(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
        f"<body><h1>{said(title)}</h1><p>{said(lead)}</p>\n{body}\n</body></html>\n"
    )


def said(text: str) -> str:
    """Somebody's words, harmless inside an element or a quoted attribute."""
    return escape(visible(text), quote=True)


def words(label: str, pieces: Pieces, scores: Tensor, *, signed: bool) -> str:
    """One row: the name of a method, then the text with every piece tinted by its score."""
    shown = [i for i in range(len(pieces)) if not pieces.padding[i]]
    ordinary = [i for i in shown if not pieces.special[i]] or shown
    between = limits(scores[ordinary], signed=signed, floor=0.0)
    marks = [mark(pieces, i, scores, between, signed=signed) for i in shown]
    return f"<div><code>{said(label)}</code></div><div>{''.join(marks)}</div>"


def mark(pieces: Pieces, i: int, scores: Tensor, between: tuple[float, float], *, signed: bool) -> str:
    span = pieces.spans[i]
    word = pieces.text[slice(*span)] if span is not None and pieces.text is not None else pieces.pieces[i]
    gap = " " if span is None or pieces.text is None or pieces.text[span[0] - 1 : span[0]].isspace() else ""
    colour = tuple(paint(scores[i], between, signed=signed).tolist())
    style = f"background:rgb{colour};color:rgb{ink(colour)}"  # type: ignore[arg-type]
    kind = " class=special" if pieces.special[i] else ""
    return f'{gap}<mark{kind} style="{style}" title="{scores[i].item():+.3g}">{said(word.strip())}</mark>'


def photograph(picture: Image.Image, caption: str) -> str:
    return f'<figure><img alt="" src="{data_uri(picture)}"><figcaption>{said(caption)}</figcaption></figure>'


def overlay(picture: Image.Image, scores: Tensor, label: str, remark: str, *, signed: bool) -> str:
    """A map [rows columns] over its picture, its limits written below."""
    between = limits(scores, signed=signed)
    size = (picture.height, picture.width)
    large = torch.nn.functional.interpolate(scores[None, None].float(), size=size, mode="bilinear")[0, 0]
    colours = Image.fromarray(paint(large, between, signed=signed).numpy())
    grey = picture.convert("L").convert("RGB")
    caption = (
        f"<code>{said(label)}</code> {said(remark)}<br><span class=dim>{between[0]:.2g} to {between[1]:.2g}</span>"
    )
    blended = data_uri(Image.blend(grey, colours, 0.62))
    return f'<figure><img alt="{said(label)}" src="{blended}"><figcaption>{caption}</figcaption></figure>'


def data_uri(picture: Image.Image) -> str:
    file = BytesIO()
    picture.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + b64encode(file.getvalue()).decode("ascii")
