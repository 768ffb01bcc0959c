"""Evidence without a place: the colour or the sharpness of an image, the length or the punctuation of a text.

The kinds of images are their colour, colour cast, sharpness, tone, texture (noise, compression), lines (grids, bands),
falloff towards the edge, and a faint drawing that the images of a class have in common.

Each kind is two functions on whole items. One measures traits, which are numbers; a trait sets a class apart if, beyond
some threshold, there are many of its items and few others (the largest such difference of shares is Youden's J, 1950).
The other *transfers* the kind from a donor to an item, leaving the rest as it is: an image gets the mean colour of the
donor, its colour cast, or its contrast at fine scales; a text is cut or continued with its own words to the length of
the donor, or gets its punctuation.

**Undoing** gives items of the class the kind of an item of another class; the control, that of another item of the
class. **Applying** gives items of other classes the kind of an item of the class; the control, that of another item
like themselves. So effect and control are the same change of an item, by donors of different classes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np
import torch
from scipy.fft import dctn, idctn
from scipy.ndimage import gaussian_filter, uniform_filter
from torch import Tensor

from whyformer._plain.statistics import bootstrap
from whyformer._runs.parts import BulkRow
from whyformer._summary.finding import AnswerChange, Finding, Presence, Sighting, Uniformity, measure_effect
from whyformer._summary.inputs import BATCH, InputReader, compare_right, to_array
from whyformer._summary.text_evidence import PUNCTUATION, UNIT

SET_APART = 0.6  # the difference of shares from which on a trait is tested, and accuses if it is used
MEASURED = 200  # items of a class
SCALES = (1.0, 2.0)  # standard deviations in pixels: contrast below the first, and between the two
MOST_CONTRAST = 4.0  # times that of the item
BLOCK = 8  # pixels
DETAIL, LEAST_Z, MIN_DRAWN = 8, 4.0, 8  # part of an image; standard errors; images of each half of a class
MOST_GAIN = 1.4  # of a channel, as a logarithm
FREQUENT = 0.1  # of all texts have a punctuation mark, to be measured
Item = TypeVar("Item", Tensor, str)


@dataclass(frozen=True)
class GlobalKind(Generic[Item]):
    """A property of whole items."""

    name: str
    measure: Callable[[Sequence[Item]], dict[str, np.ndarray]]  # [item] by traits: "above or below"
    transfer: Callable[[Item, Item], Item]  # of the second item, to the first


# --- images -----------------------------------------------------------------------------------------------------------


Traits = dict[str, np.ndarray]


def measure_colour(images: Sequence[Tensor]) -> Traits:
    red, green, blue = np.array([to_array(image).mean((1, 2)) for image in images]).T
    return {
        "more or less red": red - (green + blue) / 2, "more or less green": green - (red + blue) / 2,
        "more or less blue": blue - (red + green) / 2,
    }  # fmt: skip


def transfer_colour(image: Tensor, donor: Tensor) -> Tensor:
    return image + (donor.mean((1, 2)) - image.mean((1, 2)))[:, None, None]


def measure_contrast(image: Tensor) -> Tensor:
    """[channel]: the mean difference of neighbouring pixels."""
    return image.diff(dim=1).abs().mean((1, 2)) + image.diff(dim=2).abs().mean((1, 2)) + 1e-6


def measure_cast(images: Sequence[Tensor]) -> Traits:
    """Edges are grey on average, whatever they part (van de Weijer et al. 2007); a cast tints them."""
    logs = np.array([to_array(measure_contrast(image).log()) for image in images]).T
    return {
        f"more or less {name}": own - np.delete(logs, i, 0).mean(0)
        for i, (name, own) in enumerate(zip(("red", "green", "blue"), logs, strict=True))
    }


def transfer_cast(image: Tensor, donor: Tensor) -> Tensor:
    """Each channel is stretched from its darkest value, by the donor's contrast in it; the whole keeps its contrast."""
    wanted = measure_contrast(donor).log() - measure_contrast(image).log()
    gains = (wanted - wanted.mean()).clamp(-MOST_GAIN, MOST_GAIN).exp()[:, None, None]
    darkest = torch.minimum(image.amin((1, 2)), donor.amin((1, 2)))[:, None, None]
    return darkest + gains * (image - darkest)


