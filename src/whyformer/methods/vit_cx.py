r"""ViT-CX: masks made of the model's own feature maps.

$$ s_j = \frac{\sum_i c_i\,M_{ij}}{\sum_i M_{ij}}, \qquad
   c_i = p\bigl(x \odot M_i + \varepsilon \odot (1 - M_i)\bigr) - p\bigl(x + \varepsilon \odot (1 - M_i)\bigr) + p(x) $$

Xie, Li, Cao & Zhang, ViT-CX: Causal Explanation of Vision Transformers, IJCAI 2023. arXiv:2211.03064

Each channel of the patches at the input of the last attention is a map; scaled to [0, 1] and enlarged to the image, it
is a mask. Masks with a cosine distance below `distance` are merged (agglomerative clustering, complete linkage), summed
and scaled again. The second term removes the effect of the noise itself on the answer, and the division removes what a
pixel gains from being covered by many masks.

As released, except: maps are compared before they are enlarged; the noise is a fraction of the image's own standard
deviation; negative effects count as 0. The released code reads the layer norm before the last attention; we normalise
the hidden state there, whose gains and shifts do not survive the scaling. With `layers`, the last of them is used.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.probe import Probe
from whyformer._plain.environment import keep_environment
from whyformer._plain.random_generator import make_generator
from whyformer._plain.setting_checks import allow_number, allow_seed, allow_share, allow_whole_number
from whyformer.errors import MethodError
from whyformer.methods._answers import read_answers, read_clean_answers
from whyformer.methods._registry import Scores, method
from whyformer.methods._settings import check_method_settings


@method(
    paper="Xie et al., IJCAI 2023",
    class_specific=True,
    signed=False,
    cost="two forwards for each of up to `budget` masks",
)
@check_method_settings(
    distance=allow_share,
    budget=allow_whole_number(1),
    noise=allow_number("a finite number >= 0 (for example 0.1)", limit=1000),
    seed=allow_seed,
)
def vit_cx(
    hidden: Sequence[Tensor],
    probe: Probe,
    *,
    distance: float = 0.1,
    budget: int = 100,
    noise: float = 0.1,
    seed: int = 0,
) -> Scores:
    """The mean effect of the masks that cover a pixel, where masks are the model's own feature maps.

    distance: maps closer than this are merged into one mask.
    budget: the maximum number of masks; if there are more, they are merged further.
    noise: replaces the masked part, as a fraction of the image's standard deviation.

    For images with known patches only.
    """
    if not probe.is_image:
        raise MethodError("vit_cx masks the pixels of an image, but the input is a text. Use lime, rise or atman.")
    if probe.grid is None:
        raise MethodError("The patches of this image are unknown, so vit_cx has no feature maps. Use rise.")
    pixels = probe.encoded.inputs[probe.encoded.main]
    grid_shape, size = (probe.grid.rows, probe.grid.columns), probe.grid.covers or tuple(pixels.shape[-2:])
    states = hidden[len(hidden) - 2][:, probe.places.to(hidden[len(hidden) - 2].device)].double().cpu()
    beyond = (0, pixels.size(-1) - size[1], 0, pixels.size(-2) - size[0])  # pixels outside all patches
    masks = [
        F.pad(enlarge_masks(merge_feature_maps(make_feature_maps(state), distance, budget), grid_shape, size), beyond)
        for state in states
    ]
    effects = measure_causal_effects(probe, masks, noise, seed)
    maps = [torch.einsum("m,mhw->hw", c, m) / m.sum(0).clamp(min=1e-9) for c, m in zip(effects, masks, strict=True)]
    count = torch.tensor([float(len(some)) for some in masks], dtype=torch.float64)
    return Scores(torch.stack(maps), {"masks": count})


def make_feature_maps(state: Tensor) -> Tensor:
    """[channel patch] from [patch channel]: the input of the attention, scaled to [0, 1] in each channel."""
    return scale_feature_maps(F.layer_norm(state, state.shape[-1:]).T)


def scale_feature_maps(maps: Tensor) -> Tensor:
    """Scaled to [0, 1]; a constant map becomes 1 everywhere, a mask that removes nothing."""
    low, high = maps.amin(1, keepdim=True), maps.amax(1, keepdim=True)
    return torch.where(high > low, (maps - low) / (high - low).clamp(min=1e-300), 1.0)


@keep_environment()
def merge_feature_maps(maps: Tensor, distance: float, budget: int) -> Tensor:
    """[mask patch]: the sums of similar maps."""
    from sklearn.cluster import AgglomerativeClustering

    if len(maps) < 2:
        return maps
    unit = F.normalize(maps, dim=1)
    apart = (1 - unit @ unit.T).clamp(min=0).numpy()

    def clusters(**how: float | int | None) -> Tensor:
        fitted = AgglomerativeClustering(metric="precomputed", linkage="complete", **how).fit(apart)
        return torch.tensor(fitted.labels_)

    label = clusters(n_clusters=None, distance_threshold=distance)
    if int(label.max()) >= budget:
        label = clusters(n_clusters=budget)
    total = torch.zeros(int(label.max()) + 1, maps.size(1), dtype=maps.dtype).index_add_(0, label, maps)
    return scale_feature_maps(total)


def enlarge_masks(masks: Tensor, grid_shape: tuple[int, int], size: Sequence[int]) -> Tensor:
    """[mask height width] from [mask patch]."""
    small = masks.reshape(-1, 1, *grid_shape)
    return F.interpolate(small, size=tuple(size), mode="bilinear", align_corners=False)[:, 0]


def measure_causal_effects(probe: Probe, masks: Sequence[Tensor], noise: float, seed: int) -> list[Tensor]:
    """[mask] for each image: the probability of the class under the mask, corrected for the effect of the noise."""
    pixels = probe.encoded.inputs[probe.encoded.main]
    spread = noise * pixels.double().flatten(1).std(1).cpu()
    sizes = [len(some) for some in masks]
    of = torch.arange(probe.batch).repeat_interleave(torch.tensor(sizes))
    within = torch.cat([torch.arange(size) for size in sizes])

    def add_noise(rows: Tensor, whole_image: bool) -> Tensor:
        varied = []
        for example, number in zip(of[rows].tolist(), within[rows].tolist(), strict=True):
            stays = masks[example][number]
            generator = make_generator(seed, probe.fingerprints[example] * 1_000_003 + number)
            grain = torch.randn(pixels.shape[1:], dtype=torch.float64, generator=generator) * spread[example]
            image = pixels[example].double().cpu()
            varied.append((image if whole_image else image * stays) + grain * (1 - stays))
        return torch.stack(varied)

    masked = read_answers(probe, probe.replace_inputs(lambda rows: add_noise(rows, False), of), of, "probability")
    noisy = read_answers(probe, probe.replace_inputs(lambda rows: add_noise(rows, True), of), of, "probability")
    effect = masked - noisy + read_clean_answers(probe, "probability")[of]
    return list(effect.clamp(min=0).split(sizes))
