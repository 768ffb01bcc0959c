"""What the documentation says is true: every example runs, offline, and every list agrees with the code."""

import importlib.util
import inspect
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from io import StringIO
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import whyformer
from whyformer import errors, methods, metrics
from whyformer.cli import app
from whyformer.methods._registry import METHODS
from whyformer.metrics._registry import METRICS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GENERATED = {
    "methods.md",
    "metrics.md",
    "models.md",
    "recipes.md",
    "models-others.md",
    "index.md",
    "reference.md",
    "skill.md",
    "llms.txt",
}  # by docs/generate_pages.py; without examples
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += sorted(page for page in DOCS.glob("*.md") if page.name not in GENERATED)

FENCE = re.compile(r"^```(?P<language>\S*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
RELATIVE_LINK = re.compile(r"\]\((?!\w+:)([^)#]+)[^)]*\)|<img[^>]* src=\"(?!\w+:)([^\"]+)\"")
REQUEST = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:\w+:)?//|<link\b[^>]*\bhref=\"(?:\w+:)?//|url\([\"']?(?:\w+:)?//"
)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@every_page
def test_examples_run_from_top_to_bottom_and_print_what_is_shown(page, somewhere):
    text = page.read_text()
    namespace = {"__name__": "__main__"}
    printed = ""
    for block in FENCE.finditer(text):
        if block["language"] == "python":
            lines_before = text[: block.start("code")].count("\n")  # so that a traceback points into the page
            printed = run_python("\n" * lines_before + block["code"], page, namespace)
        if block["language"] == "console":
            run_commands(block["code"])
        if block["language"] == "output":
            assert is_as_shown(printed, block["code"]), f"shown:\n{block['code']}\nprinted:\n{printed}"


def list_shown_commands() -> Iterator[tuple[str, str]]:
    """Where a command is shown, and the command: in a block of a page, and in the help of a verb."""
    for page in PAGES:
        lines = [line for block in FENCE.finditer(page.read_text()) for line in block["code"].splitlines()]
        yield from ((page.name, line.removeprefix("$ ")) for line in lines)
    for name, command in get_command(app).commands.items():
        yield from ((f"{name} --help", line) for line in (command.epilog or "").splitlines())


def test_every_command_that_is_shown_can_be_typed():
    """Its verb, its options and their values are known; what it reads need not be there."""
    verbs, checked = get_command(app).commands, 0
    for place, line in list_shown_commands():
        command = re.sub(r"\s+# .*", "", line.strip())
        if not command.startswith("whyformer ") or re.search(r"\.\.\.|[\[\]$|]|\b(NAME|COMMAND)\b", command):
            continue
        verb, *arguments = shlex.split(command)[1:]
        if verb in verbs and "--help" not in arguments and arguments:
            verbs[verb].make_context(verb, arguments).close()
            checked += 1
        else:
            assert verb in verbs or verb.startswith("--"), f"{place}: {command}"
    assert checked > 60


@every_page
def test_no_example_escapes_the_tests(page):
    languages = {block["language"] for block in FENCE.finditer(page.read_text())}
    assert languages <= {"python", "output", "console", "text", "{toctree}"}


@every_page
def test_examples_import_only_what_is_public(page):
    code = "".join(block["code"] for block in FENCE.finditer(page.read_text()) if block["language"] == "python")
    imported = re.findall(r"^\s*(?:from|import) (whyformer[\w.]*)(?: import (.+))?", code, re.MULTILINE)
    assert not [names for names in imported if "._" in names[0] or re.search(r"\b_", names[1])]


@every_page
def test_links_to_files_that_are_there(page):
    links = {link for pair in RELATIVE_LINK.findall(page.read_text()) for link in pair if link}
    assert not [link for link in links if not (page.parent / link).exists()]


@every_page
def test_names_only_targets_that_make_knows(page):
    known = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*re.findall(r"^make (\w+)", page.read_text(), re.MULTILINE)} <= {*known}


def test_generated_pages_are_not_stale(generate_pages):
    pages = generate_pages.make_pages()
    assert {path.name for path in pages} == GENERATED
    stale = [path.name for path, text in pages.items() if path.read_text() != text]
    assert not stale, "run: make pages"


