r"""ViT-CX: masks made of the model's own feature maps.

$$ s_j = \frac{\sum_i c_i\,M_{ij}}{\sum_i M_{ij}}, \qquad
   c_i = p\bigl(x \odot M_i + \varepsilon \odot (1 - M_i)\bigr) - p\bigl(x + \varepsilon \odot (1 - M_i)\bigr) + p(x) $$

Xie, Li, Cao & Zhang, ViT-CX: Causal Explanation of Vision Transformers, IJCAI 2023. arXiv:2211.03064

Each channel of the patches at the input of the last attention, after the norm before it, is a map; enlarged to the
image and scaled to [0, 1], it is a mask. Masks with a cosine distance below `distance` are merged (agglomerative
clustering, complete linkage), summed and scaled again. The second term removes the effect of the noise itself on the
answer, and the division removes what a pixel gains from being covered by many masks.

The default, `preset="paper"`, is the formula above, with effects below 0 set to 0, so that a map is never negative. The
released code, `preset="released"`, keeps negative effects and divides the map by the number of masks, which changes no
order within an image. `budget` is ours: the released code has no limit. A constant map is NaN there and a mask that
removes nothing here. With `layers`, the last of them is used.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine import Probe
from whyformer._plain.environment import keep_environment
from whyformer._plain.random_generator import make_generator
from whyformer._plain.setting_checks import allow_choice, allow_number, allow_share, allow_whole_number
from whyformer.errors import MethodError
from whyformer.methods._answers import read_answers, read_clean_answers
from whyformer.methods._registry import Scores, Setting, method
from whyformer.methods._settings import check_method_settings

PRESETS: dict[str, dict[str, Setting]] = {
    "paper": {"clips": True, "divides": False},
    "released": {"clips": False, "divides": True},
}
MAPS_AT_ONCE = 64  # feature maps that are enlarged at the same time, to save memory


@method(
    paper="Xie et al., IJCAI 2023",
    class_specific=True,
    signed=False,
    cost="two forwards for each of up to `budget` masks",
)
@check_method_settings(
    distance=allow_share,
    budget=allow_whole_number(1),
    preset=allow_choice(tuple(PRESETS)),
    noise=allow_number("a finite number >= 0 (for example 0.1)", limit=1000),
)
def vit_cx(
    attention_input: Sequence[Tensor],
    probe: Probe,
    *,
    preset: str = "paper",
    distance: float = 0.1,
    budget: int = 100,
    noise: float = 0.1,
    seed: int = 0,
) -> Scores:
    """The mean effect of the masks that cover a pixel, where masks are the model's own feature maps.

    preset: "paper", or "released" (the authors' code: effects below 0 count, divided by the number of masks).
    distance: masks closer than this are merged into one.
    budget: the maximum number of masks; if there are more, they are merged further.
    noise: the standard deviation of the noise in the masked part, in the units of the model's input.

    For images with known patches only.
    """
    if not probe.is_image:
        raise MethodError("vit_cx masks the pixels of an image, but the input is no image.")
    if probe.grid is None:
        raise MethodError("The patches of this image are unknown, so vit_cx has no feature maps. Use rise.")
    pixels = probe.encoded.inputs[probe.encoded.main]
    grid_shape, size = (probe.grid.rows, probe.grid.columns), probe.grid.covers or tuple(pixels.shape[-2:])
    last = attention_input[len(attention_input) - 1]
    states = last[:, probe.places.to(last.device)].double().cpu()
    beyond = (0, pixels.size(-1) - size[1], 0, pixels.size(-2) - size[0])  # pixels outside all patches
    masks = [F.pad(make_masks(state.T, grid_shape, size, distance, budget), beyond) for state in states]
    effects = measure_causal_effects(probe, masks, noise, seed)
    chosen = PRESETS[preset]
    effects = [effect.clamp(min=0) for effect in effects] if chosen["clips"] else effects
    maps = [torch.einsum("m,mhw->hw", c, m) / m.sum(0).clamp(min=1e-9) for c, m in zip(effects, masks, strict=True)]
    maps = [s / len(m) for s, m in zip(maps, masks, strict=True)] if chosen["divides"] else maps
    count = torch.tensor([float(len(some)) for some in masks], dtype=torch.float64)
    return Scores(torch.stack(maps), {"masks": count})


def make_masks(maps: Tensor, grid_shape: tuple[int, int], size: Sequence[int], distance: float, budget: int) -> Tensor:
    """[mask height width] from feature maps [channel patch].

    Enlarging is linear and keeps constants, so that maps can be scaled, compared and summed as if they were large
    without being held in memory at that size.
    """
    scaled = scale_maps(maps, grid_shape, size)
    # [cluster patch]: the sum of the maps of each cluster.
    label = cluster_maps(scaled, measure_overlap(grid_shape, size), distance, budget)
    merged = torch.zeros(int(label.max()) + 1, scaled.size(1), dtype=scaled.dtype).index_add_(0, label, scaled)
    return enlarge_maps(scale_maps(merged, grid_shape, size), grid_shape, size).clamp(0, 1)


def scale_maps(maps: Tensor, grid_shape: tuple[int, int], size: Sequence[int]) -> Tensor:
    """[channel patch], so that each, enlarged, goes from 0 to 1; a constant map is 1 everywhere."""
    parts = (enlarge_maps(some, grid_shape, size).flatten(1) for some in maps.split(MAPS_AT_ONCE))
    ends = [part.aminmax(dim=1, keepdim=True) for part in parts]
    low, high = (torch.cat(end) for end in zip(*ends, strict=True))
    return torch.where(high > low, (maps - low) / (high - low).clamp(min=1e-300), 1.0)


def measure_overlap(grid_shape: tuple[int, int], size: Sequence[int]) -> Tensor:
    """[patch patch]: the inner products of two patches, enlarged; so large maps a and b have the product a K b."""
    patches = grid_shape[0] * grid_shape[1]
    large = enlarge_maps(torch.eye(patches, dtype=torch.float64), grid_shape, size).flatten(1)
    return large @ large.T


@keep_environment()
def cluster_maps(maps: Tensor, overlap: Tensor, distance: float, budget: int) -> Tensor:
    """[channel]: the number of the cluster of each map."""
    from sklearn.cluster import AgglomerativeClustering

    if len(maps) < 2:
        return torch.zeros(len(maps), dtype=torch.long)
    products = maps @ overlap @ maps.T
    length = products.diagonal().clamp(min=0).sqrt()
    apart = (1 - products / (length[:, None] * length).clamp(min=1e-300)).clamp(min=0).fill_diagonal_(0).numpy()

    def clusters(**how: float | int | None) -> Tensor:
        fitted = AgglomerativeClustering(metric="precomputed", linkage="complete", **how).fit(apart)
        return torch.tensor(fitted.labels_)

    label = clusters(n_clusters=None, distance_threshold=distance)
    return clusters(n_clusters=budget) if int(label.max()) >= budget else label


def enlarge_maps(maps: Tensor, grid_shape: tuple[int, int], size: Sequence[int]) -> Tensor:
    """[map height width] from [map patch]."""
    small = maps.reshape(-1, 1, *grid_shape)
    return F.interpolate(small, size=tuple(size), mode="bilinear", align_corners=False)[:, 0]


def measure_causal_effects(probe: Probe, masks: Sequence[Tensor], noise: float, seed: int) -> list[Tensor]:
    """[mask] for each image: the probability of the class under the mask, corrected for the effect of the noise."""
    pixels = probe.encoded.inputs[probe.encoded.main]
    sizes = [len(some) for some in masks]
    of = torch.arange(probe.batch).repeat_interleave(torch.tensor(sizes))
    within = torch.cat([torch.arange(size) for size in sizes])

    def add_noise(rows: Tensor, whole_image: bool) -> Tensor:
        varied = []
        for example, number in zip(of[rows].tolist(), within[rows].tolist(), strict=True):
            stays = masks[example][number]
            generator = make_generator(seed, probe.fingerprints[example] * 1_000_003 + number)
            grain = torch.randn(pixels.shape[1:], dtype=torch.float64, generator=generator) * noise
            image = pixels[example].double().cpu()
            varied.append((image if whole_image else image * stays) + grain * (1 - stays))
        return torch.stack(varied)

    masked = read_answers(probe, probe.replace_inputs(lambda rows: add_noise(rows, False), of), of, "probability")
    noisy = read_answers(probe, probe.replace_inputs(lambda rows: add_noise(rows, True), of), of, "probability")
    effect = masked - noisy + read_clean_answers(probe, "probability")[of]
    return list(effect.split(sizes))
