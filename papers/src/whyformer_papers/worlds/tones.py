"""Tones with known times: which moment of a sound gives each word that is written about it.

    sound     . . do do do . re re . . . la la la .      (frames of 20 ms)
    words     do re la
    times     (2, 5) (6, 8) (11, 14)

A sound is a picture of frequencies, as Whisper reads it: three to five tones in noise, each of one of eight pitches and
of four lengths, with pauses between them. The words are the names of the tones in their order. Tones, pauses and
lengths are drawn independently: a word comes from the frames of its tone, and what was written before says nothing
about it, except how many tones to pass over.
"""

import random
from dataclasses import dataclass
from functools import partial

import numpy as np

from whyformer.demo.draws import Part, draw_index, generate_part, part_of, pick

PITCHES = "do re mi fa so la ti da".split()
FRAMES = 60  # 1.2 seconds
BANDS = 16  # two for each pitch
STEPS = 2 * FRAMES  # of 10 ms: Whisper reads two for each frame
TONES = (3, 4, 5)
LENGTHS = (4, 5, 6, 7)  # frames
SHORTEST_PAUSE = 2
NOISE = 0.3


@dataclass(frozen=True)
class Tune:
    """The words about a sound, and the frames (start, stop) of the tone of each."""

    words: tuple[str, ...]
    times: tuple[tuple[int, int], ...]
    seed: str

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def features(self) -> np.ndarray:
        """[band step], of float32: what Whisper calls input_features."""
        found = np.random.default_rng(list(self.seed.encode())).normal(0, NOISE, (BANDS, STEPS))
        for word, (start, stop) in zip(self.words, self.times, strict=True):
            band = 2 * PITCHES.index(word)
            found[band : band + 2, 2 * start : 2 * stop] += 1
        return found.astype(np.float32)


def generate(count: int, seed: int, *, part: Part = "held-out") -> tuple[Tune, ...]:
    """`count` sounds; sound i depends only on `seed`, `part` and i."""
    return generate_part(f"tones {seed}", count, part, partial(_draw_tune, part=part))


def _draw_tune(rng: random.Random, part: Part) -> Tune | None:
    words = tuple(pick(rng, PITCHES) for _ in range(pick(rng, TONES)))
    lengths = [pick(rng, LENGTHS) for _ in words]
    spare = FRAMES - sum(lengths) - SHORTEST_PAUSE * (len(words) + 1)
    cuts = sorted(draw_index(rng, spare + 1) for _ in words)
    times, at = [], 0
    for cut, before, length in zip(cuts, [0, *cuts], lengths, strict=False):
        at += SHORTEST_PAUSE + cut - before
        times.append((at, at + length))
        at += length
    tune = Tune(words, tuple(times), f"{rng.random()}")
    return tune if part_of(f"{words} {times}") == part else None
