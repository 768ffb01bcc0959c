"""Thousands of odd calls of the library: a result that is finite, or an error of ours; the model as it was."""

import random as python_random
import traceback
from functools import cache, partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from attack.found import Found
from attack.odd import (
    MODES,
    ODD_TARGETS,
    ODD_VALUES,
    SEED,
    SIZE,
    describe_state,
    describe_torch,
    make_random,
    odd_tensors,
)
from conftest import IMAGES_ONLY, QUICK, animal

import whyformer as why

CALLS = int(2000 * SIZE)
MODELS = ("vit", "bert", "gpt2", "encoder", "gpt", "llama")


@cache
def opened(name: str) -> why.Model:
    return why.open(animal(name).module)


def odd_inputs(name: str, random: Random):
    """Inputs of a model: right, bent in one place, or of another kind altogether."""
    inputs = dict(animal(name).inputs)
    kind = random.random()
    if kind < 0.5:
        return inputs
    if kind < 0.85:
        which = random.choice(list(inputs))
        inputs[which] = odd_tensors(inputs[which], random)
        return inputs
    first = next(iter(inputs.values()))
    strange = [
        {}, [], None, "a text", 3, first, [first], {"input_ids": None}, {"no_such": first}, [{}], b"x", {3: first},
        [None], [first, None], [first, first[0]], [[first]], {None: None}, first[0], list(first), object(), (first,),
        [odd_tensors(first, random), first], odd_tensors(first, random), [inputs, {}], "\ud800", {"": first},
    ]  # fmt: skip
    return random.choice(strange)


def odd_settings(name: str, random: Random) -> dict:
    settings = dict(QUICK.get(name, {}))
    if random.random() < 0.4:
        method = why.METHODS[name]
        known = [
            *method.settings,
            "layers",
            "heads",
            "per_layer",
            "stabiliser",
            "recipe",
            "health",
            "preset",
            "nonsense",
        ]
        settings[random.choice(known)] = random.choice(ODD_VALUES)
    return settings


def is_raised_by_module(error: Exception) -> bool:
    """What the code of a handmade model raises is the user's own, and passes through as it is."""
    return Path(traceback.extract_tb(error.__traceback__)[-1].filename).name == "conftest.py"


def draw_call(random: Random):
    """A model, inputs, a method with its settings, two targets and a mode of torch."""
    name, method, mode = random.choice(MODELS), random.choice(sorted(why.METHODS)), random.choice(list(MODES))
    if name != "vit" and method in IMAGES_ONLY:
        method = "rollout"
    settings = odd_settings(method, random)
    target = random.choice(ODD_TARGETS) if random.random() < 0.5 else None
    versus = random.choice(ODD_TARGETS) if random.random() < 0.1 else None
    return name, odd_inputs(name, random), method, settings, target, versus, mode


