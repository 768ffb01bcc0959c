"""Sounds: a WAV file, an array of samples, or a dictionary with samples and their rate, as features for a Whisper.

"speech.wav"                                             a file
numpy.array([...])                                       samples at the rate of the model
{"array": ..., "sampling_rate": 16000}                   as `datasets` has them ("raw" as pipelines take them)
{"audio": one of these, "decoder_input_ids": ...}        with what was written so far
"""

import os
import wave
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import InputError

SAMPLES, RATE = ("array", "raw"), "sampling_rate"
WIDTHS = {1: "u1", 2: "<i2", 4: "<i4"}  # bytes of a sample


class Sound(NamedTuple):
    """Samples between -1 and 1; the rate is None if it was not given."""

    samples: np.ndarray
    rate: int | None
    name: str
    written: Tensor | None = None  # ids that the decoder has written


def is_sound(item: Any) -> bool:
    """Whether this is one of the forms above."""
    if isinstance(item, Mapping):
        return "audio" in item or any(name in item for name in SAMPLES)
    if isinstance(item, str | os.PathLike):
        return os.fspath(item).lower().endswith(".wav")
    return isinstance(item, np.ndarray | Tensor) and item.ndim == 1 and "float" in str(item.dtype)


def read_sounds(inputs: Any) -> list[Sound] | None:
    """The sounds of an input or a list of them; None if it holds anything else."""
    items = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if not items or not all(map(is_sound, items)):
        return None
    return [read_sound(item, "the sound" if len(items) == 1 else f"sound {n}") for n, item in enumerate(items)]


def read_sound(item: Any, name: str) -> Sound:
    if isinstance(item, Mapping) and "audio" in item:
        found, written = read_sound(item["audio"], name), item.get("decoder_input_ids")
        rate = item.get(RATE, found.rate)
        return found._replace(rate=rate, written=None if written is None else torch.as_tensor(written).view(-1))
    if isinstance(item, str | os.PathLike):
        return read_wave(Path(item))
    samples = next(item[key] for key in SAMPLES if key in item) if isinstance(item, Mapping) else item
    rate = item.get(RATE) if isinstance(item, Mapping) else None
    array = np.asarray(samples.detach().cpu() if isinstance(samples, Tensor) else samples, dtype=np.float32)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise InputError(f"{name} must be a row of finite samples, got the shape {list(array.shape)}.")
    return Sound(array, rate, name)


def read_wave(path: Path) -> Sound:
    """A WAV file with samples of 8, 16 or 32 bits; of several channels, their mean."""
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = file.readframes(file.getnframes())
    except FileNotFoundError:
        raise InputError(f"There is no file {str(path)!r}.") from None
    except (OSError, EOFError, wave.Error) as error:
        raise InputError(f"{path.name} could not be read as a WAV file: {error}. Save it as 16-bit PCM.") from None
    if width not in WIDTHS:
        raise InputError(f"{path.name} has samples of {8 * width} bits. Save it with 16.")
    whole = np.frombuffer(data, WIDTHS[width]).astype(np.float32).reshape(-1, channels).mean(1)
    if not whole.size:
        raise InputError(f"{path.name} has no samples.")
    samples = (whole - 128) / 128 if width == 1 else whole / 2.0 ** (8 * width - 1)
    return Sound(samples, rate, path.name)


def extract_features(extractor: Any, sounds: Sequence[Sound], model: str) -> Tensor:
    """What the feature extractor of a model makes of sounds, [batch channel step]."""
    if extractor is None:
        raise InputError(
            f"{model} was opened without a feature extractor, so it takes no sounds. Pass processor= when opening it "
            "(transformers.WhisperProcessor.from_pretrained), or what the extractor makes of them as input_features."
        )
    wanted = extractor.sampling_rate
    for sound in sounds:
        if sound.rate is not None and sound.rate != wanted:
            raise InputError(
                f"{sound.name} has {sound.rate:,} samples a second; {model} listens to {wanted:,}. Resample it, such "
                f"as with librosa.resample(samples, orig_sr={sound.rate}, target_sr={wanted})."
            )
    made = extractor([sound.samples for sound in sounds], sampling_rate=wanted, return_tensors="pt")
    return made["input_features"]  # type: ignore[no-any-return]


def is_for_sound(processor: object) -> bool:
    """Whether a processor, or the part of it for features, takes samples."""
    return hasattr(getattr(processor, "feature_extractor", processor), "sampling_rate")
