r"""Does what a cluster looks at change the answer? Images: the region is hidden, and pasted into other images.

*Hiding* fills the region with the mean colour of the image; the effect is how far the probability of the class falls,
beside filling a region of the same shape elsewhere in the same image. *Pasting* puts the pixels of the region into an
image of another class, at the same place; the effect is how far the probability of the cluster's class rises, beside
pasting a region of the same shape from elsewhere. Lapuschkin et al. 2019 (arXiv:1902.10178) pasted the source tag of
horse images onto a car. Both are paired: item by item, the same donor and the same recipient.

*Sameness* asks whether the region shows the same thing in all items of the cluster: the variance of its pixels between
the items, v, and the variance v' between the other items of the class (of other classes, if the class has too few),
at the same place,

$$ s = 1 - v / v' $$

with a permutation test over which items form the cluster. A stamp has s near 1. An object that happens to be at this
place differs between images as much as anything else does there, and has s near 0.
"""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.ndimage import label
from torch import Tensor
from torch.nn import functional

from whyformer._model import Model
from whyformer._runs.parts import BulkRow
from whyformer._summary.clusters import Cluster
from whyformer._summary.effect import Effect, measure_effect
from whyformer._summary.inputs import InputReader, make_probe, to_array
from whyformer._summary.sample import draw_number

DRAWS = 2  # other places per item
COMPARED = 64  # items on each side for sameness
MIN_OUTSIDERS = 8
SHUFFLES = 9_999
STAMP_RATIO = 0.5  # of variances
FILL = "mean"


def hide_region(cluster: Cluster, reader: InputReader, tested: int, seed: int) -> Effect | None:
    """The fall of the probability when the region is hidden; None without readable images."""
    assert cluster.region is not None
    rows, images = reader.load(cluster.drawn_rows, tested)
    if not rows:
        return None
    probe = make_probe(reader.model, images, [row.target for row in rows])
    height, width = probe.encoded.inputs[probe.encoded.main].shape[-2:]
    hidden, of = [], []
    for i, row in enumerate(rows):
        for region in (cluster.region, *draw_other_places(cluster.region, seed, row.id)):
            hidden.append(enlarge_region(region, height, width))
            of.append(i)
    before = to_array(probe.before.probability)
    after = to_array(probe.keep_only(~torch.stack(hidden), torch.tensor(of), FILL).probability)
    falls = before[:, None] - after.reshape(len(rows), 1 + DRAWS)
    return measure_effect(falls[:, 0], falls[:, 1:].mean(1), seed)


def paste_region(
    cluster: Cluster, others: Sequence[BulkRow], reader: InputReader, tested: int, seed: int
) -> Effect | None:
    """The rise of the class's probability in images of other classes into which the region is pasted."""
    assert cluster.region is not None
    donors, images = reader.load(cluster.drawn_rows, tested)
    recipients, backgrounds = reader.load(choose_recipients(cluster, others), len(donors))
    if not recipients:
        return None
    pixels = encode_pixels(reader.model, images[: len(recipients)])
    probe = make_probe(reader.model, backgrounds, cluster.sampled.target)
    below = probe.encoded.inputs[probe.encoded.main]
    variants, of = [], []
    for i, row in enumerate(donors[: len(recipients)]):
        for region in (cluster.region, *draw_other_places(cluster.region, seed, row.id)):
            pasted = enlarge_region(region, *below.shape[-2:]).to(below.device)
            variants.append(torch.where(pasted, pixels[i], below[i]))
            of.append(i)
    before = to_array(probe.before.probability)
    after = to_array(probe.replace_inputs(torch.stack(variants), torch.tensor(of)).probability)
    rises = after.reshape(len(recipients), 1 + DRAWS) - before[:, None]
    return measure_effect(rises[:, 0], rises[:, 1:].mean(1), seed)


def choose_recipients(cluster: Cluster, others: Sequence[BulkRow]) -> list[BulkRow]:
    """Items that are explained for another class, and predicted as another class."""
    own = cluster.sampled.target
    return [row for row in others if row.target != own and row.prediction != own]


# --- regions ----------------------------------------------------------------------------------------------------------


def draw_other_places(region: np.ndarray, seed: int, name: str) -> list[np.ndarray]:
    """The region moved to other places of the grid, with as little overlap as possible."""
    rows, columns = region.shape
    moved = [np.roll(region, (down, across), (0, 1)) for down in range(rows) for across in range(columns)]
    overlap = np.array([(one & region).sum() for one in moved])
    candidates = np.flatnonzero(overlap == overlap.min())
    rng = np.random.default_rng(draw_number(seed, name))
    return [moved[i] for i in rng.choice(candidates, DRAWS, replace=len(candidates) < DRAWS)]


