r"""Words in colour for a LaTeX document: \input{film.tex} in a document with \usepackage{xcolor}.

Every character that is special to TeX is escaped, so that a token is printed and never executed.
"""

from collections.abc import Sequence

import torch

from whyformer.errors import InputError
from whyformer.show.colours import choose_ink, paint_scores, to_hex
from whyformer.show.panel import Panel
from whyformer.show.visible import make_visible
from whyformer.show.wording import format_headline, format_score

TEX_ESCAPES = {
    **{sign: f"\\{sign}" for sign in "{}$&#%_"},
    **{sign: f"{{{sign}}}" for sign in "-,!?"},
    **{sign: rf"\symbol{{{ord(sign)}}}" for sign in "\"`'"},
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "\n": " ",
}
TEX_HEADER = r"""% Made by whyformer. The document needs \usepackage{xcolor} and \usepackage[T1]{fontenc}.
"""


def to_latex(panels: Sequence[Panel]) -> str:
    """A snippet to \\input: the words of each text on their colours, and below them what the colours mean."""
    panels = [part for panel in panels for part in panel.drawn if not (panel.streams and part.is_image)]
    if not panels or any(panel.is_image for panel in panels):
        raise InputError(".tex files are for texts. Save an image explanation as .pdf and include that.")
    return TEX_HEADER + "\n".join(format_tex_snippet(panel) for panel in panels)


def format_tex_snippet(panel: Panel) -> str:
    scored = panel.scored_text
    words = []
    for chip in scored.chips:
        colour = tuple(paint_scores(torch.tensor(chip.score), scored.between, signed=scored.signed).tolist())
        ground, ink = (to_hex(c)[1:].upper() for c in (colour, choose_ink(colour)))  # type: ignore[arg-type]
        text = rf"\textit{{{escape_tex(chip.text)}}}" if chip.special else escape_tex(chip.text)
        gap = r"\par\noindent " if "\n" in chip.before else " " if chip.before[-1:].isspace() else ""
        if chip.opens:
            gap = rf"\par\noindent{{\footnotesize {escape_tex(chip.opens)}}}\par\noindent "
        dropped = escape_tex(" ".join(chip.before.split()))
        words.append(
            rf"{gap}{dropped}\colorbox[HTML]{{{ground}}}{{\textcolor[HTML]{{{ink}}}{{\strut {text}}}}}\allowbreak{{}}%"
        )
    low, high = (escape_tex(format_score(limit, signed=scored.signed)) for limit in scored.between)
    meaning = f"{low} (blue, against) to {high} (orange, for)" if scored.signed else f"{low} (white) to {high} (dark)"
    lines = [
        r"\begingroup\setlength{\fboxsep}{1pt}\raggedright\noindent",
        *words,
        rf" {escape_tex(' '.join(scored.tail.split()))}\par\noindent",
        rf"{{\footnotesize {escape_tex(format_headline(panel))}; by {escape_tex(panel.label)}; "
        rf"colours from {meaning}.\par}}",
        r"\endgroup",
    ]
    return "\n".join(lines) + "\n"


def escape_tex(text: str) -> str:
    """Untrusted text, safe in running text."""
    return "".join(TEX_ESCAPES.get(letter, letter) for letter in make_visible(text))
