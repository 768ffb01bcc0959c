"""The page of a prompt in a real browser: what the script shows is what Python shows for the same scores."""

import json
import re
import subprocess
from dataclasses import replace

import pytest
import torch
from payloads import PAYLOADS
from sample_prompts import show_long_prompt, show_prompt
from test_browser import BROWSER, MEASURE, QUIET, list_outside, open_page

from whyformer.show.prompt_page import make_prompt_page
from whyformer.show.prompt_view import HopRow

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed")]

# What the page shows, as plain values.
READ = """
const all = (which, get) => [...document.querySelectorAll(which)].map(get);
const read = () => ({
  marks: all("#prompt mark, #answer-text mark", (mark) => mark.className),
  shares: all("#prompt .share", (share) => share.textContent),
  bars: all("#prompt .fill", (fill) => [fill.className, Math.round(10 * parseFloat(fill.style.width))]),
  spans: all("#prompt .top", (top) => [...top.children].map((span) => [span.textContent, span.className])),
  top: all("#top-regions li", (row) => row.textContent),
  legend: all("#origin .legend > span", (span) => span.textContent).slice(0, 3),
  chosen: document.getElementById("chosen").textContent,
  selected: all("#answer-text mark", (mark) => mark.getAttribute("aria-selected")),
  open: all("#prompt details", (fold) => (fold.open ? fold.id : "")).filter((id) => id),
});
const wait = () => new Promise((done) => setTimeout(done, 100));
const key = (name, shiftKey) => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", { key: name, shiftKey, bubbles: true, cancelable: true }));
"""

CLOCK = """
window.requestAnimationFrame = (f) => setTimeout(f, 5);
window.IntersectionObserver = class {
  constructor(see) { this.see = see; }
  observe() { setTimeout(() => this.see([{ isIntersecting: true }]), 5); }
};
"""


