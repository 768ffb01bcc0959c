"""Variants of inputs: the examples of a batch with some patches, pixels, tokens or frames removed.

    erase_pixels(model, encoded, grid, keep, of, "mean", seed)      keep [n patch] or [n height width]
    replace_tokens(model, encoded, keep, of, "mask")                keep [n token]
    erase_frames(encoded, owners, keep, of, "mean")                 keep [n frame]

`of` [n] is the example that each row of `keep` is a variant of. Removed pixels are filled:

    zero    with 0 after normalisation
    black   with 0 before normalisation
    mean    with the mean colour of the image
    blur    with the blurred image (Gaussian, its standard deviation an eighth of the shorter side)
    noise   with normal noise that has the mean and standard deviation of the image, per channel

Removed tokens are replaced or deleted:

    mask, unknown   replaced by the tokenizer's token of that name
    pad             removed from the attention mask; replaced by the padding token if the model takes no mask. A text
                    loses its own padding first
    pad_token       replaced by the padding token, which is attended to like a word (as in AttCAT's released code)
    delete          deleted, and the remaining tokens move together

Of images between words, the pixels of a removed token are filled with 0 (default) or mean, and removed words replaced.

The entries of removed frames of a signal (a waveform, a spectrogram, a time series) are filled:

    zero    with 0
    mean    with the mean of the example, per channel, without its padding
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._model.encoded import EncodedBatch
from whyformer._model.model import Model
from whyformer._model.pictures import PIXELS, pick_pictures, place_plain_pixels
from whyformer._model.token_masks import read_token_mask, write_token_mask
from whyformer._model.two_streams import count_streams
from whyformer._model.unwrap import unwrap
from whyformer._plain.random_generator import make_generator
from whyformer._plain.tokens import Grid
from whyformer.errors import InputError, UnsupportedModel

IMAGE_FILLS = ("zero", "black", "mean", "blur", "noise")
TEXT_FILLS = ("mask", "unknown", "pad", "pad_token", "delete")
SIGNAL_FILLS = PICTURE_FILLS = ("zero", "mean")
FILLS = (*IMAGE_FILLS, *TEXT_FILLS, "drop")
SMALLEST = 1e-6  # in an image of which all is hidden: Idefics takes one of zeros for padding
SOUND_MARKS = ("audio_token_id", "audio_token_index")  # fields of configs


def send_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; for a GPU it is copied while the GPU works."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def pick_examples(encoded: EncodedBatch, of: Tensor) -> EncodedBatch:
    """The examples with these numbers, which may repeat."""
    rows = of.tolist()
    if encoded.pictures is not None and encoded.batch > 1:
        return take_out_example(encoded, rows)
    if encoded.pictures is not None:
        encoded = repeat_pictures(encoded, len(rows))

    def rows_of(tensor: Tensor) -> Tensor:
        axis = encoded.batch_axis if tensor.dim() == 3 else 0
        if tensor.dim() <= axis or tensor.size(axis) != encoded.batch:
            return tensor
        return tensor.index_select(axis, send_to_device(of, tensor.device))

    pick = lambda values: tuple(values[i] for i in rows) if values else values  # noqa: E731
    return replace(
        encoded,
        inputs={name: rows_of(tensor) for name, tensor in encoded.inputs.items()},
        batch=len(rows),
        names=pick(encoded.names),
        images=pick(encoded.images),
        token_mask=encoded.token_mask[of] if encoded.token_mask is not None else None,
        special_mask=encoded.special_mask[of] if encoded.special_mask is not None else None,
        texts=pick(encoded.texts),
        words=pick(encoded.words) if encoded.words is not None else None,
        spans=pick(encoded.spans) if encoded.spans is not None else None,
        seconds=pick(encoded.seconds),
        uncast=rows_of(encoded.uncast) if encoded.uncast is not None else None,
    )


# --- images between words ---------------------------------------------------------------------------------------------

# The one example, as often as there are rows: models take the images of all rows one after the other.


def take_out_example(encoded: EncodedBatch, rows: Sequence[int]) -> EncodedBatch:
    """One example of a batch with its own images."""
    (row,), pictures = rows, encoded.pictures
    assert pictures is not None
    inputs = pick_pictures(encoded.inputs, pictures, row)
    places = place_plain_pixels(inputs[pictures.medium])
    count = 1 if places is None else int(places.image.max()) + 1
    own = replace(pictures, count=count, find_places=lambda: places)
    without = replace(encoded, pictures=None, inputs={encoded.main: encoded.inputs[encoded.main]})
    return replace(pick_examples(without, torch.tensor([row])), pictures=own, inputs=inputs)


def repeat_pictures(encoded: EncodedBatch, rows: int) -> EncodedBatch:
    """The example with its images for so many rows; its texts are repeated by whoever picks the rows."""
    inputs = {
        name: given.repeat(rows, *[1] * (given.dim() - 1)) if encoded.is_picture(name) else given
        for name, given in encoded.inputs.items()
    }
    return replace(encoded, inputs=inputs)


def hide_image_tokens(encoded: EncodedBatch, pixels: Tensor, keep: Tensor, fill: str) -> EncodedBatch:
    """Variants of an example with the pixels of some image tokens filled, each with 0 or the mean of the images."""
    owners = encoded.pictures.owners if encoded.pictures is not None else None
    if owners is None:
        raise UnsupportedModel(
            "The tokens of the images are computed from whole images, so none of them can be hidden. Use fill='drop', "
            "by which no token attends to it, or a method without perturbations."
        )
    filling = torch.zeros_like(pixels) if fill == "zero" else mean_colour(pixels)
    kept = send_to_device(keep[:, owners.clamp(min=0)] | (owners < 0), pixels.device)
    made = torch.where(kept, pixels, filling)
    if pixels.dim() > 2:  # rows of packed patches are single tokens, and hidden as they are
        is_blank = (made == 0).flatten(2).all(-1) & ~(pixels == 0).flatten(1).all(-1)
        made[..., 0] += is_blank.view(*is_blank.shape, *[1] * (made.dim() - 3)) * SMALLEST
    made = made.flatten(0, 1)
    return replace(encoded, inputs={**encoded.inputs, PIXELS: made})


def mean_colour(pixels: Tensor) -> Tensor:
    """The mean of each channel; of packed patches, of each of their entries."""
    axes = (-2, -1) if pixels.dim() > 2 else (0,)
    return pixels.mean(axes, keepdim=True).expand_as(pixels)


# --- images -----------------------------------------------------------------------------------------------------------


def erase_pixels(
    model: Model,
    encoded: EncodedBatch,
    grid: Grid | None,
    keep: Tensor,
    of: Tensor,
    fill: str,
    seed: int,
    blank: Tensor | None = None,
) -> EncodedBatch:
    """Images with some patches or pixels filled. blank: the colour that the model makes 0, if it normalises itself."""
    pixels = encoded.inputs[encoded.main]
    if fill == "zero" and blank is not None:
        filling = blank.to(pixels)
    else:
        filling = FILL_MAKERS[fill](model, encoded, pixels, seed)  # one per image, or one number per channel
    at = send_to_device(of, pixels.device)
    kept = as_pixels(send_to_device(keep, pixels.device), grid, pixels.shape[-2:])[:, None]
    filling = filling[at] if len(filling) == len(pixels) else filling
    variants = torch.where(kept, pixels[at], filling)
    return replace_main(pick_examples(encoded, of), variants)


def replace_main(encoded: EncodedBatch, main: Tensor) -> EncodedBatch:
    """The batch with another explained input."""
    return replace(encoded, inputs={**encoded.inputs, encoded.main: main})


def as_pixels(keep: Tensor, grid: Grid | None, size: Sequence[int]) -> Tensor:
    """[n height width] from [n patch]; every patch is kept or removed as a whole."""
    if keep.dim() == 3:
        if tuple(keep.shape[1:]) != tuple(size):
            raise InputError(f"keep is a mask of {list(keep.shape[1:])} pixels, but the image has {list(size)}.")
        return keep
    if grid is None or keep.size(1) != len(grid):
        present = f"{grid.rows} x {grid.columns} patches" if grid is not None else "no known patches"
        raise InputError(f"keep is a mask of {keep.size(1)} patches, but the image has {present}.")
    patches = keep.reshape(-1, 1, grid.rows, grid.columns).to(torch.uint8)
    covers = grid.covers or tuple(size)
    pixels = F.interpolate(patches, size=covers, mode="nearest")[:, 0].bool()
    return F.pad(
        pixels, (0, size[1] - covers[1], 0, size[0] - covers[0]), value=True
    )  # pixels outside all patches stay


def normalise_black(model: Model) -> Tensor:
    """[1 channel 1 1]: black after the model's normalisation."""
    mean, spread = (getattr(model.processor, name, None) for name in ("image_mean", "image_std"))
    if mean is None or spread is None:
        raise InputError(
            f"The value of black is not known: {model.name} was opened without a processor that has image_mean and "
            'image_std. Use fill="zero" or "mean".'
        )
    return (-torch.tensor(mean, dtype=torch.float64) / torch.tensor(spread, dtype=torch.float64)).view(1, -1, 1, 1)


