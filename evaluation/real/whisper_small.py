"""Whisper small, which writes down speech."""

from real.whisper import make_whisper

MODEL = make_whisper(
    "small",
    "244 M",
    package="7279fab601b6974c17a0fe13caa71b8713b0922a7b4e9b47c71baf225ffb0a0e",
    weights="7f51c0b681e64811e132ac94c95cdf7354a846a6a61f31b58d5281372ccb6289",
)
