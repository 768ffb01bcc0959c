"""The report of a comparison of two runs: the verdict, the classes that moved, with maps or words, and items."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from whyformer._model import as_image
from whyformer._summary.moves import ClassMove, MovedItem, RunItem
from whyformer._summary.pictures import SIDE, draw_mean_map
from whyformer._summary.wording import format_p
from whyformer.errors import InputError
from whyformer.show import report
from whyformer.show.blocks import Badge, Block, DataTable, Fold, Notes, PageSection, Paragraph, Report
from whyformer.show.report import Html, make_element
from whyformer.show.wording import shorten_text

if TYPE_CHECKING:
    from whyformer._summary.comparison import RunComparison

TITLE = "What changed between two runs"
SHOWN_CARDS, SHOWN_WORDS, SHOWN_ITEMS, SHOWN_ROWS, BRIEFLY, NAME_LENGTH, TEXT_LENGTH = 12, 12, 6, 100, 15, 60, 90
LARGEST_FIRST = "Words whose share of the relevance changed most, the largest change first"
ABOUT_MOVES = (
    "Moved: the part of a class's evidence that is elsewhere in the second run, from 0 to 100 % (total variation of "
    "the mean shares). By chance: the same if the runs did not differ, by permutation. p: corrected by Holm over all "
    "classes."
)


def make_runs_report(comparison: "RunComparison") -> Report:
    """Sections for a page; the verdict and all tables for a notebook and a terminal."""
    moves, answers, changed, moved = tables = [
        tabulate_moves(comparison), tabulate_predictions(comparison), tabulate_changes(comparison),
        tabulate_moved_items(comparison),
    ]  # fmt: skip
    verdict = Paragraph(comparison.verdict, "strong")
    notes: list[Block] = [Notes(comparison.notes)] if comparison.notes else []
    sections: dict[str, list[Block]] = {
        "In short": [verdict, *notes],
        "Evidence of each class": [moves, *make_move_blocks(comparison)],
        "Predictions": [answers, changed],
        "Items that moved most": [*make_item_blocks(comparison), moved],
    }
    return Report(
        TITLE,
        [PageSection(title, kept) for title, blocks in sections.items() if (kept := drop_empty(blocks))],
        lead=describe_compared_runs(comparison),
        facts={"first run": str(comparison.a), "second run": str(comparison.b), "method": comparison.method},
        brief=[verdict, *drop_empty([one._replace(rows=one.rows[:BRIEFLY]) for one in tables]), *notes],
    )


def drop_empty(blocks: Sequence[Block]) -> list[Block]:
    """Without tables that have no rows."""
    return [block for block in blocks if not isinstance(block, DataTable) or block.rows]


def describe_compared_runs(comparison: "RunComparison") -> str:
    (first, second), (a, b) = comparison.items, comparison.names
    return f"{a} ({first:,} items) and {b} ({second:,} items, {comparison.shared:,} in both), by {comparison.method}."


# --- classes ----------------------------------------------------------------------------------------------------------


def make_move_blocks(comparison: "RunComparison") -> list[Block]:
    """The evidence of each class in both runs."""
    blocks: list[Block] = [Paragraph(ABOUT_MOVES, "dim")] if comparison.classes else []
    for number, move in enumerate(comparison.classes[:SHOWN_CARDS], 1):
        caption, content = write_move_caption(move), make_move_figures(move, comparison.names)
        if move.is_certain or number == 1:
            badge = report.make_verdict_badge("moved", "bad") if move.is_certain else None
            blocks += [make_element("h3", shorten_text(move.name, NAME_LENGTH), " ", badge), caption, content]
        else:
            blocks.append(Fold(caption, [content]))
    return blocks


def tabulate_moves(comparison: "RunComparison") -> DataTable:
    head = ["class", "", *(f"items in {name}" for name in comparison.names), "test", "moved", "by chance", "p"]
    rows = [
        [shorten_text(one.name, NAME_LENGTH), Badge("moved", "bad") if one.is_certain else "", *one.items,
         "paired" if one.is_paired else "two samples", f"{one.moved:.1%}", f"{one.chance:.1%}",
         format_p(one.adjusted_p)]
        for one in comparison.classes[:SHOWN_ROWS]
    ]  # fmt: skip
    return DataTable(head, rows, "How far the evidence of each class moved, the furthest first", ("test",))


def write_move_caption(move: ClassMove) -> str:
    """One sentence: class, how far, and beside what."""
    told = "moved" if move.is_certain else "did not move significantly: it moved"
    return (
        f"The evidence of {shorten_text(move.name, NAME_LENGTH)} {told} by {move.moved:.1%}, where chance gives "
        f"{move.chance:.1%} ({format_p(move.adjusted_p)})."
    )


def make_move_figures(move: ClassMove, names: tuple[str, str]) -> Block:
    """The two mean maps and their difference; or the words that gained and lost."""
    if isinstance(move.before, np.ndarray) and isinstance(move.after, np.ndarray):
        limit = float(max(move.before.max(), move.after.max()))
        maps = [
            report.embed_image(draw_mean_map(one, limit=limit), f"mean map of {name}", name, crisp=True, is_map=True)
            for one, name in zip((move.before, move.after), names, strict=True)
        ]
        change = draw_mean_map(move.after - move.before, signed=True)
        text = "difference: what gained (orange) and what lost (blue)"
        maps.append(report.embed_image(change, "difference of the mean maps", text, crisp=True, is_map=True))
        return report.arrange_figures(maps, small=True)
    changes = sorted((pair for words in move.list_words(SHOWN_WORDS) for pair in words), key=lambda pair: -abs(pair[1]))
    shares = [one for one in (move.before, move.after) if isinstance(one, dict)]
    rows = [
        [word, " → ".join(f"{one.get(word, 0.0):.1%}" for one in shares), f"{100 * change:+z.1f} points"]
        for word, change in changes[:SHOWN_WORDS]
    ]
    return DataTable(["word", "share", "change"], rows, LARGEST_FIRST)


# --- predictions and items --------------------------------------------------------------------------------------------


def tabulate_predictions(comparison: "RunComparison") -> DataTable:
    rows = [
        [shorten_text(one.what, NAME_LENGTH), f"{one.before:.1%}", f"{one.after:.1%}",
         f"{100 * one.change:+z.1f} points", format_p(one.adjusted_p)]
        for one in comparison.answers[:SHOWN_ROWS]
    ]  # fmt: skip
    return DataTable(
        ["share of items", *comparison.names, "change", "p"], rows, "How often each is predicted, and is right"
    )


def tabulate_changes(comparison: "RunComparison") -> DataTable:
    changed = [[shorten_text(old, 40), shorten_text(new, 40), count] for old, new, count in comparison.changes[:20]]
    return DataTable(["from", "to", "items"], changed, "Shared items that are predicted otherwise in the second run")


def tabulate_moved_items(comparison: "RunComparison") -> DataTable:
    rows = [
        [shorten_text(one.before.id, NAME_LENGTH), describe_item_answer(one.before), describe_item_answer(one.after),
         f"{one.moved:.0%}", *list_text(one)]
        for one in comparison.moved_items
    ]  # fmt: skip
    head = ["item", *comparison.names, "moved", "text"]
    return DataTable(head[: len(rows[0])] if rows else head, rows, "The furthest first", ("text",))


def make_item_blocks(comparison: "RunComparison") -> list[Block]:
    drawn = [make_item_figures(one, comparison.names) for one in comparison.moved_items[:SHOWN_ITEMS]]
    return [report.arrange_figures(figures, small=True) for figures in drawn if figures]


def list_text(one: MovedItem) -> list[str]:
    """The beginning of a text; nothing of an image."""
    return [shorten_text(one.before.source or "", TEXT_LENGTH)] if isinstance(one.before.evidence, dict) else []


def describe_item_answer(item: RunItem) -> str:
    probability = "" if item.probability is None else f" ({item.probability:.0%})"
    wrong = f", label {item.label}" if item.is_right is False else ""
    return shorten_text(f"{item.prediction or item.class_name}{probability}{wrong}", NAME_LENGTH)


def make_item_figures(one: MovedItem, names: tuple[str, str]) -> list[Html]:
    """The image and its maps in both runs; nothing for a text."""
    before, after = one.before.evidence, one.after.evidence
    if not isinstance(before, np.ndarray) or not isinstance(after, np.ndarray):
        return []
    name = shorten_text(one.before.id, 40)
    drawn: Mapping[str, Image.Image | None] = {
        name: load_source(one.before),
        f"{names[0]}: {describe_item_answer(one.before)}": draw_mean_map(before),
        f"{names[1]}: {describe_item_answer(one.after)}": draw_mean_map(after),
    }
    return [
        report.embed_image(image, f"{name}, {text}", text, crisp=text != name, is_map=text != name)
        for text, image in drawn.items()
        if image is not None
    ]


def load_source(item: RunItem) -> Image.Image | None:
    """The image, if its file is still there."""
    try:
        return None if item.source is None else as_image(item.source).resize((SIDE, SIDE))
    except InputError:
        return None