def blur_pixels(pixels: Tensor, width: float | None = None) -> Tensor:
    """Images blurred by a Gaussian of this standard deviation, in pixels; borders are mirrored."""
    shorter = min(pixels.shape[-2:])
    width = shorter / 8 if width is None else width
    reach = min(math.ceil(3 * width), shorter - 1)
    offsets = torch.arange(-reach, reach + 1, device=pixels.device, dtype=pixels.dtype)
    weights = torch.exp(-(offsets**2) / (2 * width**2))
    weights = (weights / weights.sum()).expand(pixels.size(1), 1, 1, -1)
    wide = F.pad(pixels, (reach, reach, reach, reach), mode="reflect")
    return F.conv2d(F.conv2d(wide, weights, groups=pixels.size(1)), weights.transpose(-1, -2), groups=pixels.size(1))


def make_noise_fill(_: Model, encoded: EncodedBatch, pixels: Tensor, seed: int) -> Tensor:
    generators = (make_generator(seed, fingerprint) for fingerprint in encoded.fingerprints())
    noise = [torch.randn(pixels.shape[1:], dtype=torch.float64, generator=one) for one in generators]
    return pixels.mean((-2, -1), keepdim=True) + torch.stack(noise).to(pixels) * pixels.std((-2, -1), keepdim=True)


