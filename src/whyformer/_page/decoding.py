"""Decodes images, in a process of its own: a file that harms the decoder, or takes all memory or time, ends with it.

The process reads files with the library's own reader, with a limit on its memory, and gives back plain pixels.
"""

import base64
import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PIL.Image import Image

from whyformer._page.limited_process import LimitedProcess, answer_each
from whyformer._page.limits import Limits
from whyformer._page.messages import read_message, write_message
from whyformer._page.problems import PageProblem

PREVIEW_SIDE = 1024
SHOWN_AS = "this file"  # the server does not know, and does not keep, the name of an upload


@dataclass(frozen=True)
class DecodedImage:
    """An upright RGB image, and what the page shows of it."""

    width: int
    height: int
    pixels: bytes
    note: str
    preview: bytes  # PNG
    preview_size: tuple[int, int]

    @property
    def id(self) -> str:
        """By its pixels and size alone."""
        return hashlib.sha256(b"%d x %d " % (self.width, self.height) + self.pixels).hexdigest()

    def __len__(self) -> int:
        return len(self.pixels) + len(self.preview)

    def to_json_value(self, name: str) -> dict[str, Any]:
        return {
            "image": name,
            "width": self.width,
            "height": self.height,
            "note": self.note,
            "preview": "data:image/png;base64," + base64.b64encode(self.preview).decode("ascii"),
            "preview_width": self.preview_size[0],
            "preview_height": self.preview_size[1],
        }


class Decoder(LimitedProcess):
    """The process that decodes."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits, __name__, "serve_decoder")

    def decode(self, data: bytes) -> DecodedImage:
        """The image in these bytes, or the reason why there is none."""
        try:
            answer = self.start()
        except (EOFError, OSError):
            raise PageProblem("E_WORKER", "The process that decodes images did not start.") from None
        try:
            fields, blobs = read_message(self.ask(*answer, data, self.limits.decode_seconds))
        except TimeoutError:
            raise PageProblem("E_IMG_BROKEN", "Decoding this file took too long, so it was given up.") from None
        except (EOFError, OSError):
            raise PageProblem("E_IMG_BROKEN", "The decoder could not cope with this file: it is damaged.") from None
        if "code" in fields:
            raise PageProblem(fields["code"], fields["message"])
        pixels, preview = blobs
        return DecodedImage(fields["width"], fields["height"], pixels, "", preview, tuple(fields["preview_size"]))


# --- in the process ---------------------------------------------------------------------------------------------------


def serve_decoder(descriptor: int) -> None:
    """Decode one file after the other until the server goes away."""
    from whyformer._model import read_image_bytes

    answer_each(descriptor, lambda data: decode_bytes(data, read_image_bytes))


def decode_bytes(data: bytes, read: Callable[[bytes, str], Image]) -> bytes:
    """A message with the fields of a DecodedImage, or with a code and a message."""
    from whyformer.errors import WhyformerError

    try:
        image = read(data, SHOWN_AS)
        preview = image.copy()
        preview.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE))
        file = io.BytesIO()
        preview.info.clear()
        preview.save(file, "PNG")
        fields = {"width": image.width, "height": image.height, "preview_size": preview.size}
        return write_message(fields, image.tobytes(), file.getvalue())
    except WhyformerError as error:
        return write_message({"code": error.code, "message": str(error)})
    except MemoryError:
        message = "Decoding this file takes more memory than is allowed."
        return write_message({"code": "E_IMG_TOO_LARGE", "message": message})
    except Exception:
        return write_message({"code": "E_IMG_BROKEN", "message": "This file cannot be decoded: it is damaged."})
