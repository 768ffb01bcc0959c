"""The page of `whyformer serve` in eight states: what a person sees while working with it.

for name, view in show_states(["image"]): view.show(390, "dark"); view.screenshot()
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from page.tabs import CHROMIUM, QUIET, TOKEN, open_server

PATIENCE = 60_000  # milliseconds until something must have happened
SETTLED = 400  # milliseconds after the last change

State = Callable[["WorkbenchView"], None]


@dataclass
class WorkbenchView:
    """A tab on the page, with what `find_page_faults` asks of a view."""

    page: object
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)  # the page itself first, then what left this machine

    def evaluate(self, expression: str):
        return self.page.evaluate(expression)

    def show(self, width: int, scheme: str, height: int = 900) -> None:
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme=scheme)
        self.page.evaluate("scrollTo(0, 0)")
        self.page.wait_for_timeout(SETTLED)

    def screenshot(self) -> bytes:
        return self.page.screenshot(full_page=True)

    def open_sample(self, model: str) -> None:
        """The first sample of a model, explained."""
        self.page.get_by_label("Model", exact=True).select_option(label=model)
        self.page.locator(".samples button:visible").first.click()
        if model == "demo/reader":
            self.page.locator(".ranked li").first.wait_for()
            return
        self.page.locator(".question:visible").filter(has_text=re.compile("Why ")).wait_for()
        self.page.locator("svg.curve").wait_for()


def show_empty(view: WorkbenchView) -> None:
    view.page.get_by_text("Choose an image").wait_for()


def paint(view: WorkbenchView) -> None:
    view.open_sample("demo/pets")
    box = view.page.locator(".cover").bounding_box()
    view.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.4)
    view.page.mouse.down()
    view.page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.4)
    view.page.mouse.up()
    view.page.locator(".moved:not(:empty)").wait_for()


def compare_methods(view: WorkbenchView) -> None:
    view.open_sample("demo/pets")
    view.page.get_by_role("button", name="Compare the quick methods").click()
    view.page.locator(".grid-cell").nth(3).wait_for()


def strike_out(view: WorkbenchView) -> None:
    view.open_sample("demo/sentiment")
    view.page.locator(".original mark").nth(2).click()
    view.page.locator(".moved:not(:empty)").wait_for()


def edit_copy(view: WorkbenchView) -> None:
    view.open_sample("demo/sentiment")
    view.page.get_by_role("button", name="Edit a copy beside it").click()
    copy = view.page.get_by_label("Edit this copy")
    copy.fill(copy.input_value().replace("witty", "dull"))
    view.page.locator(".copy mark.changed").wait_for()
    view.page.get_by_role("button", name="Pin", exact=True).click()


def trace_answer(view: WorkbenchView) -> None:
    view.open_sample("demo/reader")
    view.page.get_by_role("switch").first.click()
    view.page.get_by_role("button", name="Answer again without").click()
    view.page.get_by_role("heading", name="Without").wait_for()
    view.page.locator(".busy-line.busy").first.wait_for(state="detached")


def refuse_file(view: WorkbenchView) -> None:
    view.open_sample("demo/pets")
    broken = {"name": "notes.png", "mimeType": "image/png", "buffer": b"this is no image"}
    view.page.get_by_label("Choose an image").set_input_files(broken)
    view.page.get_by_role("alert").wait_for()
    view.messages = [message for message in view.messages if "Failed to load resource" not in message]


STATES: Mapping[str, State] = {
    "empty": show_empty,
    "image": lambda view: view.open_sample("demo/pets"),
    "painted": paint,
    "methods": compare_methods,
    "struck": strike_out,
    "copy": edit_copy,
    "answer": trace_answer,
    "refused": refuse_file,
}


@contextmanager
def open_pages() -> Iterator[Callable[[State], WorkbenchView]]:
    """A function that opens the page in a new tab and brings it into a state."""
    from playwright.sync_api import sync_playwright

    with open_server() as address, sync_playwright() as program:
        browser = program.chromium.launch(executable_path=CHROMIUM, args=QUIET)

        def open_state(bring: State) -> WorkbenchView:
            for opened in browser.contexts:
                opened.close()
            view = WorkbenchView(
                browser.new_context(viewport={"width": 1440, "height": 900}).new_page(), requests=[address]
            )
            view.page.on("console", lambda message: view.messages.append(f"{message.type}: {message.text}"))
            view.page.on("pageerror", lambda error: view.messages.append(f"exception: {error}"))
            view.page.on("request", lambda request: note_request(view, request.url, address))
            view.page.goto(f"{address}/?token={TOKEN}")
            bring(view)
            return view

        yield open_state
        browser.close()


def note_request(view: WorkbenchView, url: str, address: str) -> None:
    if not url.startswith((address, "data:", "blob:")):
        view.requests.append(url)
