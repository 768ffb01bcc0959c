"""whyformer similarity: why two texts or images are alike, or an image and a text."""

from typing import Any

import whyformer as why
from whyformer.cli import destination, running
from whyformer.cli.options import File, Word
from whyformer.cli.shell import app

EXAMPLES = (
    'whyformer similarity "behind the garden there is a quiet basket" "my basket is as old as your lamp"',
    'whyformer similarity photo.png "a photo of a red circle" -M demo/captions -o alike.html',
    'whyformer similarity "a query" "a document" -M my/folder --score late_interaction',
)


@app.command(
    "similarity",
    of="explain_similarity",
    examples=EXAMPLES,
    a="A text or an image file.",
    b="A text or an image file.",
    score=("cosine, dot, late_interaction, logit or pair.", "SCORE"),
    pooling=("mean, first, last, pooler or output.", "POOLING"),
    matrix=("The method behind the matrix, states, or none.", "METHOD"),
)
def run_similarity(
    *, a: str, b: str, model: str = "demo/shared-words", method: Word, matrix: str = "auto", out: File, **settings: Any
) -> None:
    """Show which words or patches make two inputs alike, and which pairs of them."""
    from whyformer._explain.method_call import choose_method

    if method is not None:
        choose_method(method, {})
    destination.check_out_file(out, [a, b], why.Similarity.formats)
    settings["matrix"] = None if matrix == "none" else matrix
    running.show_result(why.explain_similarity(running.open_quietly(model), a, b, method, **settings), out)
