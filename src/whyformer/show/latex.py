r"""Words in colour for a LaTeX document: \input{film.tex} in a document with \usepackage{xcolor}.

Every letter that means something to TeX is spelled out, so that a token is shown and never carried out.
"""

from collections.abc import Sequence

import torch

from whyformer.errors import InputError
from whyformer.show.case import Case
from whyformer.show.chips import chip_limits, chips
from whyformer.show.colours import hexadecimal, ink, paint
from whyformer.show.page import score_said
from whyformer.show.said import headline
from whyformer.show.visible import visible

SPELLED = {
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
HEAD = r"""% Made by whyformer. The document needs \usepackage{xcolor} and \usepackage[T1]{fontenc}.
"""


def latex(cases: Sequence[Case]) -> str:
    """A snippet to be read in: each text with its words on their colours, and below them what the colours mean."""
    if not cases or any(case.is_picture for case in cases):
        raise InputError("A .tex shows the words of a text. Save a picture as .pdf and include that.")
    return HEAD + "\n".join(snippet(case) for case in cases)


def snippet(case: Case) -> str:
    made, tail = chips(case.pieces, case.scores)
    between = chip_limits(made, signed=case.signed)
    words = []
    for chip in made:
        colour = tuple(paint(torch.tensor(chip.score), between, signed=case.signed).tolist())
        ground, on = (hexadecimal(c)[1:].upper() for c in (colour, ink(colour)))  # type: ignore[arg-type]
        text = rf"\textit{{{escaped(chip.text)}}}" if chip.special else escaped(chip.text)
        gap = r"\par\noindent " if "\n" in chip.before else " " if chip.before[-1:].isspace() else ""
        dropped = escaped(" ".join(chip.before.split()))
        words.append(
            rf"{gap}{dropped}\colorbox[HTML]{{{ground}}}{{\textcolor[HTML]{{{on}}}{{\strut {text}}}}}\allowbreak{{}}%"
        )
    low, high = (escaped(score_said(limit, signed=case.signed)) for limit in between)
    meaning = f"{low} (blue, against) to {high} (orange, for)" if case.signed else f"{low} (white) to {high} (dark)"
    lines = [
        r"\begingroup\setlength{\fboxsep}{1pt}\raggedright\noindent",
        *words,
        rf" {escaped(' '.join(tail.split()))}\par\noindent",
        rf"{{\footnotesize {escaped(headline(case))}; by {escaped(case.label)}; colours from {meaning}.\par}}",
        r"\endgroup",
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Harmless in running text."""
    return "".join(SPELLED.get(letter, letter) for letter in visible(text))
