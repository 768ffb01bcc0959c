"""Why did the transformer say that? Explanations of any PyTorch transformer, without changing the model.

Public names are imported on first use, so that `whyformer --help` does not wait for torch. `__init__.pyi` lists them,
for type checkers and for this file.
"""

import ast
import random
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

FILLED_BY = {"METHODS": "methods", "METRICS": "metrics"}  # registry -> the package whose import fills it


def _read_homes() -> dict[str, str]:
    """Public name -> the module that it is imported from."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


HOME_OF = _read_homes()
# Constants first, then classes, then functions
__all__ = sorted(HOME_OF, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def __getattr__(name: str) -> Any:
    before = random.getstate()
    try:
        with import_module("whyformer._plain.torch_state").neutral_torch() if "torch" in sys.modules else nullcontext():
            return _import_public_name(name)
    finally:
        random.setstate(before)  # rich draws a random number when it is imported


def _import_public_name(name: str) -> Any:
    if name not in HOME_OF:
        from whyformer.errors import suggest_nearest

        raise AttributeError(f"whyformer has no {name!r}.{suggest_nearest(name, HOME_OF)}", name=name)
    if HOME_OF[name] == __name__:
        return import_module(f"{__name__}.{name}")
    if name in FILLED_BY:
        import_module(f"{__name__}.{FILLED_BY[name]}")
    value = getattr(import_module(HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
