"""Whisper tiny, which writes down speech."""

from real.whisper import make_whisper

MODEL = make_whisper(
    "tiny",
    "39 M",
    package="f4f1da6ed8a2773ac1dd9d96f4f5b0689fcc78e534a7d87db918a961136a274a",
    weights="59899c3a1e40d93daa11fd15fc82700ec6fff73fe50598b7c06ab5fd4673c61c",
)
