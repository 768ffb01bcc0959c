"""`torch.vmap` in a forward, as the loop that it stands for.

Inside of a vmap, tensors hide the axis that is mapped over, and none of them may leave it: neither labels nor attention
could be kept. So what depends on the explained input is mapped entry by entry, and the results are stacked.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.tracing.provenance import EMPTY_TRACE, trace_of
from whyformer._plain.private_torch import (
    VMAP,
    VMAP_CALL,
    broadcast_tree,
    flatten_tree,
    list_function_modes,
    read_vmap_inputs,
    unflatten_tree,
)

_lock, _running, _original = Lock(), 0, getattr(VMAP, VMAP_CALL)


@contextmanager
def unroll_maps() -> Iterator[None]:
    """Inside, maps over what depends on the explained input are loops, in threads under interception."""
    _count_run(+1)
    try:
        yield
    finally:
        _count_run(-1)


def _count_run(by: int) -> None:
    global _running
    with _lock:
        _running += by
        setattr(VMAP, VMAP_CALL, map_by_loop if _running else _original)


def map_by_loop(function: Callable[..., Any], in_dims: Any, out_dims: Any, *settings: Any, **kwargs: Any) -> Any:
    randomness, chunk_size, *args = settings
    size, axes, given, tree = read_vmap_inputs(in_dims, tuple(args), function)
    mode = next((mode for mode in list_function_modes() if hasattr(mode, "maps_examples")), None)
    if mode is None or not any(isinstance(one, Tensor) and trace_of(one) is not EMPTY_TRACE for one in given):
        return _original(function, in_dims, out_dims, randomness, chunk_size, *args, **kwargs)
    mode.maps_examples |= size == mode.batch
    made = []
    for entry in range(size):
        picked = [one if axis is None else one.select(axis, entry) for one, axis in zip(given, axes, strict=True)]
        made.append(flatten_tree(function(*unflatten_tree(picked, tree), **kwargs)))
    stacked_on = broadcast_tree(out_dims, made[0][1])
    if stacked_on is None:  # torch says what is wrong with them
        return _original(function, in_dims, out_dims, randomness, chunk_size, *args, **kwargs)
    columns = zip(*(values for values, _ in made), strict=True)
    stacked = [
        column[0] if axis is None else torch.stack(column, axis)
        for column, axis in zip(columns, stacked_on, strict=True)
    ]
    return unflatten_tree(stacked, made[0][1])
