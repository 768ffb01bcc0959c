"""How large the page of a long prompt is, how long it takes to write, and how long a browser takes to open it.

    python benchmarks/prompt_page.py [--tokens 10000] [--answer 200 2000] [--repeats 5]

The scores are random: neither the size nor the time depends on them. Each repeat is a new headless Chromium with an
empty profile. *open* is the time from the start of navigation to the load event, by the clock of the page;
*choose* is the time from a click on an answer token until its scores are on the page and the page is laid out. A copy
of the page without its content policy is opened, so that a script may read these times. Other work on the machine adds
to both; *CPU* does not depend on it: the least CPU time of all processes of the browser, beyond that for an empty page.
"""

import argparse
import json
import platform
import random
import re
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch

from whyformer._plain.tokens import NamedTokens, Pieces
from whyformer.show.prompt_page import make_prompt_page
from whyformer.show.prompt_view import PromptView

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REGIONS = 80
MEASURE = """
<script>addEventListener("load", () => {
  const open = performance.now();
  document.documentElement.getBoundingClientRect();
  const start = performance.now();
  window.requestAnimationFrame = (show) => show();
  document.querySelectorAll("#answer-text mark")[7].dispatchEvent(new MouseEvent("mousedown", { bubbles: true }));
  const height = document.documentElement.scrollHeight;
  document.body.dataset.found = JSON.stringify({ open, choose: performance.now() - start, height });
})</script></body>"""


def make_view(tokens: int, answers: int) -> PromptView:
    """Random words in sentences and regions, with random scores."""
    letters = random.Random(0)
    words = ["".join(letters.choices("etaoinshrdlu", k=letters.randint(2, 7))) for _ in range(tokens + answers)]
    words = [word + "." * (i % 12 == 11) for i, word in enumerate(words)]
    ends = torch.tensor([len(word) + 1 for word in words]).cumsum(0).tolist()
    spans = tuple((end - len(word) - 1, end - 1) for word, end in zip(words, ends, strict=True))
    nothing = (False,) * len(words)
    borders = [i * tokens // REGIONS for i in range(REGIONS + 1)]
    steps = torch.randn(answers, tokens + answers, generator=torch.Generator().manual_seed(0)) ** 3
    return PromptView(
        headline="Why?",
        pieces=Pieces(tuple(words), nothing, nothing, spans, " ".join(words)),
        prompt_length=tokens,
        regions=[NamedTokens(f"passage {i + 1}", "passage", *borders[i : i + 2]) for i in range(REGIONS)],
        scores=steps.sum(0),
        signed=True,
        method="attnlrp",
        model="random",
        steps=steps,
    )


def open_page(address: str) -> tuple[str, float]:
    """What the page became, and the CPU time of the browser, in milliseconds."""
    assert BROWSER is not None, "Chromium is not installed."
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--no-first-run"]
        command = [BROWSER, *options, "--window-size=1440,900", "--dump-dom"]
        done = subprocess.run([*command, address], capture_output=True, text=True, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def read_times(markup: str) -> dict[str, float]:
    """The times that the page noted, in milliseconds."""
    found = re.search(r'data-found="([^"]*)"', markup)
    assert found is not None, "the page noted no times"
    return json.loads(found[1].replace("&quot;", '"'))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--answer", type=int, nargs="+", default=[200, 2_000])
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    print("| prompt | answer | written in | size | CPU | open, median (most) | choose, median (most) |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    empty = min(open_page("about:blank")[1] for _ in range(given.repeats))
    for answers in given.answer:
        view = make_view(given.tokens, answers)
        start = time.perf_counter()
        markup = make_prompt_page(view)
        written = time.perf_counter() - start
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page.html"
            page.write_text(re.sub(r"<meta http-equiv[^>]*>", "", markup).replace("</body>", MEASURE), "utf-8")
            opened = [open_page(page.as_uri()) for _ in range(given.repeats)]
        found = [read_times(markup) for markup, _ in opened]
        spent = f"{min(cpu for _, cpu in opened) - empty:.0f} ms"
        columns = [
            f"{statistics.median(times):.0f} ms ({max(times):.0f})"
            for times in ([one[name] for one in found] for name in ("open", "choose"))
        ]
        size = f"{len(markup.encode()) / 1e6:.1f} MB"
        print(f"| {given.tokens:,} | {answers:,} | {written:.1f} s | {size} | {spent} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
