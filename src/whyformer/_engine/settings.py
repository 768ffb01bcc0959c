"""why.engine(): how the runs inside are carried out. Scores stay the same up to rounding.

with why.engine(replay=False, plan=False): ...       every run is one of the full engine
with why.engine(tiles=64, recompute=True): ...       less memory
with why.engine(rows=8): ...                         at most 8 variants of an input at once
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from whyformer._engine.capture.capture import run_setting
from whyformer._engine.probe.batching import chosen_batching
from whyformer._engine.tracing.tiles import TileSetting, current_setting
from whyformer.errors import InputError, MethodError


@contextmanager
def engine(
    *,
    replay: bool | None = None,
    plan: bool | None = None,
    recompute: bool | None = None,
    tiles: int | bool | None = None,
    rows: int | None = None,
    memory: int | None = None,
    reuse_prefix: bool | None = None,
    cut_padding: bool | None = None,
    ahead: bool | None = None,
) -> Iterator[None]:
    """How models inside are run; an option that is not given stays as it is outside.

    replay: True repeats recorded programs of any model, False of none. By default they are used on a GPU, for models
        whose code is all that of known libraries: what your own `forward` does besides computing happens in every run.
        False also keeps planned runs on a GPU from being repeated as CUDA graphs.
    plan: True learns a backward plan of a model at the first call, False never uses one. By default at the second call,
        for long prompts at the first. Rows of bulk, cite_log, judge and audit never use one.
    recompute: True needs less memory: planned runs keep only the input of each block and run the block again in the
        backward pass, large programs compute the first layer of each MLP again. By default, planned runs do so only if
        what they keep would not fit into the free memory.
    tiles: True computes large attention matrices some queries at a time, a number so many always, False every matrix
        whole. By default True, from 256 MiB on.
    rows: at most so many variants of an input at once. By default as many as `memory` allows.
    memory: about so many bytes of activations for variants. By default 128 MiB on a CPU, up to 4 GiB on a GPU.
    reuse_prefix: decoders compute the tokens that variants of a prompt have in common only once. By default True.
    cut_padding: short texts run without the padding of longer ones in their batch. By default True.
    ahead: the next batch of variants is prepared while the model runs. By default True.
    """
    for name, value in (("rows", rows), ("memory", memory)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise MethodError(f"{name} must be a whole number >= 1, got {value!r}.", code="E_OPTION")
    before = chosen_batching.get()
    batching = replace(
        before,
        rows=rows or before.rows,
        memory=memory or before.memory,
        **keep_given(reuse_prefix=reuse_prefix, cut_padding=cut_padding, ahead=ahead),
    )
    runs = replace(run_setting.get(), **keep_given(replay=replay, plan=plan, recompute=recompute))
    tiling = current_setting.get() if tiles is None else read_tiles(tiles)
    tokens = run_setting.set(runs), current_setting.set(tiling), chosen_batching.set(batching)
    try:
        yield
    finally:
        run_setting.reset(tokens[0])
        current_setting.reset(tokens[1])
        chosen_batching.reset(tokens[2])


def keep_given(**options: bool | None) -> dict[str, bool]:
    return {name: bool(value) for name, value in options.items() if value is not None}


def read_tiles(tiles: int | bool) -> TileSetting:
    if isinstance(tiles, bool):
        return TileSetting(is_on=tiles)
    if isinstance(tiles, int) and tiles >= 1:
        return TileSetting(rows=tiles)
    raise InputError(f"tiles must be True, False or a number of queries >= 1, got {tiles!r}.", code="E_OPTION")
