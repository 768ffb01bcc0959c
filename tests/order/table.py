"""Every moving model against its twin, and against leaving out each unit by hand: python tests/order/table.py."""

import sys

import torch
from order.moving import CASES, make
from torch import Tensor, nn

import whyformer as why

METHODS = (None, "libragrad", "attnlrp", "gradient_x_input", "leave_one_out", "attcat", "decompx")
TOLERANCE = 1e-6  # of the largest score


def leave_out_by_hand(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """[batch unit]: how much logit 1 falls when a token, patch, vector or feature of the raw input becomes 0."""
    main = next(iter(inputs))
    given, falls = inputs[main], []
    with torch.no_grad():
        before = module(**inputs)[:, 1]
        for unit in range(24 if given.dim() == 4 else given.size(1)):
            row, column = divmod(unit, 6)
            at = (
                (..., slice(8 * row, 8 * row + 8), slice(8 * column, 8 * column + 8))
                if given.dim() == 4
                else (slice(None), unit)
            )
            changed = given.clone()
            changed[at] = 0
            falls.append(before - module(**{**inputs, main: changed})[:, 1])
    return torch.stack(falls, 1) * inputs.get("attention_mask", torch.ones(1))


def explain(module: nn.Module, name: str, method: str | None) -> why.Explanation | why.errors.WhyformerError:
    inputs = CASES[name].inputs()
    fill = "pad_token" if "input_ids" in inputs else "zero"
    try:
        return why.explain(module, inputs, method, target=1, **({"fill": fill} if method == "leave_one_out" else {}))
    except why.errors.WhyformerError as error:
        return error


def judge(name: str, method: str | None, module: nn.Module, twin: nn.Module) -> str:
    """ "right", "refused", "noted" or "silent": what a method says about the moving model."""
    found, plain = explain(module, name, method), explain(twin, name, method)
    assert isinstance(plain, why.Explanation), f"{name}: the twin was refused: {plain}"
    assert plain.notes == (), f"{name}: the twin has notes: {plain.notes}"
    truth = plain.scores
    if method == "leave_one_out":
        truth = leave_out_by_hand(twin, CASES[name].inputs())
        assert is_near(plain.scores, truth), f"{name}: leave_one_out of the twin is not as by hand"
    if isinstance(found, Exception):
        return "refused"
    moved = leave_out_by_hand(module, CASES[name].inputs()) if method == "leave_one_out" else truth
    if is_near(found.scores, moved):
        return "right"
    return "noted" if found.notes else "silent"


def is_near(found: Tensor, wanted: Tensor) -> bool:
    return found.shape == wanted.shape and bool((found - wanted).abs().max() <= TOLERANCE * wanted.abs().max())


def judge_all(name: str) -> dict[str, str]:
    module, twin = make(name, moves=True), make(name, moves=False)
    return {method or "default": judge(name, method, module, twin) for method in METHODS}


if __name__ == "__main__":
    names = sys.argv[1:] or list(CASES)
    rows = {name: judge_all(name) for name in names}
    for name, row in rows.items():
        print(f"{name:26}", *(f"{method}={outcome}" for method, outcome in row.items()))
    right = sum(set(row.values()) == {"right"} for row in rows.values())
    silent = sum("silent" in row.values() for row in rows.values())
    print(f"{len(rows)} models, {right} right by every method, {silent} with a silent error")
