"""What a verb takes in Python: names, types, defaults, and what its docstring says of each parameter.

    read_parameters("bulk")["shard"]        Parameter("shard", "int | None", None, "items per file.")

All is read from the source: to import a verb is to import torch, for which --help need not wait.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import whyformer

SOURCE = Path(whyformer.__file__).parents[1]
HOME_OF: Mapping[str, str] = vars(whyformer)["HOME_OF"]
REFERENCE = re.compile(r"as (?:for|in) `?(\w+)")  # the docstring of another verb says it


@dataclass(frozen=True)
class Parameter:
    """One parameter of a verb. meaning: "" where the docstring says nothing."""

    name: str
    kind: str  # as it is annotated
    default: Any  # ... for none
    meaning: str


@cache
def read_parameters(verb: str) -> Mapping[str, Parameter]:
    """The parameters of a public function by name."""
    text, function = find_definition(HOME_OF[verb], verb)
    given = function.args
    required: list[ast.expr | None] = [None] * (len(given.args) - len(given.defaults))
    defaults = zip([*given.args, *given.kwonlyargs], [*required, *given.defaults, *given.kw_defaults], strict=True)
    meanings = dict(read_meanings(function, verb))
    return {
        one.arg: Parameter(
            one.arg, ast.unparse(one.annotation or given), evaluate(node, text), meanings.get(one.arg, "")
        )
        for one, node in defaults
    }


def find_definition(module: str, name: str) -> tuple[str, ast.FunctionDef]:
    """A function, its last definition after overloads, and the text of its file; through the doors that pass it on."""
    path = SOURCE.joinpath(*module.split("."))
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8")
    _, begin, rest = text.rpartition(f"\ndef {name}(")
    if begin:  # this much alone is parsed: a file takes ten times as long
        (function,) = ast.parse(begin + rest.partition("\n\n\n")[0]).body
        assert isinstance(function, ast.FunctionDef)
        return text, function
    imports = (node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom))
    door = next(node for node in imports if any(alias.name == name for alias in node.names))
    return find_definition(str(door.module), name)


def evaluate(node: ast.expr | None, text: str) -> Any:
    """A default: a literal or the name of one in the same file; None for what only Python can make."""
    if node is None:
        return ...
    named = re.search(rf"^{node.id} = (\S+)", text, re.MULTILINE) if isinstance(node, ast.Name) else None
    try:
        return ast.literal_eval(node if named is None else named[1])
    except (ValueError, SyntaxError):
        return None


def read_meanings(function: ast.FunctionDef, verb: str) -> Iterator[tuple[str, str]]:
    """The entries of a docstring, `shard: items per file. limit, seed: ...`, each up to the next or an empty line."""
    names = "|".join(argument.arg for argument in [*function.args.args, *function.args.kwonlyargs])
    begin = re.compile(rf"(?:^|(?<=[.;)] ))((?:{names})(?:, (?:{names}))*): ")
    for paragraph in (ast.get_docstring(function) or "").split("\n\n"):
        parts = begin.split(" ".join(line.strip() for line in paragraph.splitlines()))
        for listed, meaning in zip(parts[1::2], parts[2::2], strict=True):
            for name in listed.split(", "):
                other = REFERENCE.match(meaning)
                is_new = other is not None and other[1] in HOME_OF and other[1] != verb
                found = read_parameters(other[1]).get(name) if other is not None and is_new else None
                yield name, meaning.strip() if found is None else found.meaning
