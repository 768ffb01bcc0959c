"""Show scores: in a terminal, as a figure, as a web page. Nothing here knows how the scores were computed.

For your own numbers:

    charts          curves, rankings, matrices, distributions: plain arrays in, a Drawing out
    report          one self-contained HTML page: sections, tables, charts, images

What explanations and comparisons use:

    panel           Panel, one example explained by one method: the input of everything below
    terminal        text for a terminal, with or without colour
    figures         static figures (.svg, .pdf, .png): one example below the other, or a table
    head_figures    attention heads in a grid, token-to-token links, an explanation layer by layer
    blocks          what a result says, as a list of blocks: the input of the three below
    page            blocks as an HTML page, and as the smaller HTML that a notebook shows
    terminal_report blocks in a terminal; markdown_report as Markdown
    prompt_view     PromptView, a long prompt with named regions and its answer: the input of the two below
    prompt_page     such a prompt as a page: regions that fold, answer tokens to click on, citations, hops
    prompt_matrix   the scores of every answer token, small enough for that page
    latex           words in colour for LaTeX
    score_rows      the scores as CSV or Parquet

What those are built from:

    visible         make_visible: control characters in untrusted text are spelled out
    html            escape_html, make_element: the only way text gets into a page
    wording         targets, probabilities and scores in words
    colours         scores to colours; page_colours: the same as CSS, light and dark
    chips           a text cut into scored pieces, never inside a letter
    marked_text     those pieces as coloured HTML
    overlay         a map of scores over its image; panel_images: the images of one panel
    drawing         Drawing: a matplotlib figure that saves as .svg, .pdf or .png
    canvas          text, boxes and images placed by hand; text_width: how wide text is
    chart_style     colours, labels and notes of charts
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whyformer.show import charts, report

__all__ = ["charts", "report"]


def __getattr__(name: str) -> ModuleType:
    """Import the public modules when they are first used: the command line needs `visible` but not torch."""
    if name in __all__:
        return import_module(f"whyformer.show.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
