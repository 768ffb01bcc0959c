"""The layers of the package: imports point downward, files are named after what they hold, public names are listed."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from torch import nn

import whyformer
import whyformer.data
import whyformer.integrations

ROOT = Path(__file__).parents[1]
SOURCE, PAPERS = Path(whyformer.__file__).parent, ROOT / "papers" / "src" / "whyformer_papers"
ARCHITECTURE = ROOT / "docs" / "architecture.md"

MOST_PARAMETERS = 6

# Which rooms a room may import from, besides itself. A room is a folder, or a file at the top of the package.
# `papers` is the second package of the repository.
# `_engine` has rooms below it, listed from the ground up; "_engine" alone is the files directly in that folder.
GROUND = {"errors", "_plain"}
ENGINE_ROOMS = ("tracing", "relevance", "run", "layout", "targets", "probe", "capture", "plan", "program")
ENGINE = {"_engine", *(f"_engine.{name}" for name in ENGINE_ROOMS)}
AUDIT = {"_audit.reruns", "_audit.checks", "_audit.report"}
EXPLAINING = {*GROUND, *ENGINE, "_model", "methods", "show", "results", "_explain"}
ROOMS = {
    "errors": set(),
    "_plain": {"errors"},
    "_model": GROUND,
    **{
        f"_engine.{name}": {*GROUND, "_model", *(f"_engine.{below}" for below in ENGINE_ROOMS[:index])}
        for index, name in enumerate(ENGINE_ROOMS)
    },
    "_engine": {*GROUND, *ENGINE, "_model"},
    "rules": {*GROUND, *ENGINE},
    "targets": {*GROUND, *ENGINE},
    "methods": {*GROUND, *ENGINE, "_model"},
    "show": {*GROUND, "_model", *ENGINE},
    "results": {*GROUND, "_model", *ENGINE, "show"},
    "_explain": {*GROUND, *ENGINE, "_model", "methods", "show", "results"},
    "metrics": {*GROUND, *ENGINE, "targets", "_model", "methods", "results", "_explain"},
    "data": {*GROUND, "_model", "demo"},
    "_cite": {*EXPLAINING, "metrics", "data", "_runs", "_bulk"},
    "_runs": {*EXPLAINING, "targets", "metrics", "data"},
    "_judge": {*EXPLAINING, "targets", "metrics", "data", "_runs"},
    "_audit.reruns": {*GROUND, *ENGINE, "_model"},
    "_audit.checks": {*EXPLAINING, "_audit.reruns"},
    "_audit.report": {*EXPLAINING, "_audit.checks"},
    "_audit": {*EXPLAINING, *AUDIT, "targets", "data", "_runs"},
    "_bulk": {*EXPLAINING, "targets", "data", "_runs"},
    "_summary": {*EXPLAINING, "data", "_runs"},
    "papers": {*EXPLAINING, "targets", "metrics", "data", "_runs", "_judge", "_audit", *AUDIT, "demo"},
    "_page": {*EXPLAINING, "targets", "_cite", "_bulk", "_runs", "_summary", "demo"},
    "demo": {*GROUND, "_model", "show", "results", "_explain"},
    "integrations": {*EXPLAINING, "data", "_runs"},
    "whyformer": set(),  # __init__.py; filled in below: the public names come from everywhere
    "cli": set(),  # the shell over everything
    "__main__": {"cli"},  # python -m whyformer
}
# The second package, and the server: only the command line imports them.
ROOMS["whyformer"] = set(ROOMS) - {"papers", "_page"}
ROOMS["cli"] = set(ROOMS)
# Rooms with a door, their `__init__`: code outside of such a room imports only what a door imports. The engine has one;
# its rooms import from the files of those below them.
DOORS = ("_model", "_model.loading", "_model.prompt", "_engine", "_audit", *sorted(AUDIT))
# What `rules` and `targets` show of two rooms of the engine to users
FACES = {"rules": "_engine.relevance", "targets": "_engine.targets"}
BUILT_OF_THE_ENGINE = "_audit.reruns"  # an engine of the audit's own, of its parts
THROUGH_THE_ENGINES_DOOR = 60  # names that code outside of the engine imports
# Usual changes, and the one room that each takes place in; docs/architecture.md has the file.
USUAL_CHANGES = {
    "a new attribution method": "methods",
    "a new metric": "metrics",
    "a relevance rule or a recipe": "_engine.relevance",
    "something new to capture": "_engine.capture",
    "a torch operation that is not traced yet": "_engine.tracing",
    "a kind of target": "_engine.targets",
    "a new surprise in a model": "_engine.run",
    "a reader for a data set": "data",
    "an output format": "results",
    "a command or an option": "cli",
    "a document for `reproduce`": "papers",
    "a question that the page answers": "_page",
    "a widget of the page": "_page",
    "padding of left-padded batches": "_explain",
}
# Private names of other libraries than torch that are used, each in one or two files.
OTHERS = {"_exit", "_worker_logs_enabled", "_hf_hook", "_attn_implementation", "_compile_jinja_template"}
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
IN_MODULES = {name for name in vars(nn.Module()) if name.startswith("_")} | {"_orig_mod", "_compiled_call_impl"}
WITHOUT_AN_IDEA = {"utils", "util", "helpers", "helper", "base", "core", "common", "misc"}

files = sorted([*SOURCE.rglob("*.py"), *PAPERS.rglob("*.py")])
trees = {file: ast.parse(file.read_text()) for file in files}


def test_imports_only_from_rooms_below():
    forbidden = {}
    for file, tree in trees.items():
        own = room_of(module_of(file))
        if above := imported_rooms(tree) - {*ROOMS[own], own}:
            forbidden[module_of(file)] = above
    assert not forbidden


def test_the_table_of_rooms_has_no_cycle():
    """Apart from `__init__.py` and the command line, which may import everything."""
    below = {room: set(into) - {room} for room, into in ROOMS.items() if room not in ("whyformer", "cli")}
    while below:
        bottom = {room for room, into in below.items() if not into & below.keys()}
        assert bottom, f"these import each other: {', '.join(below)}"
        below = {room: into for room, into in below.items() if room not in bottom}


def test_only_one_command_imports_the_second_package():
    """And only inside of functions: whyformer is complete without it."""
    importing = {module_of(file) for file, tree in trees.items() if "papers" in imported_rooms(tree)}
    assert {module for module in importing if room_of(module) != "papers"} == {"cli.reproduce"}
    above = ast.Module([node for node in trees[SOURCE / "cli" / "reproduce.py"].body if not is_a_definition(node)], [])
    assert "papers" not in imported_rooms(above)


def test_both_packages_have_one_version():
    core, papers = (
        tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT, ROOT / "papers")
    )
    assert core["version"] == papers["version"]
    assert papers["dependencies"] == [f"whyformer=={core['version']}"]
    assert core["optional-dependencies"]["papers"] == [f"{papers['name']}=={papers['version']}"]


@pytest.mark.parametrize("room", DOORS)
def test_imports_through_doors_only(room):
    assert imports_past_doors(room) == {}


def test_imports_past_a_door_are_found():
    """A deeper module, as a module or by a name of it; inside the room both are fine."""
    code = """
