"""whyformer demo: a tour of the bundled models, and sample files to try things on."""

import json
from pathlib import Path
from typing import Annotated

from whyformer.cli import destination, options, output, running
from whyformer.cli.options import Words, list_examples, make_option
from whyformer.cli.shared_options import DEVICE
from whyformer.cli.shell import app

EXAMPLES = list_examples(
    "whyformer demo",
    "whyformer demo --sample cat.jpg",
    "whyformer demo --sample reviews.csv --sample passages.txt",
)


SAMPLE_HELP = (
    "Write a sample file into this folder instead: cat.jpg, passages.txt, question.png or reviews.csv; repeatable."
)


@app.command("demo", epilog=EXAMPLES)
def run_demo(
    out: Annotated[Path, make_option("-o --out", "Where to save the HTML page.")] = Path("whyformer-demo.html"),
    samples: Annotated[Words, make_option("--sample", SAMPLE_HELP, "NAME")] = None,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Explain the bundled models on a photo, a sentence, two shapes and a prompt, in the terminal and on a page."""
    if samples:
        from whyformer.demo.sample_files import sample

        files = [sample(name) for name in samples]
        if as_json:
            output.print_text(json.dumps({"saved": [str(file) for file in files]}))
        output.print_saved(*files)
        return
    from whyformer.demo.tour import show_tour

    destination.check_out_file(out, [], {".html": None})
    running.silence_libraries()
    show_tour(out, (lambda _: None) if as_json else output.print_rendered, DEVICE.get())
    if as_json:
        output.print_text(json.dumps({"saved": [str(out)]}))
    output.print_saved(out)
