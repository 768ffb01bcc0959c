r"""Words in colour for a LaTeX document: \input{film.tex} in a document with \usepackage{xcolor}.

Every letter that means something to TeX is spelled out, so that a token is shown and never carried out.
"""

from collections.abc import Sequence

import torch

from whyformer.errors import InputError
from whyformer.show.chips import find_chip_limits, make_chips
from whyformer.show.colours import choose_ink, paint, to_hex
from whyformer.show.page import format_score
from whyformer.show.panel import Panel
from whyformer.show.visible import make_visible
from whyformer.show.wording import format_headline

TEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\symbol{34}",
    "`": r"\symbol{96}",
    "'": r"\symbol{39}",
    "-": "{-}",
    ",": "{,}",
    "!": "{!}",
    "?": "{?}",
    "\n": " ",
}
TEX_HEADER = r"""% Made by whyformer. The document needs \usepackage{xcolor} and \usepackage[T1]{fontenc}.
"""


def to_latex(cases: Sequence[Panel]) -> str:
    """A snippet to be read in: each text with its words on their colours, and below them what the colours mean."""
    if not cases or any(case.is_image for case in cases):
        raise InputError("A .tex shows the words of a text. Save a picture as .pdf and include that.")
    return TEX_HEADER + "\n".join(format_tex_snippet(case) for case in cases)


def format_tex_snippet(case: Panel) -> str:
    made, tail = make_chips(case.pieces, case.scores)
    between = find_chip_limits(made, signed=case.signed)
    words = []
    for chip in made:
        colour = tuple(paint(torch.tensor(chip.score), between, signed=case.signed).tolist())
        ground, on = (to_hex(c)[1:].upper() for c in (colour, choose_ink(colour)))  # type: ignore[arg-type]
        text = rf"\textit{{{escape_tex(chip.text)}}}" if chip.special else escape_tex(chip.text)
        gap = r"\par\noindent " if "\n" in chip.before else " " if chip.before[-1:].isspace() else ""
        dropped = escape_tex(" ".join(chip.before.split()))
        words.append(
            rf"{gap}{dropped}\colorbox[HTML]{{{ground}}}{{\textcolor[HTML]{{{on}}}{{\strut {text}}}}}\allowbreak{{}}%"
        )
    low, high = (escape_tex(format_score(limit, signed=case.signed)) for limit in between)
    meaning = f"{low} (blue, against) to {high} (orange, for)" if case.signed else f"{low} (white) to {high} (dark)"
    lines = [
        r"\begingroup\setlength{\fboxsep}{1pt}\raggedright\noindent",
        *words,
        rf" {escape_tex(' '.join(tail.split()))}\par\noindent",
        rf"{{\footnotesize {escape_tex(format_headline(case))}; by {escape_tex(case.label)}; "
        rf"colours from {meaning}.\par}}",
        r"\endgroup",
    ]
    return "\n".join(lines) + "\n"


def escape_tex(text: str) -> str:
    """Harmless in running text."""
    return "".join(TEX_ESCAPES.get(letter, letter) for letter in make_visible(text))
