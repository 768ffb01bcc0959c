"""Why an example, method or metric failed, in one line."""

from whyformer._explain.sharing import raise_if_out_of_memory
from whyformer.errors import InputError

MAX_REASON_LENGTH = 300  # characters


def reason_of(error: Exception) -> str:
    """The message of an error; raises the error if memory ran out, because that is not the fault of an example."""
    raise_if_out_of_memory(error)
    message = " ".join(str(error).split()) or "no reason given"
    kind = "" if isinstance(error, InputError) or hasattr(error, "exit_code") else f"{type(error).__name__}: "
    return f"{kind}{message}"[:MAX_REASON_LENGTH]