from whyformer._model import Model, loading, unwrap
from whyformer._model.text import TextPair
from whyformer._model import text
import whyformer._model.loading.checkpoint
"""
    past = {"_model.text.TextPair", "_model.text", "_model.loading.checkpoint"}
    assert names_past_doors(ast.parse(code), "_engine.record", "_model") == past
    assert names_past_doors(ast.parse(code), "_model.model", "_model") == set()
    assert names_past_doors(ast.parse(code), "_model.model", "_model.loading") == {"_model.loading.checkpoint"}


def test_few_names_go_through_the_door_of_the_engine():
    """Of all the other rooms together; `rules` and `targets` show what is in two of its rooms to users."""
    inside = ("_engine", BUILT_OF_THE_ENGINE)
    outside = [tree for file, tree in trees.items() if not any(is_inside(module_of(file), room) for room in inside)]
    names = {name for tree in outside for node in ast.walk(tree) for name in imported_names(node)}
    through = {name for name in names if is_inside(name, "whyformer._engine") and not name.endswith("*")}
    assert len(through) <= THROUGH_THE_ENGINES_DOOR, sorted(through)


def test_two_loose_files_at_most_are_on_the_floor_of_the_engine():
    assert len([file for file in (SOURCE / "_engine").glob("*.py") if file.name != "__init__.py"]) <= 2


@pytest.mark.parametrize(("change", "room"), USUAL_CHANGES.items())
def test_a_usual_change_has_one_room(change, room):
    """docs/architecture.md names the file or folder to begin with, which exists and is in this room."""
    line = next(line for line in ARCHITECTURE.read_text().splitlines() if line.startswith(f"| {change}"))
    named = re.search(r"`([\w/]+/(?:\w+\.py)?)`", line)[1]
    file = ROOT / named if named.startswith("papers/") else SOURCE / named
    assert file.exists() and room_of(module_of(file)) == room


def test_every_surprise_has_its_code_and_its_test():
    """The table of docs/architecture.md: the function or class that recognises it, and the test that has it."""
    section = ARCHITECTURE.read_text().partition("## Surprises in a model")[2]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 15
    for row in rows:
        cells = row.strip("|").split("|")
        for cell, start in ((cells[1], SOURCE), (cells[4], ROOT)):
            file, *name = re.findall(r"`([^`]+)`", cell)
            defined = {node.name for node in ast.walk(ast.parse((start / file).read_text())) if is_a_definition(node)}
            assert set(name) <= defined, row


def test_files_that_texts_name_exist():
    """In docstrings, in comments and in the pages for developers."""
    stray = {f"{name}.py" for name in (*sys.stdlib_module_names, "connection")}
    known = stray | {file.name for file in ROOT.rglob("*.py")}
    texts = [ARCHITECTURE, ROOT / "CONTRIBUTING.md", *files]
    found = {text.name: set(re.findall(r"\b[a-z]\w*\.py\b", text.read_text())) - known for text in texts}
    assert {name: missing for name, missing in found.items() if missing} == {}


def test_the_picture_of_the_house_is_up_to_date():
    """`make house` draws it."""
    docs = ARCHITECTURE.parent
    code = "import draw_house; print(draw_house.draw(), end='')"
    drawn = subprocess.run([sys.executable, "-c", code], cwd=docs, capture_output=True, text=True, check=True).stdout
    assert drawn == (docs / "images" / "house.svg").read_text(), "run: make house"


def test_private_names_of_torch_are_in_one_file():
    """Each with its reason; another file uses the name that it has there."""
    own = names_defined(trees.values())
    found = {module_of(file): private_names(tree) - own for file, tree in trees.items()}
    del found["_plain.private_torch"]
    assert {module: names for module, names in found.items() if names} == {}


def test_private_names_of_torch_are_found():
    code = """
