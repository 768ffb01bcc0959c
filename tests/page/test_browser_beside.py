"""The page in a browser: answers that are marked in a text, pairs, a second model, a run, a file of somebody else."""

import json
import re
import shutil

import pytest
import torch
import transformers as hf
from page.tabs import serve
from tiny_text import WORDS, wordpiece_pairs

import whyformer as why
from whyformer._plain.demo_models import find_demo_models

SLOW = 120_000  # milliseconds for a process to import what reads runs, on a busy machine
expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect


@pytest.fixture(scope="module")
def address(browser, tmp_path_factory):
    """A server with two classifiers of texts, a reader, a model of pairs, and a run."""
    folder = tmp_path_factory.mktemp("beside")
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=len(WORDS), hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48,
        max_position_embeddings=40, type_vocab_size=2, initializer_range=0.3,
    )  # fmt: skip
    hf.BertForQuestionAnswering(config).save_pretrained(folder / "reader")
    wordpiece_pairs().save_pretrained(folder / "reader")
    shutil.copytree(find_demo_models() / "sentiment", folder / "twin")
    (folder / "films.csv").write_text("text,label\na dull film,positive\na gorgeous film,positive\n")
    why.bulk(why.open("demo/sentiment"), why.data.read(folder / "films.csv"), ["rollout"], out=folder / "films")
    models = ("demo/sentiment", str(folder / "twin"), str(folder / "reader"), "demo/entailment")
    with serve(*models, str(folder / "films")) as (_, found):
        yield found


@pytest.fixture
def tab(make_tab, address):
    made = make_tab()
    made.open(address)
    yield made
    assert not made.list_faults()


def explain(tab, model=None):
    if model is not None:
        tab.page.locator("#model").select_option(index=model)
    tab.page.locator(".samples button:visible").first.click()
    expect(tab.page.locator(".question")).to_contain_text("Why ")


def test_a_reader_answers_and_both_texts_of_a_copy_can_be_edited(tab):
    explain(tab, model=2)
    expect(tab.page.locator(".question")).to_contain_text("Why the answer '")
    tab.page.locator(".class-row").nth(1).click()
    expect(tab.page).to_have_url(re.compile("target=answer%3A"))
    expect(tab.page.locator(".nothing-words")).to_contain_text("With everything hidden the model ")
    tab.page.locator("#model").select_option(index=3)
    explain(tab)
    tab.page.get_by_role("button", name="Edit a copy beside it").click()
    second = tab.page.get_by_label("Edit this copy: second text")
    second.fill("the lamp looks wet.\n\nit is new.")
    expect(tab.page.locator(".copy mark").filter(has_text="new.")).to_have_class(re.compile("changed"))
    expect(tab.page.locator(".moved")).to_contain_text("→")


def test_two_models_answer_one_input_side_by_side(tab):
    explain(tab)
    name = tab.page.locator(".question").inner_text()
    tab.page.locator(".other-model select").select_option(index=1)
    expect(tab.page.locator(".other-question")).to_contain_text(name)  # the same weights say the same
    expect(tab.page.locator(".other-shown p").first).to_contain_text("Both say ")


def test_an_item_of_a_run_is_explained_again_and_is_what_was_stored(tab):
    tab.page.get_by_text("Wrong answers, the surest first").click()
    expect(tab.page.locator(".runs tbody tr")).to_have_count(1, timeout=SLOW)
    tab.page.get_by_role("button", name="Open a dull film").click()
    expect(tab.page.locator(".recorded")).to_contain_text("The answer is the one that was recorded: Why negative?")
    expect(tab.page.get_by_label("Method", exact=True)).to_have_value("rollout")


def test_a_file_of_somebody_else_is_opened_on_the_model_that_it_names(tab, tmp_path):
    """There the model had another place, and said something else; nothing in the file is markup."""
    title = "Why negative? 12.3% <img src=x onerror=alert(1)>"
    request = {"route": "explain", "model": 3, "input": {"text": "a dull film"}, "targets": [None]}
    case = {
        "name": "theirs",
        "title": title,
        "model": "/elsewhere/demo/sentiment",
        "input": {"text": "a dull film"},
        "request": request,
    }
    file = tmp_path / "cases.json"
    file.write_text(json.dumps({"format": "whyformer cases", "version": 1, "cases": [case]}))
    tab.page.locator("input[type=file][accept*=json]").set_input_files(file)
    tab.page.get_by_role("button", name="Open theirs").click()
    expect(tab.page.locator(".recorded")).to_contain_text(f"Recorded was: {title}")
    assert tab.page.locator("img").count() == 0
    with tab.page.expect_download() as made:
        tab.page.get_by_role("button", name="JSON").click()
    found = json.loads(made.value.path().read_text())["cases"][0]
    assert found["request"]["model"] == 0
