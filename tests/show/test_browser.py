"""Pages in a real browser: nothing is fetched, nothing is complained about, nothing is wider than a telephone."""

import json
import re
import shutil
import subprocess

import pytest
from drawn import an_explanation, picture_of
from payloads import PAYLOADS
from PIL import Image

from whyformer.results.class_grid import ClassGrid
from whyformer.results.comparison import Comparison
from whyformer.results.generation import Generation
from whyformer.show import charts, report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")]
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync"]


def opened(page, folder, width=1440, height=900):
    """Screenshot, what the console said, and every address that was asked for."""
    shot, log = folder / f"{width}.png", folder / f"{width}.json"
    told = [
        f"--log-net-log={log}",
        "--enable-logging=stderr",
        f"--screenshot={shot}",
        f"--window-size={width},{height}",
    ]
    command = [BROWSER, *QUIET, f"--user-data-dir={folder / 'profile'}", *told, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    asked = set(re.findall(r'"url":"([a-z]+://[^"]*)"', log.read_text()))
    return shot, complaints, asked


def text(word="gorgeous"):
    words = f"a {word} film , despite its tedious first hour".split(" ")
    line = " ".join(words)
    starts = [len(" ".join(words[:i])) + (i > 0) for i in range(len(words))]
    cuts = [(start, start + len(piece)) for start, piece in zip(starts, words, strict=True)]
    return an_explanation(line, cuts, [(-1) ** i * i / len(cuts) for i in range(len(cuts))])


def pages(folder):
    made = Comparison({"rollout": picture_of(), "attcat": picture_of(method="attcat", signed=True)})
    words = Comparison({"rollout": text(), "attcat": text()})
    picture_of().save(folder / "picture.html")
    text().save(folder / "text.html")
    made.save(folder / "comparison.html")
    ClassGrid((made, made)).save(folder / "sheet.html")
    ClassGrid((words, words)).save(folder / "words.html")
    Generation("", 1, (text(), text())).save(folder / "writing.html")
    text("".join(PAYLOADS[:30])).save(folder / "hostile.html")
    chart = charts.draw_curves({"a": ([0, 1], [1, 0], [0.9, 0], [1, 0.1])}, title="Deletion")
    block = report.make_section("Charts", report.embed_drawing(chart), report.make_table(["a", "b"], [["x", 1.5]]))
    (folder / "report.html").write_text(report.make_page("Report", [block], about={"model": "tiny"}))
    return sorted(folder.glob("*.html"))


def test_pages_ask_for_nothing_and_log_no_error(tmp_path):
    for page in pages(tmp_path):
        _, complaints, asked = opened(page, tmp_path)
        assert not complaints, page.name
        assert not outside(asked), page.name


def outside(asked):
    """What a page asked for, without the browser's own errands."""
    found = {url for url in asked if not url.startswith(("file://", "data:", "chrome"))}
    return {url for url in found if not re.search(r"google|gstatic|gvt1", url)}


def test_a_page_that_asks_and_complains_would_be_found_out(tmp_path):
    (tmp_path / "bad.html").write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("oh")</script>')
    _, complaints, asked = opened(tmp_path / "bad.html", tmp_path)
    assert complaints
    assert outside(asked) == {"http://127.0.0.1:9/x.png"}


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_pages_fit_the_width_of_the_screen(tmp_path, width):
    """Nothing sticks out: beyond the right edge a wider window shows nothing but the ground."""
    for page in pages(tmp_path):
        probe = tmp_path / f"probe-{page.name}"
        markup = page.read_text().replace("script-src", "x")
        probe.write_text(re.sub(r"<meta http-equiv[^>]*>", "", markup).replace("</body>", MEASURE + "</body>"))
        how = [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--dump-dom"]
        command = [BROWSER, *QUIET, *how, probe.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        found = json.loads(re.search(r'data-found="([^"]*)"', done.stdout)[1].replace("&quot;", '"'))
        assert found["wide"] <= found["window"], (page.name, found)
        shot, _, _ = opened(page, tmp_path, width)
        with Image.open(shot) as shown:
            assert shown.width == width
            assert len(shown.convert("RGB").getcolors(10_000_000)) > 20


# Only the test adds a script, to measure; the pages have none.
MEASURE = (
    "<script>document.body.dataset.found=JSON.stringify({wide:document.documentElement.scrollWidth,"
    "window:document.documentElement.clientWidth})</script>"
)


def test_numbers_and_names_in_a_table_are_not_broken(tmp_path):
    """On a telephone a wide table is scrolled; 0.8461 in two lines could be read as two numbers."""
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
    how = [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=400,900", "--dump-dom"]
    done = subprocess.run([BROWSER, *QUIET, *how, page.as_uri()], capture_output=True, text=True, timeout=120)
    assert re.search(r'data-lines="([^"]*)"', done.stdout)[1] == "1,1"
