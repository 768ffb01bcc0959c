"""Chromium without a window, driven by the DevTools protocol over a pipe: no port, no package.

with Browser() as browser:
    view = browser.open("why.html", width=390, scheme="dark")
    view.evaluate("document.title"), view.messages, view.requests, view.screenshot()
"""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from base64 import b64decode
from dataclasses import dataclass, field
from pathlib import Path

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --hide-scrollbars --disable-background-networking "
    "--disable-component-update --disable-sync --disable-extensions --force-color-profile=srgb --remote-debugging-pipe"
).split()
PATIENCE = 60  # seconds for one answer
TALLEST = 12_000  # pixels of a screenshot


@dataclass
class View:
    """A page as it was opened: what it logged and requested, and a way to ask it."""

    browser: "Browser"
    session: str
    target: str
    width: int = 0
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def evaluate(self, expression: str):
        """The value of a JavaScript expression; the page's own policy does not forbid it."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.browser.send("Runtime.evaluate", asked, self.session)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", "the expression failed"))
        return answer["result"].get("value")

    def show(self, width: int, scheme: str, height: int = 900) -> None:
        """The same page in a window of another size, or for a reader who prefers another colour scheme."""
        self.width = width
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.send("Emulation.setDeviceMetricsOverride", size, self.session)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.browser.send("Emulation.setEmulatedMedia", media, self.session)

    def screenshot(self, clip: dict | None = None) -> bytes:
        """A PNG of the whole page, or of a box in it."""
        height = min(self.evaluate("Math.ceil(document.documentElement.scrollHeight)"), TALLEST)
        box = clip or {"x": 0, "y": 0, "width": self.width, "height": height}
        asked = {"format": "png", "captureBeyondViewport": True, "clip": box | {"scale": 1}}
        return b64decode(self.browser.send("Page.captureScreenshot", asked, self.session)["data"])


class Browser:
    """One Chromium with an empty profile; it ends with the block."""

    def __enter__(self) -> "Browser":
        self.profile = tempfile.mkdtemp(prefix="screens-")
        commands, self.writes = os.pipe()
        self.reads, answers = os.pipe()
        command = [PROGRAM, *OPTIONS, f"--user-data-dir={self.profile}", "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", *command],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self.number, self.rest = 0, b""
        self.views: dict[str, View] = {}
        self.loaded: set[str] = set()
        return self

    def __exit__(self, *error) -> None:
        self.process.terminate()
        self.process.wait()
        os.close(self.writes)
        os.close(self.reads)
        shutil.rmtree(self.profile, ignore_errors=True)

    def open(self, page: str | Path, *, width: int = 1440, height: int = 900, scheme: str = "light") -> View:
        """The page in a window of this size, for a reader who prefers this colour scheme."""
        for session in list(self.views):
            self.send("Target.closeTarget", {"targetId": self.views.pop(session).target})
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        view = self.views[session] = View(self, session, target)
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable", {}, session)
        view.show(width, scheme, height)
        self.send("Page.navigate", {"url": Path(page).resolve().as_uri()}, session)
        deadline = time.monotonic() + PATIENCE
        while session not in self.loaded:
            self.receive(deadline)
        view.evaluate("document.fonts.ready.then(() => 0)")
        return view

    def send(self, method: str, parameters: dict, session: str | None = None) -> dict:
        """The answer to one command."""
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters}
        command |= {"sessionId": session} if session else {}
        os.write(self.writes, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            message = self.receive(deadline)
            if message.get("id") == command["id"]:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]

    def receive(self, deadline: float) -> dict:
        """The next message; events are noted in the view they belong to."""
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.reads], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self.reads, 1 << 20) if ready else b""
            if not piece:
                raise TimeoutError("Chromium does not answer.")
            self.rest += piece
        text, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(text)
        if (view := self.views.get(message.get("sessionId"))) is not None and "method" in message:
            note_event(view, message["method"], message["params"], self.loaded)
        return message


def note_event(view: View, name: str, event: dict, loaded: set[str]) -> None:
    if name == "Network.requestWillBeSent":
        view.requests.append(event["request"]["url"])
    elif name == "Log.entryAdded":
        view.messages.append(f"{event['entry']['level']}: {event['entry']['text']}")
    elif name == "Runtime.exceptionThrown":
        view.messages.append(f"exception: {event['exceptionDetails']['text']}")
    elif name == "Runtime.consoleAPICalled":
        said = " ".join(str(part.get("value", part.get("description", ""))) for part in event["args"])
        view.messages.append(f"console.{event['type']}: {said}")
    elif name == "Page.loadEventFired":
        loaded.add(view.session)
