"""Whether what refusals advise works: methods that they name, readouts, units, the encoder of two streams."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from families.cases import Case, read_last_number
from families.outcome import Outcome

import whyformer as why
from whyformer.targets import Representation

NAMED = re.compile(r"Methods that work here: ([a-z_, ]+)\.")
WITH_FUNCTION = re.compile(r"With a function of what the model returns as target, these methods work: ([a-z_, ]+)\.")
Trial = tuple[str, Callable[[], Any]]


def check_advice(outcome: Outcome, model: Any, case: Case) -> None:
    """Every piece of advice once. A piece that raises, whatever it raises, is wrong."""
    reasons = {reason for what, reason in outcome.reasons.items() if outcome.words.get(what) == "refused"}
    for advice, follow in {
        key: one for reason in sorted(reasons) for key, one in list_trials(reason, model, case)
    }.items():
        outcome.words["advice"] = "ok"
        try:
            follow()
        except TimeoutError:
            raise
        except Exception as error:
            outcome.note("advice", "WRONG", f"{advice}: {type(error).__name__}: {str(error)[:200]}")
            return


def list_trials(reason: str, model: Any, case: Case) -> Iterator[Trial]:
    inputs = case.inputs
    explain = lambda *args, **options: lambda: why.explain(model, inputs, *args, **options)  # noqa: E731
    if found := NAMED.search(reason):
        for name in found[1].split(", "):
            yield name, lambda name=name: try_either_target(model, case, name)
    if found := WITH_FUNCTION.search(reason):
        for name in found[1].split(", "):
            yield f"{name} of a function", explain(name, target=read_last_number)
    if "units='superpixel'" in reason:
        yield "units='superpixel'", explain("leave_one_out", units="superpixel", target=case.target)
    if 'readout="first"' in reason:
        read_last = lambda: try_either_target(why.open(case.module, readout="last"), case, "rollout")  # noqa: E731
        yield 'readout="last"', read_last
    if "get_encoder()" in reason:
        yield "get_encoder()", lambda: explain_encoder(case)


def try_either_target(model: Any, case: Case, method: str) -> Any:
    few = {"budget": 64} if method == "rise" else {}  # masks, of a thousand, which take minutes
    try:
        return why.explain(model, case.inputs, method, target=case.target, **few)
    except why.errors.TargetError:
        return why.explain(model, case.inputs, method, **few)


def explain_encoder(case: Case) -> Any:
    inputs = {name: value for name, value in case.inputs.items() if not name.startswith("decoder")}
    return why.explain(case.module.get_encoder(), inputs, target=Representation())
