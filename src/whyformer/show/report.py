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

from whyformer.show.colours import BLACK, WHITE, Colour, contrast_ratio, from_oklab, to_hex, to_oklab
from whyformer.show.colours import make_colour_table as colour_table
from whyformer.show.drawing import DIM_INK, LINE_COLOUR, PALETTE, Drawing
from whyformer.show.visible import make_visible

SHORT_CELL = 24  # letters of a table cell that stay on one line
COLOUR_LEVELS = 20  # of colour on each side of zero
DARK_GROUND: Colour = (0x17, 0x17, 0x1B)
SIGNED_DARK_STOPS: tuple[Colour, ...] = ((0x6C, 0xC2, 0xF5), DARK_GROUND, (0xFF, 0xA1, 0x5C))
UNSIGNED_DARK_STOPS: tuple[Colour, ...] = (DARK_GROUND, (0x86, 0x55, 0xA8), (0xE6, 0xCC, 0xF7))
DARK_PALETTE = ("#5AB0EA", "#FF8A3D", "#3CC79F", "#E3A2C4", "#F2BE4A", "#8ED0F5", "#C98F6F", "#A98BD6")
CONTENT_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
VOID_ELEMENTS = {"img", "input", "br", "hr", "meta", "wbr"}
PAGE_CSS = Path(__file__).with_name("report.css").read_text("utf-8")


def make_palette_css() -> str:
    """The colours of charts, lighter in the dark."""
    light, dark = (";".join(f"--c{i}:{colour}" for i, colour in enumerate(p)) for p in (PALETTE, DARK_PALETTE))
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


class Html(str):
    """Markup that was written here; it is not escaped again."""

    __slots__ = ()


def escape_html(text: Any) -> Html:
    """Somebody's words, harmless inside an element or a quoted attribute."""
    return Html(escape(make_visible(str(text)), quote=True))


def make_element(name: str, /, *children: Any, **attributes: Any) -> Html:
    """<name attributes>children</name>; all but Html is escaped, None is left out. `class_` is class, `_` is `-`."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape_html(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    opening = f"<{name}{written}>"
    return Html(opening if name in VOID_ELEMENTS else f"{opening}{join_html(children)}</{name}>")


def join_html(children: Iterable[Any], between: str = "") -> Html:
    return Html(
        between.join(
            child if isinstance(child, Html) else escape_html(child) for child in children if child is not None
        )
    )


# --- the page ---------------------------------------------------------------------------------------------------------


def make_page(
    title: str,
    content: Sequence[Html],
    *,
    lead: str = "",
    about: Mapping[str, Any] | None = None,
    contents: Mapping[str, str] | None = None,
    style: str = "",
) -> str:
    """The whole file. about: facts for its foot (model, versions); contents: titles of sections by their anchors."""
    head = join_html(
        [
            make_element("meta", charset="utf-8"),
            make_element("meta", http_equiv="Content-Security-Policy", content=CONTENT_POLICY),
            make_element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            make_element("meta", name="referrer", content="no-referrer"),
            make_element("title", title),
            make_element("style", Html(PAGE_CSS + make_palette_css() + make_mark_css() + style)),
        ]
    )
    links = [
        make_element("li", make_element("a", label, href=f"#{anchor}")) for anchor, label in (contents or {}).items()
    ]
    body = make_element(
        "div",
        make_element("a", "Skip to the content", class_="skip", href="#content"),
        make_element(
            "header",
            make_element("h1", title),
            make_element("p", lead) if lead else None,
            make_element("nav", make_element("ul", *links), aria_label="Contents") if len(links) > 1 else None,
        ),
        make_element("main", join_html(content, "\n"), id="content"),
        make_element("footer", make_fact_list(about)) if about else None,
        class_="page",
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def make_fragment(*content: Any) -> str:
    """Blocks for a notebook, whose own look they take on; the style holds for them and nothing else."""
    rules = PAGE_CSS.replace(":root", ":scope").replace("body{", ":scope{")
    light = rules[: rules.index("@media (prefers-color-scheme:dark)")]
    rest = rules[rules.index("*{box-sizing") :]
    own = ":scope{--ground:none;--raised:rgba(128,128,128,.14);--ink:inherit;--dim:#868690;--line:rgba(128,128,128,.4)}"
    style = f"@scope (.whyformer){{{light}{rest}{own}{make_palette_css().splitlines()[0].replace(':root', ':scope')}}}"
    return make_element("div", make_element("style", Html(style)), *content, class_="whyformer")


def make_section(title: str, *content: Any, remark: str = "", anchor: str | None = None) -> Html:
    """A part of the page with a heading."""
    return make_element(
        "section", make_element("h2", title), make_element("p", remark) if remark else None, *content, id=anchor
    )


def make_anchors(titles: Iterable[str]) -> dict[str, str]:
    """An anchor of our own for every title, in order: for `section(anchor=)` and `page(contents=)`."""
    return {f"part-{number}": title for number, title in enumerate(titles, 1)}


# --- blocks -----------------------------------------------------------------------------------------------------------


def make_table(head: Sequence[Any], rows: Iterable[Sequence[Any]], *, caption: str = "") -> Html:
    """Numbers to the right with three digits, None as a dash, the first cell of a row as its name."""
    body = [list(row) for row in rows]
    kinds = [classify_column([row[i] for row in body]) for i in range(len(head))]
    heads = [make_element("th", name, scope="col", class_=kind) for name, kind in zip(head, kinds, strict=True)]
    lines = []
    for first, *others in body:
        cells = [
            make_element("td", format_cell(value), class_=kind) for value, kind in zip(others, kinds[1:], strict=True)
        ]
        lines.append(make_element("tr", make_element("th", format_cell(first), scope="row"), *cells))
    made = make_element(
        "table",
        make_element("caption", caption) if caption else None,
        make_element("thead", make_element("tr", *heads)),
        make_element("tbody", *lines),
    )
    return make_element("div", made, class_="wide", tabindex="0", role="region", aria_label=caption or "Table")


def classify_column(column: Sequence[Any]) -> str:
    """Numbers stand to the right; short words are not broken into lines."""
    if column and all(is_number(value) for value in column):
        return "number"
    return "short" if all(len(str(value)) <= SHORT_CELL for value in column) else "long"


def is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def format_cell(value: Any) -> Any:
    if value is None or value != value:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else value


def embed_drawing(made: Drawing, caption: str = "") -> Html:
    """A chart with text that can be selected; its ink is the page's."""
    inside = made.html().replace(DIM_INK, "var(--dim)").replace(LINE_COLOUR, "var(--line)")
    for place, colour in enumerate(PALETTE):
        inside = inside.replace(colour.lower(), f"var(--c{place})")
    below = make_element("figcaption", caption) if caption else None
    return make_element("figure", make_element("div", Html(inside), class_="wide"), below)