def attack_calls(random: Random, count: int, found: Found) -> None:
    for number in range(count):
        name, inputs, method, settings, target, versus, mode = draw_call(random)
        call = f"call {number}: {name} {method} {settings} target={target!r} versus={versus!r} under {mode}"
        model, is_compared = opened(name), random.random() < 0.1
        mine = describe_state(model.module), python_random.getstate(), np.random.get_state()[1].sum()
        with found.attempt(call), MODES[mode]():
            before = describe_torch()
            try:
                if is_compared:
                    e = why.compare(model, inputs, [partial(why.METHODS[method].compute, **settings)], target=target)
                    e = next(iter(e))
                else:
                    e = why.explain(model, inputs, method, target=target, versus=versus, **settings)
                if not e.scores.isfinite().all():
                    found.raw.append(f"{call}: not finite")
                str(e)
                found.answered += 1
            except why.WhyformerError as error:
                if not str(error).strip() or error.code not in why.errors.CODES or error.code == "E_INTERNAL":
                    found.raw.append(f"{call}: {error.code}: {error}")
            except Exception as error:
                if not is_raised_by_module(error):
                    found.raw.append(f"{call}: {type(error).__name__}: {str(error)[:160]}")
            if describe_torch() != before:
                found.raw.append(f"{call}: torch was changed")
        if mine != (describe_state(model.module), python_random.getstate(), np.random.get_state()[1].sum()):
            found.raw.append(f"{call}: the model or a state of random numbers was changed")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_every_call_gives_a_finite_explanation_or_an_error_of_ours(part):
    found = Found()
    attack_calls(make_random(f"api {part}"), CALLS // 8, found)
    assert not found.faults, f"seed {SEED}, {len(found.faults)} wrong\n" + "\n".join(found.faults[:40])
    assert found.answered > CALLS // 8 * 0.1, "the attack hardly ever got through; it tests nothing"


@pytest.mark.slow
def test_every_metric_with_odd_settings_gives_numbers_or_an_error_of_ours():
    from test_every_metric import QUICK as QUICK_METRICS
    from test_every_metric import given

    from whyformer.metrics._registry import choose_metric, measure

    random, raw = make_random("metrics"), []
    for number in range(600):
        name = random.choice(sorted(why.METRICS))
        kind = random.choice(("images", "texts"))
        settings = dict(QUICK_METRICS.get(name, {}))
        if random.random() < 0.8:
            settings[random.choice([*why.METRICS[name].settings, "preset", "nonsense"])] = random.choice(ODD_VALUES)
        try:
            with MODES[random.choice(list(MODES))]():
                found = measure(choose_metric(name, settings), given(kind))
            assert not found.value.isinf().any()
        except why.WhyformerError:
            continue
        except Exception as error:
            raw.append(f"call {number}: {name} {kind} {settings}: {type(error).__name__}: {str(error)[:160]}")
    assert not raw, f"seed {SEED}, {len(raw)} raw exceptions\n" + "\n".join(raw[:40])


@pytest.mark.slow
@pytest.mark.parametrize("mode", [mode for mode in MODES if "meta" not in mode])
@pytest.mark.parametrize("name", ["vit", "bert", "gpt"])
def test_torch_modes_change_no_number(name, mode):
    """What people write around inference: the scores are those of a plain call."""
    it, model = animal(name), opened(name)
    for method in ("gradient_x_input", "transformer_attribution", "attnlrp", "rollout", "attcat"):
        plain = why.explain(model, it.inputs, method, target=0).scores
        with MODES[mode]():
            torch.testing.assert_close(
                why.explain(model, it.inputs, method, target=0).scores, plain, rtol=1e-9, atol=1e-12
            )


@pytest.mark.slow
def test_a_model_and_inputs_made_under_inference_mode_are_served_or_refused():
    from conftest import build

    with torch.inference_mode():
        module = build("bert")
        inputs = {key: value.clone() for key, value in animal("bert").inputs.items()}
    for method in ("rollout", "gradient_x_input", "attnlrp"):
        with torch.inference_mode():
            try:
                assert why.explain(module, inputs, method, target=0).scores.isfinite().all()
            except why.WhyformerError as error:
                assert "inference" in str(error)  # noqa: PT017


@pytest.mark.slow
def test_partial_methods_and_functions_are_checked_like_names():
    random, raw = make_random("callables"), []
    for _ in range(100):
        name = random.choice(sorted(why.METHODS))
        function = why.METHODS[name].compute
        value = random.choice(ODD_VALUES)
        setting = random.choice([*why.METHODS[name].settings, "nonsense"])
        wanted = random.choice([function, partial(function, **{setting: value}), value])
        try:
            why.explain(
                opened("bert"), animal("bert").inputs, wanted, **(QUICK.get(name, {}) if wanted is function else {})
            )
        except why.WhyformerError:
            continue
        except Exception as error:
            raw.append(f"{name} {setting}={value!r}: {type(error).__name__}: {str(error)[:160]}")
    assert not raw, f"seed {SEED}\n" + "\n".join(raw)
