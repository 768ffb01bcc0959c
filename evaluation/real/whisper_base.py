"""Whisper base, which writes down speech."""

from real.whisper import make_whisper

MODEL = make_whisper(
    "base",
    "74 M",
    package="4a023210a1f60880ed1ebb03bc4283835927164b5afbc937f765a17e6a282307",
    weights="50c82bec0832f8dc0acdecde5892d8c4801dea7479dd95b6424f27092c180a1c",
)
