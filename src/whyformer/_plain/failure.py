"""Why something failed on one example or in one worker: a code and one line."""

from whyformer.errors import CODES, ResourceError, WhyformerError

MAX_MESSAGE = 500  # characters


def describe_failure(error: Exception) -> tuple[str, str]:
    """A code and one line. An exception that is not ours is a bug, or comes from the model's own code."""
    message = " ".join(str(error).split()) or "no reason given"
    if isinstance(error, WhyformerError) and error.code in CODES:
        return error.code, message[:MAX_MESSAGE]
    if is_out_of_memory(error):
        return "E_MEMORY", f"Out of memory even for this item alone: {message}"[:MAX_MESSAGE]
    return "E_INTERNAL", f"{type(error).__name__}: {message}"[:MAX_MESSAGE]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the device or the processor."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, ResourceError) and error.code == "E_MEMORY")
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )


def make_memory_error(error: BaseException) -> ResourceError:
    """What torch raises when memory runs out, as an error of ours that says what takes less."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no details given.")
    return ResourceError(
        f"Out of memory: {first[:200]} Explain fewer or shorter inputs at once, keep less of a run with `with "
        "whyformer.engine(recompute=True):`, or open the model with dtype=torch.bfloat16."
    )


def is_failure(error: BaseException) -> bool:
    """Whether code failed: an Exception, or a panic of compiled code, which is no Exception; not Ctrl-C."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
