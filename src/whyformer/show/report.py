"""Report: the building blocks of one self-contained HTML page. No script, no outside request, works from disk.

    page("Which method to trust", lead="...", content=[section("Faithfulness", drawing(chart), table(head, rows))])

Everything that is not `Html` is escaped: tokens, labels, file names, numbers. `Html` is made here, by `element` and the
blocks below, and nowhere else. A page is light or dark as its reader is, prints in colour on white, can be walked with
the keyboard, and says in words what its pictures show.
"""

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from whyformer.show.colours import BLACK, WHITE, Colour, contrast, from_oklab, hexadecimal, oklab
from whyformer.show.colours import table as colour_table
from whyformer.show.drawing import DIM, LINE, PALETTE, Drawing
from whyformer.show.visible import visible

SHORT = 24  # letters of a table cell that stay on one line
LEVELS = 20  # of colour on each side of zero
DARK: Colour = (0x17, 0x17, 0x1B)
SIGNED_IN_THE_DARK: tuple[Colour, ...] = ((0x6C, 0xC2, 0xF5), DARK, (0xFF, 0xA1, 0x5C))
UNSIGNED_IN_THE_DARK: tuple[Colour, ...] = (DARK, (0x86, 0x55, 0xA8), (0xE6, 0xCC, 0xF7))
PALETTE_IN_THE_DARK = ("#5AB0EA", "#FF8A3D", "#3CC79F", "#E3A2C4", "#F2BE4A", "#8ED0F5", "#C98F6F", "#A98BD6")
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
VOID = {"img", "input", "br", "hr", "meta", "wbr"}
STYLE = Path(__file__).with_name("report.css").read_text("utf-8")


def palette_style() -> str:
    """The colours of charts, lighter in the dark."""
    light, dark = (";".join(f"--c{i}:{colour}" for i, colour in enumerate(p)) for p in (PALETTE, PALETTE_IN_THE_DARK))
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


class Html(str):
    """Markup that was written here; it is not escaped again."""

    __slots__ = ()


def said(text: Any) -> Html:
    """Somebody's words, harmless inside an element or a quoted attribute."""
    return Html(escape(visible(str(text)), quote=True))


def element(name: str, /, *children: Any, **attributes: Any) -> Html:
    """<name attributes>children</name>; all but Html is escaped, None is left out. `class_` is class, `_` is `-`."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{said(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    opening = f"<{name}{written}>"
    return Html(opening if name in VOID else f"{opening}{joined(children)}</{name}>")


def joined(children: Iterable[Any], between: str = "") -> Html:
    return Html(
        between.join(child if isinstance(child, Html) else said(child) for child in children if child is not None)
    )


# --- the page ---------------------------------------------------------------------------------------------------------


def page(
    title: str,
    content: Sequence[Html],
    *,
    lead: str = "",
    about: Mapping[str, Any] | None = None,
    contents: Mapping[str, str] | None = None,
    style: str = "",
) -> str:
    """The whole file. about: facts for its foot (model, versions); contents: titles of sections by their anchors."""
    head = joined(
        [
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=POLICY),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="referrer", content="no-referrer"),
            element("title", title),
            element("style", Html(STYLE + palette_style() + mark_style() + style)),
        ]
    )
    links = [element("li", element("a", label, href=f"#{anchor}")) for anchor, label in (contents or {}).items()]
    body = element(
        "div",
        element("a", "Skip to the content", class_="skip", href="#content"),
        element(
            "header",
            element("h1", title),
            element("p", lead) if lead else None,
            element("nav", element("ul", *links), aria_label="Contents") if len(links) > 1 else None,
        ),
        element("main", joined(content, "\n"), id="content"),
        element("footer", facts(about)) if about else None,
        class_="page",
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def fragment(*content: Any) -> str:
    """Blocks for a notebook, whose own look they take on; the style holds for them and nothing else."""
    rules = STYLE.replace(":root", ":scope").replace("body{", ":scope{")
    light = rules[: rules.index("@media (prefers-color-scheme:dark)")]
    rest = rules[rules.index("*{box-sizing") :]
    own = ":scope{--ground:none;--raised:rgba(128,128,128,.14);--ink:inherit;--dim:#868690;--line:rgba(128,128,128,.4)}"
    style = f"@scope (.whyformer){{{light}{rest}{own}{palette_style().splitlines()[0].replace(':root', ':scope')}}}"
    return element("div", element("style", Html(style)), *content, class_="whyformer")


def section(title: str, *content: Any, remark: str = "", anchor: str | None = None) -> Html:
    """A part of the page with a heading."""
    return element("section", element("h2", title), element("p", remark) if remark else None, *content, id=anchor)


def anchors(titles: Iterable[str]) -> dict[str, str]:
    """An anchor of our own for every title, in order: for `section(anchor=)` and `page(contents=)`."""
    return {f"part-{number}": title for number, title in enumerate(titles, 1)}


# --- blocks -----------------------------------------------------------------------------------------------------------


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]], *, caption: str = "") -> Html:
    """Numbers to the right with three digits, None as a dash, the first cell of a row as its name."""
    body = [list(row) for row in rows]
    kinds = [kind_of([row[i] for row in body]) for i in range(len(head))]
    heads = [element("th", name, scope="col", class_=kind) for name, kind in zip(head, kinds, strict=True)]
    lines = []
    for first, *others in body:
        cells = [element("td", shown(value), class_=kind) for value, kind in zip(others, kinds[1:], strict=True)]
        lines.append(element("tr", element("th", shown(first), scope="row"), *cells))
    made = element(
        "table",
        element("caption", caption) if caption else None,
        element("thead", element("tr", *heads)),
        element("tbody", *lines),
    )
    return element("div", made, class_="wide", tabindex="0", role="region", aria_label=caption or "Table")


def kind_of(column: Sequence[Any]) -> str:
    """Numbers stand to the right; short words are not broken into lines."""
    if column and all(is_number(value) for value in column):
        return "number"
    return "short" if all(len(str(value)) <= SHORT for value in column) else "long"


def is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def shown(value: Any) -> Any:
    if value is None or value != value:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else value


def drawing(made: Drawing, caption: str = "") -> Html:
    """A chart with text that can be selected; its ink is the page's."""
    inside = made.html().replace(DIM, "var(--dim)").replace(LINE, "var(--line)")
    for place, colour in enumerate(PALETTE):
        inside = inside.replace(colour.lower(), f"var(--c{place})")
    below = element("figcaption", caption) if caption else None
    return element("figure", element("div", Html(inside), class_="wide"), below)


