"""The documentation as people see it: README (the start page), the notebooks and the main pages, built and pictured."""

import subprocess
import sys
from pathlib import Path

from screens.browser import Browser, View
from screens.checks import SCHEMES

DOCS = Path(__file__).parents[2] / "docs"
DOCS_WIDTHS = (390, 768, 1280, 1920)
TALLEST = 2400  # pixels of a page that are pictured
MAIN_PAGES = (
    "index start how-to judge methods metrics cite language-models bulk reference "
    "notebooks/image notebooks/text notebooks/passages notebooks/judge-my-model notebooks/audit-attention"
).split()
MEASURE_DOCS = """(() => {
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  const images = [...document.images].filter(image => !image.complete || !image.naturalWidth);
  return { wide, broken: images.map(image => image.alt || image.src.slice(0, 60)) };
})()"""


def build_docs(folder: Path) -> Path:
    """The documentation in HTML."""
    command = [sys.executable, "-m", "sphinx", "--quiet", "--doctree-dir", folder / "doctrees", DOCS, folder / "html"]
    subprocess.run([str(word) for word in command], check=True)
    return folder / "html"


def find_docs_faults(view: View) -> list[str]:
    """A page wider than its window, an image that is not there, an error, a request to somewhere else."""
    found = view.evaluate(MEASURE_DOCS)
    faults = [f"{found['wide']} px wider than the window"] if found["wide"] > 1 else []
    faults += [f"no image: {name}" for name in found["broken"]]
    faults += [f"console: {message}" for message in view.messages]
    return faults + [f"request outside: {url}" for url in view.requests if url.startswith(("http:", "https:", "//"))]


def picture_docs(browser: Browser, html: Path, only: str = ""):
    """(name, picture, faults) of each main page in every width and scheme."""
    for page in [page for page in MAIN_PAGES if only in f"docs-{page}"]:
        view = browser.open(html / f"{page}.html")
        for scheme in SCHEMES:
            for width in DOCS_WIDTHS:
                view.show(width, scheme)
                clip = {"x": 0, "y": 0, "width": width, "height": TALLEST, "scale": 1}
                name = f"docs-{page.replace('/', '-')}-{width}-{scheme}"
                yield name, view.screenshot(clip), find_docs_faults(view)
