"""Commands in a real terminal: a pty of a given width, and what it would show, as text and as a page.

shown = run_command(["explain", "a gorgeous film"], columns=80)
shown.text, shown.code, shown.to_html(dark=True)
"""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

import pyte

ROWS = 600  # lines that are kept
PATIENCE = 240  # seconds for a command
NAMED = {
    "black": "#000000", "red": "#cc3333", "green": "#3a9a3a", "brown": "#b58900", "blue": "#3a6fd8",
    "magenta": "#b04fb0", "cyan": "#2aa1a1", "white": "#d0d0d0", "brightblack": "#808080", "brightred": "#ff5f5f",
    "brightgreen": "#5fd75f", "brightbrown": "#e0c040", "brightblue": "#6fa8ff", "brightmagenta": "#e080e0",
    "brightcyan": "#50d0d0", "brightwhite": "#ffffff",
}  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """What a terminal shows after a command."""

    command: str
    columns: int
    screen: pyte.Screen
    code: int
    seconds: float

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def to_html(self, *, dark: bool) -> str:
        """A page that looks like the terminal."""
        ink, ground = ("#e6e6e6", "#16161a") if dark else ("#1b1b1f", "#ffffff")
        used = len(self.text.split("\n"))
        lines = [self._line_to_html(self.screen.buffer[y], ink, ground) for y in range(used)]
        style = f"margin:12px;background:{ground};color:{ink};font:14px/17px 'DejaVu Sans Mono',monospace"
        head = f"<span style='opacity:.6;white-space:pre-wrap'>$ {escape(self.command)}</span>"
        return f"<!doctype html><meta charset=utf-8><body style=\"{style}\"><pre style='font:inherit'>{head}\n" + (
            "\n".join(lines) + "</pre>"
        )

    def _line_to_html(self, line, ink: str, ground: str) -> str:
        cells = [line[x] for x in range(self.columns)]
        parts = []
        for look, run in groupby(cells, key=lambda cell: cell._replace(data="")):
            text = "".join(cell.data for cell in run)
            front, back = to_colour(look.fg, ink), to_colour(look.bg, ground)
            front, back = (back, front) if look.reverse else (front, back)
            style = f"display:inline-block;height:17px;vertical-align:top;color:{front};background:{back}"
            style += ";font-weight:bold" * look.bold
            style += ";font-style:italic" * look.italics + ";text-decoration:underline" * look.underscore
            parts.append(f'<span style="{style}">{escape(text)}</span>')
        return "".join(parts)


def to_colour(name: str, default: str) -> str:
    return default if name == "default" else NAMED.get(name, f"#{name}")


def run_command(arguments: Sequence[str], *, columns: int, colour: bool = True, folder: Path | None = None) -> Shown:
    """`whyformer ARGUMENTS` in a terminal of this width; without colour, NO_COLOR is set."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    hidden = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"} | ({} if colour else {"NO_COLOR": "1"})
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "whyformer", *arguments],
        stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=folder, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    screen = pyte.Screen(columns, ROWS)
    stream = pyte.ByteStream(screen)
    try:
        for piece in read_until_closed(master, started + PATIENCE):
            stream.feed(piece)
    finally:
        os.close(master)
        if process.poll() is None and time.monotonic() > started + PATIENCE:
            process.kill()
    code = process.wait()
    words = " ".join(repr(word) if " " in word else word for word in ("whyformer", *arguments))
    return Shown(words, columns, screen, code, time.monotonic() - started)


def read_until_closed(master: int, deadline: float):
    """What the process writes, until it ends."""
    while time.monotonic() < deadline:
        ready, _, _ = select.select([master], [], [], 1.0)
        if not ready:
            continue
        try:
            piece = os.read(master, 1 << 16)
        except OSError:  # the other end is closed
            return
        if not piece:
            return
        yield piece
