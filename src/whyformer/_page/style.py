"""The colours of the library as files of the page, so that it looks like the static pages.

python -m whyformer._page.style       writes them; a test fails when one is stale
"""

import json

from whyformer._page.files import FOLDER
from whyformer.show import colours
from whyformer.show.overlay import OVERLAY_STRENGTH
from whyformer.show.page_colours import COLOUR_LEVELS, make_mark_css, make_palette_css

OVERLAY_FLOOR = 0.12  # opacity of the weakest colour over an image (show/overlay.py)


def make_style_files() -> dict[str, str]:
    """The contents of each file by its name."""
    tables = {"signed": colours.mix_stops(colours.SIGNED_STOPS), "unsigned": colours.mix_stops(colours.UNSIGNED_STOPS)}
    numbers = {"levels": COLOUR_LEVELS, "strength": OVERLAY_STRENGTH, "floor": OVERLAY_FLOOR}
    table = {name: [list(colour) for colour in stops.tolist()] for name, stops in tables.items()}
    return {
        "library.css": make_palette_css() + make_mark_css(),
        "colours.json": json.dumps(table | numbers, separators=(",", ":")) + "\n",
    }


if __name__ == "__main__":
    for name, content in make_style_files().items():
        (FOLDER / name).write_text(content, encoding="utf-8")
