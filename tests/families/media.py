"""Images and sounds beside a text, in the shapes that a model takes: found by trying, as its placeholders are counted.

A model that finds fewer placeholders in the text than it has features says how many it has; the text gets as many.
"""

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

COUNTS = re.compile(r"tokens:? *(\d+),? *features:? *(\d+)")
MEDIA = ("pixel_values", "input_features")  # the inputs that a model with media takes
STEPS = (40, 64, 80, 100, 160, 200, 3000)  # of a spectrogram
Inputs = dict[str, Any]


def takes_media_unfed(parameters: Any, made: Inputs) -> bool:
    """Whether a model that was given ids takes images or sounds too."""
    return "input_ids" in made and any(name in parameters for name in MEDIA) and not any(name in made for name in MEDIA)


def add_media(model: nn.Module, parameters: Any, made: Inputs, generator: torch.Generator) -> Inputs:
    """The text with placeholders, and what they stand for; the text alone if nothing fits."""
    for media in list_media(model.config, parameters, generator):
        for place in (find_placeholder(model.config, media), None):
            if (fitted := fit_placeholders(model, made, media, place)) is not None:
                return fitted
    return made


def list_media(config: Any, parameters: Any, generator: torch.Generator) -> Iterator[Inputs]:
    """Two of them in each shape that is usual."""
    draw = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
    if "pixel_values" in parameters:
        size = getattr(getattr(config, "vision_config", config), "image_size", None) or 32
        size = size if isinstance(size, int) else size[0]
        sizes = {"image_sizes": torch.tensor([[size, size]] * 2)} if "image_sizes" in parameters else {}
        tiles = {"aspect_ratio_ids": torch.ones(2, 1, dtype=torch.long), "aspect_ratio_mask": torch.ones(2, 1, 1)}
        if "aspect_ratio_ids" in parameters:
            yield {"pixel_values": draw(2, 1, 1, 3, size, size), **tiles}
        for lead in ((2,), (2, 1), (2, 3), (2, 5)):
            yield {"pixel_values": draw(*lead, 3, size, size), **sizes}
    if "input_features" in parameters:
        bins = find_bins(config)
        mask = next(
            (name for name in parameters if re.fullmatch(r"(input_features|feature_attention)_mask", name)), None
        )
        for steps in STEPS:
            for shape in ((2, bins, steps), (2, steps, bins)):
                yield {
                    "input_features": draw(*shape),
                    **({mask: torch.ones(2, steps, dtype=torch.long)} if mask else {}),
                }


def find_bins(config: Any) -> int:
    parts = (getattr(config, name, None) for name in ("audio_config", "encoder_config", "audio_encoder_config"))
    names = ("num_mel_bins", "input_dim", "feature_size", "mel_bins")
    found = (getattr(part, name, None) for part in (*parts, config) for name in names if part is not None)
    return next((value for value in found if isinstance(value, int)), 80)


def find_placeholder(config: Any, media: Inputs) -> int | None:
    kind = "image" if "pixel_values" in media else "audio"
    names = (f"{kind}_token_id", f"{kind}_token_index", f"{kind}_token")
    return next((value for name in names if isinstance(value := getattr(config, name, None), int)), None)


def fit_placeholders(model: nn.Module, made: Inputs, media: Inputs, token: int | None) -> Inputs | None:
    """The inputs that the model runs on, with as many placeholders as it asks for."""
    count = 0
    for _ in range(3):
        inputs = {**put_placeholders(made, token, count), **media}
        try:
            with torch.no_grad():
                model(**inputs)
            return inputs if count or token is None else None
        except Exception as error:
            found = COUNTS.search(str(error))
            if token is None or found is None or not (wanted := int(found[2]) // 2):
                return None
            count = 1 if wanted == count else wanted
    return None


def put_placeholders(made: Inputs, token: int | None, count: int) -> Inputs:
    """Behind the first token of every text."""
    if token is None or not count:
        return made

    def widen(name: str, value: Tensor) -> Tensor:
        fill = token if name == "input_ids" else 1
        more = torch.full((len(value), count, *value.shape[2:]), fill, dtype=value.dtype)
        return torch.cat([value[:, :1], more, value[:, 1:]], 1)

    ids = made["input_ids"]
    made, length = {**made, "input_ids": torch.where(ids == token, ids + 1, ids)}, ids.size(1)
    return {
        name: widen(name, value) if value.dim() > 1 and value.size(1) == length and "decoder" not in name else value
        for name, value in made.items()
    }
