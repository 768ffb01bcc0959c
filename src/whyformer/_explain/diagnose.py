"""Diagnose a model: what was found in it, which methods work, which do not and why, and what each costs.

Every method is really run, each in a run of its own, so that one that fails takes no other with it. Methods with a
budget of samples are tried with a small one, unless the full cost is wanted.
"""

import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from whyformer._engine import Capture, TargetLike, make_shadow, record, refuse_encoder_decoders, run_plain
from whyformer._explain.default_method import choose_default_method
from whyformer._explain.explain import ModelLike, as_model, explain_encoded
from whyformer._explain.method_call import MethodLike, choose_method, resolve_method
from whyformer._explain.run_facts import describe_run
from whyformer._explain.tower_tracing import choose_tower
from whyformer._model import EncodedBatch, InputLike, Model, unwrap
from whyformer._plain.failure import describe_failure
from whyformer._plain.peak_memory import free_memory, measure_peak_memory
from whyformer._plain.progress import show_progress
from whyformer._plain.setting_checks import list_entries
from whyformer._plain.tokens import Grid, Pieces
from whyformer._plain.torch_state import neutral_torch
from whyformer._plain.words import list_some
from whyformer.errors import InputError, MethodError, WhyformerError
from whyformer.methods._registry import METHODS, Method, Setting
from whyformer.results.diagnosis import Diagnosis, MethodCheck
from whyformer.show.wording import name_with_probability

R = TypeVar("R")
SMALL_BUDGETS: dict[str, dict[str, Setting]] = {  # enough to see whether a method works
    "bi_attribution": {"steps": 4},
    "integrated_gradients": {"steps": 4},
    "kernel_shap": {"budget": 32},
    "lime": {"budget": 32},
    "partition_shap": {"budget": 32},
    "rise": {"budget": 16},
    "smooth_grad": {"samples": 4},
    "vit_cx": {"budget": 8},
}
SAMPLE_TEXTS = ("The film was not good, but its ending surprised me.", "The film was not good.", "good")
SLOW_SECONDS = 2.0  # a method that takes longer is not run a second time to measure it warm


@neutral_torch()
def diagnose(
    model: ModelLike,
    inputs: InputLike | None = None,
    methods: Sequence[MethodLike] | None = None,
    *,
    target: TargetLike = None,
    full: bool = False,
) -> Diagnosis:
    """What was found in a model, which methods work on it, which do not and why, and what each costs on this machine.

    inputs: as for `explain`; by default a short text, or noise of the right shape.
    methods: those to try; by default all.
    full: try methods with a budget of samples with their default budget, which may take minutes.
    """
    tried = [resolve_method(one) for one in list_wanted_methods(methods)]
    model = as_model(model)
    encoded = model.encode(make_sample_input(model) if inputs is None else inputs)
    encoded, target = choose_tower(model, encoded, target)
    seconds, memory, failure = measure_forward(model, encoded)
    found = describe_model(model) | describe_findings(model, encoded, target) | describe_default(model, encoded, target)
    found |= {"forward pass": failure} if failure else {}
    checks = []
    with show_progress(len(tried), "trying", is_uniform=False) as progress:
        for method, settings in tried:
            given = settings if full else {**SMALL_BUDGETS.get(method.name, {}), **settings}
            checks.append(check_method(method, given, model, encoded, target, seconds))
            progress.advance()
    machine, versions = describe_machine(model.device), model.describe_versions()
    return Diagnosis(model.name, found, tuple(checks), seconds, memory, machine, versions, encoded.notes)


# --- methods ----------------------------------------------------------------------------------------------------------


def list_wanted_methods(methods: MethodLike | Sequence[MethodLike] | None) -> list[MethodLike]:
    """The methods to try: all, one by name, or a list."""
    if methods is None:
        return [METHODS[name] for name in sorted(METHODS)]
    if isinstance(methods, str) or callable(methods):
        return [methods]
    listed = list_entries(methods)
    if not listed:
        raise MethodError(
            f'methods must be a list of methods such as ["attnlrp", "rollout"], got {methods!r:.80}.', code="E_OPTION"
        )
    return listed


