"""Diagnose a model: what was found in it, which methods work, which do not and why, and what each costs.

Every method is really run, each in a run of its own, so that one that fails takes no other with it. Methods with a
budget of samples are tried with a small one, unless the full cost is wanted.
"""

import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from whyformer._engine import (
    Capture,
    Order,
    Run,
    TargetLike,
    find_blocks,
    find_order,
    find_task,
    is_causal,
    make_shadow,
    record,
    refuse_encoder_decoders,
    run_forward,
    run_plain,
)
from whyformer._explain.default_method import choose_default_method
from whyformer._explain.explain import ModelLike, as_model, explain_encoded
from whyformer._explain.method_call import MethodLike, choose_method
from whyformer._explain.tower_choice import choose_tower
from whyformer._model import EncodedBatch, InputLike, Model, unwrap
from whyformer._plain.failure import describe_failure
from whyformer._plain.peak_memory import free_memory, measure_peak_memory
from whyformer._plain.progress import show_progress
from whyformer._plain.setting_checks import list_entries
from whyformer._plain.tokens import Grid, Pieces
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError, MethodError, WhyformerError
from whyformer.methods._registry import METHODS, Method, Setting, find_method
from whyformer.results.diagnosis import Diagnosis, MethodCheck
from whyformer.show.wording import describe_target, format_probability

