"""All exceptions that whyformer raises on purpose, each with a code.

    WhyformerError
    ├── InputError            a problem with the image, text, tensors or data to explain
    ├── ModelError            a problem with the model
    │   ├── ModelNotFound     no such folder or model name
    │   ├── IncompleteModel   weights are missing, damaged or not finite
    │   ├── UnsafeModel       pickle weights, or code in the model folder
    │   ├── UnsupportedModel  the model runs, but its operations cannot be followed
    │   │   └── NoAttention   the forward pass contains no attention
    │   └── UnknownOperation  the relevance recipe has no rule for an operation
    ├── TargetError           no such class or token to explain
    ├── MethodError           no such method, or a wrong setting of it
    ├── MetricError           no such metric, or a wrong setting of it
    ├── NotCaptured           the capture did not record what was asked for
    ├── NonFinite             NaN or infinity in an output, gradient or relevance
    ├── OutputError           a file or folder cannot be written, or belongs to another run
    └── ResourceError         disk or memory is used up

A message says what was asked, what is available and what to do. `code` says what kind of problem it is, in a form that
scripts can test and docs/errors.md explains; a class has a default, and `raise InputError(..., code="E_IMG_READ")` is
more specific. `exit_code` is the exit status of the command line, one for each code: 2 usage, 3 input, 4 model or
output folder, 5 numbers, memory or disk, 130 interrupted, 1 a bug. (Three are no errors: 6 finished with failed items
or methods, 7 no method works on a model, 143 ended by SIGTERM.)
"""

import sysconfig
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

PACKAGE_FOLDER = str(Path(__file__).parent)

CODES = {
    "E_INTERNAL": "A bug in whyformer, or an exception in code that whyformer called.",
    "E_USAGE": "A wrong command, option or argument on the command line.",
    "E_INPUT": "Inputs that do not fit the model or each other.",
    "E_IMG_READ": "An image file that cannot be read: missing, not a regular file, no permission.",
    "E_IMG_FORMAT": "A file that is no PNG, JPEG, WebP, BMP, GIF or TIFF image.",
    "E_IMG_BROKEN": "An image file that is truncated or damaged.",
    "E_IMG_TOO_LARGE": "An image with more pixels than the limit; checked before decoding.",
    "E_IMG_SHAPE": "An image whose sides cannot be used.",
    "E_IMG_VALUES": "Pixels that are NaN, infinite, out of range or in an unknown mode.",
    "E_TXT_EMPTY": "A text without tokens.",
    "E_TXT_TOO_LONG": "A text longer than the model or the limit allows.",
    "E_TXT_ENCODING": "Text that is not valid Unicode, or a file that is not UTF-8.",
    "E_TXT_TYPE": "Something that is not a text where a text is needed.",
    "E_TENSOR": "A tensor of a shape, type, layout or device that the model cannot take.",
    "E_DATA": "A data set that cannot be read, or in which something that is needed is missing.",
    "E_ARCHIVE": "A file that is not a saved result, is damaged, or is of another kind or version.",
    "E_MODEL": "A problem with the model that has no code of its own.",
    "E_MODEL_NOT_FOUND": "No folder, bundled model or hub model of that name.",
    "E_MODEL_CONFIG": "A config.json or preprocessor file that is missing, damaged or holds a wrong value.",
    "E_MODEL_WEIGHTS": "Weights that are missing, damaged, of the wrong shape or not finite.",
    "E_MODEL_PICKLE": "Pickled weights or code in the model folder, which are never loaded.",
    "E_MODEL_TOO_LARGE": "Sizes in a config.json or preprocessor file beyond the limit; checked before allocating.",
    "E_MODEL_TOKENIZER": "A tokenizer or processor that is missing or does not fit the model.",
    "E_MODEL_UNSUPPORTED": "A model whose operations cannot be followed.",
    "E_MODEL_OPERATION": "An operation for which the relevance recipe has no rule.",
    "E_TARGET": "No such class or token, or a target that does not fit the model.",
    "E_METHOD": "No such method, or a method that cannot be used here.",
    "E_METRIC": "No such metric, or a metric that cannot be used here.",
    "E_OPTION": "A setting that does not exist, is out of range or has the wrong type.",
    "E_NOT_CAPTURED": "A capture or result that does not hold what was asked for.",
    "E_NON_FINITE": "NaN or infinity in an output, gradient or relevance.",
    "E_DEVICE": "A device, dtype or torch mode that cannot be used.",
    "E_OUT_PATH": "A file or folder that cannot be written.",
    "E_OUT_MISMATCH": "A folder that holds another run.",
    "E_OUT_LOCKED": "A folder that another process is writing to.",
    "E_DISK": "A disk that fails while a run writes to it.",
    "E_DISK_FULL": "No space left on the disk.",
    "E_MEMORY": "Out of memory.",
    "E_ENGINE": "Workers of a bulk run that cannot be started, or an engine that is not installed.",
    "E_WORKER": "An item whose worker process ended too often while it was explained.",
    "E_INTERRUPTED": "Stopped by Ctrl-C.",
}

