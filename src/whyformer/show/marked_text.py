"""A scored text as HTML: every chip a <mark> on its colour, with its score as a tooltip."""

from collections.abc import Callable, Mapping

import torch

from whyformer.show.chips import Chip, ScoredText
from whyformer.show.colours import AGAINST_COLOUR, FOR_COLOUR, WHITE, Colour, compute_contrast, to_hex
from whyformer.show.html import Html, escape_lines, join_html, make_element
from whyformer.show.overlay import measure_strength
from whyformer.show.page_colours import LIGHT_PAGE_INK, choose_colour_level
from whyformer.show.wording import format_score

INLINE_PURPLE: Colour = (0x70, 0x30, 0xA0)  # neither white nor black: it shows on both


def mark_words(text: ScoredText) -> Html:
    """The text with CSS classes from the page's style sheet."""

    def look_up(chip: Chip) -> dict[str, str]:
        level = choose_colour_level(chip.score, text.between, signed=text.signed)
        return {"class_": level + " special" * chip.special}

    return mark_chips(text, look_up, {"class_": "segment"})


def mark_words_inline(text: ScoredText) -> Html:
    """The text with inline styles, for a notebook without our style sheet."""

    def style(chip: Chip) -> dict[str, str]:
        colour = make_inline_style(chip.score, text.between, signed=text.signed)
        italic = ";font-style:italic" if chip.special else ""
        return {"style": f"padding:.1em .15em;border-radius:3px;{colour}{italic}"}

    return mark_chips(text, style, {"style": "display:block;font-size:.85em;opacity:.7"})


def mark_chips(
    text: ScoredText, get_attributes: Callable[[Chip], Mapping[str, str]], of_segment: Mapping[str, str]
) -> Html:
    """Every chip as a <mark> with these attributes; the text between chips stays plain. Names the texts of a pair."""
    parts: list[Html] = []
    for chip in text.chips:
        score = format_score(chip.score, signed=text.signed)
        parts += [make_element("span", chip.opens, **of_segment)] if chip.opens else []
        parts += [escape_lines(chip.before), make_element("mark", chip.text, **get_attributes(chip), title=score)]
    return join_html([*parts, escape_lines(text.tail)])


def make_inline_style(score: float, between: tuple[float, float], *, signed: bool) -> str:
    """The stronger the score, the less transparent: it stands out more on a light and on a dark ground.

    The ink is that of the notebook, and white from where it has more contrast on a light ground.
    """
    strength = measure_strength(torch.tensor(score, dtype=torch.double), between, signed=signed).item()
    colour = (AGAINST_COLOUR if score < 0 else FOR_COLOUR) if signed else INLINE_PURPLE
    red, green, blue = (round(255 + strength * (part - 255)) for part in colour)
    on_light = (red, green, blue)
    is_dark = compute_contrast(WHITE, on_light) > compute_contrast(LIGHT_PAGE_INK, on_light)
    ink = to_hex(WHITE) if is_dark else "inherit"
    return f"background:rgba({colour[0]},{colour[1]},{colour[2]},{strength:.2f});color:{ink}"
