"""Three walks by words that can be read on the page: no selector, no knowledge of how it is built."""

import re

import pytest

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

PASSAGES = """The Aurora left in March and carries tea.

The Orion left in June and carries salt.

Question: What does the Aurora carry?
Answer:"""


def press(page, words):
    page.get_by_text(words, exact=True).filter(visible=True).first.click()


def test_explain_an_image(tab):
    page = tab.page
    page.get_by_label("Model", exact=True).select_option(label="demo/pets")
    expect(page.get_by_text("Choose an image")).to_be_visible()
    expect(page.get_by_text("Try this:").filter(visible=True)).to_be_visible()
    page.get_by_text("Try this:").locator("xpath=following::button[1]").filter(visible=True).click()
    expect(page.get_by_role("heading", name=re.compile(r"^Why .+\? [\d.]+"))).to_be_visible()
    expect(page.get_by_text("Answer", exact=True)).to_be_visible()
    expect(page.get_by_text("Method", exact=True).first).to_be_visible()
    press(page, "Hide the top")
    page.get_by_label("Share").fill("0.2")
    expect(page.get_by_role("main").get_by_text(re.compile(r"[\d.]+ % → [\d.]+ %"))).to_be_visible()


def test_find_the_word_that_flips_a_text(tab):
    page = tab.page
    page.get_by_label("Model", exact=True).select_option(label="demo/sentiment")
    page.get_by_label("Text", exact=True).fill("the film is good")
    press(page, "Explain")
    expect(page.get_by_role("heading", name=re.compile(r"^Why .+\?"))).to_be_visible()
    expect(page.get_by_text("Click a word to strike it out")).to_be_visible()
    page.get_by_role("button", name=re.compile("^good,")).click()
    expect(page.get_by_role("main").get_by_text(re.compile(r"The answer is now \w+\."))).to_be_visible()


def test_find_the_passage_behind_an_answer(tab):
    page = tab.page
    page.get_by_label("Model", exact=True).select_option(label="demo/reader")
    page.get_by_role("textbox", name="Prompt").filter(visible=True).fill(PASSAGES)
    press(page, "Generate an answer")
    expect(page.get_by_text("Where it comes from")).to_be_visible(timeout=60_000)
    strongest = page.get_by_role("listitem").filter(visible=True).first
    expect(strongest).to_contain_text("passage 1")
    page.get_by_role("switch", name="passage 1").click()
    press(page, "Answer again without passage 1")
    expect(page.get_by_text("Without passage 1", exact=True)).to_be_visible()
