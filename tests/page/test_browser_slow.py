"""What takes longer: a server that stops, accessibility by axe-core, all widths, hostile names, the keyboard alone."""

import json
import re
import shutil
import signal
import subprocess
from base64 import b64encode
from contextlib import suppress

import pytest
from page.tabs import serve
from show.payloads import PAYLOADS

from whyformer.demo.sample_files import SAMPLES

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.slow
RESTING = {"serious", "critical"}
WIDTHS = (390, 768, 1440, 2560)


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    """The script of axe-core, from npm; it is not part of this repository."""
    folder, npm = tmp_path_factory.mktemp("axe"), shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    with suppress(subprocess.TimeoutExpired):
        subprocess.run([npm, "install", "--silent", "axe-core@4"], cwd=folder, capture_output=True, timeout=90)
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        pytest.skip("axe-core could not be installed from npm")
    return script.read_text("utf-8")


def show_state(tab, state):
    page = tab.page
    if state == "empty":
        return
    model = {"image": "demo/pets", "text": "demo/sentiment", "copy": "demo/sentiment", "language": "demo/reader"}[state]
    tab.choose_model(model)
    page.locator(".samples button:visible").first.click()
    if state == "language":
        expect(page.locator(".ranked li").first).to_be_visible(timeout=60_000)
        return
    expect(page.locator(".question:visible")).to_have_text(re.compile("Why "))
    expect(page.get_by_label("Share")).to_be_enabled(timeout=30_000)
    page.get_by_role("button", name="Pin", exact=True).click()
    if state == "copy":
        page.get_by_role("button", name="Edit a copy beside it").click()
        expect(page.locator(".copy mark").first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("state", ["empty", "image", "text", "copy", "language"])
def test_axe_finds_nothing_serious(make_tab, page_server, axe, state, scheme):
    tab = make_tab(color_scheme=scheme)
    tab.open(page_server)
    show_state(tab, state)
    tab.page.wait_for_timeout(300)
    tab.page.evaluate(axe)
    found = tab.page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    bad = [rule for rule in found["violations"] if rule["impact"] in RESTING]
    assert not bad, [
        (rule["id"], [node["target"] for node in rule["nodes"]][:5], rule["nodes"][0]["failureSummary"]) for rule in bad
    ]


@pytest.mark.parametrize("state", ["empty", "image", "copy", "language"])
def test_no_width_needs_sideways_scrolling(make_tab, page_server, state):
    tab = make_tab()
    tab.open(page_server)
    show_state(tab, state)
    for width in WIDTHS:
        tab.page.set_viewport_size({"width": width, "height": 900})
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_server_that_stops_in_mid_request_is_reported(make_tab):
    with serve("demo/sentiment") as (process, address):
        tab = make_tab()
        tab.open(address)
        tab.page.locator(".samples button:visible").first.click()
        expect(tab.page.locator(".question")).to_have_text(re.compile("Why "))
        expect(tab.page.get_by_label("Share")).to_be_enabled()
        tab.page.get_by_role("button", name="All methods").click()
        tab.page.wait_for_timeout(100)
        process.send_signal(signal.SIGKILL)
        expect(tab.page.get_by_role("alert").first).to_contain_text("whyformer serve", timeout=30_000)
        tab.page.get_by_role("button", name="Try again").first.click()
        expect(tab.page.get_by_role("alert").first).to_contain_text("The server does not answer.")
        expect(tab.page.locator(".original mark").first).to_be_visible()  # what was there stays


GIVE_FILE = """([address, event, carrier]) => {
    const bytes = Uint8Array.from(atob(address.split(",")[1]), (letter) => letter.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], "cat.png", { type: "image/png" }));
    document.dispatchEvent(Object.assign(new Event(event, { bubbles: true, cancelable: true }), { [carrier]: data }));
}"""


@pytest.mark.parametrize(("event", "carrier"), [("drop", "dataTransfer"), ("paste", "clipboardData")])
def test_an_image_is_dropped_or_pasted(tab, event, carrier):
    expect(tab.page.get_by_text("Choose an image")).to_be_visible()
    cat = b64encode((SAMPLES / "cat.jpg").read_bytes()).decode()
    tab.page.evaluate(GIVE_FILE, [f"data:image/jpeg;base64,{cat}", event, carrier])
    expect(tab.page.locator(".question")).to_have_text(re.compile("Why Bengal"))


def test_hostile_texts_and_names_stay_text(tab, tmp_path):
    """Payloads in a text, in a name and in a file of cases make no element, run nothing and ask for nothing."""
    dialogs = []
    tab.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    tab.choose_model("demo/sentiment")
    count = "document.querySelectorAll('script, iframe, object, base, meta, link, form, svg:not(.curve)').length"
    before = tab.page.evaluate(count)
    for payload in PAYLOADS[:36:3]:
        tab.page.get_by_label("Text", exact=True).fill(payload)
        tab.page.get_by_role("button", name="Explain", exact=True).click()
        tab.page.wait_for_timeout(400)
    cases = [
        {
            "name": each,
            "note": each,
            "title": each,
            "model": each,
            "input": {"text": each},
            "request": {},
            "picture": each,
        }
        for each in PAYLOADS
    ]
    (tmp_path / "cases.json").write_text(json.dumps({"format": "whyformer cases", "version": 1, "cases": cases}))
    tab.page.get_by_label("Load cases").set_input_files(tmp_path / "cases.json")
    expect(tab.page.get_by_label("Name of case 60")).to_be_visible()
    assert tab.page.evaluate(count) == before
    assert not dialogs


def test_everything_can_be_reached_by_the_keyboard(tab):
    """Tab reaches every control that can be seen, each with a visible sign of focus."""
    tab.choose_model("demo/sentiment")
    tab.page.locator(".samples button:visible").first.click()
    expect(tab.page.get_by_label("Share")).to_be_enabled()
    wanted = tab.page.evaluate("""() => [...document.querySelectorAll("button, select, textarea, summary, input")]
        .filter((each) => each.checkVisibility() && !each.disabled && each.type !== "radio").length""")
    tab.page.evaluate("document.body.focus(); document.activeElement.blur()")
    reached, unseen = set(), []
    for _ in range(wanted * 2 + 20):
        tab.page.keyboard.press("Tab")
        name, outline = tab.page.evaluate("""() => {
            const each = document.activeElement, style = getComputedStyle(each);
            each.dataset.seen ??= String(Math.random());
            const drawn = ".file-input, .segments input, .class-row input, body"; // the sign is around their label
            const sign = style.outlineStyle !== "none" || each.matches(drawn);
            return [each === document.body ? "" : each.dataset.seen, sign ? "" : each.outerHTML.slice(0, 120)];
        }""")
        reached |= {name} - {""}
        unseen += [outline] if outline else []
    assert not unseen
    assert len(reached) >= wanted


def test_nothing_jumps_while_an_answer_moves(tab):
    tab.choose_model("demo/sentiment")
    tab.page.locator(".samples button:visible").first.click()
    expect(tab.page.get_by_label("Share")).to_be_enabled()
    read = """() => [...document.querySelectorAll(".card, .text-work, .editor")]
        .map((each) => each.getBoundingClientRect().top + scrollY)"""
    before = tab.page.evaluate(read)
    tab.page.locator(".original mark").nth(1).click()
    expect(tab.page.locator(".moved")).not_to_have_text("")
    moved = [abs(now - then) for now, then in zip(tab.page.evaluate(read), before, strict=True)]
    assert max(moved) <= 2
