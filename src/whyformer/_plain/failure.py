"""Why something failed on one example or in one worker: a code and one line."""

from whyformer.errors import CODES, WhyformerError

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
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )
