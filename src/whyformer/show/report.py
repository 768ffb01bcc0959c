"""Report: one self-contained HTML page. No network request, no script but one that is asked for; works from disk.

    make_page("Which method to trust", [make_section("Faithfulness", embed_drawing(chart), make_table(head, rows))])

Text is escaped by `make_element` (see `html`). A page follows the reader's light or dark mode, prints in colour on
white, can be used with the keyboard alone, and describes its images in words.
"""

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from whyformer.show import page_colours
from whyformer.show.chart_style import SeriesStyle
from whyformer.show.colours import UNSIGNED_STOPS, to_hex
from whyformer.show.drawing import DIM_INK, LINE_COLOUR, Drawing
from whyformer.show.html import Content, Html, escape_html, join_html, make_element
from whyformer.show.page_colours import choose_colour_level, make_mark_css, make_palette_css, to_css_colour
from whyformer.show.page_facts import add_page_date, date_pages
from whyformer.show.page_tables import make_fold_css, make_scrollable, make_table
from whyformer.show.wording import format_score

__all__ = [
    "Html", "arrange_figures", "choose_colour_level", "date_pages", "embed_drawing", "embed_image", "embed_png",
    "escape_html", "fold_content", "join_html", "make_anchors", "make_chooser", "make_element", "make_fact_list",
    "make_fragment", "make_legend", "make_notes", "make_page", "make_scrollable", "make_section", "make_series_symbol",
    "make_table", "make_verdict_badge", "to_data_uri",
]  # fmt: skip

CONTENT_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
# The background of JupyterLab, Visual Studio Code and Colab, by the names they give it; elsewhere there are no shadows.
NOTEBOOK_GROUND = "var(--jp-layout-color0,var(--vscode-editor-background,var(--colab-primary-surface-color,initial)))"
NOTEBOOK_COLOURS = (
    "--raised:rgba(128,128,128,.14);--ink:inherit;--dim:color-mix(in srgb,currentColor 75%,transparent);"
    "--line:rgba(128,128,128,.4);--shade:rgba(60,140,200,.6);--accent:#2a7ab8;--good:#00875f;--bad:#c4561a"
)
PAGE_CSS = Path(__file__).with_name("report.css").read_text("utf-8")


# --- the page ---------------------------------------------------------------------------------------------------------


def make_page(
    title: str,
    content: Sequence[Html],
    *,
    lead: str = "",
    about: Mapping[str, Content] | None = None,
    contents: Mapping[str, str] | None = None,
    style: str = "",
    script: str = "",
    data: Any = None,
) -> str:
    """The whole file.

    about: facts for the footer (model, versions). contents: section titles by anchor. style: extra CSS, not escaped.
    script: the only script that the page runs, not escaped; it reads `data`, a JSON value, from the element #data.
    """
    head = join_html(
        [
            make_element("meta", charset="utf-8"),
            make_element("meta", http_equiv="Content-Security-Policy", content=make_content_policy(script)),
            make_element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            make_element("meta", name="referrer", content="no-referrer"),
            make_element("title", title),
            make_element("style", Html(PAGE_CSS + make_fold_css() + make_palette_css() + make_mark_css() + style)),
        ]
    )
    facts = add_page_date(about or {})
    links = [
        make_element("li", make_element("a", label, href=f"#{anchor}")) for anchor, label in (contents or {}).items()
    ]
    body = make_element(
        "div",
        make_element("a", "Skip to content", class_="skip", href="#content"),
        make_element(
            "header",
            make_element("h1", title),
            make_element("p", lead) if lead else None,
            make_element("nav", make_element("ul", *links), aria_label="Contents") if len(links) > 1 else None,
        ),
        make_element("main", join_html(content, "\n"), id="content"),
        make_element("footer", make_fact_list(facts)) if facts else None,
        class_="page",
    )
    tail = make_script(script, data) if script else ""
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n{tail}</body></html>\n'


def make_content_policy(script: str) -> str:
    """What a page may load: nothing from elsewhere, and no script but this one."""
    if not script:
        return CONTENT_POLICY
    digest = b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return f"{CONTENT_POLICY}; script-src 'sha256-{digest}'"


def make_script(script: str, data: Any) -> Html:
    """The data as an element that is not executed, and the script. Neither can end its element from inside."""
    if "</" in script or "<!--" in script:
        raise ValueError("a script on a page must not contain </ or <!--")
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    inert = f'<script type="application/json" id="data">{text}</script>'
    return Html(f"{inert}\n<script>{script}</script>\n")


def make_fragment(*content: Content) -> str:
    """Blocks for a notebook: they take on its look, and their CSS applies to nothing else."""
    rules = PAGE_CSS.replace(":root", ":scope").replace("body{", ":scope{")
    light = rules[: rules.index("@media (prefers-color-scheme:dark)")]
    rest = rules[rules.index("*{box-sizing") :]
    own = f":scope{{--ground:{NOTEBOOK_GROUND};{NOTEBOOK_COLOURS}}}"
    palette = make_palette_css().splitlines()[0].replace(":root", ":scope")
    style = f"@scope (.whyformer){{{light}{rest}{make_fold_css()}{own}{palette}}}"
    return make_element("div", make_element("style", Html(style)), *content, class_="whyformer")


def make_section(
    title: str, *content: Content, remark: str = "", anchor: str | None = None, is_case: bool = False
) -> Html:
    """A section with a heading. is_case: a page of its own on paper."""
    head = (make_element("h2", title), make_element("p", remark) if remark else None)
    return make_element("section", *head, *content, id=anchor, class_="case" if is_case else None)


def make_anchors(titles: Iterable[str]) -> dict[str, str]:
    """A safe anchor for every title, in order: {anchor: title}, for make_section(anchor=) and make_page(contents=)."""
    return {f"part-{number}": title for number, title in enumerate(titles, 1)}


# --- blocks -----------------------------------------------------------------------------------------------------------


def embed_drawing(drawing: Drawing, caption: str = "") -> Html:
    """A chart as inline SVG: its text can be selected, its colours follow light and dark mode."""
    inside = drawing.html().replace(LINE_COLOUR, "var(--line)")
    for colour in (DIM_INK, *page_colours.CHART_COLOURS):
        inside = inside.replace(colour.lower(), to_css_colour(colour))
    inside = inside.replace(to_hex(UNSIGNED_STOPS[-1]), "var(--u0)")  # lines of attention, too dark for dark mode
    below = make_element("figcaption", caption) if caption else None
    return make_element("figure", make_scrollable(Html(inside), drawing.alt), below)


def make_series_symbol(style: SeriesStyle) -> Html:
    """The marker of a series in its colour, to put before its name."""
    colour = f"color:{to_css_colour(style.colour)}"
    return make_element("span", style.symbol, class_="symbol", style=colour, aria_hidden="true")


def embed_image(image: Image.Image, alt: str, *caption: Content, crisp: bool = False, is_map: bool = False) -> Html:
    """An image inside the page with its description and caption.

    crisp: pixels stay sharp when enlarged. is_map: it shows scores, not the input.
    """
    size = {"width": image.width, "height": image.height}
    kind = "crisp" if crisp else None
    element = make_element("img", alt=alt, src=to_data_uri(image), **size, loading="lazy", class_=kind)
    below = make_element("figcaption", *caption) if caption else None
    return make_element("figure", element, below, class_="map" if is_map else None)


def to_data_uri(image: Image.Image) -> Html:
    """The image as a data: URI; photographs (many colours) as JPEG, everything else as PNG."""
    if image.width * image.height > 10_000 and image.getcolors(2_000) is None:
        return make_data_uri("jpeg", encode_image(image, "JPEG", quality=88, subsampling=0))
    return make_data_uri("png", encode_image(image, "PNG", optimize=True))


def make_data_uri(kind: str, data: bytes) -> Html:
    return Html(f"data:image/{kind};base64,{b64encode(data).decode('ascii')}")


def embed_png(png: bytes, alt: str) -> Html:
    """The contents of a PNG file as an image, for a notebook."""
    return make_element("img", alt=alt, src=make_data_uri("png", png), style="max-width:100%")


def encode_image(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def arrange_figures(figures: Iterable[Html], *, small: bool = False, large: bool = False) -> Html:
    """Figures side by side, as many as fit."""
    return make_element("div", *figures, class_="maps" + " small" * small + " large" * large)


def make_fact_list(pairs: Mapping[str, Content]) -> Html:
    """Names and values, one pair per line."""
    return make_element(
        "dl", *(part for name, value in pairs.items() for part in (make_element("dt", name), make_element("dd", value)))
    )


def fold_content(summary: str, *content: Content, open_: bool = False) -> Html:
    """Content that is hidden until its summary is clicked."""
    return make_element("details", make_element("summary", summary), *content, open=open_ or None)


TESTED = "The answer with parts hidden: "


def make_check(lines: Sequence[str]) -> list[Html]:
    """What hiding parts of the input showed, and what that speaks against."""
    return [make_element("p", make_element("strong", line) if i else f"{TESTED}{line}") for i, line in enumerate(lines)]


def make_notes(lines: Iterable[str]) -> Html:
    return join_html(make_element("p", line, class_="note") for line in lines)


def make_verdict_badge(text: str, kind: str = "") -> Html:
    """A word in a rounded frame; kind: "good", "bad" or "" (neutral)."""
    return make_element("span", text, class_=f"verdict {kind}".strip())


def make_chooser(
    options: Sequence[tuple[str, Html]], *, name: str, legend: str, prose: bool = False
) -> tuple[Html, str]:
    """Tabs without a script, chosen by click or arrow keys: the block, and the CSS it needs.

    options: (label, content) of each tab. prose: the labels form a running text.
    """
    key = f"c{hashlib.sha256(name.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"
    names = [f"{i}" if isinstance(label, Html) else str(label) for i, (label, _) in enumerate(options, 1)]
    buttons = [
        make_element("input", type="radio", name=key, id=f"{key}-{i}", checked=i == 0, aria_label=own)
        for i, own in enumerate(names)
    ]
    labels = [make_element("label", label, for_=f"{key}-{i}") for i, (label, _) in enumerate(options)]
    contents = [make_element("div", content) for _, content in options]
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
        make_element("div", *contents, class_="panels"),
        class_="choice",
        role="group",
        aria_label=legend,
    )
    return block, "\n".join(rules) + "\n"


def make_legend(between: tuple[float, float], *, signed: bool, note: str = "", of_image: bool = False) -> Html:
    """A colour bar between its two limits. of_image: of a map that is an image, so its colours are those of light mode.

    Words are tinted by CSS and follow the mode of the reader; an image cannot.
    """
    low, high = (format_score(limit, signed=signed) for limit in between)
    return make_element(
        "div",
        make_element("span", f"{low} against" if signed else low),
        make_element("span", class_=f"bar bar-{'s' if signed else 'u'}" + " of-image" * of_image, aria_hidden="true"),
        make_element("span", f"{high} for" if signed else high),
        make_element("span", note) if note else None,
        class_="legend",
    )