def picture(image: Image.Image, alt: str, *caption: Any, crisp: bool = False) -> Html:
    """A picture inside the page, with what it shows in words and a caption below."""
    shown = element("img", alt=alt, src=data_uri(image), width=image.width, height=image.height, loading="lazy",
                    class_="crisp" if crisp else None)  # fmt: skip
    return element("figure", shown, element("figcaption", *caption) if caption else None)


def data_uri(image: Image.Image) -> Html:
    """As JPEG if it has more colours than a drawing has, else as PNG."""
    if image.width * image.height > 10_000 and image.getcolors(2_000) is None:
        return Html("data:image/jpeg;base64," + b64encode(encoded(image, "JPEG", quality=88, subsampling=0)).decode())
    return Html("data:image/png;base64," + b64encode(encoded(image, "PNG", optimize=True)).decode("ascii"))


def data_figure(png: bytes, alt: str) -> str:
    """A picture file by itself, for a notebook."""
    source = Html("data:image/png;base64," + b64encode(png).decode("ascii"))
    return element("img", alt=alt, src=source, style="max-width:100%")


def encoded(image: Image.Image, kind: str, **how: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def maps(figures: Iterable[Html], *, small: bool = False, large: bool = False) -> Html:
    """Figures beside each other, as many as fit."""
    return element("div", *figures, class_="maps" + " small" * small + " large" * large)


def facts(pairs: Mapping[str, Any]) -> Html:
    """Names and values below each other."""
    return element(
        "dl", *(part for name, value in pairs.items() for part in (element("dt", name), element("dd", value)))
    )


def folded(summary: str, *content: Any, open_: bool = False) -> Html:
    """Content that is there when asked for."""
    return element("details", element("summary", summary), *content, open=open_ or None)


def notes(lines: Iterable[str]) -> Html:
    return joined(element("p", line, class_="note") for line in lines)


def verdict(text: str, kind: str = "") -> Html:
    """A word in a frame; kind: good, bad or nothing."""
    return element("span", text, class_=f"verdict {kind}".strip())


def choice(options: Sequence[tuple[Any, Html]], *, name: str, legend: str, prose: bool = False) -> tuple[Html, str]:
    """One of several panels at a time, chosen by click or arrow keys without a script: the block, and style of its own.

    options: what to click on, and what to show then. prose: the labels are words of a running text.
    """
    key = f"c{hashlib.sha256(name.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"
    buttons = [
        element("input", type="radio", name=key, id=f"{key}-{i}", checked=i == 0, aria_label=plain_label(label, i))
        for i, (label, _) in enumerate(options)
    ]
    labels = [element("label", label, for_=f"{key}-{i}") for i, (label, _) in enumerate(options)]
    panels = [element("div", panel) for _, panel in options]
    rules = []
    for i in range(len(options)):
        rules.append(f"#{key}-{i}:checked~.panels>:nth-child({i + 1}){{display:block}}")
        chosen = f"#{key}-{i}:checked~.labels>:nth-child({i + 1})"
        rules.append(f"{chosen}{{border-color:var(--accent);background:var(--raised);font-weight:600}}")
        rules.append(f"#{key}-{i}:focus-visible~.labels>:nth-child({i + 1}){{outline:2px solid var(--accent)}}")
    block = element(
        "div",
        *buttons,
        element("div", *labels, class_="labels prose" if prose else "labels"),
        element("div", *panels, class_="panels"),
        class_="choice",
        role="group",
        aria_label=legend,
    )
    return block, "\n".join(rules) + "\n"


def plain_label(label: Any, i: int) -> str:
    return f"{i + 1}" if isinstance(label, Html) else str(label)


# --- colours of words -------------------------------------------------------------------------------------------------


def level(score: float, between: tuple[float, float], *, signed: bool) -> str:
    """The class of a mark: f0 to f20 for, a0 to a20 against, u0 to u20 without a sign."""
    low, high = between
    if signed:
        share = score / high if high > 0 else 0.0
        return f"{'a' if share < 0 else 'f'}{round(min(abs(share), 1) * LEVELS)}"
    share = (score - low) / (high - low) if high > low else 0.0
    return f"u{round(min(max(share, 0), 1) * LEVELS)}"


@cache
def mark_style() -> str:
    """The rules behind `level`, in the light and in the dark, each with ink that can be read on it."""
    light = level_rules(colour_table(True).tolist(), colour_table(False).tolist(), (0x1B, 0x1B, 0x1F))
    dark = level_rules(mixed(SIGNED_IN_THE_DARK), mixed(UNSIGNED_IN_THE_DARK), (0xEC, 0xEC, 0xF1))
    return f"{light}@media screen and (prefers-color-scheme:dark){{{dark}}}\n"


def level_rules(signed: Sequence[Any], unsigned: Sequence[Any], page_ink: Colour) -> str:
    middle = len(signed) // 2
    places = {"f": lambda i: middle + i * middle // LEVELS, "a": lambda i: middle - i * middle // LEVELS}
    rules = []
    for letter, steps in (("f", signed), ("a", signed), ("u", unsigned)):
        place = places.get(letter, lambda i: i * (len(unsigned) - 1) // LEVELS)
        for i in range(LEVELS + 1):
            colour = tuple(steps[place(i)])
            ink = (
                page_ink if contrast(page_ink, colour) >= 4.5 else max(BLACK, WHITE, key=lambda c: contrast(c, colour))
            )
            ground = "none" if i == 0 else hexadecimal(colour)
            rules.append(f".{letter}{i}{{background:{ground};color:{hexadecimal(ink)}}}")
    for letter, steps in (("s", signed), ("u", unsigned)):
        stops = ",".join(hexadecimal(tuple(steps[i * (len(steps) - 1) // 8])) for i in range(9))
        rules.append(f".bar-{letter}{{background:linear-gradient(90deg,{stops})}}")
    return "\n".join(rules) + "\n"


def mixed(stops: Sequence[Colour]) -> list[list[int]]:
    """513 colours from the first stop to the last, even to the eye."""
    seen = oklab(torch.tensor(stops, dtype=torch.double) / 255)
    along = torch.linspace(0, len(stops) - 1, 513, dtype=torch.double)
    left = along.floor().clamp(max=len(stops) - 2)
    share = (along - left)[:, None]
    between = seen[left.long()] * (1 - share) + seen[left.long() + 1] * share
    return (from_oklab(between).clamp(0, 1) * 255).round().long().tolist()


def legend(between: tuple[float, float], *, signed: bool, note: str = "") -> Html:
    """The two limits in numbers, and the colours between them."""
    low, high = (f"{limit:+.3g}" if signed else f"{limit:.3g}" for limit in between)
    return element(
        "div",
        element("span", f"{low} against" if signed else low),
        element("span", class_=f"bar bar-{'s' if signed else 'u'}", aria_hidden="true"),
        element("span", f"{high} for" if signed else high),
        element("span", note) if note else None,
        class_="legend",
    )