# The exit status of the command line -> how the codes begin that end with it. Any other code is 1.
EXIT_STATUSES = {
    2: ("E_USAGE", "E_OPTION", "E_TARGET", "E_METHOD", "E_METRIC", "E_NOT_CAPTURED", "E_DEVICE"),
    3: ("E_INPUT", "E_IMG", "E_TXT", "E_TENSOR", "E_DATA", "E_ARCHIVE"),
    4: ("E_MODEL", "E_OUT"),
    5: ("E_NON_FINITE", "E_DISK", "E_MEMORY", "E_ENGINE", "E_WORKER"),
    130: ("E_INTERRUPTED",),
}


def find_exit_code(code: str) -> int:
    """The exit status of the command line for an error with this code."""
    return next((status for status, starts in EXIT_STATUSES.items() if code.startswith(starts)), 1)


def is_of_user(file: str) -> bool:
    """Whether a frame is of a cell or a script, not of this package or a library."""
    return (
        not file.startswith((PACKAGE_FOLDER, sysconfig.get_path("stdlib"), "<frozen")) and "site-packages" not in file
    )


class WhyformerError(Exception):
    code = "E_INTERNAL"
    exit_code = 1

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        super().__init_subclass__()
        cls.code = code or cls.code
        cls.exit_code = find_exit_code(cls.code)

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
            self.exit_code = find_exit_code(code)

    def _render_traceback_(self) -> list[str]:
        """Two lines in a notebook instead of a traceback: what is wrong, and in which line of the cell."""
        frames = [frame for frame in traceback.extract_tb(self.__traceback__) if is_of_user(frame.filename)]
        where = f"in: {frames[-1].line}" if frames and frames[-1].line else "%debug or %tb shows the traceback."
        return [f"{type(self).__name__}[{self.code}]: {self}", where]


class InputError(WhyformerError, code="E_INPUT"):
    """A problem with the image, text, tensors or data to explain."""


class ModelError(WhyformerError, code="E_MODEL"):
    """A problem with the model."""


class ModelNotFound(ModelError, code="E_MODEL_NOT_FOUND"):
    """No such folder or model name."""


class IncompleteModel(ModelError, code="E_MODEL_WEIGHTS"):
    """Weights are missing, damaged or not finite."""


class UnsafeModel(ModelError, code="E_MODEL_PICKLE"):
    """Pickle weights, or code in the model folder."""


class UnsupportedModel(ModelError, code="E_MODEL_UNSUPPORTED"):
    """The model runs, but its operations cannot be followed."""


class NoAttention(UnsupportedModel):
    """The forward pass contains no attention."""


class UnknownOperation(ModelError, code="E_MODEL_OPERATION"):
    """The relevance recipe has no rule for an operation."""


class TargetError(WhyformerError, code="E_TARGET"):
    """No such class or token to explain."""


class MethodError(WhyformerError, code="E_METHOD"):
    """No such method, or a wrong setting of it."""


class MetricError(WhyformerError, code="E_METRIC"):
    """No such metric, or a wrong setting of it."""


class NotCaptured(WhyformerError, code="E_NOT_CAPTURED"):
    """The capture did not record what was asked for."""


class NonFinite(WhyformerError, code="E_NON_FINITE"):
    """NaN or infinity in an output, gradient or relevance."""


class OutputError(WhyformerError, code="E_OUT_PATH"):
    """A file or folder cannot be written, or belongs to another run."""


class ResourceError(WhyformerError, code="E_MEMORY"):
    """Disk or memory is used up."""


def quote_type(value: object) -> str:
    """What an error message calls a value of the wrong type: the name of its type, None, or of a class its own name."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else type(value).__name__


def suggest_nearest(word: str, words: Iterable[str]) -> str:
    """A hint for an error message: " Did you mean 'rollout'?", or "" if no known word is similar.

    Otherwise words that contain it (shap: kernel_shap) or that it abbreviates (ig: integrated_gradients).
    """
    known = list(words)
    close = get_close_matches(word, known, n=1, cutoff=0.6) or [one for one in known if abbreviates(word.lower(), one)]
    return f" Did you mean {' or '.join(map(repr, close[:3]))}?" if close else ""


def abbreviates(word: str, name: str) -> bool:
    """Whether a word of at least three letters is part of a name, or is made of its initials."""
    initials = "".join(part[:1] for part in name.lower().split("_"))
    return (len(word) > 2 and word in name.lower()) or (len(word) > 1 and word == initials)
