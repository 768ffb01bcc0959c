"""The colours of a page as CSS, for light and dark mode: words by their score, and the palette of charts."""

from collections.abc import Sequence
from functools import cache

from whyformer.show import colours
from whyformer.show.colours import Colour
from whyformer.show.drawing import DIM_INK, GREYS, PALETTE

COLOUR_LEVELS = 20  # on each side of zero
LIGHT_PAGE_INK: Colour = (0x1B, 0x1B, 0x1F)
DARK_PAGE_INK: Colour = (0xEC, 0xEC, 0xF1)
DARK_GROUND: Colour = (0x17, 0x17, 0x1B)
SIGNED_DARK_STOPS: tuple[Colour, ...] = ((0x6C, 0xC2, 0xF5), DARK_GROUND, (0xFF, 0xA1, 0x5C))
UNSIGNED_DARK_STOPS: tuple[Colour, ...] = (DARK_GROUND, (0x86, 0x55, 0xA8), (0xE6, 0xCC, 0xF7))
DARK_PALETTE = ("#5AB0EA", "#FF8A3D", "#3CC79F", "#E3A2C4", "#F2BE4A", "#8ED0F5", "#C98F6F", "#A98BD6")
DARK_GREYS = ("#7d7d88", "#d6d6de")
# For regions of a text: neither blue nor orange, which say whether a score is against or for the answer.
REGION_COLOURS = ("#009E73", "#CC79A7", "#5B3A8C", "#A0A000", "#8C4A2F", "#C2185B")
DARK_REGION_COLOURS = ("#3CC79F", "#E3A2C4", "#A98BD6", "#D6D66B", "#C98F6F", "#F0709F")
CHART_COLOURS = (*PALETTE, *GREYS)


def make_palette_css() -> str:
    """The colours of charts as CSS variables --c0, --c1, ..., of regions --r0, ...; lighter in dark mode."""
    light = name_colours(c=CHART_COLOURS, r=REGION_COLOURS, u=[colours.to_hex(colours.UNSIGNED_STOPS[-1])])
    dark = name_colours(
        c=(*DARK_PALETTE, *DARK_GREYS), r=DARK_REGION_COLOURS, u=[colours.to_hex(UNSIGNED_DARK_STOPS[-1])]
    )
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def name_colours(**palettes: Sequence[str]) -> str:
    return ";".join(
        f"--{letter}{i}:{colour}" for letter, palette in palettes.items() for i, colour in enumerate(palette)
    )


def to_css_colour(colour: str) -> str:
    """A colour of the charts as the CSS variable that follows light and dark mode."""
    return "var(--dim)" if colour == DIM_INK else f"var(--c{CHART_COLOURS.index(colour)})"


def choose_colour_level(score: float, between: tuple[float, float], *, signed: bool) -> str:
    """The CSS class of a word with this score: f0 to f20 (for), a0 to a20 (against), u0 to u20 (unsigned)."""
    low, high = between
    if signed:
        share = score / high if high > 0 else 0.0
        return f"{'a' if share < 0 else 'f'}{round(min(abs(share), 1) * COLOUR_LEVELS)}"
    share = (score - low) / (high - low) if high > low else 0.0
    return f"u{round(min(max(share, 0), 1) * COLOUR_LEVELS)}"


@cache
def make_mark_css() -> str:
    """The CSS rules of all colour levels, in light and dark mode, each with a readable text colour."""
    light = make_level_css(colours.SIGNED_STOPS, colours.UNSIGNED_STOPS, LIGHT_PAGE_INK)
    dark = make_level_css(SIGNED_DARK_STOPS, UNSIGNED_DARK_STOPS, DARK_PAGE_INK)
    return f"{light}@media screen and (prefers-color-scheme:dark){{{dark}}}\n"


def make_level_css(signed_stops: Sequence[Colour], unsigned_stops: Sequence[Colour], page_ink: Colour) -> str:
    """One rule per colour level, and the gradients of the two colour bars, between these colours."""
    signed, unsigned = (colours.mix_stops(stops).tolist() for stops in (signed_stops, unsigned_stops))
    middle = len(signed) // 2
    tables = {"f": signed[middle:], "a": signed[middle::-1], "u": unsigned}
    rules = []
    for letter, table in tables.items():
        for level in range(COLOUR_LEVELS + 1):
            colour = table[level * (len(table) - 1) // COLOUR_LEVELS]
            ink = page_ink if colours.compute_contrast(page_ink, colour) >= 4.5 else colours.choose_ink(colour)
            ground = "none" if level == 0 else colours.to_hex(colour)
            rules.append(f".{letter}{level}{{background:{ground};color:{colours.to_hex(ink)}}}")
    for letter, table in (("s", signed), ("u", unsigned)):
        stops = ",".join("#{:02x}{:02x}{:02x}".format(*table[i * (len(table) - 1) // 8]) for i in range(9))
        own = "" if page_ink == LIGHT_PAGE_INK else ":not(.of-image)"  # an image has the same colours in dark mode
        rules.append(f".bar-{letter}{own}{{background:linear-gradient(90deg,{stops})}}")
    return "\n".join(rules) + "\n"
