"""Public signatures: real types and no Any; one name for one thing, in docs/parameters.md and on the command line."""

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

import whyformer as why
from whyformer.cli import app

PUBLIC = [name for name in why.__all__ if callable(getattr(why, name)) and not isinstance(getattr(why, name), dict)]
VERBS = (
    "open explain compare explain_classes explain_generation explain_similarity compare_redistribution "
    "inspect_attention trace_reasoning cite cite_log measure_citations generate check_answer diagnose record judge "
    "judge_metrics audit bulk summarise_bulk compare_runs"
).split()
PAGE = (Path(__file__).parents[1] / "docs" / "parameters.md").read_text("utf-8")
KNOWN: dict[str, set[str]] = {}  # verb -> parameters that the page does not list

PENDING = {"Capture"}  # the values of sites


# --- types ------------------------------------------------------------------------------------------------------------


def list_signatures(name: str) -> Iterator[tuple[str, inspect.Signature]]:
    """The function itself; of a class, its constructor, methods and properties without an underscore."""
    value = getattr(why, name)
    if not isinstance(value, type):
        yield name, inspect.signature(value)
        return
    if "__init__" in vars(value):
        yield name, inspect.signature(value.__init__)
    for member, attribute in vars(value).items():
        function = getattr(attribute, "fget", None) or getattr(attribute, "func", None) or attribute
        function = getattr(function, "__func__", function)
        if not member.startswith("_") and isinstance(function, types.FunctionType):
            yield f"{name}.{member}", inspect.signature(function)


def list_annotations(signature: inspect.Signature) -> Iterator[tuple[str, object]]:
    for parameter in signature.parameters.values():
        if parameter.annotation is not inspect.Parameter.empty:
            yield parameter.name, parameter.annotation
    if signature.return_annotation is not inspect.Signature.empty:
        yield "return", signature.return_annotation


def mentions_any(annotation: object) -> bool:
    if isinstance(annotation, str | typing.ForwardRef):
        return bool(re.search(r"\bAny\b", str(annotation)))
    if isinstance(annotation, list | tuple):
        return any(mentions_any(part) for part in annotation)
    return annotation is typing.Any or any(mentions_any(part) for part in typing.get_args(annotation))


@pytest.mark.parametrize("name", sorted({*PUBLIC} - PENDING))
def test_no_public_signature_has_any(name):
    assert [
        f"{where}({parameter})"
        for where, signature in list_signatures(name)
        for parameter, annotation in list_annotations(signature)
        if mentions_any(annotation)
    ] == []


@pytest.mark.parametrize("name", ["InputLike", "TargetLike", "DataLike"])
def test_no_type_stands_for_any(name):
    assert not mentions_any(getattr(why, name).__value__)


@pytest.mark.parametrize("name", VERBS)
def test_every_parameter_of_a_verb_has_a_type(name):
    parameters = inspect.signature(getattr(why, name)).parameters.values()
    assert [p.name for p in parameters if p.annotation is p.empty] == []


def test_any_is_found_wherever_it_is():
    def odd(a: list[typing.Any], b: "dict[str, typing.Any]", c: Callable[[int], typing.Any], d: int) -> None: ...

    found = [name for name, annotation in list_annotations(inspect.signature(odd)) if mentions_any(annotation)]
    assert found == ["a", "b", "c"]


# --- names ------------------------------------------------------------------------------------------------------------


def read_rows(heading: str) -> list[list[str]]:
    """The cells of the table that begins with this heading."""
    table = PAGE[PAGE.index(f"| {heading} |") :].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def read_functions_of_parameters() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for names, _, functions in read_rows("name"):
        named = set(re.findall(r"`(\w+)`", functions))
        users = set(VERBS) - named if functions.startswith("all but") else named
        for name in re.findall(r"`(\w+)`", names):
            assert name not in found, f"{name} has two meanings"
            found[name] = users
    return found


def find_functions_of_parameters() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for verb in VERBS:
        for name in inspect.signature(getattr(why, verb)).parameters:
            if name not in KNOWN.get(verb, ()):
                found.setdefault(name, set()).add(verb)
    return found


def test_the_page_lists_every_parameter_and_who_takes_it():
    assert read_functions_of_parameters() == find_functions_of_parameters()


def test_options_of_the_command_line_are_called_like_parameters():
    """`--method` for `methods`, `--class` for `classes`: an option that can be repeated is in the singular."""
    known = set(read_functions_of_parameters())
    known |= {name.removesuffix("s") for name in known} | {"class"}
    only_there = {option for cells in read_rows("option") for option in re.findall(r"--[\w-]+", cells[0])}
    options = {
        option
        for command in typer.main.get_command(app).commands.values()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    }
    others = {option for option in options if option[2:].replace("-", "_") not in known}
    assert others <= only_there <= options