def enlarge_region(region: np.ndarray, height: int, width: int) -> Tensor:
    """[height width] of bool: the pixels of the region."""
    patches = torch.from_numpy(region.astype(np.uint8))[None, None]
    return functional.interpolate(patches, size=(height, width), mode="nearest")[0, 0].bool()


def encode_pixels(model: Model, images: Sequence[object]) -> Tensor:
    encoded = model.encode(list(images))
    return encoded.inputs[encoded.main]


# --- sameness ---------------------------------------------------------------------------------------------------------


def measure_sameness(
    cluster: Cluster, others: Sequence[BulkRow], reader: InputReader, seed: int
) -> tuple[float, float, bool] | None:
    """How much less the region varies in the cluster than outside it, the p-value, and whether outside is the class."""
    inside = read_region(cluster, cluster.drawn_rows, reader)
    in_class = len(cluster.outsiders) >= MIN_OUTSIDERS
    outside = read_region(cluster, cluster.outsiders if in_class else choose_recipients(cluster, others), reader)
    if len(inside) < 2 or len(outside) < MIN_OUTSIDERS:
        return None
    sameness, p = compare_variances(inside, outside, seed)
    return sameness, p, in_class


def find_alike(pixels: np.ndarray) -> np.ndarray:
    """[item] of bool: which items show what most of the others show, by the modified z-score of their distance.

    The distance is that to the median of all items, pixel by pixel; an item is unlike the others above 3.5 (Iglewicz &
    Hoaglin 1993).
    """
    distances = np.square(pixels - np.median(pixels, axis=0)).mean(1)
    deviations = distances - np.median(distances)
    spread = float(np.median(abs(deviations)))
    return 0.6745 * deviations <= 3.5 * spread + 1e-9


def read_region(cluster: Cluster, rows: Sequence[BulkRow], reader: InputReader, most: int = COMPARED) -> np.ndarray:
    """[item pixel]: what the images show in the region."""
    assert cluster.region is not None
    _, images = reader.load(rows, most)
    cuts = []
    for start in range(0, len(images), 16):
        pixels = encode_pixels(reader.model, images[start : start + 16])
        region = enlarge_region(cluster.region, *pixels.shape[-2:]).to(pixels.device)
        cuts.append(to_array(pixels[..., region].flatten(1)))
    return np.concatenate(cuts) if cuts else np.zeros((0, 0))


def find_stamp(cluster: Cluster, reader: InputReader) -> np.ndarray | None:
    """[height width] of bool: the region and all pixels around it that also show the same thing in every item.

    A pixel belongs to the stamp if it varies at most half as much in the cluster as in the rest of the class, and if it
    is connected to the region through such pixels. If the class has too few other items, it is the region; None if the
    images cannot be read.
    """
    assert cluster.region is not None
    inside, outside = (read_variances(rows, reader) for rows in (cluster.drawn_rows, cluster.outsiders))
    if inside is None:
        return None
    region = enlarge_region(cluster.region, *inside.shape).numpy()
    if outside is None or len(cluster.outsiders) < MIN_OUTSIDERS:
        return region
    same = inside <= STAMP_RATIO * outside
    parts, _ = label(same | region, structure=np.ones((3, 3)))
    return np.isin(parts, np.unique(parts[region]))


def read_variances(rows: Sequence[BulkRow], reader: InputReader) -> np.ndarray | None:
    """[height width]: the variance of each pixel between items; None for fewer than two."""
    _, images = reader.load(rows, COMPARED)
    if len(images) < 2:
        return None
    return to_array(encode_pixels(reader.model, images).float().var(0).mean(0))


def compare_variances(inside: np.ndarray, outside: np.ndarray, seed: int) -> tuple[float, float]:
    """1 - v / v', and how often a random choice of items as the cluster gives as much.

    The variance of a set of points needs only their inner products, so the permutations do not touch pixels.
    """
    points = np.concatenate([inside, outside])
    points = points - points.mean(0)
    products = points @ points.T
    count, total = len(inside), len(points)
    chosen = np.zeros((1 + SHUFFLES, total))
    chosen[0, :count] = 1
    rng = np.random.default_rng(seed)
    for row in chosen[1:]:
        row[rng.permutation(total)[:count]] = 1
    ratios = variances_of(chosen, products) / np.maximum(variances_of(1 - chosen, products), 1e-12)
    p = float(np.mean(ratios <= ratios[0] * (1 + 1e-9)))
    return max(0.0, 1 - float(ratios[0])), p


def variances_of(chosen: np.ndarray, products: np.ndarray) -> np.ndarray:
    """[choice]: the mean squared distance of the chosen points to their mean; unbiased."""
    counts = chosen.sum(1)
    within = chosen @ np.diag(products) - ((chosen @ products) * chosen).sum(1) / counts
    return within.clip(min=0.0) / np.maximum(counts - 1, 1)
