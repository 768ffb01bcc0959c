"""Running a model: with and without interception, and in one file only."""

import ast
from pathlib import Path

import pytest
import torch
from conftest import FAMILIES, animal

import whyformer as why
from whyformer._engine.run.forward import run_forward, run_plain
from whyformer._engine.run.shadow import make_shadow

SOURCE = Path(why.__file__).parent


@pytest.mark.parametrize("name", FAMILIES)
def test_a_plain_forward_returns_what_an_intercepted_one_does(name):
    model = why.open(animal(name).module)
    encoded = model.encode(animal(name).inputs)
    plain = run_plain(make_shadow(model.module), encoded)
    with run_forward(model, encoded, asks_gradient=False) as run:
        torch.testing.assert_close(plain, run.output, rtol=1e-12, atol=1e-12)
    assert not plain.requires_grad


def test_only_one_file_calls_a_model():
    """Nobody else unpacks the inputs of an encoded batch into a call."""
    callers = {
        file.name
        for file in SOURCE.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        if any(k.arg is None and isinstance(k.value, ast.Attribute) and k.value.attr == "inputs" for k in call.keywords)
    }
    assert callers == {"forward.py"}
