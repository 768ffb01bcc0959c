"""whyformer demo: a tour of the bundled models, and sample files to try things on."""

import json
from pathlib import Path

from whyformer.cli import destination, output, running
from whyformer.cli.options import Words
from whyformer.cli.shared_options import AS_JSON, DEVICE
from whyformer.cli.shell import app

EXAMPLES = (
    "whyformer demo",
    "whyformer demo --sample cat.jpg",
    "whyformer demo --sample reviews.csv --sample passages.txt",
)


SAMPLE_HELP = "Write a sample file here instead: cat.jpg, passages.txt, question.png or reviews.csv; repeatable."


@app.command("demo", examples=EXAMPLES, out="Where to save the HTML page.", samples=(SAMPLE_HELP, "NAME", "--sample"))
def run_demo(*, out: Path = Path("whyformer-demo.html"), samples: Words) -> None:
    """Explain the bundled models on a photo, a sentence, two shapes and a prompt, in the terminal and on a page."""
    if samples:
        from whyformer.demo.sample_files import sample

        files = [sample(name) for name in samples]
        if AS_JSON.get():
            output.print_text(json.dumps({"saved": [str(file) for file in files]}))
        output.print_saved(*files)
        return
    from whyformer.demo.tour import show_tour

    destination.check_out_file(out, [], {".html": None})
    running.silence_libraries()
    show_tour(out, (lambda _: None) if AS_JSON.get() else output.print_rendered, DEVICE.get())
    if AS_JSON.get():
        output.print_text(json.dumps({"saved": [str(out)]}))
    output.print_saved(out)
