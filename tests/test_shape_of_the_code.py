"""The shape of the code: imports point one way, files are named by nouns of the domain, public names are a list."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import whyformer

SOURCE = Path(whyformer.__file__).parent

# Each module may import those that stand before it, and nothing else of ours. A folder is one module.
ORDER = (
    "errors",
    "dice",
    "sites",
    "statistics",
    "tokens",
    "words",
    "labels",
    "shadow",
    "target",
    "method",
    "operations",
    "node",
    "slopes",
    "rules",
    "attention",
    "follow",
    "rulebook",
    "intervene",
    "intercept",
    "blocks",
    "graph",
    "stream",
    "parts",
    "picture",
    "fingerprint",
    "encoded",
    "text",
    "intake",
    "model",
    "checkpoint",
    "loading",
    "data",
    "forward",
    "layout",
    "perturb",
    "progress",
    "probe",
    "methods",
    "capture",
    "health",
    "selection",
    "versions",
    "archive",
    "show",
    "explanation",
    "comparison",
    "again",
    "metric",
    "metrics",
    "classes",
    "heads",
    "writing",
    "judge",
    "audit",
    "reproduce",
    "demo",
    "whyformer",  # the public names, __init__.py
    "cli",
)
WITHOUT_AN_IDEA = {"utils", "util", "helpers", "helper", "base", "core", "common", "misc"}

files = sorted(SOURCE.rglob("*.py"))
every_file = pytest.mark.parametrize("file", files, ids=lambda file: str(file.relative_to(SOURCE)))


@every_file
def test_imports_only_what_stands_before_it(file):
    own = module_of(file)
    allowed = {*ORDER[: ORDER.index(own)], own}
    assert imported_modules(ast.parse(file.read_text())) <= allowed


@every_file
def test_begins_by_saying_what_it_is(file):
    assert ast.get_docstring(ast.parse(file.read_text()))


@every_file
def test_is_named_by_an_idea(file):
    assert not WITHOUT_AN_IDEA & {*file.relative_to(SOURCE).parts[:-1], file.stem}


def test_every_module_has_its_place_in_the_order():
    assert {module_of(file) for file in files} <= set(ORDER)


def test_the_order_is_read_from_every_form_of_import():
    """`import a.b`, `from a import b`, `from a.b import c`, and the same inside a function."""
    code = """
import whyformer.errors
from whyformer import sites
from whyformer.methods.rollout import rollout
def later():
    import whyformer as why
    from torch import nn
"""
    assert imported_modules(ast.parse(code)) == {"errors", "sites", "methods", "whyformer"}


def test_public_names_are_a_sorted_list_of_what_is_there():
    assert whyformer.__all__ == sorted(whyformer.__all__, key=constants_classes_functions)
    assert not [name for name in whyformer.__all__ if not hasattr(whyformer, name)]


def test_public_names_do_not_give_way_to_modules_called_the_same():
    code = (
        "import sys, whyformer as why; assert 'torch' not in sys.modules;"
        "import whyformer.audit, whyformer.judge, whyformer.method, whyformer.metric;"
        "print([f.__name__ for f in (why.audit, why.judge, why.method, why.metric)], len(why.METHODS) > 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['audit', 'judge', 'method', 'metric'] True\n"


def test_the_package_says_that_it_is_typed():
    assert (SOURCE / "py.typed").is_file()


def constants_classes_functions(name: str) -> tuple[bool, bool, str]:
    return not name.isupper(), not name[0].isupper(), name


def module_of(file: Path) -> str:
    first = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "whyformer" if first == "__init__" else first


def imported_modules(tree: ast.AST) -> set[str]:
    """The modules of ours that a file imports, wherever the import stands."""
    return {place_in_the_package(name) for node in ast.walk(tree) for name in imported_names(node) if is_ours(name)}


def imported_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative import: name the module in full"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_ours(name: str) -> bool:
    return name.split(".")[0] == "whyformer"


def place_in_the_package(name: str) -> str:
    """'methods' for whyformer.methods.rollout; 'whyformer' for the package and the public names it hands out."""
    _, _, rest = name.partition(".")
    first = rest.split(".")[0]
    return first if first in ORDER else "whyformer"
