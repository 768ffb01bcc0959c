"""The page in a browser: three kinds of input, and what a person does with each."""

import json
import re

import pytest

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
SAMPLE_QUESTION = re.compile("Why .*")


def open_sample(tab, model, title=None):
    """The workbench of a model with its first sample explained."""
    tab.choose_model(model)
    samples = tab.page.locator(".samples button:visible")
    (samples.filter(has_text=title) if title else samples).first.click()
    expect(tab.page.locator(".question:visible")).to_have_text(SAMPLE_QUESTION)


def test_an_image_is_explained_and_its_class_switched(tab):
    open_sample(tab, "demo/pets")
    before = read_pixels(tab.page)
    first, second = (row[0] for row in tab.read_answers()[:2])
    expect(tab.page.locator(".question")).to_contain_text(f"Why {first}?")
    tab.page.get_by_role("radio", name=second).check()
    expect(tab.page.locator(".question")).to_contain_text(f"Why {second}?")
    assert read_pixels(tab.page) != before
    assert "target=" in tab.page.url


def read_pixels(page):
    return page.locator("canvas.picture").evaluate("canvas => canvas.toDataURL()")


def test_painting_hides_and_the_answer_moves(tab):
    open_sample(tab, "demo/pets")
    name, before = tab.read_answer()
    box = tab.page.get_by_label("The image,").bounding_box()
    middle = box["y"] + box["height"] / 2
    tab.page.mouse.move(box["x"] + box["width"] * 0.2, middle)
    tab.page.mouse.down()
    for share in (0.3, 0.5, 0.7, 0.8):
        tab.page.mouse.move(box["x"] + box["width"] * share, middle)
    tab.page.mouse.up()
    expect(tab.page.locator(".moved")).to_contain_text(f"{name}: {before} %")
    assert tab.read_answer()[1] != before
    tab.page.get_by_role("button", name="Show all again").click()
    expect(tab.page.locator(".moved")).to_have_text("")
    assert tab.read_answer() == (name, before)
    tab.page.get_by_label("The image,").focus()  # the same with the keyboard
    for key in ("ArrowLeft", "ArrowUp", "Space"):
        tab.page.keyboard.press(key)
    expect(tab.page.locator(".moved")).not_to_have_text("")
    tab.page.keyboard.press("Delete")
    expect(tab.page.locator(".moved")).to_have_text("")


def test_the_slider_hides_the_top(tab):
    open_sample(tab, "demo/pets")
    slider = tab.page.get_by_label("Share")
    expect(slider).to_be_enabled()
    slider.fill("0.3")
    expect(tab.page.locator(".moved")).not_to_have_text("")
    expect(tab.page.get_by_text(re.compile(r"patches? of \d+ hidden"))).to_be_visible()
    tab.page.get_by_text("Show only the top", exact=True).click()
    expect(tab.page.locator("svg.curve")).to_have_attribute("aria-label", re.compile("all that is left"))


def test_methods_are_compared_in_a_grid(tab):
    open_sample(tab, "demo/sentiment")
    tab.page.get_by_role("button", name="Compare the quick methods").click()
    cells = tab.page.locator(".grid-cell")
    expect(cells.nth(3)).to_be_visible(timeout=60_000)
    other = cells.nth(1).get_by_role("button")
    name = other.text_content()
    other.click()
    expect(tab.page.get_by_label("Method", exact=True)).to_have_value(name)
    expect(tab.page.locator(".grid-cell.chosen")).to_contain_text(name)


def test_a_struck_word_moves_the_answer(tab):
    open_sample(tab, "demo/sentiment")
    name, before = tab.read_answer()
    word = tab.page.locator(".original mark").filter(has_not_text="[").nth(1)
    word.click()
    expect(word).to_have_attribute("aria-pressed", "true")
    expect(tab.page.locator(".moved")).to_contain_text(f"{name}:")
    assert tab.read_answer()[1] != before
    tab.page.get_by_role("button", name="Bring all words back").click()
    expect(tab.page.locator(".moved")).to_have_text("")
    tab.page.locator(".original mark").nth(0).focus()  # several with the keyboard
    for key in ("ArrowRight", "Shift+ArrowRight", "Shift+ArrowRight"):
        tab.page.keyboard.press(key)
    expect(tab.page.get_by_text("3 words selected")).to_be_visible()
    tab.page.get_by_role("button", name="Strike out", exact=True).click()
    assert tab.page.locator(".original mark.struck").count() == 3


def test_a_copy_is_edited_beside_the_original(tab):
    open_sample(tab, "demo/sentiment")
    tab.page.get_by_role("button", name="Edit a copy beside it").click()
    copy = tab.page.get_by_label("Edit this copy")
    copy.fill(copy.input_value() + " dreadful")
    expect(tab.page.locator(".copy mark.changed")).to_contain_text(["dreadful"])
    copy.fill(copy.input_value().replace("witty", "silly"))
    expect(tab.page.locator(".copy mark.changed").first).to_contain_text("silly")
    expect(tab.page.locator(".original mark.changed")).to_contain_text(["witty"])
    expect(tab.page.locator(".moved")).not_to_have_text("")
    for unit in ("Tokens", "Sentences"):
        tab.page.get_by_text(unit, exact=True).click()
        assert tab.page.locator(".copy mark").count() > 0