FILL_MAKERS: dict[str, Callable[[Model, EncodedBatch, Tensor, int], Tensor]] = {
    "zero": lambda model, *_: torch.zeros((1, 1, 1, 1), device=model.device, dtype=model.dtype),
    "black": lambda model, _, pixels, __: normalise_black(model).to(pixels),
    "mean": lambda _, __, pixels, ___: pixels.mean((-2, -1), keepdim=True),
    "blur": lambda _, __, pixels, ___: blur_pixels(pixels),
    "noise": make_noise_fill,
}


# --- signals ----------------------------------------------------------------------------------------------------------


def erase_frames(encoded: EncodedBatch, owners: Tensor, keep: Tensor, of: Tensor, fill: str) -> EncodedBatch:
    """Signals with the entries of some frames filled; entries that belong to no frame stay."""
    signal = encoded.inputs[encoded.main]
    real = torch.ones_like(signal)
    if encoded.token_mask is not None and encoded.token_mask.size(1) == signal.size(1):
        real = encoded.token_mask.to(real).view(*encoded.token_mask.shape, *[1] * (signal.dim() - 2)).expand_as(real)
    real = real.where(~signal.isnan(), 0)
    filling = (signal.nan_to_num() * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
    filling = filling if fill == "mean" else torch.zeros_like(filling)
    kept = send_to_device(keep[:, owners.clamp(min=0)] | (owners < 0), signal.device)
    at = send_to_device(of, signal.device)
    return replace_main(pick_examples(encoded, of), torch.where(kept, signal[at], filling[at]))


# --- texts ------------------------------------------------------------------------------------------------------------


def replace_tokens(model: Model, encoded: EncodedBatch, keep: Tensor, of: Tensor, fill: str) -> EncodedBatch:
    """Texts with some tokens replaced, masked or deleted; `keep` must be True at padding and special tokens."""
    chosen = pick_examples(encoded, of)
    keep = send_to_device(keep, model.device)
    if fill == "delete":
        return delete_tokens(model, chosen, keep)
    if fill == "pad" and takes_mask(model, chosen):
        return mask_tokens(model, *trim_padding(model, chosen, keep))
    ids = chosen.inputs[chosen.main]
    if ids.is_floating_point():
        raise InputError(
            f'This input has no token ids for fill={fill!r} to replace. Use fill="pad" or "delete", or a method '
            "without perturbations."
        )
    return replace_main(chosen, torch.where(keep, ids, find_fill_token(model, fill)))


def find_fill_token(model: Model, fill: str) -> int:
    """The id of the token that replaces removed tokens."""
    if fill in ("pad", "pad_token"):
        return model.padding
    name = {"mask": "mask_token_id", "unknown": "unk_token_id"}[fill]
    token = getattr(model.tokenizer, name, None)
    if token is None:
        raise InputError(f'{model.name} has no token for fill={fill!r}. Use fill="pad" or "delete".')
    return int(token)


def takes_mask(model: Model, encoded: EncodedBatch) -> bool:
    """Whether tokens can be hidden by a mask."""
    return encoded.mask_name is not None or model.takes_attention_mask


def trim_padding(model: Model, chosen: EncodedBatch, keep: Tensor) -> tuple[EncodedBatch, Tensor]:
    """The texts and `keep` without the padding that all of them have in common."""
    if chosen.token_mask is None or bool(chosen.token_mask.all()) or count_streams(chosen):
        return chosen, keep
    real = chosen.token_mask.to(keep.device)
    order = torch.argsort((~real).to(torch.int8), dim=-1, stable=True)[:, : int(real.sum(-1).max())]
    return delete_tokens(model, chosen, torch.ones_like(keep)), keep.gather(1, order)


def can_cut_padding(encoded: EncodedBatch) -> bool:
    """Whether texts are padded on the right, behind an attention mask, and all inputs have one entry per token."""
    mask, given = encoded.token_mask, encoded.inputs.get("attention_mask")
    if mask is None or given is None or given.shape != mask.shape or bool(mask.all()):
        return False
    is_on_the_right = bool((mask[:, 1:] <= mask[:, :-1]).all()) and torch.equal(given.cpu().bool(), mask)
    return is_on_the_right and all(tensor.shape == mask.shape for tensor in encoded.inputs.values())


def cut_tokens(encoded: EncodedBatch, kept: slice, whole: Sequence[str] = ()) -> EncodedBatch:
    """These tokens of every text; inputs that stay `whole` keep all of them."""
    token_mask, special_mask = (
        None if mask is None else mask[:, kept] for mask in (encoded.token_mask, encoded.special_mask)
    )
    inputs = {name: given if name in whole else given[:, kept] for name, given in encoded.inputs.items()}
    return replace(forget_texts(encoded), inputs=inputs, token_mask=token_mask, special_mask=special_mask)


def forget_texts(encoded: EncodedBatch) -> EncodedBatch:
    """The batch without what describes tokens that are no longer those of its texts."""
    return replace(encoded, words=None, spans=None, texts=())


def mask_tokens(model: Model, chosen: EncodedBatch, keep: Tensor) -> EncodedBatch:
    """Remove tokens from the attention mask and put padding in their place.

    If no token of a text is left, all of it becomes padding that is attended to, since no model takes an empty input.
    """
    main, name = chosen.inputs[chosen.main], chosen.mask_name or "attention_mask"
    if name not in chosen.inputs and chosen.batch_axis:
        raise InputError('Tokens of a [token batch channel] input cannot be masked. Use fill="delete".')
    like = chosen.inputs.get(name, torch.ones_like(keep, dtype=torch.long))
    real = read_token_mask(name, like, is_inverted=chosen.inverts_mask).to(keep.device)
    left = real & keep
    is_empty = ~left.any(-1, keepdim=True)
    mask = torch.where(is_empty, real, left)
    if main.is_floating_point():
        main = torch.where((keep | ~real)[..., None], main, 0)
    elif not model.counts_positions or bool(is_empty.any()):  # a model that counts tokens would skip the padding token
        removed = ~keep & real & ~find_sounds(model, main) & (is_empty if model.counts_positions else True)
        main = torch.where(removed, model.padding, main)
    inputs = {
        **chosen.inputs,
        chosen.main: main,
        name: write_token_mask(name, like, mask, is_inverted=chosen.inverts_mask),
    }
    return replace(chosen, inputs=inputs, token_mask=mask.cpu())


def find_sounds(model: Model, ids: Tensor) -> Tensor:
    """True where the state of a token is that of a piece of sound, which only the mask hides: the model counts them."""
    config = getattr(unwrap(model.module), "config", None)
    marks = [getattr(config, name, None) for name in SOUND_MARKS]
    return torch.isin(ids, ids.new_tensor([mark for mark in marks if isinstance(mark, int)]))


def delete_tokens(model: Model, chosen: EncodedBatch, keep: Tensor) -> EncodedBatch:
    """The kept tokens, moved together and padded on the right to the longest text."""
    real = keep if chosen.token_mask is None else keep & chosen.token_mask.to(keep.device)
    lengths = real.sum(-1)
    length = int(lengths.max())
    order = torch.argsort((~real).to(torch.int8), dim=-1, stable=True)[:, :length]
    mask = torch.arange(length, device=keep.device) < lengths[:, None]
    inputs = {name: compact_input(name, tensor, order, mask, model, chosen) for name, tensor in chosen.inputs.items()}
    if not bool(mask.all()):
        if not takes_mask(model, chosen):
            raise InputError(
                "Texts of different lengths need an attention mask, which this model does not take. Pass one text."
            )
        inputs.setdefault(chosen.mask_name or "attention_mask", mask.long())
    at = order.cpu()
    special = chosen.special_mask.gather(1, at) & mask.cpu() if chosen.special_mask is not None else None
    origin = torch.where(mask.cpu(), at, -1)
    bare = forget_texts(chosen)
    return replace(bare, inputs=inputs, token_mask=mask.cpu(), special_mask=special, seconds=(), origin=origin)


def compact_input(name: str, tensor: Tensor, order: Tensor, mask: Tensor, model: Model, chosen: EncodedBatch) -> Tensor:
    """One input of the model after tokens were deleted."""
    axis = chosen.batch_axis if tensor.dim() == 3 else 0
    main = chosen.inputs[chosen.main]
    length = main.size(1 - (chosen.batch_axis if main.dim() == 3 else 0))
    if name == chosen.mask_name:
        return write_token_mask(name, tensor, mask, is_inverted=chosen.inverts_mask)
    if tensor.dim() < 2 or tensor.size(axis) != chosen.batch:
        return compact_shared(name, tensor, order, length)
    if name == "position_ids":  # those of the first tokens, whatever number the model starts from
        real = mask.new_ones(tensor.shape) if chosen.token_mask is None else chosen.token_mask.to(mask.device)
        first = torch.argsort((~real).to(torch.int8), dim=-1, stable=True)[:, : mask.size(1)]
        return torch.where(mask, tensor.gather(1, first), 0)
    fill = model.padding if name == chosen.main and not tensor.is_floating_point() else 0
    moved = tensor.movedim(axis, 0)
    own = (1,) if name == chosen.main else [at for at in range(1, tensor.dim()) if moved.size(at) == length]
    for at in own:  # two for relations between tokens; none for the sizes of images, a spectrogram
        axes = [order.size(1) if a == at else 1 for a in range(1, tensor.dim())]
        index, keeps = (of.view(len(of), *axes) for of in (order, mask))
        shape = [*moved.shape[:at], order.size(1), *moved.shape[at + 1 :]]
        moved = torch.where(keeps, moved.gather(at, index.expand(shape)), fill)
    return moved.movedim(0, axis)


def compact_shared(name: str, tensor: Tensor, order: Tensor, length: int) -> Tensor:
    """An input that all examples share, after tokens were deleted: a causal mask, whatever is deleted, stays one."""
    if tensor.dim() < 2 or tuple(tensor.shape[-2:]) != (length, length):
        return tensor
    left = tensor[..., order[:, :, None], order[:, None, :]]
    if not bool((left == left[..., :1, :, :]).all()):
        raise InputError(
            f"{name!r} has one matrix [{length}, {length}] of tokens for all examples, so tokens cannot be deleted one "
            'by one. Give each example its own, or use fill="mean" or another that replaces tokens.'
        )
    return left[..., 0, :, :]
