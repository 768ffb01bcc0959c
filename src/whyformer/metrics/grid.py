r"""The grid pointing game, localisation for data without masks: several images in one, and which of them the map marks.

$$ \text{share} = \frac{\sum_{p \in \text{tile of the class}} m^+_p}{\sum_p m^+_p} $$

Böhle, Fritz & Schiele, Convolutional Dynamic Alignment Networks for Interpretable Classifications, CVPR 2021
(arXiv:2104.00032), after Zhang et al., ECCV 2016.

In the paper the network takes images of any size, and the grid is as large as its tiles together. A transformer takes
one size, so the tiles are shrunk to fit. The other tiles are images of the same batch with other targets, in the order
of the batch; the tile of the image itself is chosen at random, by a generator seeded with the image.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._plain.random_generator import make_generator
from whyformer._plain.setting_checks import allow_whole_number
from whyformer._plain.tokens import Grid
from whyformer.errors import InputError
from whyformer.metrics._registry import metric
from whyformer.metrics._rerun import Rerun
from whyformer.metrics._settings import check_metric_settings
from whyformer.results.explanation import Explanation


@metric(paper="Böhle et al., CVPR 2021", better="higher", kind="localisation", only="images", across_examples=True)
@check_metric_settings(tiles=allow_whole_number(2, 100))
def grid_pointing_game(explanation: Explanation, rerun: Rerun, *, tiles: int = 2, seed: int = 0) -> Tensor:
    """How much of the positive mass lies on an image's own tile when it is shown in a grid with other classes.

    tiles: along one side; 2 makes four images. Control: a random map, and any method that ignores the class, gets
    1 / tiles². Undefined if the batch has too few images of other classes, or the map no positive mass.
    """
    images = rerun.inputs
    if images.dim() != 4 or not isinstance(explanation.tokens[0], Grid):
        raise InputError("The grid pointing game needs images, but the inputs are not images.")
    others = [find_grid_partners(explanation, i, tiles**2 - 1) for i in range(len(explanation))]
    own = [
        int(torch.randint(tiles**2, (1,), generator=make_generator(seed, fingerprint)))
        for fingerprint in rerun.encoded.fingerprints()
    ]
    playing = [i for i, found in enumerate(others) if found is not None]
    value = torch.full((len(explanation),), float("nan"), dtype=torch.float64)
    if not playing:
        return value
    grids = torch.stack([compose_grid(images, i, others[i] or [], own[i], tiles) for i in playing])
    found = rerun(grids, of=playing)
    for row, i in enumerate(playing):
        value[i] = tile_share(found, row, own[i], tiles)
    return value


def find_grid_partners(explanation: Explanation, example: int, wanted: int) -> list[int] | None:
    """The next examples of the batch with other targets; None if there are too few."""
    batch = len(explanation)
    own = explanation.targets[example].index
    following = [(example + step) % batch for step in range(1, batch)]
    found = [i for i in following if explanation.targets[i].index != own][:wanted]
    return found if len(found) == wanted else None


def compose_grid(images: Tensor, example: int, others: list[int], own: int, tiles: int) -> Tensor:
    """[channel height width]: the example at tile `own`, the others around it, all shrunk."""
    order = [*others[:own], example, *others[own:]]
    height, width = images.shape[-2:]
    edges = [[size * k // tiles for k in range(tiles + 1)] for size in (height, width)]
    grid = torch.empty_like(images[0])
    for tile, member in enumerate(order):
        row, column = divmod(tile, tiles)
        (top, bottom), (left, right) = (edges[0][row], edges[0][row + 1]), (edges[1][column], edges[1][column + 1])
        small = F.interpolate(images[member][None], size=(bottom - top, right - left), mode="bilinear", antialias=True)
        grid[:, top:bottom, left:right] = small[0]
    return grid


def tile_share(found: Explanation, row: int, own: int, tiles: int) -> float:
    """The share of the positive mass in the tile; patches on an edge between tiles count by their share in it."""
    values = (found.map(row) if found.pixels is None else found.pixels[row]).double().clamp(min=0)
    down, across = (
        tile_coverage(size, tile, tiles) for size, tile in zip(values.shape, divmod(own, tiles), strict=True)
    )
    total = float(values.sum())
    return float(down @ values @ across) / total if total > 0 else float("nan")


def tile_coverage(size: int, tile: int, tiles: int) -> Tensor:
    """[size]: how much of each row (or column) of the map lies in a tile."""
    start, end = tile * size / tiles, (tile + 1) * size / tiles
    edges = torch.arange(size, dtype=torch.float64)
    return ((edges + 1).clamp(max=end) - edges.clamp(min=start)).clamp(0, 1)
