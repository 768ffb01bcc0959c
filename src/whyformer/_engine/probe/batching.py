"""Batches of perturbed inputs: how many rows go through the model at once, and in which order.

    with why.engine(rows=8): ...                    never more than 8 variants at once
    with why.engine(memory=2 * 2**30): ...          about 2 GiB of activations
    with why.engine(reuse_prefix=False, cut_padding=False, ahead=False): ...

The number of rows is worked out from the widths of the model's layers and a budget of memory. If memory runs out
nevertheless, the budget is halved, the batch is split, and the smaller budget is remembered for this model.

Texts of similar length go together, so that little is padded. A batch is launched before the answers to the one before
it are checked: on a GPU, the next batch is prepared and copied while the model runs. On a CPU this changes nothing.

Shortcuts: faster ways to the same answers, each tried once for a model, and its code, before it is used.

    if takes_shortcut(module, "prefix", plain, fast): ...

`plain` and `fast` compute the answers to the same few variants. They may differ by rounding: TOLERANCE of the largest
logit. A shortcut that fails, or gives other answers, is not taken for this model again.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from whyformer._engine.run.model_memory import learnt, recall
from whyformer._engine.targets.target import Answers
from whyformer._model import Model
from whyformer._plain.failure import is_out_of_memory
from whyformer._plain.private_torch import parameters_of
from whyformer.errors import ResourceError

MOST_ROWS = 1024
# Bytes of activations in one call of the model: without a graph, and with one for a backward. Larger batches are no
# faster. On a GPU at most a quarter of its memory.
MEMORY = {"cpu": (128 * 2**20, 1 * 2**30), "cuda": (4 * 2**30, 16 * 2**30)}
CALL_TOKENS = {"cpu": 256, "cuda": 8192}  # tokens that take about as long as the overhead of one more call

Prepared = TypeVar("Prepared")
Launched = TypeVar("Launched")
Finished = TypeVar("Finished")


@dataclass(frozen=True)
class Batching:
    """How variants are batched."""

    rows: int | None = None  # at most so many at once
    memory: int | None = None  # bytes
    reuse_prefix: bool = True
    cut_padding: bool = True
    ahead: bool = True


DEFAULT_BATCHING = Batching()
chosen_batching: ContextVar[Batching] = ContextVar("chosen_batching", default=DEFAULT_BATCHING)


# --- how many rows ----------------------------------------------------------------------------------------------------


def count_rows(model: Model, tokens: int, *, with_graph: bool = False) -> int:
    """How many inputs of so many tokens go through the model at once."""
    if learnt(model.module).runs_alone or not model.takes_batches:
        return 1
    chosen = chosen_batching.get()
    budget = MEMORY.get(model.device.type, MEMORY["cpu"])[with_graph]
    if model.device.type == "cuda":
        budget = min(budget, torch.cuda.get_device_properties(model.device).total_memory // 4)
    available = (chosen.memory or budget) * learnt(model.module).memory_share
    fitting = int(available // estimate_row_memory(model, tokens, with_graph=with_graph))
    return max(1, min(fitting, MOST_ROWS, chosen.rows or MOST_ROWS))


def estimate_row_memory(model: Model, tokens: int, *, with_graph: bool) -> int:
    """Bytes that one input of so many tokens takes while the model runs: a rough figure, from the widths of its layers.

    Without a graph, the widest output (the logits of a language model) and four of the next width exist at a time; with
    one, about three tensors for each layer. Sixteen maps of attention are allowed for.
    """
    widths = sorted(read_layer_widths(model.module)) or [1]
    inner = widths[-2] if len(widths) > 1 else widths[-1]
    kept = 3 * sum(widths) if with_graph else widths[-1] + 4 * inner
    return model.dtype.itemsize * tokens * (kept + 16 * tokens)


def read_layer_widths(module: nn.Module) -> list[int]:
    """The largest side of the weight matrix of every layer that is no table of embeddings."""
    return [
        max(weight.shape[0], weight.shape[-1])
        for part in module.modules()
        if not isinstance(part, nn.Embedding)
        for weight in parameters_of(part).values()
        if weight is not None and weight.dim() >= 2
    ]


def remember_out_of_memory(model: Model) -> None:
    """Halve the budget of this model, and give back what the failed run held."""
    learnt(model.module).memory_share /= 2
    if model.device.type == "cuda":
        torch.cuda.empty_cache()


# --- which rows together ----------------------------------------------------------------------------------------------


def plan_batches(starts: Tensor, ends: Tensor, groups: Tensor, most_rows: int, call_tokens: int) -> list[Tensor]:
    """Row numbers in batches of at most so many rows. A batch runs every row from its first start to its last end.

    starts, ends: [n], the tokens of a row that must run. groups: [n], rows of different groups never go together.
    Rows are sorted, and a batch ends where its rows would run more than `call_tokens` tokens that they need not.
    """
    order = sort_rows(groups, starts, ends)
    batches: list[list[int]] = []
    needed = first = last = 0
    group = None
    sorted_columns = (part.tolist() for part in (order, groups[order], starts[order], ends[order]))
    for row, its_group, start, end in zip(*sorted_columns, strict=True):
        batch = batches[-1] if batches else []
        first_now, last_now = min(first, start), max(last, end)
        wasted = (len(batch) + 1) * (last_now - first_now) - needed - (end - start)
        if not batches or its_group != group or len(batch) >= most_rows or wasted > call_tokens:
            batches.append([row])
            needed, first, last, group = end - start, start, end, its_group
        else:
            batch.append(row)
            needed, first, last = needed + end - start, first_now, last_now
    return [torch.tensor(batch) for batch in batches]


def sort_rows(*keys: Tensor) -> Tensor:
    """Row numbers sorted by the first key, then by the next ones; otherwise in their order."""
    order = torch.arange(len(keys[0]))
    for key in reversed(keys):
        order = order[key[order].argsort(stable=True)]
    return order


# --- running ----------------------------------------------------------------------------------------------------------


def run_batches(
    batches: Sequence[Tensor],
    model: Model,
    prepare: Callable[[Tensor], Prepared],
    launch: Callable[[Prepared, Tensor], Launched],
    finish: Callable[[Launched, Tensor], Finished],
) -> Iterator[tuple[Tensor, Finished]]:
    """The rows of each batch and what `finish` made of them.

    If memory runs out, the batch before is finished first, which may hold what is missing, and then batches are split.

    prepare: makes the input for some rows. launch: runs the model, if possible without waiting for it. finish: waits.
    """
    ahead = chosen_batching.get().ahead
    waiting, running = deque(batches), deque[tuple[Tensor, Launched]]()
    while waiting or running:
        launched = None
        if waiting and len(running) <= ahead:
            launched = try_to_launch(waiting[0], prepare, launch, is_alone=not running)
        if launched is not None:
            running.append((waiting.popleft(), launched[0]))
        elif running:
            rows, oldest = running.popleft()
            yield rows, finish(oldest, rows)
        else:
            remember_out_of_memory(model)  # here, not in the handler: the traceback holds the tensors of the failed run
            waiting = deque(part for rows in waiting for part in rows.tensor_split(min(2, len(rows))))


def try_to_launch(
    rows: Tensor,
    prepare: Callable[[Tensor], Prepared],
    launch: Callable[[Prepared, Tensor], Launched],
    *,
    is_alone: bool,
) -> tuple[Launched] | None:
    """What was launched; None if memory ran out and there is a way to need less: to wait for others, or to split."""
    try:
        return (launch(prepare(rows), rows),)
    except Exception as error:
        if (is_alone and len(rows) == 1) or not (is_out_of_memory(error) or isinstance(error, ResourceError)):
            raise
    return None


# --- shortcuts --------------------------------------------------------------------------------------------------------


TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def takes_shortcut(
    module: nn.Module, name: Hashable, plain: Callable[[], Answers], fast: Callable[[], Answers]
) -> bool:
    """Whether the fast way gives this model's answers; tried the first time."""
    known = recall(module, "shortcuts")
    if name not in known:
        known[name] = agrees(plain, fast)
    return known[name]


def agrees(plain: Callable[[], Answers], fast: Callable[[], Answers]) -> bool:
    wanted = plain()
    try:
        found = fast()
    except Exception as error:  # whatever a model raises on inputs that it does not take
        if is_out_of_memory(error) or isinstance(error, ResourceError):
            raise
        return False
    if wanted.logits.shape != found.logits.shape:
        return False
    tolerance = TOLERANCE.get(wanted.logits.dtype, 1e-5)
    difference = (wanted.logits - found.logits).abs().amax()
    return bool(difference <= tolerance * wanted.logits.abs().amax())
