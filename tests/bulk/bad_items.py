"""Thirty kinds of bad input for an image model, each with the code of its error record."""

import io
import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

LONG_NAME = "x" * 300 + ".png"


def png_of(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, str(options.pop("format", "PNG")), **options)
    return file.getvalue()


def make_noise(side: int = 24) -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 255, (side, side, 3), dtype=np.uint8))


def make_blank_png(width: int, height: int) -> bytes:
    """A header that claims this size, and no pixels: a reader must not believe it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def flip_byte(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]


def write_bad_files(folder: Path) -> dict[str, str]:
    """Write bad files; returns the code of each by name. Some names have no file."""
    png, jpeg = png_of(make_noise()), png_of(make_noise(64), format="JPEG")
    contents = {
        "empty.png": (b"", "E_IMG_FORMAT"),
        "text.png": (b"this is no image\n" * 9, "E_IMG_FORMAT"),
        "page.png": (b"<!doctype html><html></html>", "E_IMG_FORMAT"),
        "drawing.png": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "E_IMG_FORMAT"),
        "paper.png": (b"%PDF-1.7\n", "E_IMG_FORMAT"),
        "archive.png": (b"PK\x03\x04" + bytes(60), "E_IMG_FORMAT"),
        "program.jpg": (b"MZ" + bytes(200), "E_IMG_FORMAT"),
        "postscript.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "E_IMG_FORMAT"),
        "cut.png": (png[: len(png) // 2], "E_IMG_BROKEN"),
        "cut.jpg": (jpeg[: len(jpeg) // 2], "E_IMG_BROKEN"),
        "checksum.png": (flip_byte(png, 60), "E_IMG_BROKEN"),
        "cut.gif": (png_of(make_noise(), format="GIF")[:900], "E_IMG_BROKEN"),
        "cut.webp": (png_of(make_noise(), format="WEBP", lossless=True)[:100], "E_IMG_BROKEN"),
        "large.png": (make_blank_png(9000, 9000), "E_IMG_TOO_LARGE"),
        "huge.png": (make_blank_png(2**31 - 1, 2**31 - 1), "E_IMG_TOO_LARGE"),
        "thin.png": (png_of(Image.new("RGB", (1, 5000))), "E_IMG_SHAPE"),
        "flat.png": (png_of(Image.new("RGB", (5000, 1))), "E_IMG_SHAPE"),
        "nan.tiff": (png_of(Image.fromarray(np.full((8, 8), np.nan, np.float32)), format="TIFF"), "E_IMG_VALUES"),
        "bright.tiff": (png_of(Image.fromarray(np.full((8, 8), 1e6, np.float32)), format="TIFF"), "E_IMG_VALUES"),
        "infinite.tiff": (png_of(Image.fromarray(np.full((8, 8), np.inf, np.float32)), format="TIFF"), "E_IMG_VALUES"),
    }
    for name, (data, _) in contents.items():
        (folder / name).write_bytes(data)
    (folder / "folder.png").mkdir()
    os.mkfifo(folder / "pipe.png")
    os.symlink(folder / "nothing", folder / "link.png")
    missing = ["folder.png", "pipe.png", "link.png", "missing.png", LONG_NAME, "a\0b.png"]
    return {name: code for name, (_, code) in contents.items()} | dict.fromkeys(missing, "E_IMG_READ")


# Rows of a table that cannot be used, whatever the image.
BAD_ROWS = [
    "{broken",
    "[1, 2]",
    json.dumps({"id": "no image", "image": ""}),
    json.dumps({"id": "odd bytes", "image": {"bytes": 7}}),
    json.dumps({"id": "half a class", "image": "good.png", "label": 1.5}),
]


def write_table(folder: Path, good: int, bad: int) -> tuple[Path, list[str | None]]:
    """A table with so many good and bad rows, mixed; returns it with the code of each row, None for good ones."""
    codes = write_bad_files(folder)
    make_noise().save(folder / "good.png")
    bad_rows = [(json.dumps({"id": f"bad {n}", "image": str(folder / name)}), code)
                for n, (name, code) in enumerate(codes.items())]  # fmt: skip
    bad_rows += [(row, "E_DATA") for row in BAD_ROWS]
    chosen = [bad_rows[n % len(bad_rows)] for n in range(bad)]
    repeated = [(row.replace('"id": "', f'"id": "{n} '), code) for n, (row, code) in enumerate(chosen)]
    good_rows = [(json.dumps({"id": f"good {n}", "image": "good.png", "label": n % 3}), None) for n in range(good)]
    order = np.random.default_rng(0).permutation(good + bad)
    rows = [(*good_rows, *repeated)[n] for n in order]
    path = folder / "table.jsonl"
    path.write_text("".join(f"{row}\n" for row, _ in rows), "utf-8")
    return path, [code for _, code in rows]
