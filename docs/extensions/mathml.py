"""Formulas as MathML, which a browser draws by itself: no script, no font and no picture to fetch.

A command that the converter does not know would stand in the page as it was written, so it is a warning here, and
warnings fail the build.
"""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging

NOT_UNDERSTOOD = re.compile(r"<m[io]>(\\\w+|&)</m[io]>")
BAR = '<mo stretchy="false">&#x0007C;</mo>'
TIGHT_BAR = BAR.replace("<mo", '<mo lspace="0.05em" rspace="0.05em"')  # |x| is no product of three things
UNKNOWN_NAMES = {"aligned": "split"}  # the same thing under the name that the converter knows

logger = logging.getLogger(__name__)


def mathml(node: nodes.Node, *, display: str) -> str:
    latex = node.astext()
    for name, known in UNKNOWN_NAMES.items():
        latex = latex.replace(f"{{{name}}}", f"{{{known}}}")
    formula = convert(latex, display=display).replace(BAR, TIGHT_BAR)
    if strange := NOT_UNDERSTOOD.search(formula):
        logger.warning("no MathML for %s in $%s$", strange[1], latex, location=node)
    return formula


def visit_inline(writer, node: nodes.math) -> None:
    writer.body.append(mathml(node, display="inline"))
    raise nodes.SkipNode


def visit_block(writer, node: nodes.math_block) -> None:
    writer.body.append(mathml(node, display="block"))
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