def check_method(
    method: Method,
    settings: Mapping[str, Setting],
    model: Model,
    encoded: EncodedBatch,
    target: TargetLike,
    forward: float | None,
) -> MethodCheck:
    """Try one method. Whatever it raises is recorded and stops nothing."""
    reads_model = not {*method.needs} <= {"mask", "fingerprint"}
    is_default = method.name == choose_default_method(encoded)
    check = MethodCheck(method.name, "works", settings=dict(settings), reads_model=reads_model, is_default=is_default)
    try:
        call = choose_method(method, settings)
        explain_once = partial(explain_encoded, model, encoded, call, target)
        explanation, seconds, memory = measure_call(explain_once, model.device)
    except Exception as error:
        code, reason = describe_refusal(error)
        if code == "E_MEMORY":
            free_memory()
        if code == "E_METHOD":  # made for another kind of input
            return replace(check, state="does not apply", code=code, reason=reason)
        is_refused = isinstance(error, WhyformerError) and code != "E_MEMORY"
        return replace(check, state="refused" if is_refused else "failed", code=code, reason=reason)
    own = tuple(note for note in explanation.notes if note not in encoded.notes)
    forwards = None if not forward else seconds / forward
    return replace(check, seconds=seconds, forwards=forwards, memory=memory, spent=explanation.spent, notes=own)


def describe_refusal(error: Exception) -> tuple[str, str]:
    """A code and the sentence, word for word that of `explain`."""
    return (error.code, str(error)) if isinstance(error, WhyformerError) else describe_failure(error)


def measure_call(call: Callable[[], R], device: torch.device) -> tuple[R, float, int | None]:
    """What the call returns, its seconds when it is warm, and the most memory that it needs."""
    results: list[tuple[R, float]] = []
    started = time.perf_counter()
    memory = measure_peak_memory(lambda: results.append(time_call(call, device)), device, collects=False)
    if not results:  # where the peak cannot be measured, nothing was run
        results.append(time_call(call, device))
    if time.perf_counter() - started < SLOW_SECONDS:
        results.append(time_call(call, device))
    return results[-1][0], min(seconds for _, seconds in results), memory


def time_call(call: Callable[[], R], device: torch.device) -> tuple[R, float]:
    started = time.perf_counter()
    result = call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return result, time.perf_counter() - started


def measure_forward(model: Model, encoded: EncodedBatch) -> tuple[float | None, int | None, str]:
    """Seconds and memory of a plain forward pass, or why it fails."""
    try:
        refuse_encoder_decoders(model.module)
        run = partial(run_plain, make_shadow(model.module, None), encoded)
        run()
        measured = [measure_call(run, model.device) for _ in range(3)]
    except Exception as error:
        return None, None, f"fails: {describe_refusal(error)[1]}"
    memories = [memory for _, _, memory in measured if memory is not None]
    return min(seconds for _, seconds, _ in measured), max(memories, default=None), ""


def describe_machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.machine()} processor, {threads} thread{'s' * (threads != 1)}"


# --- what was found ---------------------------------------------------------------------------------------------------


def describe_model(model: Model) -> dict[str, str]:
    """What can be said without running it."""
    inner = unwrap(model.module)
    sizes: Counter[str] = Counter()
    for parameter in inner.parameters():
        sizes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    devices = sorted({str(parameter.device) for parameter in inner.parameters()})
    longest = f", at most {model.max_length} tokens" if model.max_length is not None and model.kind == "text" else ""
    return {
        "class": type(inner).__name__,
        "input": {"image": "images", "text": "texts", "tensors": "tensors"}[model.kind] + longest,
        "precision": ", ".join(f"{name} ({abbreviate(count)} parameters)" for name, count in sizes.most_common()),
        "device": ", ".join(devices) or "none",
    }


def describe_findings(model: Model, encoded: EncodedBatch, target: TargetLike) -> dict[str, str]:
    """What a run of the model shows; where something is not found, the reason."""
    try:
        found = describe_run(model, encoded)
    except Exception as error:
        return {"attention": f"not found: {describe_refusal(error)[1]}"}
    try:
        capture = record(model, encoded, target=target, keep={"readout", "mask", "special"})
    except Exception as error:
        answer = f"not found: {describe_refusal(error)[1]}"
        found |= {"answer": answer} if answer != found["task"] else {}
    else:
        found |= describe_answer(capture.parts[0] if capture.parts else capture)
    return found