Returned = TypeVar("Returned")
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
TASK_WORDING = {
    "next token": "the next token, of {count}",
    "masked token": "the token at a mask, of {count}",
    "token class": "a class for every token, of {count}",
    "answer span": "a span of the text (start and end)",
    "frame": "a character for every frame, of {count}",
    "representation": "a representation of the input ({count} channels): the model has no head",
}
SAMPLE_TEXTS = ("The film was not good, but its ending surprised me.", "The film was not good.", "good")
SAMPLE_QUESTION = "What surprised me?"
SAMPLE_TOKENS = 8
SLOW_SECONDS = 2.0  # a method that takes longer is not run a second time to measure it warm
FORWARD_REPEATS = 3
NAMED = 3  # classes or special tokens that are listed by name


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
    full=True: methods with a budget of samples are tried with their default budget, which may take minutes.
    """
    tried = [find_method(one) for one in list_wanted_methods(methods)]
    model = as_model(model)
    encoded = model.encode(make_sample_input(model) if inputs is None else inputs)
    encoded, target = choose_tower(model, encoded, target)
    seconds, memory, failure = measure_forward(model, encoded)
    found = {**describe_model(model), **describe_run(model, encoded, target)}
    found |= describe_default(model, encoded, target)
    if failure:
        found["forward pass"] = failure
    checks = []
    with show_progress(len(tried), "trying", is_uniform=False) as progress:
        for method, settings in tried:
            given = settings if full else {**SMALL_BUDGETS.get(method.name, {}), **settings}
            checks.append(check_method(method, given, model, encoded, target, seconds))
            progress.advance()
    return Diagnosis(
        model=model.name,
        found=found,
        checks=tuple(checks),
        seconds=seconds,
        memory=memory,
        machine=describe_machine(model.device),
        versions=model.describe_versions(),
        notes=encoded.notes,
    )


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
    facts: dict[str, Any] = {
        "settings": dict(settings),
        "reads_model": not {*method.needs} <= {"mask", "fingerprint"},
        "is_default": method.name == choose_default_method(encoded),
    }
    try:
        call = choose_method(method, settings)
        explain_once = partial(explain_encoded, model, encoded, call, target)
        explanation, seconds, memory = measure_call(explain_once, model.device)
    except Exception as error:
        code, reason = describe_refusal(error)
        if code == "E_MEMORY":
            free_memory()
        state = "refused" if isinstance(error, WhyformerError) and code != "E_MEMORY" else "failed"
        if code == "E_METHOD":  # made for another kind of input
            state = "does not apply"
        return MethodCheck(method.name, state, code, reason, **facts)  # type: ignore[arg-type]
    own = tuple(note for note in explanation.notes if note not in encoded.notes)
    forwards = None if not forward else seconds / forward
    return MethodCheck(
        method.name, "works", seconds=seconds, forwards=forwards, memory=memory, spent=explanation.spent, notes=own,
        **facts,
    )  # fmt: skip


def describe_refusal(error: Exception) -> tuple[str, str]:
    """A code and the sentence, word for word that of `explain`."""
    return (error.code, str(error)) if isinstance(error, WhyformerError) else describe_failure(error)


def measure_call(call: Callable[[], Returned], device: torch.device) -> tuple[Returned, float, int | None]:
    """What the call returns, its seconds when it is warm, and the most memory that it needs."""
    results: list[tuple[Returned, float]] = []
    started = time.perf_counter()
    memory = measure_peak_memory(lambda: results.append(time_call(call, device)), device, collects=False)
    if not results:  # where the peak cannot be measured, nothing was run
        results.append(time_call(call, device))
    if time.perf_counter() - started < SLOW_SECONDS:
        results.append(time_call(call, device))
    return results[-1][0], min(seconds for _, seconds in results), memory


def time_call(call: Callable[[], Returned], device: torch.device) -> tuple[Returned, float]:
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
        measured = [measure_call(run, model.device) for _ in range(FORWARD_REPEATS)]
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
        "precision": ", ".join(f"{name} ({format_count(count)} parameters)" for name, count in sizes.most_common()),
        "device": ", ".join(devices) or "none",
    }


def describe_run(model: Model, encoded: EncodedBatch, target: TargetLike) -> dict[str, str]:
    """What a run of the model shows; where something is not found, the reason."""
    found: dict[str, str] = {}
    try:
        refuse_encoder_decoders(model.module)
        with run_forward(model, encoded, asks_gradient=True) as run:
            found |= describe_attention(run)
            found["order"] = try_to_say(lambda: describe_order(find_order(model, encoded, run, always=True)))
            found["blocks"] = try_to_say(lambda: describe_blocks(run))
            found["task"] = try_to_say(lambda: describe_task(model, encoded, run))
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


def describe_order(order: Order) -> str:
    """What the check found about the places of tokens and examples in the model."""
    if order.moves_examples:
        return "checked: examples of a batch change places inside, so each is run alone"
    if order.obstacle:
        return f"checked: {order.obstacle}"
    if order.sequence is None:
        return "not checked: the tokens of the input are not known"
    how = "checked, measured" if order.is_measured else "checked"
    if not order.is_as_given:
        return f"{how}: tokens change places inside, which is undone"
    missing = int(order.sequence.max()) + 1 - int((order.sequence[0] >= 0).sum())
    extra = int((order.sequence[0] < 0).sum())
    added = f", {extra} added by the model" if extra else ""
    return f"{how}: tokens are in the order of the input{added}" + (f", {missing} left out" if missing > 0 else "")


def try_to_say(say: Callable[[], str]) -> str:
    try:
        return say()
    except WhyformerError as error:
        return f"not found: {error}"


def describe_blocks(run: Run) -> str:
    """How many blocks there are; where some have no attention, how many do."""
    blocks = find_blocks(run.mode)
    attending = len(set(blocks.attending))
    return f"{blocks.count}" if attending == blocks.count else f"{blocks.count}, {attending} of them with attention"


def describe_attention(run: Run) -> dict[str, str]:
    """How many attention sites there are, and of what kind."""
    sites = run.mode.sites
    heads = sorted({site.value.size(1) for site in sites})
    fused = sum(site.query is not None for site in sites)
    kind = "fused" if fused == len(sites) else "not fused" if not fused else f"{fused} fused"
    obstacles = list(dict.fromkeys(site.obstacle for site in sites if site.obstacle))
    found = {
        "attention": f"{len(sites)} sites, {kind}",
        "heads": " or ".join(map(str, heads)) + " per site",
    }
    return {**found, "but": "; ".join(obstacles)} if obstacles else found


def describe_answer(capture: Capture) -> dict[str, str]:
    """The tokens, where the answer is read, and the target that is explained by default."""
    target, tokens = capture.targets[0], capture.tokens[0]
    return {
        "tokens": describe_tokens(tokens, capture),
        "readout": describe_readout(capture["readout"][0], tokens),
        "target": f"{describe_target(target)}, {format_probability(target)}",
    }


def describe_tokens(tokens: Grid | Pieces, capture: Capture) -> str:
    special = int(capture["special"][0].sum())
    if isinstance(tokens, Grid):
        return f"{tokens.rows} x {tokens.columns} patches, {special} special"
    names = [piece for piece, is_special in zip(tokens.pieces, tokens.special, strict=True) if is_special]
    named = f" ({list_some(tuple(dict.fromkeys(names)))})" if names else ""
    return f"{sum(not p for p in tokens.padding)}, {special} special{named}"


def describe_task(model: Model, encoded: EncodedBatch, run: Run) -> str:
    """What the model answers, from what it returned."""
    task = find_task(model, encoded, run.returned, lambda: is_causal(run))
    count = task.output.shape[-1] if task.output.dim() > 1 else 1
    if task.kind in TASK_WORDING:
        return TASK_WORDING[task.kind].format(count=count)
    problem = getattr(getattr(unwrap(model.module), "config", None), "problem_type", None)
    if count == 1 or problem == "regression":
        return "one number (regression)" if count == 1 else f"{count} numbers (regression)"
    named = f": {list_some(model.labels)}" if model.labels is not None and len(model.labels) == count else ""
    return f"{'any of' if problem == 'multi_label_classification' else 'one of'} {count} classes{named}"


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


def list_some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"


def format_count(count: int) -> str:
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
        return {"input_ids": torch.from_numpy(generator.integers(0, words, (1, SAMPLE_TOKENS)))}
    raise InputError(f"{model.name} takes tensors of a shape that is not known here. Pass an input to try.")


def choose_sample_text(model: Model) -> list[str | tuple[str, str]]:
    """A short text; with a mask or with a question where the model answers that. The first that is short enough."""
    name = type(unwrap(model.module)).__name__
    mask = getattr(model.tokenizer, "mask_token", None) if name.endswith(("ForMaskedLM", "ForPreTraining")) else None
    texts = [text.replace("good", mask) if mask else text for text in SAMPLE_TEXTS]
    samples = [(SAMPLE_QUESTION, text) for text in texts] if name.endswith("ForQuestionAnswering") else texts
    return [next((sample for sample in samples if is_short_enough(model, sample)), samples[-1])]


def is_short_enough(model: Model, sample: str | tuple[str, str]) -> bool:
    try:
        model.tokenize(sample)
    except InputError:
        return False
    return True
