"""Pages in a real browser: no request, no console message, no overflow on a phone."""

import json
import re
import shutil
import subprocess

import pytest
from payloads import PAYLOADS
from PIL import Image
from sample_explanations import explain_image, explain_text

from whyformer.results.class_grid import ClassGrid
from whyformer.results.comparison import Comparison
from whyformer.results.generation import Generation
from whyformer.show import charts, report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed")]
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync"]


def open_page(page, folder, width=1440, height=900):
    """The screenshot, the console messages, and every URL that was requested."""
    shot, log = folder / f"{width}.png", folder / f"{width}.json"
    options = [
        f"--log-net-log={log}",
        "--enable-logging=stderr",
        f"--screenshot={shot}",
        f"--window-size={width},{height}",
    ]
    command = [BROWSER, *QUIET, f"--user-data-dir={folder / 'profile'}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    messages = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    requested = set(re.findall(r'"url":"([a-z]+://[^"]*)"', log.read_text()))
    return shot, messages, requested


def text(word="gorgeous"):
    words = f"a {word} film , despite its tedious first hour".split(" ")
    line = " ".join(words)
    starts = [len(" ".join(words[:i])) + (i > 0) for i in range(len(words))]
    cuts = [(start, start + len(piece)) for start, piece in zip(starts, words, strict=True)]
    return explain_text(line, cuts, [(-1) ** i * i / len(cuts) for i in range(len(cuts))])


def pages(folder):
    made = Comparison({"rollout": explain_image(), "attcat": explain_image(method="attcat", signed=True)})
    words = Comparison({"rollout": text(), "attcat": text()})
    explain_image().save(folder / "image.html")
    text().save(folder / "text.html")
    made.save(folder / "comparison.html")
    ClassGrid((made, made)).save(folder / "class_grid.html")
    ClassGrid((words, words)).save(folder / "words.html")
    Generation("", 1, (text(), text())).save(folder / "generation.html")
    text("".join(PAYLOADS[:30])).save(folder / "hostile.html")
    chart = charts.draw_curves({"a": ([0, 1], [1, 0], [0.9, 0], [1, 0.1])}, title="Deletion")
    block = report.make_section("Charts", report.embed_drawing(chart), report.make_table(["a", "b"], [["x", 1.5]]))
    (folder / "report.html").write_text(report.make_page("Report", [block], about={"model": "tiny"}))
    return sorted(folder.glob("*.html"))


def test_pages_request_nothing_and_log_no_error(tmp_path):
    for page in pages(tmp_path):
        _, messages, requested = open_page(page, tmp_path)
        assert not messages, page.name
        assert not list_outside(requested), page.name


def list_outside(requested):
    """What a page requested, without the requests of the browser itself."""
    found = {url for url in requested if not url.startswith(("file://", "data:", "chrome"))}
    return {url for url in found if not re.search(r"google|gstatic|gvt1", url)}


def test_requests_and_console_errors_are_detected(tmp_path):
    (tmp_path / "bad.html").write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("oh")</script>')
    _, messages, requested = open_page(tmp_path / "bad.html", tmp_path)
    assert messages
    assert list_outside(requested) == {"http://127.0.0.1:9/x.png"}


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_pages_fit_the_width_of_the_screen(tmp_path, width):
    """No horizontal scrolling at this window width."""
    for page in pages(tmp_path):
        probe = tmp_path / f"probe-{page.name}"
        markup = page.read_text().replace("script-src", "x")
        probe.write_text(re.sub(r"<meta http-equiv[^>]*>", "", markup).replace("</body>", MEASURE + "</body>"))
        options = [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--dump-dom"]
        command = [BROWSER, *QUIET, *options, probe.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        found = json.loads(re.search(r'data-found="([^"]*)"', done.stdout)[1].replace("&quot;", '"'))
        assert found["wide"] <= found["window"], (page.name, found)
        shot, _, _ = open_page(page, tmp_path, width)
        with Image.open(shot) as shown:
            assert shown.width == width
            assert len(shown.convert("RGB").getcolors(10_000_000)) > 20


# The test adds a script to measure; the pages have none.
MEASURE = (
    "<script>document.body.dataset.found=JSON.stringify({wide:document.documentElement.scrollWidth,"
    "window:document.documentElement.clientWidth})</script>"
)


def test_numbers_and_names_in_a_table_are_not_broken(tmp_path):
    """On a phone a wide table scrolls; 0.8461 on two lines would look like two numbers."""
    head = ["method", "mean", "95 %", "n", "against the best", "against chance", "passes"]
    row = ["transformer_attribution", "0.8461", "0.7227 to 0.9271", "500", "p = 0.375", "p = 0.125", "1 + 1 back"]
    markup = report.make_page("Report", [report.make_table(head, [row])])
    lines = (
        "<script>document.body.dataset.lines=[...document.querySelectorAll('tbody th,tbody td:nth-child(2)')].map("
        "cell=>{const range=document.createRange();range.selectNodeContents(cell);"
        "return range.getClientRects().length})</script></body>"
    )
    page = tmp_path / "page.html"
    page.write_text(re.sub(r"<meta http-equiv[^>]*>", "", markup).replace("</body>", lines))
    options = [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=400,900", "--dump-dom"]
    done = subprocess.run([BROWSER, *QUIET, *options, page.as_uri()], capture_output=True, text=True, timeout=120)
    assert re.search(r'data-lines="([^"]*)"', done.stdout)[1] == "1,1"
