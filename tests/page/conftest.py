"""Fixtures of the tests in a browser: a server, Chromium, and tabs."""

import pytest
from page.tabs import CHROMIUM, QUIET, open_server, watch

PAUSE = 40_000  # milliseconds until something must have happened


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    playwright.expect.set_options(timeout=PAUSE)
    with playwright.sync_playwright() as program:
        opened = program.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def page_server(browser):
    """The address of a server with an image model, a text model and a language model."""
    with open_server() as address:
        yield address


@pytest.fixture
def make_tab(browser):
    """Opens tabs that share nothing; what they log is checked by the test, or by `tab`."""
    contexts = []

    def make(**options):
        context = browser.new_context(**({"viewport": {"width": 1440, "height": 900}} | options))
        contexts.append(context)
        context.set_default_timeout(PAUSE)
        return watch(context.new_page())

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def tab(make_tab, page_server):
    """A tab on the page; fails the test if something was logged or asked for elsewhere."""
    made = make_tab()
    made.open(page_server)
    yield made
    assert not made.list_faults()
