r"""ViT-CX: masks made of the model's own feature maps.

$$ s_j = \frac{\sum_i c_i\,M_{ij}}{\sum_i M_{ij}}, \qquad
   c_i = p\bigl(x \odot M_i + \varepsilon \odot (1 - M_i)\bigr) - p\bigl(x + \varepsilon \odot (1 - M_i)\bigr) + p(x) $$

Xie, Li, Cao & Zhang, ViT-CX: Causal Explanation of Vision Transformers, IJCAI 2023. arXiv:2211.03064

Each channel of the patches that the last attention looks at is a map; scaled to go from 0 to 1 and made as large as the
picture, it is a mask. Masks whose cosine distance is below `distance` are put together (agglomerative clustering,
complete linkage), added up and scaled again. The second term takes out what the noise itself does to the answer, and
the division what a pixel gains from being under many masks.

As released, except: maps are compared before they are made large; the noise is a share of the picture's own standard
deviation; an effect below 0 counts as 0. The released code reads the layer norm before the last attention; we
normalise the hidden state there, whose gains and shifts do not outlast the scaling. With `layers`, the last of them.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.probe import Probe
from whyformer._plain.random_generator import make_generator
from whyformer.errors import MethodError
from whyformer.methods._players import read_answers, read_clean_answers
from whyformer.methods._registry import Scores, method
from whyformer.methods._settings import check_share, check_whole_number


@method(
    paper="Xie et al., IJCAI 2023",
    class_specific=True,
    signed=False,
    cost="two forwards for each of up to `budget` masks",
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
    """The mean effect of those of the model's own feature maps that cover a pixel, each used as a mask.

    distance: maps nearer than this become one mask. budget: masks at most, for which nearer ones are merged further.
    noise: what stands where a mask takes away, as a share of the picture's standard deviation.
    For pictures whose patches are known.
    """
    distance, budget = check_share("distance", distance), check_whole_number("budget", budget, 1)
    if not probe.is_image:
        raise MethodError("vit_cx makes masks for the pixels of a picture; this is a text. Use lime, rise or atman.")
    if probe.grid is None:
        raise MethodError("The patches of this picture are not known, so vit_cx has no feature maps. Use rise.")
    pixels = probe.encoded.inputs[probe.encoded.main]
    board, size = (probe.grid.rows, probe.grid.columns), probe.grid.covers or tuple(pixels.shape[-2:])
    states = hidden[len(hidden) - 2][:, probe.places.to(hidden[len(hidden) - 2].device)].double().cpu()
    beyond = (0, pixels.size(-1) - size[1], 0, pixels.size(-2) - size[0])  # pixels that are in no patch
    masks = [
        F.pad(enlarge_masks(merge_feature_maps(make_feature_maps(state), distance, budget), board, size), beyond)
        for state in states
    ]
    effects = measure_causal_effects(probe, masks, noise, seed)
    maps = [torch.einsum("m,mhw->hw", c, m) / m.sum(0).clamp(min=1e-9) for c, m in zip(effects, masks, strict=True)]
    count = torch.tensor([float(len(some)) for some in masks], dtype=torch.float64)
    return Scores(torch.stack(maps), {"masks": count})


def make_feature_maps(state: Tensor) -> Tensor:
    """[channel patch] from [patch channel]: what the attention sees, from 0 to 1 in each channel."""
    return scale_feature_maps(F.layer_norm(state, state.shape[-1:]).T)


def scale_feature_maps(maps: Tensor) -> Tensor:
    """From 0 to 1; a map that is the same everywhere takes nothing away."""
    low, high = maps.amin(1, keepdim=True), maps.amax(1, keepdim=True)
    return torch.where(high > low, (maps - low) / (high - low).clamp(min=1e-300), 1.0)


def merge_feature_maps(maps: Tensor, distance: float, budget: int) -> Tensor:
    """[mask patch]: maps that are alike, added up."""
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


def enlarge_masks(masks: Tensor, board: tuple[int, int], size: Sequence[int]) -> Tensor:
    """[mask height width] from [mask patch]."""
    return F.interpolate(masks.reshape(-1, 1, *board), size=tuple(size), mode="bilinear", align_corners=False)[:, 0]


def measure_causal_effects(probe: Probe, masks: Sequence[Tensor], noise: float, seed: int) -> list[Tensor]:
    """[mask] of each picture: how probable the class is on what the mask leaves in, less what the noise does."""
    pixels = probe.encoded.inputs[probe.encoded.main]
    spread = noise * pixels.double().flatten(1).std(1).cpu()
    sizes = [len(some) for some in masks]
    of = torch.arange(probe.batch).repeat_interleave(torch.tensor(sizes))
    within = torch.cat([torch.arange(size) for size in sizes])

    def noisy(rows: Tensor, whole_picture: bool) -> Tensor:
        varied = []
        for example, number in zip(of[rows].tolist(), within[rows].tolist(), strict=True):
            stays = masks[example][number]
            generator = make_generator(seed, probe.fingerprints[example] * 1_000_003 + number)
            grain = torch.randn(pixels.shape[1:], dtype=torch.float64, generator=generator) * spread[example]
            picture = pixels[example].double().cpu()
            varied.append((picture if whole_picture else picture * stays) + grain * (1 - stays))
        return torch.stack(varied)

    masked = read_answers(probe, probe.replace_inputs(lambda rows: noisy(rows, False), of), of, "probability")
    shaken = read_answers(probe, probe.replace_inputs(lambda rows: noisy(rows, True), of), of, "probability")
    effect = masked - shaken + read_clean_answers(probe, "probability")[of]
    return list(effect.clamp(min=0).split(sizes))
