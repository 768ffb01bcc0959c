r"""Does what a cluster looks at change the answer? It is hidden, and put into items of other classes.

**Images.** *Hiding* fills the region with the mean colour of the image; the effect is how far the probability of the
class falls, beside filling a region of the same shape elsewhere in the same image. *Pasting* puts the pixels of the
region into an image of another class, at the same place; the effect is how far the probability of the cluster's class
rises, beside pasting a region of the same shape from elsewhere. Lapuschkin et al. 2019 (arXiv:1902.10178) pasted the
source tag of horse images onto a car. Both are paired: item by item, the same donor and the same recipient.

*Sameness* asks whether the region shows the same thing in all items of the cluster: the variance of its pixels between
the items, v, and the variance v' between the other items of the class (of other classes, if the class has too few),
at the same place,

$$ s = 1 - v / v' $$

with a permutation test over which items form the cluster. A stamp has s near 1. An object that happens to be at this
place differs between images as much as anything else does there, and has s near 0.

**Texts.** *Hiding* replaces the tokens of the words (by the mask token where the model has one); the effect is how far
the probability of the class falls, beside hiding as many other tokens of the same text. *Inserting* writes the words
into a text of another class, at the end of the text at which they usually are; the effect is how far the probability of
the cluster's class rises, beside inserting as many other words of the same donor.

*Sameness* asks whether the strongest word is always at the same place: o is the share of texts in which it is at its
most frequent place, counted in words from the start or from the end with one word of tolerance, and e the mean of o
when the word is put at a random place of each text, which also gives the p-value:

$$ s = (o - e) / (1 - e) $$

Words that carry the meaning of a class ("great") occur anywhere in a text; a source tag or a signature does not.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from scipy.ndimage import label
from torch import Tensor
from torch.nn import functional

from whyformer._model import Model, OneInput
from whyformer._runs.parts import BulkRow
from whyformer._summary.clusters import Cluster
from whyformer._summary.inputs import InputReader, open_probe, to_array
from whyformer._summary.shares import WordShare, list_word_shares, restore_pieces
from whyformer._summary.suspicion import Effect, measure_effect
from whyformer._summary.tally import draw_number

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
    probe = open_probe(reader.model, images, [row.target for row in rows])
    size = probe.encoded.inputs[probe.encoded.main].shape[-2:]
    hidden = [enlarge_region(region, *size) for row in rows for region in draw_regions(cluster, seed, row.id)]
    after = probe.keep_only(~torch.stack(hidden), number_variants(len(rows)), FILL).probability
    return measure_change(probe.before.probability, after, seed, sign=-1)


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
    probe = open_probe(reader.model, backgrounds, cluster.sampled.target)
    below = probe.encoded.inputs[probe.encoded.main]
    variants = []
    for i, row in enumerate(donors[: len(recipients)]):
        for region in draw_regions(cluster, seed, row.id):
            pasted = enlarge_region(region, *below.shape[-2:]).to(below.device)
            variants.append(torch.where(pasted, pixels[i], below[i]))
    after = probe.replace_inputs(torch.stack(variants), number_variants(len(recipients))).probability
    return measure_change(probe.before.probability, after, seed, sign=1)


def number_variants(count: int) -> Tensor:
    """The item of each variant: what is asked about, then the same elsewhere."""
    return torch.arange(count).repeat_interleave(1 + DRAWS)


def measure_change(before: Tensor, after: Tensor, seed: int, sign: int) -> Effect:
    """The effect on the probabilities of all variants. sign: -1 for falls, 1 for rises."""
    start = to_array(before)
    changes = sign * (to_array(after).reshape(len(start), 1 + DRAWS) - start[:, None])
    return measure_effect(changes[:, 0], changes[:, 1:].mean(1), seed)


def choose_recipients(cluster: Cluster, others: Sequence[BulkRow]) -> list[BulkRow]:
    """Items that are explained for another class, and predicted as another class."""
    own = cluster.sampled.target
    return [row for row in others if row.target != own and row.prediction != own]


# --- regions ----------------------------------------------------------------------------------------------------------


def draw_regions(cluster: Cluster, seed: int, name: str) -> list[np.ndarray]:
    """The region of a cluster, then the same at other places."""
    assert cluster.region is not None
    return [cluster.region, *draw_other_places(cluster.region, seed, name)]


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


def encode_pixels(model: Model, images: Sequence[OneInput]) -> Tensor:
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


TOLERANCE = 1  # words
PLACE_DRAWS = 999


def hide_words(cluster: Cluster, reader: InputReader, tested: int, seed: int) -> Effect | None:
    """The fall of the probability when the words are hidden; None without usable texts."""
    rows, texts = reader.load([row for row in cluster.drawn_rows if has_both(row, cluster.words)], tested)
    if not rows:
        return None
    probe = open_probe(reader.model, texts, [row.target for row in rows])
    kept = torch.ones(len(rows) * (1 + DRAWS), probe.real.size(1), dtype=torch.bool)
    chosen = [(i, tokens) for i, row in enumerate(rows) for tokens in choose_tokens(row, cluster.words, seed)]
    for variant, (i, tokens) in enumerate(chosen):
        kept[variant, find_offset(probe.real[i], rows[i]) + torch.tensor(tokens)] = False
    after = probe.keep_only(kept, number_variants(len(rows))).probability
    return measure_change(probe.before.probability, after, seed, sign=-1)


def has_both(row: BulkRow, words: Sequence[str]) -> bool:
    """Whether a text has some of the words, and at least as many tokens of other words."""
    listed = list_word_shares(row)
    own = sum(len(one.tokens) for one in listed if one.word in words)
    return 0 < own <= sum(len(one.tokens) for one in listed if one.word not in words)


def choose_tokens(row: BulkRow, words: Sequence[str], seed: int) -> list[list[int]]:
    """The tokens of the words, then as many tokens of other words, drawn at random, for each draw."""
    listed = list_word_shares(row)
    own = [token for one in listed if one.word in words for token in one.tokens]
    others = [token for one in listed if one.word not in words for token in one.tokens]
    rng = np.random.default_rng(draw_number(seed, row.id))
    return [own, *(sorted(rng.choice(others, len(own), replace=False).tolist()) for _ in range(DRAWS))]


def find_offset(real: torch.Tensor, row: BulkRow) -> int:
    """How many tokens of padding are before the text; `real` is False at special tokens and padding."""
    special = np.zeros(len(row.tokens or ()), dtype=bool) if row.special is None else np.asarray(row.special)
    return int(torch.nonzero(real)[0, 0]) - int(np.flatnonzero(~special)[0])


# --- inserting --------------------------------------------------------------------------------------------------------


def insert_words(
    cluster: Cluster, others: Sequence[BulkRow], reader: InputReader, tested: int, seed: int
) -> Effect | None:
    """The rise of the class's probability in texts of other classes into which the words are written."""
    donors = [row for row in cluster.drawn_rows if has_both(row, cluster.words)][:tested]
    recipients, texts = reader.load(choose_recipients(cluster, others), len(donors))
    if not recipients:
        return None
    from_end = find_usual_place(cluster)[0] == "end"
    variants = [
        f"{text} {phrase}" if from_end else f"{phrase} {text}"
        for row, text in zip(donors, texts, strict=False)
        for phrase in choose_phrases(row, cluster.words, seed)
    ]
    target = cluster.sampled.target
    before, after = (open_probe(reader.model, some, target).before.probability for some in (texts, variants))
    return measure_change(before, after, seed, sign=1)