def embed_image(image: Image.Image, alt: str, *caption: Any, crisp: bool = False) -> Html:
    """A picture inside the page, with what it shows in words and a caption below."""
    shown = make_element("img", alt=alt, src=to_data_uri(image), width=image.width, height=image.height, loading="lazy",
                    class_="crisp" if crisp else None)  # fmt: skip
    return make_element("figure", shown, make_element("figcaption", *caption) if caption else None)


def to_data_uri(image: Image.Image) -> Html:
    """As JPEG if it has more colours than a drawing has, else as PNG."""
    if image.width * image.height > 10_000 and image.getcolors(2_000) is None:
        return Html(
            "data:image/jpeg;base64," + b64encode(encode_image(image, "JPEG", quality=88, subsampling=0)).decode()
        )
    return Html("data:image/png;base64," + b64encode(encode_image(image, "PNG", optimize=True)).decode("ascii"))


def embed_png(png: bytes, alt: str) -> str:
    """A picture file by itself, for a notebook."""
    source = Html("data:image/png;base64," + b64encode(png).decode("ascii"))
    return make_element("img", alt=alt, src=source, style="max-width:100%")


def encode_image(image: Image.Image, kind: str, **how: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def arrange_figures(figures: Iterable[Html], *, small: bool = False, large: bool = False) -> Html:
    """Figures beside each other, as many as fit."""
    return make_element("div", *figures, class_="maps" + " small" * small + " large" * large)


def make_fact_list(pairs: Mapping[str, Any]) -> Html:
    """Names and values below each other."""
    return make_element(
        "dl", *(part for name, value in pairs.items() for part in (make_element("dt", name), make_element("dd", value)))
    )


def fold_content(summary: str, *content: Any, open_: bool = False) -> Html:
    """Content that is there when asked for."""
    return make_element("details", make_element("summary", summary), *content, open=open_ or None)


def make_notes(lines: Iterable[str]) -> Html:
    return join_html(make_element("p", line, class_="note") for line in lines)


def make_verdict_badge(text: str, kind: str = "") -> Html:
    """A word in a frame; kind: good, bad or nothing."""
    return make_element("span", text, class_=f"verdict {kind}".strip())


def make_chooser(
    options: Sequence[tuple[Any, Html]], *, name: str, legend: str, prose: bool = False
) -> tuple[Html, str]:
    """One of several panels at a time, chosen by click or arrow keys without a script: the block, and style of its own.

    options: what to click on, and what to show then. prose: the labels are words of a running text.
    """
    key = f"c{hashlib.sha256(name.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"
    buttons = [
        make_element(
            "input", type="radio", name=key, id=f"{key}-{i}", checked=i == 0, aria_label=format_option_label(label, i)
        )
        for i, (label, _) in enumerate(options)
    ]
    labels = [make_element("label", label, for_=f"{key}-{i}") for i, (label, _) in enumerate(options)]
    panels = [make_element("div", panel) for _, panel in options]
    rules = []
    for i in range(len(options)):
        rules.append(f"#{key}-{i}:checked~.panels>:nth-child({i + 1}){{display:block}}")
        chosen = f"#{key}-{i}:checked~.labels>:nth-child({i + 1})"
        rules.append(f"{chosen}{{border-color:var(--accent);background:var(--raised);font-weight:600}}")
        rules.append(f"#{key}-{i}:focus-visible~.labels>:nth-child({i + 1}){{outline:2px solid var(--accent)}}")
    block = make_element(
        "div",
        *buttons,
        make_element("div", *labels, class_="labels prose" if prose else "labels"),
        make_element("div", *panels, class_="panels"),
        class_="choice",
        role="group",
        aria_label=legend,
    )
    return block, "\n".join(rules) + "\n"


def format_option_label(label: Any, i: int) -> str:
    return f"{i + 1}" if isinstance(label, Html) else str(label)


# --- colours of words -------------------------------------------------------------------------------------------------


def choose_colour_level(score: float, between: tuple[float, float], *, signed: bool) -> str:
    """The class of a mark: f0 to f20 for, a0 to a20 against, u0 to u20 without a sign."""
    low, high = between
    if signed:
        share = score / high if high > 0 else 0.0
        return f"{'a' if share < 0 else 'f'}{round(min(abs(share), 1) * COLOUR_LEVELS)}"
    share = (score - low) / (high - low) if high > low else 0.0
    return f"u{round(min(max(share, 0), 1) * COLOUR_LEVELS)}"


@cache
def make_mark_css() -> str:
    """The rules behind `level`, in the light and in the dark, each with ink that can be read on it."""
    light = make_level_css(colour_table(True).tolist(), colour_table(False).tolist(), (0x1B, 0x1B, 0x1F))
    dark = make_level_css(mix_colours(SIGNED_DARK_STOPS), mix_colours(UNSIGNED_DARK_STOPS), (0xEC, 0xEC, 0xF1))
    return f"{light}@media screen and (prefers-color-scheme:dark){{{dark}}}\n"


def make_level_css(signed: Sequence[Any], unsigned: Sequence[Any], page_ink: Colour) -> str:
    middle = len(signed) // 2
    places = {"f": lambda i: middle + i * middle // COLOUR_LEVELS, "a": lambda i: middle - i * middle // COLOUR_LEVELS}
    rules = []
    for letter, steps in (("f", signed), ("a", signed), ("u", unsigned)):
        place = places.get(letter, lambda i: i * (len(unsigned) - 1) // COLOUR_LEVELS)
        for i in range(COLOUR_LEVELS + 1):
            colour = tuple(steps[place(i)])
            ink = (
                page_ink
                if contrast_ratio(page_ink, colour) >= 4.5
                else max(BLACK, WHITE, key=lambda c: contrast_ratio(c, colour))
            )
            ground = "none" if i == 0 else to_hex(colour)
            rules.append(f".{letter}{i}{{background:{ground};color:{to_hex(ink)}}}")
    for letter, steps in (("s", signed), ("u", unsigned)):
        stops = ",".join(to_hex(tuple(steps[i * (len(steps) - 1) // 8])) for i in range(9))
        rules.append(f".bar-{letter}{{background:linear-gradient(90deg,{stops})}}")
    return "\n".join(rules) + "\n"


def mix_colours(stops: Sequence[Colour]) -> list[list[int]]:
    """513 colours from the first stop to the last, even to the eye."""
    seen = to_oklab(torch.tensor(stops, dtype=torch.double) / 255)
    along = torch.linspace(0, len(stops) - 1, 513, dtype=torch.double)
    left = along.floor().clamp(max=len(stops) - 2)
    share = (along - left)[:, None]
    between = seen[left.long()] * (1 - share) + seen[left.long() + 1] * share
    return (from_oklab(between).clamp(0, 1) * 255).round().long().tolist()


def make_legend(between: tuple[float, float], *, signed: bool, note: str = "") -> Html:
    """The two limits in numbers, and the colours between them."""
    low, high = (f"{limit:+.3g}" if signed else f"{limit:.3g}" for limit in between)
    return make_element(
        "div",
        make_element("span", f"{low} against" if signed else low),
        make_element("span", class_=f"bar bar-{'s' if signed else 'u'}", aria_hidden="true"),
        make_element("span", f"{high} for" if signed else high),
        make_element("span", note) if note else None,
        class_="legend",
    )