import torch._dynamo
from torch.overrides import _get_current_function_mode_stack
def count(module, tensor):
    torch._C.DisableTorchFunction(), tensor._version, module.__dict__["_buffers"], os._exit, "_softmax"
"""
    names = {"torch._dynamo", "torch.overrides._get_current_function_mode_stack", "_C", "_version", "_buffers"}
    assert private_names(ast.parse(code)) == names


def test_few_top_level_names_are_defined_twice():
    """Functions and classes; `generate` is what every world of `demo` calls its generator."""
    homes = defaultdict(set)
    for file, tree in trees.items():
        for node in tree.body:
            if is_a_definition(node) and not node.name.startswith("__"):
                homes[node.name].add(module_of(file))
    twice = {name: modules for name, modules in homes.items() if len(modules) > 1}
    assert len(twice) < 15, twice


def test_few_functions_have_over_six_parameters():
    """Besides those whose parameters a user names: public functions, methods and metrics with settings, commands."""
    many = [
        f"{module_of(file)}.{node.name}"
        for file, tree in trees.items()
        if SOURCE in file.parents
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and count_parameters(node) > MOST_PARAMETERS
        and not is_called_by_users(node)
    ]
    assert len(many) <= 30, many


def count_parameters(function: ast.FunctionDef) -> int:
    given = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
    return len(given) - (given[:1] in (["self"], ["cls"]))


def is_called_by_users(function: ast.FunctionDef) -> bool:
    decorators = {ast.unparse(one).partition("(")[0] for one in function.decorator_list}
    public = {*whyformer.__all__, *whyformer.data.__all__, *whyformer.integrations.__all__}
    return function.name in public or not decorators.isdisjoint({"method", "metric", "app.command"})


def test_parameters_are_counted():
    tree = ast.parse("def f(self, a, *, b): ...\ndef g(*c, d): ...\n@method(paper='')\ndef h(a): ...").body
    assert [count_parameters(node) for node in tree] == [2, 1, 1]
    assert [is_called_by_users(node) for node in tree] == [False, False, True]


def test_no_body_of_four_lines_is_written_twice():
    bodies = defaultdict(list)
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                if body and body[-1].end_lineno - body[0].lineno >= 3:
                    bodies[ast.dump(ast.Module(body, []))].append(f"{module_of(file)}.{node.name}")
    assert [names for names in bodies.values() if len(names) > 1] == []


def test_every_file_has_a_docstring():
    assert [module_of(file) for file, tree in trees.items() if not ast.get_docstring(tree)] == []


def test_every_file_is_named_after_an_idea():
    assert [name for name in map(module_of, files) if WITHOUT_AN_IDEA & set(name.split("."))] == []


def test_every_file_is_in_a_room():
    assert {room_of(module_of(file)) for file in files} == set(ROOMS)


def test_every_form_of_import_is_recognised():
    """`import a.b`, `from a import b`, `from a.b import c`, and the same inside a function."""
    code = """
