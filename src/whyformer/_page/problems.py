"""What the server answers when it refuses or fails: a status, a code, one sentence and what to do.

The codes of the library (errors.py) keep their meaning; those of the server begin with E_PAGE.
"""

import sys
import traceback
from pathlib import Path

from whyformer.show.visible import make_visible

# code -> status, what to do
PAGE_CODES: dict[str, tuple[int, str]] = {
    "E_PAGE_TOKEN": (401, "Open the link that `whyformer serve` printed when it started: it contains the token."),
    "E_PAGE_ORIGIN": (403, "Open the page by the address that `whyformer serve` printed."),
    "E_PAGE_ROUTE": (404, "See /api/openapi.json for what there is."),
    "E_PAGE_METHOD": (405, "See /api/openapi.json for what there is."),
    "E_PAGE_SLOW": (408, "Send it again, faster."),
    "E_PAGE_CANCELLED": (409, "Ask again if you want the answer."),
    "E_PAGE_GONE": (410, "Send the image again."),
    "E_PAGE_BODY": (413, "Send a smaller file or a shorter text."),
    "E_PAGE_TYPE": (415, "Send JSON as application/json, and an image as application/octet-stream."),
    "E_PAGE_BUSY": (503, "Wait a moment and ask again."),
    "E_PAGE_TIME": (504, "Ask for less: a cheaper method, fewer methods or classes, a shorter text."),
}
STATUSES = {
    "E_USAGE": 400,
    "E_MODEL_NOT_FOUND": 404,
    "E_IMG_TOO_LARGE": 413,
    "E_TXT_TOO_LONG": 413,
    "E_IMG_FORMAT": 415,
    "E_INTERNAL": 500,
    "E_MEMORY": 503,
    "E_WORKER": 503,
} | {code: status for code, (status, _) in PAGE_CODES.items()}
REFUSED = 422  # any other code: the library says why
RETRY_SECONDS = {"E_PAGE_BUSY": 1, "E_WORKER": 2, "E_MEMORY": 5}
LONGEST = 600  # characters of a message


class PageProblem(Exception):
    """An answer that is none."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message

    @property
    def status(self) -> int:
        return STATUSES.get(self.code, REFUSED)

    @property
    def headers(self) -> dict[str, str]:
        seconds = RETRY_SECONDS.get(self.code)
        return {} if seconds is None else {"Retry-After": str(seconds)}

    def to_json_value(self) -> dict[str, dict[str, str]]:
        """What the page shows; control characters of whatever the message quotes are visible."""
        message = make_visible(" ".join(self.message.split()))[:LONGEST]
        help_ = PAGE_CODES.get(self.code, (0, ""))[1]
        return {"error": {"code": self.code, "message": message, "help": help_}}


def report_bug(error: Exception) -> None:
    """Where an exception that nobody foresaw comes from goes to the terminal: names of files, and no value."""
    frames = traceback.extract_tb(error.__traceback__)
    places = " > ".join(f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in frames[-8:])
    print(f"whyformer serve: unexpected {type(error).__name__} at {places}", file=sys.stderr, flush=True)
