"""Decodes images, in a process of its own: a file that harms the decoder, or takes all memory or time, ends with it.

The process reads files with the library's own reader, with a limit on its memory, and gives back plain pixels.
"""

import base64
import hashlib
import io
import os
import resource
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from PIL.Image import Image

from whyformer._bulk.fresh_process import start_process
from whyformer._page.limits import Limits
from whyformer._page.messages import kill_after, read_message, write_message
from whyformer._page.problems import PageProblem

PREVIEW_SIDE = 1024
MORE_BYTES = 10_000_000  # of an answer, besides the pixels: the preview
SHOWN_AS = "this file"  # the server does not know, and does not keep, the name of an upload
START_SECONDS = 60.0  # for importing the library


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


class Decoder:
    """The process that decodes, as the server sees it; it is started again when it has died. Call from one thread."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def start(self) -> "tuple[subprocess.Popen[bytes], Connection]":
        if self._connection is None or self._process is None or self._process.poll() is not None:
            self.stop()
            process, (connection,) = start_process("whyformer._page.decoding", "serve_decoder")
            self._process, self._connection = process, connection
            self.ask(process, connection, b"%d" % self.limits.decode_bytes, START_SECONDS)
        return self._process, self._connection

    def decode(self, data: bytes) -> DecodedImage:
        """The image in these bytes, or the reason why there is none."""
        try:
            answer = self.start()
        except (EOFError, OSError):
            self.stop()
            raise PageProblem("E_WORKER", "The process that decodes images did not start.") from None
        try:
            fields, blobs = read_message(self.ask(*answer, data, self.limits.decode_seconds))
        except TimeoutError:
            self.stop()
            raise PageProblem("E_IMG_BROKEN", "Decoding this file took too long, so it was given up.") from None
        except (EOFError, OSError):
            self.stop()
            raise PageProblem("E_IMG_BROKEN", "The decoder could not cope with this file: it is damaged.") from None
        if "code" in fields:
            raise PageProblem(fields["code"], fields["message"])
        pixels, preview = blobs
        return DecodedImage(fields["width"], fields["height"], pixels, "", preview, tuple(fields["preview_size"]))

    def ask(self, process: "subprocess.Popen[bytes]", connection: Connection, data: bytes, seconds: float) -> bytes:
        """What the process answers to these bytes. Neither sending nor waiting may take longer."""
        try:
            with kill_after(seconds, process) as late:
                connection.send_bytes(data)
                return connection.recv_bytes(3 * self.limits.image_pixels + MORE_BYTES)
        except (EOFError, OSError):
            if late.is_set():
                raise TimeoutError from None
            raise

    def stop(self) -> None:
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._connection = None


# --- in the process ---------------------------------------------------------------------------------------------------


def serve_decoder(descriptor: int) -> None:
    """Decode one file after the other until the server goes away."""
    from whyformer._model import read_image_bytes

    connection = Connection(descriptor)
    limit_memory(int(connection.recv_bytes()))
    connection.send_bytes(b"ready")
    while True:
        try:
            data = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)
        connection.send_bytes(decode_bytes(data, read_image_bytes))


def limit_memory(more: int) -> None:
    """The process may take so many bytes more than it has; nothing is limited where Linux does not say how many."""
    with suppress(ValueError, OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


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
