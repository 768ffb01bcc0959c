"""Diagnose a model: what was found in it, which methods work, which do not and why, and what each costs.

Every method is really run, each in a run of its own, so that one that fails takes no other with it. Methods with a
budget of samples are tried with a small one, unless the full cost is wanted.
"""

import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from whyformer._engine.blocks import find_blocks
from whyformer._engine.capture import Capture
from whyformer._engine.chosen_answer import is_causal
from whyformer._engine.forward import Run, run_forward, run_plain
from whyformer._engine.record import record
from whyformer._engine.shadow import make_shadow
from whyformer._engine.task import find_task
from whyformer._explain.default_method import choose_default_method
from whyformer._explain.explain import ModelLike, as_model
from whyformer._explain.method_call import MethodCall, MethodLike, choose_method
from whyformer._explain.sharing import explain_by_call, record_for_methods
from whyformer._model.model import EncodedBatch, Model
from whyformer._model.unwrap import unwrap
from whyformer._plain.failure import describe_failure
from whyformer._plain.peak_memory import free_memory, measure_peak
from whyformer._plain.progress import show_progress
from whyformer._plain.tokens import Grid, Pieces
from whyformer._plain.torch_state import neutral_torch
from whyformer._plain.versions import collect_versions
from whyformer.errors import InputError, WhyformerError
from whyformer.methods._registry import METHODS, Method, find_method
from whyformer.results.diagnosis import Diagnosis, MethodCheck
from whyformer.results.explanation import Explanation
from whyformer.show.wording import describe_target, format_probability

SMALL_BUDGETS: dict[str, dict[str, Any]] = {  # enough to see whether a method works
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
    inputs: Any = None,
    methods: Sequence[MethodLike] | None = None,
    *,
    target: Any = None,
    full: bool = False,
) -> Diagnosis:
    """What was found in a model, which methods work on it, which do not and why, and what each costs on this machine.

    inputs: as for `explain`; by default a short text, or noise of the right shape.
    methods: those to try; by default all.
    full=True: methods with a budget of samples are tried with their default budget, which may take minutes.
    """
    wanted = [METHODS[name] for name in sorted(METHODS)] if methods is None else methods
    tried = [find_method(one) for one in wanted]
    model = as_model(model)
    encoded = model.encode(make_sample_input(model) if inputs is None else inputs)
    seconds, memory, failure = measure_forward(model, encoded)
    found = {**describe_model(model), **describe_run(model, encoded, target)}
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
        versions=collect_versions(model.module),
        notes=encoded.notes,
    )


# --- methods ----------------------------------------------------------------------------------------------------------


def check_method(
    method: Method, settings: Mapping[str, Any], model: Model, encoded: EncodedBatch, target: Any, forward: float | None
) -> MethodCheck:
    """Try one method. Whatever it raises is recorded and stops nothing."""
    facts: dict[str, Any] = {
        "settings": dict(settings),
        "reads_model": not {*method.needs} <= {"mask", "fingerprint"},
        "is_default": method.name == choose_default_method(encoded),
    }
    try:
        call = choose_method(method, settings)
        explanation, seconds, memory = measure_call(partial(explain_once, call, model, encoded, target), model.device)
    except Exception as error:
        code, reason = describe_failure(error)
        if code == "E_MEMORY":
            free_memory()
        state = "failed" if not isinstance(error, WhyformerError) else "refused"
        if code == "E_METHOD":  # made for another kind of input
            state = "does not apply"
        return MethodCheck(method.name, state, code, reason, **facts)  # type: ignore[arg-type]
    own = tuple(note for note in explanation.notes if note not in encoded.notes)
    forwards = None if not forward else seconds / forward
    return MethodCheck(
        method.name, "works", seconds=seconds, forwards=forwards, memory=memory, spent=explanation.spent, notes=own,
        **facts,
    )  # fmt: skip


def explain_once(call: MethodCall, model: Model, encoded: EncodedBatch, target: Any) -> Explanation:
    return explain_by_call(call, model, encoded, record_for_methods([call], model, encoded, target, None))


def measure_call(call: Callable[[], Any], device: torch.device) -> tuple[Any, float, int | None]:
    """What the call returns, its seconds when it is warm, and the most memory that it needs."""
    results: list[Any] = []
    started = time.perf_counter()
    memory = measure_peak(lambda: results.append(time_call(call, device)), device, collects=False)
    if not results:  # where the peak cannot be measured, nothing was run
        results.append(time_call(call, device))
    if time.perf_counter() - started < SLOW_SECONDS:
        results.append(time_call(call, device))
    return results[-1][0], min(seconds for _, seconds in results), memory


def time_call(call: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    started = time.perf_counter()
    result = call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return result, time.perf_counter() - started


def measure_forward(model: Model, encoded: EncodedBatch) -> tuple[float | None, int | None, str]:
    """Seconds and memory of a plain forward pass, or why it fails."""
    try:
        run = partial(run_plain, make_shadow(model.module, None), encoded)
        run()
        measured = [measure_call(run, model.device) for _ in range(FORWARD_REPEATS)]
    except Exception as error:
        return None, None, f"fails: {describe_failure(error)[1]}"
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


def describe_run(model: Model, encoded: EncodedBatch, target: Any) -> dict[str, str]:
    """What a run of the model shows; where something is not found, the reason."""
    found: dict[str, str] = {}
    try:
        with run_forward(model, encoded, asks_gradient=False) as run:
            found |= describe_attention(run)
            found["blocks"] = try_to_say(lambda: f"{len(find_blocks(run.mode)[0]) - 1}")
            found["task"] = try_to_say(lambda: describe_task(model, encoded, run))
    except Exception as error:
        return {"attention": f"not found: {describe_failure(error)[1]}"}
    try:
        capture = record(model, encoded, target=target, keep={"readout", "mask", "special"})
    except Exception as error:
        return {**found, "answer": f"not found: {describe_failure(error)[1]}"}
    return {**found, **describe_answer(model, encoded, capture)}


def try_to_say(say: Callable[[], str]) -> str:
    try:
        return say()
    except WhyformerError as error:
        return f"not found: {error}"


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


def describe_answer(model: Model, encoded: EncodedBatch, capture: Capture) -> dict[str, str]:
    """The tokens, the task, where the answer is read, and the target that is explained by default."""
    target, tokens = capture.targets[0], capture.tokens[0]
    return {
        "tokens": describe_tokens(tokens, capture),
        "readout": describe_readout(capture["readout"][0], tokens, capture),
        "target": f"{describe_target(target)}, {format_probability(target)}",
        "default method": choose_default_method(encoded),
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


def describe_readout(readout: Tensor, tokens: Grid | Pieces, capture: Capture) -> str:
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


def make_sample_input(model: Model) -> Any:
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


def choose_sample_text(model: Model) -> Any:
    """A short text; with a mask or with a question where the model answers that. The first that is short enough."""
    name = type(unwrap(model.module)).__name__
    mask = getattr(model.tokenizer, "mask_token", None) if name.endswith(("ForMaskedLM", "ForPreTraining")) else None
    texts = [text.replace("good", mask) if mask else text for text in SAMPLE_TEXTS]
    samples = [(SAMPLE_QUESTION, text) for text in texts] if name.endswith("ForQuestionAnswering") else texts
    return [next((sample for sample in samples if is_short_enough(model, sample)), samples[-1])]


def is_short_enough(model: Model, sample: Any) -> bool:
    try:
        model.tokenize(sample)
    except InputError:
        return False
    return True
