"""A server of bundled models, and tabs of Chromium that note every message and request."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.error import URLError
from urllib.request import Request, urlopen

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
MODELS = ("demo/pets", "demo/sentiment", "demo/reader")
TOKEN = "token-of-the-tests"
PATIENCE = 240  # seconds for a server to come up, on a machine that is busy
REFUSED = re.compile(r"Failed to load resource: .*status of (4\d\d|503|504)")  # Chromium logs refusals as errors


@contextmanager
def serve(*models, port=0):
    """A running server and its address, such as http://127.0.0.1:40123, once its models are loaded."""
    command = [sys.executable, "-m", "whyformer", "serve", *models, "--port", str(port), "--token", TOKEN]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process, wait_for_address(process)
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


@contextmanager
def open_server():
    """The address of a server with an image model, a text model and a language model.

    WHYFORMER_PAGE may name one that runs already, started with these models and the token of the tests.
    """
    if running := os.environ.get("WHYFORMER_PAGE"):
        yield running
        return
    with serve(*MODELS) as (_, address):
        yield address


def wait_for_address(process):
    """The address that the server prints, once it answers."""
    deadline, printed = time.monotonic() + PATIENCE, ""
    while time.monotonic() < deadline:
        line = process.stdout.readline()
        printed += line
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return wait_for_answer(found.group(), deadline)
        if not line and process.poll() is not None:
            break
    raise RuntimeError(f"whyformer serve did not start: {printed}")


def wait_for_answer(address, deadline):
    """The address, once no model is loading."""
    request = Request(f"{address}/api/models", headers={"Authorization": f"Bearer {TOKEN}"})
    while time.monotonic() < deadline:
        try:
            with urlopen(request, timeout=5) as answer:
                if all(model["state"] != "loading" for model in json.load(answer)["models"]):
                    return address
        except URLError:
            pass
        time.sleep(0.2)
    raise RuntimeError("whyformer serve does not answer.")


@dataclass
class Tab:
    """One tab: a Playwright page, what it logged, and what it asked for."""

    page: object
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, address, fragment=""):
        self.page.goto(f"{address}/?token={TOKEN}{fragment}")

    def choose_model(self, name):
        self.page.get_by_label("Model", exact=True).select_option(label=name)

    def read_answer(self):
        """The first class with its probability as it is shown: ('Bengal', 80.6)."""
        return self.read_answers()[0]

    def read_answers(self):
        names = self.page.locator(".class-row .class-name").all_text_contents()
        numbers = self.page.locator(".class-row .number").all_text_contents()
        return [
            (name, float(re.search(r"[\d.]+", number).group())) for name, number in zip(names, numbers, strict=True)
        ]

    def list_faults(self, *, refusals=False):
        """Console messages, and requests that left this machine. refusals: a status of 4xx is expected."""
        logged = [message for message in self.messages if not (refusals and REFUSED.search(message))]
        return logged + [url for url in self.requests if not re.match(r"http://127\.0\.0\.1:\d+/|data:|blob:", url)]


def watch(page):
    tab = Tab(page)
    page.on("console", lambda message: tab.messages.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: tab.messages.append(f"exception: {error}"))
    page.on("request", lambda request: tab.requests.append(request.url))
    return tab
