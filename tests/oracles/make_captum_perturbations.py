"""Captum's results: ablation, occlusion, Shapley values, LIME and KernelSHAP of the small models.

    python tests/oracles/make_captum_perturbations.py            writes captum_perturbations.json
    python tests/oracles/make_captum_perturbations.py --check    computes again and compares

Needs an environment with tests/oracles/captum.txt; `make test-oracles` does all of it. LIME and KernelSHAP get the
samples of `small_models.samples`, so that nothing random differs. captum keeps answers and weights in float32:
therefore it is given differences from the example's own answer, which changes no weight, and its regressions run in
float64.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import captum
import torch
from captum._utils.models.linear_model import SkLearnLinearModel, SkLearnLinearRegression, SkLearnRidge
from captum.attr import FeatureAblation, KernelShap, LimeBase, Occlusion, ShapleyValues
from captum.attr._core.lime import get_exp_kernel_similarity_function
from small_models import TARGETS, pictures, samples, words
from stored import store_or_check
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

STORED = Path(__file__).with_name("captum_perturbations.json")
INFINITE = 1e10  # captum's own 1e6 leaves an error of one in a million


def measured() -> dict[str, object]:
    torch.set_num_threads(1)
    watcher, pixels = pictures()
    reader, ids = words()
    patches = (torch.arange(8)[:, None] // 4 * 2 + torch.arange(8) // 4).repeat(1, 3, 1, 1)  # 2 x 2 of 4 x 4 pixels
    places = torch.arange(6)[None]
    found = {
        "pictures": said_about(watcher, pixels, patches, window=(3, 4, 4), step=(3, 4, 4)),
        "words": said_about(reader, ids, places, window=(2,), step=(1,)),
    }
    return {"versions": {"captum": captum.__version__, "torch": torch.__version__.split("+")[0]}, "scores": found}


def said_about(model: Callable[[Tensor], Tensor], inputs: Tensor, features: Tensor, **windows) -> dict[str, object]:
    """One number per patch or word; 0 replaces what is absent."""
    count = int(features.max()) + 1
    given = {"baselines": 0, "target": TARGETS}

    def by_feature(scores: Tensor) -> list[list[float]]:
        first = [int((features.flatten() == feature).nonzero()[0, 0]) for feature in range(count)]
        return scores.flatten(1)[:, first].double().tolist()

    window, step = windows["window"], windows["step"]
    slid = Occlusion(model).attribute(inputs, sliding_window_shapes=window, strides=step, **given)
    regressed = {
        "lime": [lime(model, inputs[i : i + 1], features, target) for i, target in enumerate(TARGETS)],
        "kernel_shap": [kernel_shap(model, inputs[i : i + 1], features, target) for i, target in enumerate(TARGETS)],
    }
    return {
        "leave_one_out": by_feature(FeatureAblation(model).attribute(inputs, feature_mask=features, **given)),
        "occlusion": by_feature(slid),
        "shapley": by_feature(ShapleyValues(model).attribute(inputs, feature_mask=features, **given)),
        **regressed,
    }


def surrogate(
    model: Callable[[Tensor], Tensor],
    inputs: Tensor,
    features: Tensor,
    target: int,
    linear: object,
    kernel: Callable[[Tensor], float],
    ends: bool,
) -> list[float]:
    """The weights captum fits to these samples under this kernel; with `ends`, nothing and everything come first."""
    count, own = int(features.max()) + 1, model(inputs).detach()
    drawn = samples(count)
    if ends:
        drawn = torch.cat([torch.zeros(1, count).bool(), torch.ones(1, count).bool(), drawn])

    def one_by_one(*_, **__) -> Iterator[Tensor]:
        yield from drawn.double()[:, None]

    explainer = LimeBase(
        lambda varied: model(varied) - own,
        linear,
        similarity_func=lambda _, __, sample, **more: torch.tensor([kernel(sample)], dtype=torch.float64),
        perturb_func=one_by_one,
        perturb_interpretable_space=True,
        from_interp_rep_transform=lambda sample, given, **_: torch.where(sample[0].bool()[features], given, 0),
        to_interp_rep_transform=None,
    )
    return explainer.attribute(inputs, target=target, n_samples=len(drawn))[0].double().tolist()


def in_double(linear: SkLearnLinearModel) -> SkLearnLinearModel:
    fit = linear.fit
    linear.fit = lambda loader: fit(
        DataLoader(TensorDataset(*(part.double() for part in loader.dataset.tensors)), batch_size=1000)
    )
    return linear


def lime(model: Callable[[Tensor], Tensor], inputs: Tensor, features: Tensor, target: int) -> list[float]:
    near = get_exp_kernel_similarity_function("cosine", kernel_width=0.25)

    def weight(sample: Tensor) -> float:
        return near(torch.ones_like(sample), sample, None)

    return surrogate(model, inputs, features, target, in_double(SkLearnRidge(alpha=1.0)), weight, False)


def kernel_shap(model: Callable[[Tensor], Tensor], inputs: Tensor, features: Tensor, target: int) -> list[float]:
    explainer = KernelShap(model)
    explainer.inf_weight = INFINITE
    count = int(features.max()) + 1

    def weight(sample: Tensor) -> float:
        return float(explainer.kernel_shap_similarity_kernel(None, None, sample, num_interp_features=count))

    return surrogate(model, inputs, features, target, in_double(SkLearnLinearRegression()), weight, True)


if __name__ == "__main__":
    store_or_check(measured(), STORED, rtol=1e-7, atol=1e-9)
