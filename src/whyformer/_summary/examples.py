"""Example items on the page: images with the region outlined, texts with their words coloured."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw

from whyformer._model import as_image
from whyformer._runs.parts import BulkRow
from whyformer._summary.clusters import Cluster
from whyformer._summary.inputs import InputReader
from whyformer._summary.word_shares import list_word_shares
from whyformer.errors import InputError
from whyformer.show import report
from whyformer.show.colours import find_limits, paint
from whyformer.show.panel_images import render_model_input
from whyformer.show.report import Html, join_html, make_element
from whyformer.show.wording import shorten_text

SIDE = 256  # pixels of an example
PALENESS = 0.3  # of what is outside the region
MAX_WORDS = 60  # of a text
NAME_LENGTH = 40


def make_examples(cluster: Cluster, reader: InputReader | None, count: int) -> Html:
    """The mean map of a cluster and its most typical items side by side, or its texts."""
    rows = cluster.rows[:count]
    if cluster.mean_map is None:
        marked = (part for row in rows for part in make_text_example(row, cluster.words))
        return make_element("div", *marked, class_="rows")
    mean = draw_mean_map(cluster.mean_map, cluster.region)
    caption = f"mean of {len(cluster.members)} maps"
    figures = [figure for row in rows if (figure := make_cluster_figure(row, cluster.region, reader)) is not None]
    first = report.embed_image(mean, "mean map of the cluster", caption, crisp=True, is_map=True)
    names = ", ".join(shorten_text(row.id, NAME_LENGTH) for row in rows)
    note = None if figures else make_element("p", f"For example {names}. The images are not at hand.", class_="dim")
    return join_html([report.arrange_figures([first, *figures]), note])


def make_cluster_figure(row: BulkRow, region: np.ndarray | None, reader: InputReader | None) -> Html | None:
    """The image with the region marked and its name; None if the file is gone."""
    image = load_thumbnail(row, reader)
    if image is None:
        return None
    if region is not None:
        image = mark_region(image, region)
    name = shorten_text(row.id, NAME_LENGTH)
    is_wrong = row.is_right is False
    caption = f"{name} (predicted {row.prediction_name}, label {row.label})" if is_wrong else name
    return report.embed_image(image, f"the image {name}", caption)


def load_thumbnail(row: BulkRow, reader: InputReader | None) -> Image.Image | None:
    """The image as the model sees it; without the model, the whole image as a square."""
    try:
        if reader is None:
            return as_image(row.source or "").resize((SIDE, SIDE))
        encoded = reader.model.encode([reader.read_row_image(row)])
    except InputError:
        return None
    return render_model_input(encoded.inputs[encoded.main][0], SIDE)


def mark_region(image: Image.Image, region: np.ndarray) -> Image.Image:
    """The image, paler outside the region. Nothing is drawn inside it, so that what is there can be read."""
    inside = Image.fromarray((255 * region).astype(np.uint8)).resize(image.size, Image.Resampling.NEAREST)
    pale = Image.blend(image, Image.new("RGB", image.size, "white"), PALENESS)
    outline_region(pale, region)
    pale.paste(image, mask=inside)
    return pale


def outline_region(image: Image.Image, region: np.ndarray) -> None:
    """Draw the border between the region and the rest, black on white so that it shows on any image."""
    draw = ImageDraw.Draw(image)
    lines = list_edges(region, image.width, image.height)
    for colour, width in (("white", 6), ("black", 3)):
        for line in lines:
            draw.line(line, fill=colour, width=width)


def list_edges(region: np.ndarray, width: int, height: int) -> list[tuple[float, float, float, float]]:
    """The sides of patches that are between the region and the rest, in pixels."""
    rows, columns = region.shape
    padded = np.pad(region, 1)
    across, down = width / columns, height / rows
    lines = []
    for y, x in zip(*np.nonzero(padded[1:] != padded[:-1]), strict=True):  # between row y - 1 and row y of the region
        lines.append(((x - 1) * across, y * down, x * across, y * down))
    for y, x in zip(*np.nonzero(padded[:, 1:] != padded[:, :-1]), strict=True):
        lines.append((x * across, (y - 1) * down, x * across, y * down))
    return lines


def draw_mean_map(shares: np.ndarray, region: np.ndarray | None = None) -> Image.Image:
    """A mean map in the colours of unsigned scores."""
    scores = torch.from_numpy(np.ascontiguousarray(shares))
    image = Image.fromarray(paint(scores, find_limits(scores, signed=False, floor=0.0), signed=False).byte().numpy())
    image = image.resize((SIDE, SIDE), Image.Resampling.NEAREST)
    if region is not None:
        outline_region(image, region)
    return image


def make_text_example(row: BulkRow, words: Sequence[str]) -> list[Html]:
    """The name of a text, and its words coloured by their share; common words are underlined."""
    listed = list_word_shares(row)
    limits = (0.0, max((one.share for one in listed), default=0.0))
    marks: list[Html] = []
    for one in listed[:MAX_WORDS]:
        level = report.choose_colour_level(one.share, limits, signed=False)
        style = "text-decoration:underline" if one.word in words else None
        marks += [make_element("mark", one.word, class_=level, title=f"{one.share:.2f}", style=style), Html(" ")]
    rest = len(listed) - MAX_WORDS
    marks += [make_element("span", f"… {rest} more", class_="dim")] if rest > 0 else []
    return [make_element("div", shorten_text(row.id, NAME_LENGTH)), make_element("div", *marks, class_="text")]