import whyformer.errors
from whyformer import data
from whyformer._engine import record
from whyformer._engine.tracing.follow import Follower
from whyformer.methods.rollout import rollout
def later():
    import whyformer as why
    from torch import nn
"""
    found = imported_rooms(ast.parse(code))
    assert found == {"errors", "data", "_engine", "_engine.tracing", "methods", "whyformer"}


def test_public_names_are_sorted_and_exist():
    assert whyformer.__all__ == sorted(whyformer.__all__, key=constants_classes_functions)
    assert not [name for name in whyformer.__all__ if not hasattr(whyformer, name)]


def test_the_package_is_a_plain_module_and_its_verbs_are_functions():
    """Whatever was imported before: no module has the name of a verb."""
    code = (
        "import sys, types, whyformer as why; assert 'torch' not in sys.modules;"
        "import whyformer._audit, whyformer._judge, whyformer.methods, whyformer.metrics;"
        "print(type(why) is types.ModuleType, len(why.METHODS) > 9);"
        "print([type(f).__name__ for f in (why.explain, why.audit, why.judge, why.method, why.metric)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"True True\n{['function'] * 5}\n"


def test_the_package_is_marked_as_typed():
    assert (SOURCE / "py.typed").is_file()


def imports_past_doors(room: str) -> dict[str, set[str]]:
    """File outside of the room -> what it imports from the room, but not from a door."""
    found = {module_of(file): names_past_doors(tree, module_of(file), room) for file, tree in trees.items()}
    return {module: names for module, names in found.items() if names}


def names_past_doors(tree: ast.AST, module: str, room: str) -> set[str]:
    if is_inside(module, room) or (room == "_engine" and is_inside(module, BUILT_OF_THE_ENGINE)):
        return set()
    names = {inside_house(name) for node in ast.walk(tree) for name in imported_names(node) if is_ours(name)}
    return {name for name in names if is_inside(name, room) and not is_at_a_door(name) and not is_shown(module, name)}


def is_shown(module: str, name: str) -> bool:
    """Whether a public face shows it: rules.py, targets.py."""
    return module in FACES and is_inside(name, FACES[module]) and name.endswith(".*")


def is_inside(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


def is_at_a_door(name: str) -> bool:
    """Whether it is a door, or a name that a door imports."""
    door, _, last = name.rpartition(".")
    return name in DOORS or (door in DOORS and last in names_at_door(door))


@cache
def names_at_door(door: str) -> set[str]:
    imported = trees[SOURCE.joinpath(*door.split("."), "__init__.py")]
    return {
        alias.asname or alias.name for node in imported.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }


def private_names(tree: ast.AST) -> set[str]:
    """Imports of private names of torch; private attributes and keys of modules that no file of ours defines."""
    found = set()
    for node in ast.walk(tree):
        parts = {name: name.split(".") for name in imported_names(node)}
        found |= {n for n, own in parts.items() if own[0] == "torch" and any(map(is_private, own))}
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            found.add(node.attr)
        if isinstance(node, ast.Constant) and node.value in IN_MODULES:
            found.add(node.value)
    return found - OTHERS - OF_NAMED_TUPLES


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith(("__", "_whyformer"))


def names_defined(code: Iterable[ast.AST]) -> set[str]:
    """Of functions, classes, and attributes that are assigned to."""
    found = set()
    for node in (node for tree in code for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
        if isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def constants_classes_functions(name: str) -> tuple[bool, bool, str]:
    return not name.isupper(), not name[0].isupper(), name


def module_of(file: Path) -> str:
    """'_engine.tracing.follow', below the package; a folder's __init__.py is the folder, the package itself ''."""
    parts = (
        file.relative_to(SOURCE).parts if file.is_relative_to(SOURCE) else ("papers", *file.relative_to(PAPERS).parts)
    )
    return ".".join(parts).removesuffix(".py").removesuffix("__init__").removesuffix(".")


def room_of(module: str) -> str:
    """The most specific room that holds the module; 'whyformer' for the package itself."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in ROOMS), "whyformer")


def imported_rooms(tree: ast.AST) -> set[str]:
    """The rooms that a file imports from, also inside functions."""
    names = (name for node in ast.walk(tree) for name in imported_names(node) if is_ours(name))
    return {room_of(inside_house(name)) for name in names}


def imported_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative import: name the module in full"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_ours(name: str) -> bool:
    return name.split(".")[0] in ("whyformer", "whyformer_papers")


def inside_house(name: str) -> str:
    """'whyformer._model.text' is '_model.text', 'whyformer_papers.chefer' is 'papers.chefer'."""
    return name.replace("whyformer_papers", "whyformer.papers").partition(".")[2]


def is_a_definition(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.ClassDef)