def test_the_planted_page_is_not_stale(monkeypatch):
    """Its sentences come from tests/planted.py; the numbers are those that were measured."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import planted_truth

    rows = planted_truth.on_the_page()
    assert planted_truth.PAGE.read_text() == planted_truth.page(
        planted_truth.table(rows), planted_truth.constructions.ITEMS
    ), "run: python benchmarks/planted_truth.py --methods chance"


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_pages_give_the_right_number_of_methods_and_metrics(page):
    text = (ROOT / page).read_text()
    counted = f"{len(methods.__all__)} methods, {len(metrics.__all__)} metrics"
    assert counted in text, f"write into README.md: {counted}; then run: make pages"


def test_readme_is_one_screen_with_every_verb():
    """Under 120 lines; each verb is in the table, as code."""
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) < 120
    named = {*re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`]+)`", readme.split("## I have")[1])))}
    assert {*get_command(app).commands} <= named
    assert "[NOTICE](NOTICE)" in readme and "CITATION.cff" in readme


def test_the_table_of_peers_has_a_row_for_each_that_its_program_looks_for(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import peers

    readme = (ROOT / "README.md").read_text()
    assert all(name in readme for name in peers.PACKAGES)
    assert readme.count("| yes |") >= 6 and "benchmarks/peers.py" in readme


def test_the_gallery_is_as_its_command_writes_it():
    spec = importlib.util.spec_from_file_location("gallery", DOCS / "gallery.py")
    gallery = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gallery)
    assert (DOCS / "gallery.md").read_text() == gallery.page(), "run: make gallery"
    drawn = {gallery.on_the_page(name) for entry in gallery.ENTRIES for name in entry.images}
    assert {path.name for path in (DOCS / "images" / "gallery").iterdir()} == drawn


def test_methods_page_has_a_section_for_every_method(generate_pages):
    page = generate_pages.make_methods_page()
    for name in methods.__all__:
        assert f"\n### `{name}`\n\n{METHODS[name].summary}\n" in page


def test_the_notice_names_every_method_that_sends_relevance():
    notice = {*re.findall(r"\w+", (ROOT / "NOTICE").read_text())}
    assert {name for name, method in METHODS.items() if method.recipe} == notice & {*METHODS}


def test_metrics_page_has_a_section_for_every_metric(generate_pages):
    page = generate_pages.make_metrics_page()
    for name in metrics.__all__:
        assert f"\n### `{name}`\n\n{METRICS[name].summary}\n" in page


def test_the_security_page_names_every_kind_of_page_with_a_script():
    sources = {path.name for path in (ROOT / "src").rglob("*.py") if "script=SCRIPT" in path.read_text()}
    page = " ".join((ROOT / "SECURITY.md").read_text().split())
    assert sources == {"prompt_page.py"} and "One kind of page runs a script" in page
    assert "page of a prompt" in page and "SHA-256" in page


def test_errors_page_has_a_section_for_every_error():
    page = (DOCS / "errors.md").read_text()
    there = [thing for _, thing in vars(errors).items() if inspect.isclass(thing) and issubclass(thing, Exception)]
    sections = re.findall(r"^## (\w+)\n\n\*Exit status (\d)\.\*", page, re.MULTILINE)
    assert sections == [(error.__name__, str(error.exit_code)) for error in there]


def test_the_reference_has_every_public_name(generate_pages):
    listed = " ".join(generate_pages.REFERENCE.values()).split()
    assert sorted(listed) == sorted(whyformer.__all__), "add the name to REFERENCE in docs/generate_pages.py"


def test_the_skill_page_has_every_verb_and_only_names_of_the_api(generate_pages):
    text = (DOCS / "skill.md").read_text()
    named = set(re.findall(r"\bwhy\.([a-z_]+)", text))
    assert named <= set(whyformer.__all__), named - set(whyformer.__all__)
    verbs = {name for name in generate_pages.REFERENCE["Explain"].split() + generate_pages.REFERENCE["Judge"].split()}
    verbs = {name for name in verbs if name.islower() and name not in ("load", "judge_metrics")}
    assert verbs <= named
    assert len(text.split()) < 1500


def test_each_page_of_examples_becomes_a_file_that_can_be_run(tmp_path):
    made = subprocess.run([sys.executable, DOCS / "write_examples.py", tmp_path], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    files = {path.name for path in tmp_path.glob("*.py")}
    assert {"README.py", "start.py", "how-to.py"} <= files
    for path in tmp_path.glob("*.py"):
        compile(path.read_text("utf-8"), path.name, "exec")


@pytest.mark.slow
def test_the_examples_of_the_reference_run(generate_pages, somewhere):
    passages = ["The Aurora left in March and carries tea.", "The fair opens in May."]
    text = "\n\n".join([*passages, "Question: What does the Aurora carry?\nAnswer:"])
    scene = whyformer.demo.shapes.generate(1, seed=0).images[0]
    names = {"why": whyformer, "passages": passages, "text": text, "scene": scene, "__name__": "__main__"}
    for name, code in generate_pages.EXAMPLES.items():
        assert name in whyformer.__all__ and re.search(r"\bwhy\b|\w", code)
        exec(compile(code, f"the example of {name}", "exec"), names)


def test_every_page_is_in_the_table_of_contents(generate_pages):
    listed = set(" ".join(generate_pages.SECTIONS.values()).split())
    there = {str(page.relative_to(DOCS).with_suffix("")) for page in [*DOCS.glob("*.md"), *DOCS.glob("notebooks/*")]}
    assert listed == there - {"index"}, "add the page to SECTIONS in docs/generate_pages.py"


# Of the hand-written pages without README, of which index.md is made. When a page gets shorter, lower the limits.
MOST_PROSE, MOST_WORDS = 31_400, 65_400


def count_words(page: Path) -> tuple[int, int]:
    """Words of prose, outside of code and tables, and all words."""
    text = page.read_text()
    prose = [line for line in FENCE.sub("", text).splitlines() if not line.startswith("|")]
    return len(" ".join(prose).split()), len(text.split())


def test_hand_written_pages_do_not_grow():
    words = {page.name: count_words(page) for page in PAGES if page.parent == DOCS}
    prose, every = (sum(counts) for counts in zip(*words.values(), strict=True))
    longest = sorted(words.items(), key=lambda item: -item[1][0])[:8]
    assert prose <= MOST_PROSE and every <= MOST_WORDS, f"{prose} and {every} words; cut a page: {longest}"


@every_page
def test_every_page_opens_with_what_it_is_for(page):
    """A paragraph of at most 80 words between the title and what follows."""
    text = re.sub(r"\A---\n.*?\n---\n\n", "", page.read_text(), flags=re.DOTALL)
    title, _, rest = text.partition("\n\n")
    assert title.startswith("# "), title
    first = rest.split("\n\n")[0]
    assert page.name == "CONTRIBUTING.md" or (first[0] not in "#|`<*-" or first.startswith(("**", "`"))), first[:80]


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent == DOCS], ids=lambda page: page.name)
def test_every_page_ends_with_what_to_read_next(page):
    last = page.read_text().rstrip().rpartition("\n\n")[2]
    assert last.startswith("Next: ") and "](" in last, last[:80]


@pytest.mark.parametrize("page", ["README.md", "docs/start.md", "docs/decision.md"])
def test_code_fits_the_column(page):
    """Of the built pages, which a browser shows at 1440 pixels: 88 characters."""
    text = (ROOT / page).read_text()
    lines = [line for block in FENCE.finditer(text) for line in block["code"].splitlines()]
    assert not [line for line in lines if len(line) > 88 and not line.startswith(("On this data", "$ "))]


def test_docs_build_without_a_warning_and_ask_nothing_of_the_network(tmp_path):
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "--doctree-dir", tmp_path / "doctrees"]
    built = subprocess.run([*command, DOCS, tmp_path / "html"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    for file in [*tmp_path.glob("html/**/*.html"), *tmp_path.glob("html/**/*.css")]:
        assert not REQUEST.search(file.read_text()), f"{file.name} fetches something"


@pytest.fixture
def somewhere(tmp_path, monkeypatch):
    """An empty folder, no network; afterwards the registries are as they were."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(socket.socket, "connect", refuse_to_connect)
    before = [(registry, dict(registry)) for registry in (METHODS, METRICS, whyformer.RECIPES)]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)


@pytest.fixture
def generate_pages(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    import generate_pages

    return generate_pages


def refuse_to_connect(*_):
    raise AssertionError("an example of the documentation asks for the network")


def run_python(code: str, page: Path, namespace: dict[str, object]) -> str:
    with redirect_stdout(StringIO()) as printed:
        exec(compile(code, str(page), "exec"), namespace)
    return printed.getvalue()


def is_as_shown(printed: str, shown: str) -> bool:
    """Equal but for blanks; `...` stands for anything."""
    return OutputChecker().check_output(shown, printed, ELLIPSIS | NORMALIZE_WHITESPACE)


def run_commands(transcript: str) -> None:
    """Run each line `$ whyformer ...`; what stands between them is output."""
    for line in transcript.splitlines():
        if line.startswith("$ whyformer "):
            result = CliRunner().invoke(app, shlex.split(line.removeprefix("$ whyformer ")))
            assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