def choose_phrases(row: BulkRow, words: Sequence[str], seed: int) -> list[str]:
    """The words as they are written in the text, then as many other words of it, for each draw."""
    listed, written = list_word_shares(row), write_words(row)
    own = [written[i] for i, one in enumerate(listed) if one.word in words]
    others = [written[i] for i, one in enumerate(listed) if one.word not in words]
    rng = np.random.default_rng(draw_number(seed, row.id))
    count = min(len(own), len(others))
    drawn = [[others[i] for i in sorted(rng.choice(len(others), count, replace=False))] for _ in range(DRAWS)]
    return [" ".join(one) for one in (own, *drawn)]


def write_words(row: BulkRow) -> list[str]:
    """The words with their case and punctuation."""
    pieces = restore_pieces(row)
    written = []
    for one in list_word_shares(row):
        spans = [span for i in one.tokens if (span := pieces.spans[i])]
        covered = pieces.text[spans[0][0] : spans[-1][1]] if spans and pieces.text is not None else one.word
        written.append(covered.strip())
    return written


# --- place ------------------------------------------------------------------------------------------------------------


def find_usual_place(cluster: Cluster) -> tuple[str, int, float]:
    """From which end, how many words from it, and the share of texts in which the strongest word is there."""
    texts = [cluster.sampled.words[i] for i in cluster.members]
    return find_common_place([find_places(text, cluster.words[:1]) for text in texts], [len(text) for text in texts])


def measure_fixed_place(cluster: Cluster, seed: int) -> tuple[float, float]:
    """How much more often the strongest word is at one place than by chance, and the p-value."""
    texts = [cluster.sampled.words[i] for i in cluster.members]
    texts = [text for text in texts if any(one.word == cluster.words[0] for one in text)]
    lengths = [len(text) for text in texts]
    counts = [sum(one.word == cluster.words[0] for one in text) for text in texts]
    observed = find_common_place([find_places(text, cluster.words[:1]) for text in texts], lengths)[2]
    rng = np.random.default_rng(seed)
    random = np.array([find_common_place(draw_places(lengths, counts, rng), lengths)[2] for _ in range(PLACE_DRAWS)])
    expected = float(random.mean())
    sameness = (observed - expected) / (1 - expected) if expected < 1 else 0.0
    return max(0.0, sameness), float((1 + (random >= observed - 1e-9).sum()) / (1 + PLACE_DRAWS))


def find_places(text: Sequence[WordShare], words: Sequence[str]) -> set[int]:
    return {one.start for one in text if one.word in words}


def draw_places(lengths: Sequence[int], counts: Sequence[int], rng: np.random.Generator) -> list[set[int]]:
    """As many places as the word has in each text, at random."""
    return [set(rng.choice(n, k, replace=False).tolist()) for n, k in zip(lengths, counts, strict=True)]


def find_common_place(places: Sequence[set[int]], lengths: Sequence[int]) -> tuple[str, int, float]:
    """The end, the distance to it in words, and the share of texts that have a place there; ties go to the start."""
    found = []
    for end in ("start", "end"):
        from_end = [
            {n - 1 - place if end == "end" else place for place in one} for one, n in zip(places, lengths, strict=True)
        ]
        counts = Counter(near for one in from_end for near in widen_places(one))
        place, count = min(counts.items(), key=lambda item: (-item[1], item[0]), default=(0, 0))
        found.append((count / max(len(places), 1), end, place))
    share, end, place = max(found, key=lambda item: item[0])
    return end, place, share


def widen_places(places: set[int]) -> set[int]:
    """The places within the tolerance."""
    return {near for place in places for near in range(max(0, place - TOLERANCE), place + TOLERANCE + 1)}
