"""Every method can be checked against its paper: the file docstring gives formula, paper and year."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import whyformer.methods
from whyformer._engine.capture.sites import SITES
from whyformer.methods._registry import METHODS

FOLDER = Path(whyformer.methods.__file__).parent
FILES = sorted(path for path in FOLDER.glob("*.py") if "\n@method(" in path.read_text())
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
ours = pytest.mark.parametrize("name", whyformer.methods.__all__)


@every_file
def test_the_file_has_a_formula_a_paper_and_a_year(path):
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert len(re.findall(r"\$\$.+?\$\$", text, re.DOTALL)) == 1
    assert re.search(r"\b(19|20)\d\d\b", text), "name the year of the paper in the docstring of the file"
    reference = re.search(r"(arXiv:\d{4}\.\d{4,5}|doi:10\.\d{4,}/\S+|NeurIPS 20\d\d)", text)
    assert reference, "name the paper in the docstring of the file: arXiv:0000.00000, doi:10... or NeurIPS 20.."
    assert text.count("$") % 2 == 0


@every_file
def test_the_docstring_is_raw(path):
    r"""Otherwise \b of \bar is a backspace."""
    assert path.read_text().startswith('r"""')


@ours
def test_the_paper_of_the_method_is_the_one_of_its_file(name):
    """First author and year, as registered, are also in the file docstring."""
    author, year = re.match(r"(\w+).*?(\d{4})$", METHODS[name].paper).groups()
    text = ast.get_docstring(ast.parse(Path(inspect.getmodule(METHODS[name].compute).__file__).read_text()))
    assert author in text
    assert year in text


@ours
def test_says_what_the_number_means(name):
    summary = METHODS[name].summary
    assert summary.endswith(".")
    assert 30 < len(summary) <= 120


@ours
def test_explains_every_setting_that_is_a_word(name):
    chosen = METHODS[name]
    words = [setting for setting, default in chosen.settings.items() if isinstance(default, str)]
    for setting in words:
        assert re.search(rf"\b{setting}\b", chosen.compute.__doc__), setting


def test_importing_the_package_fills_the_table():
    assert set(whyformer.methods.__all__) <= set(METHODS)
    assert whyformer.methods.__all__ == sorted(whyformer.methods.__all__)
    assert all(getattr(whyformer.methods, name) is METHODS[name].compute for name in whyformer.methods.__all__)


def test_every_file_with_a_method_is_imported():
    registered = {Path(inspect.getmodule(METHODS[name].compute).__file__).name for name in whyformer.methods.__all__}
    assert registered == {path.name for path in FILES}


@ours
def test_what_knows_the_class_looks_at_a_gradient_or_a_relevance_or_asks_the_model(name):
    needs = METHODS[name].needs
    if "probe" not in needs:
        assert METHODS[name].class_specific == any(SITES[need].is_class_specific for need in needs)