def split_tone(image: Tensor) -> tuple[Tensor, Tensor]:
    """The grey image, and the colours beside it."""
    grey = image.mean(0, keepdim=True)
    return grey, image - grey


def measure_tone(images: Sequence[Tensor]) -> Traits:
    parts = [split_tone(image) for image in images]
    contrast, colour = (np.log([float(pair[k].std()) + 1e-3 for pair in parts]) for k in (0, 1))
    return {"more or less contrasted": contrast, "more or less colourful": colour}


def transfer_tone(image: Tensor, donor: Tensor) -> Tensor:
    """The contrast of the grey image and the strength of the colours."""
    (grey, colours), (other, vivid) = split_tone(image), split_tone(donor)
    pairs = (grey, other), (colours, vivid)
    factors = [(of.std() / own.std().clamp(min=1e-3)).clamp(max=MOST_CONTRAST) for own, of in pairs]
    return other.mean() + factors[0] * (grey - grey.mean()) + factors[1] * colours


def take_frequencies(image: Tensor) -> np.ndarray:
    """[channel row column 8 8]: the cosine transform of each block of 8 x 8 pixels, as JPEG codes them."""
    height, width = (size // BLOCK * BLOCK for size in image.shape[-2:])
    blocks = to_array(image[:, :height, :width]).reshape(len(image), height // BLOCK, BLOCK, width // BLOCK, BLOCK)
    return np.asarray(dctn(blocks.transpose(0, 1, 3, 2, 4), axes=(3, 4), norm="ortho"))


def measure_texture(images: Sequence[Tensor]) -> Traits:
    """How much of three bands of frequencies there is on average, and in the blocks with least of them."""
    order = np.add.outer(np.arange(BLOCK), np.arange(BLOCK))
    found: dict[str, list[float]] = {}
    for image in images:
        sizes = np.abs(take_frequencies(image))
        for name, band in (("coarse", (1, 3)), ("middle", (4, 7)), ("fine", (8, 14))):
            inside = sizes[..., (order >= band[0]) & (order <= band[1])]
            for kind, value in (("texture", inside.mean()), ("texture in flat parts", np.quantile(inside, 0.25))):
                found.setdefault(f"more or less {name} {kind}", []).append(float(np.log(value + 1e-4)))
    return {name: np.array(values) for name, values in found.items()}


def transfer_texture(image: Tensor, donor: Tensor) -> Tensor:
    """The frequencies of all blocks get the sizes of the donor's, rank by rank; their places and signs stay."""
    own, other = take_frequencies(image), take_frequencies(donor)
    flat, given = (one.transpose(0, 3, 4, 1, 2).reshape(len(image), BLOCK * BLOCK, -1) for one in (own, other))
    ranks = np.abs(flat + 1e-9 * np.random.default_rng(0).standard_normal(flat.shape)).argsort(-1).argsort(-1)
    sizes = np.take_along_axis(np.sort(np.abs(given), -1), ranks * given.shape[-1] // flat.shape[-1], -1)
    signs = np.where(flat == 0, np.random.default_rng(1).choice([-1.0, 1.0], flat.shape), np.sign(flat))
    changed = signs * sizes
    changed[:, 0] = flat[:, 0]  # the mean of each block
    changed = changed.reshape(len(image), BLOCK, BLOCK, *own.shape[1:3]).transpose(0, 3, 4, 1, 2)
    blocks = idctn(changed, axes=(3, 4), norm="ortho").transpose(0, 1, 3, 2, 4)
    made = image.clone()
    height, width = own.shape[1] * BLOCK, own.shape[2] * BLOCK
    made[:, :height, :width] = torch.from_numpy(blocks.reshape(len(image), height, width)).to(image)
    return made


def take_lines(image: Tensor) -> tuple[Tensor, Tensor]:
    """What whole rows and whole columns have in common, beside their neighbours: lines, grids, bands at the edge."""
    found = []
    for axis in (2, 1):
        profile = image.mean(axis, keepdim=True)
        smooth = torch.from_numpy(gaussian_filter(to_array(profile), (0, *((3.0, 0) if axis == 2 else (0, 3.0)))))
        found.append(profile - smooth.to(profile))
    return found[0], found[1]


def measure_lines(images: Sequence[Tensor]) -> Traits:
    strengths = [float(sum(part.square().mean() for part in take_lines(image))) for image in images]
    return {"more or less lined": np.log(np.array(strengths) + 1e-6)}


def transfer_lines(image: Tensor, donor: Tensor) -> Tensor:
    return image - sum(take_lines(image)) + sum(take_lines(donor))


def measure_falloff(images: Sequence[Tensor]) -> Traits:
    return {"darker or lighter towards the edge": np.array([-weigh_rim(image) for image in images])}


def weigh_rim(image: Tensor) -> float:
    """How much lighter the image is towards its edge: the slope on the squared distance to the middle."""
    rim = draw_rim(image)
    return float((image.mean(0) * rim).sum() / rim.square().sum())


def draw_rim(image: Tensor) -> Tensor:
    down, across = (torch.linspace(-1, 1, size).square() for size in image.shape[-2:])
    rim = (down[:, None] + across[None]).to(image)
    return rim - rim.mean()


def transfer_falloff(image: Tensor, donor: Tensor) -> Tensor:
    return image + (weigh_rim(donor) - weigh_rim(image)) * draw_rim(image)


def split_scales(image: Tensor) -> list[np.ndarray]:
    """The image as a sum: from the finest contrast to what is left without any."""
    levels = [to_array(image)]
    levels += [gaussian_filter(levels[0], (0, scale, scale)) for scale in SCALES]
    return [fine - coarse for fine, coarse in pairwise(levels)] + [levels[-1]]


def measure_sharpness(images: Sequence[Tensor]) -> Traits:
    return {"sharper or blurrier": np.log([split_scales(image)[0].std() + 1e-6 for image in images])}


def transfer_sharpness(image: Tensor, donor: Tensor) -> Tensor:
    *bands, rest = split_scales(image)
    factors = [
        min(of.std() / max(own.std(), 1e-6), MOST_CONTRAST) for own, of in zip(bands, split_scales(donor), strict=False)
    ]
    return torch.from_numpy(rest + sum(factor * own for factor, own in zip(factors, bands, strict=True))).to(image)


# --- texts ------------------------------------------------------------------------------------------------------------


def measure_length(texts: Sequence[str]) -> dict[str, np.ndarray]:
    return {"longer or shorter": np.array([len(UNIT.findall(text)) for text in texts], dtype=np.float64)}


def transfer_length(text: str, donor: str) -> str:
    """Cut at the end, or continued with its own words from the start."""
    words, count = text.split(), len(donor.split())
    return " ".join((words * (count // max(len(words), 1) + 1))[:count])


def measure_punctuation(texts: Sequence[str]) -> dict[str, np.ndarray]:
    used = [set(PUNCTUATION.findall(text)) for text in texts]
    marks = sorted(set().union(*used))
    counts = {
        f"with or without '{mark}'": np.array([mark in some for some in used], dtype=np.float64) for mark in marks
    }
    return {name: values for name, values in counts.items() if values.mean() >= FREQUENT}


def transfer_punctuation(text: str, donor: str) -> str:
    """Each mark becomes that at the same place in the order of the donor; the last ones become the donor's last."""
    marks = PUNCTUATION.findall(donor) or [""]
    count = iter(range(len(text)))
    last = len(PUNCTUATION.findall(text)) - 1
    return PUNCTUATION.sub(lambda _: marks[-1] if (i := next(count)) >= last else marks[min(i, len(marks) - 1)], text)


IMAGE_KINDS = (
    GlobalKind("colour", measure_colour, transfer_colour),
    GlobalKind("colour cast", measure_cast, transfer_cast),
    GlobalKind("sharpness", measure_sharpness, transfer_sharpness),
    GlobalKind("tone", measure_tone, transfer_tone),
    GlobalKind("texture", measure_texture, transfer_texture),
    GlobalKind("lines", measure_lines, transfer_lines),
    GlobalKind("falloff", measure_falloff, transfer_falloff),
)
TEXT_KINDS = (
    GlobalKind("length", measure_length, transfer_length),
    GlobalKind("punctuation", measure_punctuation, transfer_punctuation),
)


def find_drawing(images: Sequence[Tensor], is_own: np.ndarray) -> GlobalKind[Tensor] | None:
    """What the fine details of a class have in common beside all others, such as a transparent watermark.

    Details average to nothing where images differ, and to the drawing where they share one. Each image is measured (a
    matched filter, Turin 1960) with the drawing of the other half of the class, so that none finds itself in it.
    """
    details = np.stack([take_details(image) for image in images])
    own = np.flatnonzero(is_own)
    strengths = np.zeros(len(images))
    drawings = [draw_difference(details[some], details[~is_own]) for some in (own[::2], own[1::2], own)]
    if len(own) < 2 * MIN_DRAWN or not all(one.any() for one in drawings):
        return None
    for one, measured in zip(drawings, (own[1::2], own[::2]), strict=False):
        strengths[measured] = measure_strengths(details[measured], one)
    strengths[~is_own] = np.mean([measure_strengths(details[~is_own], one) for one in drawings[:2]], axis=0)
    whole = torch.from_numpy(drawings[2]).to(images[0])

    def weigh(image: Tensor) -> float:
        return float(measure_strengths(take_details(image)[None], drawings[2])[0])

    return GlobalKind(
        "faint common drawing", lambda _: {"more or less of it": strengths},
        lambda image, donor: image + (weigh(donor) - weigh(image)) * whole,
    )  # fmt: skip


def take_details(image: Tensor) -> np.ndarray:
    """The image minus its local means."""
    side = max(3, image.shape[-1] // DETAIL)
    pixels = to_array(image)
    return np.asarray(pixels - uniform_filter(pixels, (0, side, side), mode="nearest"))


def draw_difference(own: np.ndarray, others: np.ndarray) -> np.ndarray:
    """[channel height width]: the difference of the means, zero where it is not significant."""
    difference = own.mean(0) - others.mean(0)
    noise = own.var(0) / max(len(own), 1) + others.var(0) / max(len(others), 1) + 1e-6
    return np.asarray(difference * (np.sqrt((np.square(difference) / noise).mean(0)) > LEAST_Z))


def measure_strengths(details: np.ndarray, drawing: np.ndarray) -> np.ndarray:
    """[image]: how many times each has the drawing."""
    return np.asarray((details * drawing).sum((1, 2, 3)) / np.square(drawing).sum())


# --- which set a class apart ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Trait:
    """The trait of a kind that sets a class apart most."""

    name: str  # "more red", "shorter"
    apart: float  # the difference of shares
    shown: np.ndarray  # [item] of bool


def find_trait(traits: Mapping[str, np.ndarray], is_own: np.ndarray) -> Trait:
    found = Trait("", 0.0, np.zeros(len(is_own), dtype=bool))
    for name, values in traits.items():
        above, below = name.split(" or ")
        rest = below.partition(" ")[2]
        for word, signed in ((above, values), (below, -values)):
            threshold, apart = split_classes(signed, is_own)
            if apart > found.apart:
                found = Trait(word if word.endswith(rest) else f"{word} {rest}", apart, signed >= threshold)
    return found


def split_classes(values: np.ndarray, is_own: np.ndarray) -> tuple[float, float]:
    """The threshold that most items of the class and fewest others reach, and the difference of their shares."""
    levels = np.unique(values)
    own, others = (np.sort(values[some]) for some in (is_own, ~is_own))
    shares = [1 - np.searchsorted(some, levels) / max(len(some), 1) for some in (own, others)]
    best = int(np.argmax(np.round(shares[0] - shares[1], 9)))
    return float(levels[best]), float(shares[0][best] - shares[1][best])


def find_global_changes(
    classes: Mapping[str, Sequence[BulkRow]], reader: InputReader, tested: int, seed: int
) -> Iterator[Finding]:
    """A finding for each class and kind that sets the class apart; none with a single class."""
    rows, texts, pixels = read_whole_items(classes, reader)
    if texts and len(classes) > 1:
        yield from find_changes_of_kinds(TEXT_KINDS, rows, texts, reader, tested, seed)
    elif pixels and len(classes) > 1:
        yield from find_changes_of_kinds(IMAGE_KINDS, rows, pixels, reader, tested, seed)


def find_changes_of_kinds(
    kinds: Sequence[GlobalKind[Item]], rows: Sequence[BulkRow], items: Sequence[Item], reader: InputReader, tested: int,
    seed: int,
) -> Iterator[Finding]:  # fmt: skip
    names = np.array([row.class_name for row in rows])
    measured = [(kind, kind.measure(items)) for kind in kinds]
    for name in dict.fromkeys(names.tolist()):
        own = list(measured)
        if isinstance(items[0], Tensor) and (drawing := find_drawing(items, names == name)) is not None:
            own.append((drawing, drawing.measure(items)))
        for kind, traits in own:
            trait = find_trait(traits, names == name)
            if trait.apart >= SET_APART:
                yield try_change(kind, trait, rows, items, name, reader, tested, seed)


def read_whole_items(
    classes: Mapping[str, Sequence[BulkRow]], reader: InputReader
) -> tuple[list[BulkRow], list[str], list[Tensor]]:
    """Some items of each class: texts, or pixels of three channels as the model gets them."""
    rows: list[BulkRow] = []
    texts: list[str] = []
    pixels: list[Tensor] = []
    for some in classes.values():
        kept, inputs = reader.load(some, MEASURED)
        rows += kept
        texts += [one for one in inputs if isinstance(one, str)]
        for start in range(0, 0 if texts else len(inputs), BATCH):
            encoded = reader.model.encode(inputs[start : start + BATCH])
            pixels += encoded.inputs[encoded.main].detach().cpu()
    shapes = {tuple(one.shape) for one in pixels}
    is_colour = len(shapes) == 1 and [len(one) for one in shapes] == [3] and pixels[0].size(0) == 3
    return rows, texts if len(texts) == len(rows) else [], pixels if is_colour and len(pixels) == len(rows) else []


# --- tests ------------------------------------------------------------------------------------------------------------


def try_change(
    kind: GlobalKind[Item], trait: Trait, rows: Sequence[BulkRow], items: Sequence[Item], name: str,
    reader: InputReader, tested: int, seed: int,
) -> Finding:  # fmt: skip
    """Undo the change in items of the class that show it, and apply it to items of other classes that do not."""
    classes = np.array([row.class_name for row in rows])
    is_own = classes == name
    with_it, without = (np.flatnonzero(some) for some in (is_own & trait.shown, ~is_own & ~trait.shown))
    target = rows[int(with_it[0])].target
    assert target is not None

    def change(who: np.ndarray, donors: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
        """The answers when each item gets the kind of a donor, but not of itself."""
        drawn = [donors[(i + shift) % len(donors)] for i in range(len(who))]
        made = [kind.transfer(items[i], items[donor]) for i, donor in zip(who, drawn, strict=True)]
        return reader.ask(made, target)

    own, others = with_it[:tested], without[np.random.default_rng(seed).permutation(len(without))][:tested]
    before, into = (reader.ask([items[i] for i in some], target)[0] for some in (own, others))
    (undone, predicted), (same, _) = change(own, others, 0), change(own, with_it, 1)
    (applied, _), (alike, _) = change(others, with_it, 0), change(others, others, 1)
    right = compare_right([rows[i] for i in own], predicted, reader)
    share, low, high = bootstrap(trait.shown[is_own].astype(np.float64), seed)
    elsewhere = float(trait.shown[~is_own].mean())
    counts = [
        Presence(str(one), int((classes == one).sum()), int(trait.shown[classes == one].sum()))
        for one in np.unique(classes)
    ]
    return Finding(
        name, target, "whole", f"their {kind.name} ({trait.name})", int(is_own.sum()),
        tuple(Sighting(rows[i]) for i in with_it.tolist()),
        tuple(sorted(counts, key=lambda one: (one.class_name != name, -one.share, one.class_name))),
        uniformity=Uniformity(share - elsewhere, low - elsewhere, high - elsewhere, SET_APART),
        hiding=measure_effect(before - undone, before - same, seed),
        inserting=measure_effect(applied - into, alike - into, seed),
        without=AnswerChange(len(own), float(before.mean()), float(undone.mean()), *right),
        put_in=AnswerChange(len(others), float(into.mean()), float(applied.mean())),
    )  # fmt: skip
