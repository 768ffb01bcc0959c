r"""Sanity checks: an explanation of a model must change when the model does.

$$ \rho_k = \operatorname{rank\,corr}(\Phi_f(x), \Phi_{f_k}(x)) $$

with $f_k$ the model whose last $k$ modules have been randomised. Adebayo et al., Sanity Checks for Saliency Maps,
NeurIPS 2018. arXiv:1810.03292

These are alarms, not scores to rank methods by: a random map passes all of them (Binder et al., CVPR 2023,
arXiv:2211.12486), so read them together with faithfulness. A map that does not depend on the model, such as an edge
map, must fail: it gets exactly 1.

Modules with weights of their own are randomised in reverse order of registration; each weight is drawn from a normal
distribution with its own mean and standard deviation. Shared weights are randomised with the first module that has
them. The user's model is never changed: a copy is randomised.
"""

import copy

import torch
from torch import Tensor, nn

from whyformer._engine import Probe
from whyformer._model import Model
from whyformer._plain.random_generator import make_generator
from whyformer._plain.setting_checks import allow_whole_number, refuse_setting
from whyformer.errors import MetricError
from whyformer.methods._registry import Setting
from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics._rerun import Rerun
from whyformer.metrics._settings import check_metric_settings
from whyformer.metrics._similarity import select_compared_scores, spearman
from whyformer.results.explanation import Explanation


def allow_model(setting: str, value: Setting) -> nn.Module | Model:
    if not isinstance(value, nn.Module | Model):
        raise refuse_setting(setting, "an nn.Module or a Model", value)
    return value


@metric(paper="Adebayo et al., NeurIPS 2018", better="lower", kind="sanity")
@check_metric_settings(stages=allow_whole_number(1, 1000))
def parameter_randomisation(
    explanation: Explanation, rerun: Rerun, *, stages: int = 4, magnitude: bool = False, seed: int = 0
) -> Measurement:
    """How similar the map stays, on average, while the model's weights are randomised from the output downwards.

    stages: the number of steps; after the last one all weights are random.
    magnitude: compare absolute scores.

    curve: the rank correlation after each stage.

    Lower is better. Control: a map that does not depend on the weights gets exactly 1, random scores of another seed
    about 0. Undefined if a map is constant.
    """
    module = copy.deepcopy(rerun.model.module)
    parts = list_weighted_modules(module)
    if not parts:
        raise MetricError("This model has no weights to randomise.")
    curve = torch.full((len(explanation), stages), float("nan"), dtype=torch.float64)
    done = 0
    for stage in range(stages):
        until = -(-len(parts) * (stage + 1) // stages)
        for name, part in parts[done:until]:
            randomise_weights(name, part, seed)
        done = until
        curve[:, stage] = correlate_explanations(explanation, rerun(model=module), magnitude)
    return Measurement(curve.mean(1), curve, tuple((stage + 1) / stages for stage in range(stages)))


@metric(paper="Adebayo et al., NeurIPS 2018", better="lower", kind="sanity")
@check_metric_settings(twin=allow_model)
def label_randomised_twin(
    explanation: Explanation, rerun: Rerun, *, twin: nn.Module | Model | None = None, magnitude: bool = False
) -> Tensor:
    """How similar the map is to that of a twin model that was trained on the same inputs with random labels.

    twin: that model, an nn.Module or a Model of the same architecture, trained to fit random labels.
    magnitude: compare absolute scores.

    Lower is better. Control: the model as its own twin gets exactly 1. Undefined if a map is constant.
    """
    if twin is None:
        raise MetricError(
            "label_randomised_twin needs a twin of the model, trained on random labels. Pass it as twin=.",
            code="E_OPTION",
        )
    return correlate_explanations(explanation, rerun(model=twin), magnitude)


@metric(paper="Adebayo et al., NeurIPS 2018", better="lower", kind="sanity")
@check_metric_settings()
def class_swap(explanation: Explanation, probe: Probe, rerun: Rerun, *, magnitude: bool = False) -> Tensor:
    """How similar the map is to that of the least likely class: rank correlation.

    magnitude: compare absolute scores.

    Lower is better. Control: a method that ignores the class gets exactly 1, by design rather than by mistake.
    Undefined if a map is constant, or the model has only one output.
    """
    logits = probe.before.logits.detach().cpu().double()
    if logits.shape[1] < 2:
        return torch.full((len(explanation),), float("nan"), dtype=torch.float64)
    own = torch.tensor([target.index for target in explanation.targets])
    least = logits.scatter(1, own[:, None], torch.inf).argmin(1)
    return correlate_explanations(explanation, rerun(target=least.tolist()), magnitude)


def correlate_explanations(first: Explanation, second: Explanation, magnitude: bool) -> Tensor:
    """[batch]: rank correlation of two explanations of the same examples."""
    pairs = [(select_compared_scores(first, i), select_compared_scores(second, i)) for i in range(len(first))]
    pairs = [(a.abs(), b.abs()) for a, b in pairs] if magnitude else pairs
    return torch.tensor([spearman(a, b) for a, b in pairs], dtype=torch.float64)


def list_weighted_modules(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules with weights of their own, the last one first; a module that is used twice counts once."""
    named = [(name, part) for name, part in module.named_modules() if any(True for _ in part.parameters(recurse=False))]
    return named[::-1]


def randomise_weights(name: str, part: nn.Module, seed: int) -> None:
    """Draw a module's own weights again, each from a normal distribution with its mean and standard deviation."""
    with torch.no_grad():
        for key, weight in part.named_parameters(recurse=False):
            if not weight.is_floating_point():
                continue
            name_code = int.from_bytes(f"{name}.{key}".encode(), "big")
            drawn = torch.randn(weight.shape, generator=make_generator(seed, name_code), dtype=torch.float64)
            mean, spread = weight.double().mean(), weight.double().std(correction=0)
            weight.copy_((mean.cpu() + spread.cpu() * drawn).to(weight))