def run_page(markup, folder, actions="", address=""):
    """What the actions put into `out`, a list; the page's policy is left out so that they may run.

    A browser without a screen may draw no frame, so frames come from a clock, and everything counts as in sight.
    """
    clock = f"<body><script>{CLOCK}</script>"
    markup = re.sub(r"<meta http-equiv[^>]*>", "", markup).replace("<body>", clock, 1)
    script = (
        f"<script>{READ}addEventListener('load', async () => {{ const out = []; await wait(); {actions}\n"
        "document.body.dataset.found = JSON.stringify(out); });</script></body>"
    )
    page = folder / "page.html"
    page.write_text(markup.replace("</body>", script), "utf-8")
    options = [
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1200,1600",
        "--virtual-time-budget=20000",
    ]
    command = [BROWSER, *QUIET, *options, "--dump-dom", page.as_uri() + address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    return json.loads(re.search(r'data-found="([^"]*)"', done.stdout)[1].replace("&quot;", '"').replace("&amp;", "&"))


def exact_view(**changes):
    """Scores that bytes hold exactly: whole numbers of which the largest is 127 in every row."""
    view = show_long_prompt(900, 6, 3)
    steps = torch.randint(-20, 21, view.steps.shape, generator=torch.Generator().manual_seed(3)).double()
    steps *= torch.rand(steps.shape, generator=torch.Generator().manual_seed(4)) < 0.2
    steps[:, 5] = 127.0
    return replace(view, steps=steps, scores=steps.sum(0), **changes)


def test_a_chosen_span_is_shown_as_python_shows_it(tmp_path):
    view = exact_view()
    (found,) = run_page(make_prompt_page(view), tmp_path, "out.push(read());", "#span=2-4")
    wanted = make_prompt_page(replace(view, scores=view.steps[1:4].sum(0)))
    (static,) = run_page(wanted, tmp_path, "out.push(read());")
    for name in ("marks", "shares", "bars", "spans", "top", "legend"):
        assert found[name] == static[name], name
    assert found["selected"] == ["false", "true", "true", "true", "false", "false"]
    assert "tokens 2 to 4 of 6" in found["chosen"]


def test_a_hop_is_shown_as_python_shows_it(tmp_path):
    view = exact_view()
    view = replace(view, hops=(HopRow("hop 0", view.scores, 1.0, 0.0), HopRow("hop 1", view.steps[2], 1.0, 0.0)))
    actions = "document.querySelectorAll('.show-hop')[1].click(); await wait(); out.push(read());"
    (found,) = run_page(make_prompt_page(view), tmp_path, actions)
    (static,) = run_page(make_prompt_page(replace(view, scores=view.steps[2])), tmp_path, "out.push(read());")
    assert found["marks"] == static["marks"] and found["shares"] == static["shares"]
    assert "hop 1" in found["chosen"]


def test_mouse_and_keyboard_choose_spans(tmp_path):
    actions = """
    const marks = document.querySelectorAll("#answer-text mark");
    const mouse = (kind, i, shiftKey) => marks[i].dispatchEvent(new MouseEvent(kind, { bubbles: true, shiftKey }));
    const note = async () => { await wait(); out.push(read().selected.map((s) => (s === "true" ? 1 : 0)).join("")); };
    mouse("mousedown", 1); await note();
    mouse("mouseover", 3); await note();
    dispatchEvent(new MouseEvent("mouseup")); mouse("mouseover", 5); await note();
    mouse("mousedown", 4); dispatchEvent(new MouseEvent("mouseup")); mouse("mousedown", 2, true); await note();
    dispatchEvent(new MouseEvent("mouseup"));
    key("Home"); await note(); key("ArrowRight"); await note(); key("ArrowRight", true); await note();
    key("End", true); await note(); key("ArrowRight"); await note(); key("ArrowLeft"); await note();
    key("Escape"); await note(); out.push(read().chosen, location.hash);
    """
    *found, chosen, address = run_page(make_prompt_page(exact_view()), tmp_path, actions)
    assert found == [
        "010000", "011100", "011100", "001110", "100000", "010000", "011000", "011111", "000001", "000010", "000000",
    ]  # fmt: skip
    assert "the whole answer" in chosen and address == "#answer"


def test_links_open_what_they_lead_to(tmp_path):
    actions = """
    out.push(read().open);
    const fold = [...document.querySelectorAll("#prompt details")]; fold.forEach((d) => { d.open = false; });
    const link = document.querySelector("#top-regions a"); link.click(); await wait();
    out.push([link.hash.slice(1), ...read().open]); location.hash = "#cell-1"; await wait();
    out.push(read().open.includes("cell-1") && read().open.includes("region-0"));
    """
    view = show_long_prompt(2_400, 3, 2)
    before, after, reached = run_page(make_prompt_page(view), tmp_path, actions)
    cells = {i: view.cells[i].section for i in view.open_cells}
    assert set(before) == {f"cell-{i}" for i in cells} | {f"region-{section}" for section in cells.values()}
    strongest = max(range(len(view.cells)), key=lambda i: abs(view.cell_shares[i]))
    assert after == [f"cell-{strongest}", f"region-{view.cells[strongest].section}", f"cell-{strongest}"]
    assert reached


def test_the_matrix_is_drawn_for_regions_and_for_tokens(tmp_path):
    actions = """
    const canvas = document.getElementById("matrix-canvas"), columns = document.getElementById("columns");
    const note = () => {
      const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      out.push([canvas.width, canvas.height, pixels.filter((value, i) => i % 4 === 3 && value > 0).length]);
    };
    note(); columns.value = "1"; columns.dispatchEvent(new Event("change")); note();
    document.querySelectorAll("#answer-text mark")[2].dispatchEvent(new MouseEvent("mousedown", { bubbles: true }));
    await wait(); note();
    """
    view = exact_view()
    regions, tokens, one = run_page(make_prompt_page(view), tmp_path, actions)
    cell = view.cells[1]
    sums = view.sum_cells(view.steps)
    assert regions[:2] == [len(view.cells), 6] and 0 < regions[2] <= sums.count_nonzero()
    assert tokens[:2] == [cell.stop - cell.start, 6]
    strong = view.steps[:, cell.start : cell.stop].abs()
    assert tokens[2] == (strong >= strong.max() / 40).sum()  # the first of 20 levels begins at half a step
    assert one[:2] == [cell.stop - cell.start, 1]


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_the_page_fits_the_screen_and_logs_no_error(tmp_path, width):
    views = {
        "long": show_long_prompt(3_000, 40, 20),
        "short": show_prompt(),
        "hostile": show_prompt("".join(PAYLOADS[:30])),
    }
    for name, view in views.items():
        page = tmp_path / f"{name}.html"
        page.write_text(make_prompt_page(view), "utf-8")
        _, messages, requested = open_page(page, tmp_path, width)
        assert not messages and not list_outside(requested), name
        probe = tmp_path / "probe.html"
        markup = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text("utf-8")).replace("</body>", MEASURE + "</body>")
        probe.write_text(markup, "utf-8")
        options = [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--dump-dom"]
        done = subprocess.run([BROWSER, *QUIET, *options, probe.as_uri()], capture_output=True, text=True, timeout=120)
        found = json.loads(re.search(r'data-found="([^"]*)"', done.stdout)[1].replace("&quot;", '"'))
        assert found["wide"] <= found["window"], (name, found)


def test_ten_thousand_tokens_open(tmp_path):
    view = show_long_prompt(10_000, 200, 80)
    first, chosen = run_page(
        make_prompt_page(view),
        tmp_path,
        "out.push(read().marks.length); document.querySelectorAll('#answer-text mark')[7].dispatchEvent("
        "new MouseEvent('mousedown', {bubbles: true})); await wait(); out.push(read().chosen);",
    )
    assert first == 10_200 and "token 8 of 200" in chosen
