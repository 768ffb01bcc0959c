"""A tiny model with data, methods and metrics whose results a reader can work out."""

import torch
from conftest import animal

from whyformer._explain.method_call import label_methods
from whyformer._judge.bench import Bench
from whyformer._model.loading import open as opened
from whyformer._model.model import Model
from whyformer._runs.choice import choose_judged_metrics
from whyformer.data import Data, Example
from whyformer.errors import MethodError
from whyformer.methods._registry import describe_method as describe_method
from whyformer.metrics._registry import Measurement
from whyformer.metrics._registry import describe_metric as describe_metric

FACTS = dict(paper="none", class_specific=False, signed=False, recipe=None)


def tiny() -> Model:
    """A random ViT of 4 x 4 patches and 4 classes, which takes tensors."""
    return opened(animal("vit").module, labels=["one", "two", "Three-Four", "five"])


def pictures(count: int, **truth) -> Data:
    """Random images, labelled 0, 1, 2, 3, 0, ..."""
    made = []
    for i in range(count):
        pixels = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        made.append(Example(f"picture {i}", {"pixel_values": pixels}, label=i % 4, **truth))
    return Data("pictures", tuple(made))


def brightness(input, mask):
    """The sum of each patch."""
    tiles = input.sum(-1).reshape(len(input), 4, 4, 4, 4).sum((2, 4)).flatten(1)
    return torch.cat([tiles.new_zeros(len(input), 1), tiles], 1)


def picky(input, mask):
    """As brightness, but rejects a batch with an image that is brighter than most."""
    if bool((input.flatten(1).sum(1) > 10).any()):
        raise MethodError("an image is too bright for me")
    return brightness(input, mask)


BRIGHTNESS, PICKY = (describe_method(one, **FACTS) for one in (brightness, picky))


def first_score(explanation):
    return explanation.scores[:, 0].double()


def touchy(explanation, label):
    """The label, undefined for class 1; fails where class 3 is."""
    if bool((label == 3).any()):
        raise RuntimeError("no threes\nplease")
    return torch.where(label == 1, float("nan"), label.double())


def share(explanation, mask):
    """Pixels of the object, over all; a figure of the data set."""
    parts = torch.tensor([[float((one == 1).sum()), float((one >= 0).sum())] for one in mask], dtype=torch.float64)
    return Measurement(parts[:, 0] / parts[:, 1], parts[:, :1].expand(-1, 3).clone(), (0.0, 0.5, 1.0), parts)


def metric_of(compute, **facts):
    wanted = dict(paper="none", better="higher", kind="faithfulness", needs_truth=None) | facts
    return describe_metric(compute, **wanted)


FIRST_SCORE = metric_of(first_score)
TOUCHY = metric_of(touchy, needs_truth="label", better="lower")
SHARE = metric_of(
    share, needs_truth="mask", combine=lambda parts: float(parts[:, 0].sum() / parts[:, 1].sum()), kind="localisation"
)


def a_plan(model=None, data=None, methods=("rollout",), metrics=(FIRST_SCORE,), target="predicted", batch=4):
    model, data = model or tiny(), data or pictures(10)
    chosen = choose_judged_metrics(list(metrics), model, data)
    return Bench(model, data, label_methods(methods), chosen, target, batch=batch).plan