def describe_default(model: Model, encoded: EncodedBatch, target: TargetLike) -> dict[str, str]:
    """What `explain` uses without a method, with its note on a stand-in, or what it raises; and which engine ran."""
    name = choose_default_method(encoded)
    try:
        explanation = explain_encoded(model, encoded, None, target)
    except Exception as error:
        return {"default method": f"{name}, which does not work here: {describe_refusal(error)[1]}"}
    default = name if explanation.method == name else explanation.notes[-1]
    return {"default method": default, "engine": str(explanation.engine)}


def describe_answer(capture: Capture) -> dict[str, str]:
    """The tokens, where the answer is read, and the target that is explained by default."""
    target, tokens = capture.targets[0], capture.tokens[0]
    return {
        "tokens": describe_token_counts(tokens, capture),
        "readout": describe_readout(capture["readout"][0], tokens),
        "target": name_with_probability(target),
    }


def describe_token_counts(tokens: Grid | Pieces, capture: Capture) -> str:
    special = int(capture["special"][0].sum())
    if isinstance(tokens, Grid):
        return f"{tokens.rows} x {tokens.columns} patches, {special} special"
    names = [piece for piece, is_special in zip(tokens.pieces, tokens.special, strict=True) if is_special]
    named = f" ({list_some(tuple(dict.fromkeys(names)))})" if names else ""
    return f"{sum(not p for p in tokens.padding)}, {special} special{named}"


def describe_readout(readout: Tensor, tokens: Grid | Pieces) -> str:
    """At which tokens the answer is read."""
    weights = readout.double().cpu()
    used = torch.nonzero(weights.abs() > 1e-9).flatten().tolist()
    if len(used) == 1:
        named = isinstance(tokens, Pieces) and len(tokens.pieces) == len(weights)
        return f"token {used[0]}" + (f" ({tokens.pieces[used[0]]})" if named else "")  # type: ignore[union-attr]
    spread = weights[used]
    mean = "the mean over" if bool((spread - spread.mean()).abs().max() < 1e-6) else "different weights for"
    return f"{mean} {len(used)} tokens"


def abbreviate(count: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)


# --- an input to try --------------------------------------------------------------------------------------------------


def make_sample_input(model: Model) -> InputLike:
    """A short text, an image of noise, or tensors of the shape that the config asks for."""
    generator = np.random.default_rng(0)
    if model.kind == "text":
        return choose_sample_text(model)
    if model.kind == "image":
        return Image.fromarray(generator.integers(0, 256, (256, 256, 3), dtype=np.uint8))
    config = getattr(unwrap(model.module), "config", None)
    main = getattr(unwrap(model.module), "main_input_name", None)
    if main == "pixel_values" and isinstance(size := getattr(config, "image_size", None), int):
        shape = (1, getattr(config, "num_channels", 3), size, size)
        return {"pixel_values": torch.from_numpy(generator.standard_normal(shape)).to(model.dtype)}
    if main == "input_ids" and isinstance(words := getattr(config, "vocab_size", None), int):
        return {"input_ids": torch.from_numpy(generator.integers(0, words, (1, 8)))}
    raise InputError(f"{model.name} takes tensors of a shape that is not known here. Pass an input to try.")


def choose_sample_text(model: Model) -> list[str | tuple[str, str]]:
    """A short text; with a mask or with a question where the model answers that. The first that is short enough."""
    name = type(unwrap(model.module)).__name__
    mask = getattr(model.tokenizer, "mask_token", None) if name.endswith(("ForMaskedLM", "ForPreTraining")) else None
    texts = [text.replace("good", mask) if mask else text for text in SAMPLE_TEXTS]
    samples = [("What surprised me?", text) for text in texts] if name.endswith("ForQuestionAnswering") else texts
    for sample in samples:
        with suppress(InputError):
            model.tokenize(sample)
            return [sample]
    return [samples[-1]]