def test_an_answer_is_traced_to_its_passage_and_given_again_without_it(tab):
    tab.choose_model("demo/reader")
    tab.page.locator(".answers .samples button").first.click()
    expect(tab.page.locator(".ranked li").first).to_be_visible(timeout=60_000)
    first = tab.page.locator(".ranked li button").first.text_content()
    tab.page.get_by_role("switch", name=first).uncheck()
    tab.page.get_by_role("button", name=f"Answer again without {first}").click()
    again = tab.page.locator(".again")
    expect(again).to_contain_text(f"Without {first}")
    expect(again).to_contain_text(re.compile("same answer|underlined|Gone"))


PASSAGES = """The Aurora left in March and carries tea.

The Orion left in June and carries salt.

Question: What does the Aurora carry?
Answer:"""


def test_a_part_of_an_answer_from_a_log_is_explained(tab):
    tab.choose_model("demo/reader")
    tab.page.get_by_text("From a log", exact=True).click()
    tab.page.get_by_label("Prompt, or a record of an API as JSON").fill(PASSAGES)
    tab.page.get_by_label("Answer (empty if the record holds it)").fill(" The Aurora carries tea")
    tab.page.get_by_role("button", name="Explain this answer").click()
    expect(tab.page.locator(".ranked li").first).to_be_visible(timeout=60_000)
    tab.page.get_by_role("button", name=re.compile("^tea, .*explain this part")).click()
    expect(tab.page.get_by_text("Explained: “tea”")).to_be_visible()
    expect(tab.page.locator(".ranked li").first).to_contain_text("passage 1")
    tab.page.get_by_role("button", name="Explain the whole answer").click()
    expect(tab.page.get_by_text("Explained: the whole answer")).to_be_visible()


def test_cases_are_kept_in_a_file_and_opened_in_a_second_tab(tab, make_tab, page_server, tmp_path):
    open_sample(tab, "demo/sentiment")
    tab.page.get_by_role("button", name="Pin", exact=True).click()
    tab.page.get_by_label("Name of case 1").fill("<b>the first</b>")
    tab.page.get_by_label("Note", exact=True).fill("to look at again")
    with tab.page.expect_download() as event:
        tab.page.get_by_role("button", name="Download cases").click()
    event.value.save_as(tmp_path / "cases.json")
    assert json.loads((tmp_path / "cases.json").read_text())["cases"][0]["note"] == "to look at again"

    other = make_tab()
    other.open(page_server)
    expect(other.page.get_by_role("button", name="Download cases")).to_be_disabled()
    other.page.get_by_label("Load cases").set_input_files(tmp_path / "cases.json")
    expect(other.page.get_by_label("Name of case 1")).to_have_value("<b>the first</b>")
    other.page.get_by_role("button", name="Open <b>the first</b>").click()
    expect(other.page.locator(".question")).to_have_text(tab.page.locator(".question").text_content())
    assert not other.list_faults()


def test_cases_are_exported_and_a_view_is_given_as_python(tab):
    open_sample(tab, "demo/sentiment")
    tab.page.get_by_role("button", name="Pin", exact=True).click()
    for kind, ending in (("Page", ".html"), ("JSON", ".json"), ("Notebook", ".ipynb")):
        with tab.page.expect_download() as event:
            tab.page.get_by_role("button", name=kind, exact=True).click()
        assert event.value.suggested_filename.endswith(ending)
        assert event.value.path().stat().st_size > 300
    tab.page.get_by_role("button", name="Python", exact=True).click()
    code = tab.page.locator("pre")
    expect(code).to_contain_text("import whyformer as why")
    tab.page.keyboard.press("Escape")
    expect(code).to_be_hidden()


def test_a_link_restores_the_view_without_its_text(tab, make_tab, page_server):
    open_sample(tab, "demo/sentiment")
    tab.page.get_by_role("radio", name="negative").check()
    question = tab.page.locator(".question")
    expect(question).to_contain_text("Why negative?")
    words, address = question.text_content(), tab.page.url
    assert "gorgeous" not in address
    other = make_tab()
    other.open(page_server, "#" + address.partition("#")[2])
    expect(other.page.locator(".question")).to_have_text(words)
    assert not other.list_faults()


def test_bad_and_too_large_files_are_refused_in_words(make_tab, page_server, tmp_path):
    tab = make_tab()
    tab.open(page_server)
    (tmp_path / "notes.png").write_text("this is no image")
    (tmp_path / "huge.png").write_bytes(b"\0" * 20_000_001)
    choose = tab.page.get_by_label("Choose an image")
    choose.set_input_files(tmp_path / "notes.png")
    alert = tab.page.get_by_role("alert")
    expect(alert).to_contain_text("E_IMG")
    choose.set_input_files(tmp_path / "huge.png")
    expect(alert).to_contain_text("too large")
    (tmp_path / "cases.json").write_text("{}")
    tab.page.get_by_label("Load cases").set_input_files(tmp_path / "cases.json")
    expect(tab.page.get_by_text("not a file of cases")).to_be_visible()
    for _ in range(alert.count()):
        tab.page.get_by_role("button", name="Close").first.click()
    expect(alert).to_have_count(0)
    open_sample(tab, "demo/pets")
    assert not tab.list_faults(refusals=True)


def test_empty_inputs_are_answered_in_words(tab):
    tab.choose_model("demo/sentiment")
    tab.page.get_by_role("button", name="Explain", exact=True).click()
    expect(tab.page.get_by_role("alert")).to_contain_text("There is no text to explain.")
    tab.choose_model("demo/reader")
    tab.page.get_by_role("button", name="Generate an answer").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("There is no prompt.")
