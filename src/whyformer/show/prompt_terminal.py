"""A prompt in a terminal: its regions with bars, and the strongest words in context.

Tokens and names are untrusted: all go through `make_visible` before they are printed.
"""

from collections.abc import Iterator

import torch
from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text

from whyformer.show import terminal
from whyformer.show.colours import paint_scores
from whyformer.show.prompt_view import PromptView, TopSpan, find_top_spans
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible
from whyformer.show.wording import format_score, shorten_text

MOST_REGIONS = 12  # named one by one; the others are summed
MOST_SPANS = 5
CONTEXT_CHIPS = 5  # on each side of a span
LONGEST_NAME = 28  # cells of the terminal


def list_prompt_parts(view: PromptView, screen: Screen) -> Iterator[Text]:
    """The view as text for that screen, from top to bottom."""
    yield Text(f"{make_visible(view.headline)} by {make_visible(view.method)}", style="bold")
    yield from render_regions(view, screen)
    yield from render_spans(view, screen)
    yield from terminal.render_notes(view.notes)


def render_scores(view: PromptView, screen: Screen) -> list[Text]:
    """A short prompt in full, of a long one the strongest words; before it the shares of its regions, if several."""
    if not view.is_short:
        return [*render_regions(view, screen), *render_spans(view, screen)]
    words = terminal.render_text(view.pieces, view.scores, signed=view.signed, screen=screen)
    return [*render_regions(view, screen), Text(), *words] if len(view.regions) > 1 else words


def render_regions(view: PromptView, screen: Screen) -> Iterator[Text]:
    """The cells with the largest shares, in the order of the prompt, and the sum of the others: name, share and bar."""
    shares, ranked = view.cell_shares, view.ranked_cells
    rows = [(view.name_cell(i), shares[i]) for i in sorted(ranked[:MOST_REGIONS])]
    if rest := ranked[MOST_REGIONS:]:
        rows.append((f"{len(rest)} other regions", sum(shares[i] for i in rest)))
    yield Text()
    largest = max((abs(share) for _, share in rows), default=0.0)
    width = min(LONGEST_NAME, max((cell_len(make_visible(name)) for name, _ in rows), default=0))
    for name, share in rows:
        length = round(terminal.BAR_LENGTH * abs(share) / largest) if largest else 0
        line = Text(f"{pad_name(name, width)} {share:{'+' if view.signed else ''}7.1%} ")
        if screen.colours is None:
            yield line.append(("-" if share < 0 else "+" if view.signed else "#") * length)
            continue
        sign = torch.tensor(share).sign() * 0.8
        yield line.append(" " * length, style_score(sign.item(), (-1.0 if view.signed else 0.0, 1.0), view.signed))


def pad_name(name: str, width: int) -> str:
    return set_cell_size(shorten_text(make_visible(name), width), width)


def style_score(score: float, between: tuple[float, float], signed: bool) -> Style:
    red, green, blue = paint_scores(torch.tensor(score, dtype=torch.double), between, signed=signed).tolist()
    return terminal.choose_text_style((red, green, blue))


# --- words in context -------------------------------------------------------------------------------------------------


def render_spans(view: PromptView, screen: Screen) -> Iterator[Text]:
    """The strongest words of the prompt, each with a few words before and after it; in brackets without colour."""
    cells = [cell for cell in view.cells if cell.start < view.prompt_length]
    found = [(cell.name, span) for cell in cells for span in find_top_spans(view, cell)]
    spans = sorted(found, key=lambda pair: -abs(pair[1].score))[:MOST_SPANS]
    yield Text("\nStrongest words:" if spans else "")
    width = min(LONGEST_NAME, max((cell_len(make_visible(name)) for name, _ in spans), default=0))
    for name, span in spans:
        score = format_score(span.score, signed=view.signed)
        line = Text(f"{score:>9} ", no_wrap=True, overflow="ellipsis")
        line.append(f"{pad_name(name, width)} ", terminal.DIM_STYLE)
        yield line.append_text(render_span(view, span, screen))


def render_span(view: PromptView, span: TopSpan, screen: Screen) -> Text:
    """A span between its neighbours, on one line."""
    plain = screen.colours is None
    line = Text()
    first, last = max(span.first - CONTEXT_CHIPS, 0), min(span.last + CONTEXT_CHIPS, len(view.chips) - 1)
    for i in range(first, last + 1):
        chip, inside = view.chips[i], span.first <= i <= span.last
        line.append(" " if chip.before and i > first else "")
        line.append("[" if plain and i == span.first else "")
        style = style_score(chip.score, view.between, view.signed) if inside and not plain else terminal.DIM_STYLE
        line.append(chip.text, style)
        line.append("]" if plain and i == span.last else "")
    return line
