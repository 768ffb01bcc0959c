"""Explain several classes, each by several methods.

    explain_classes(model, "cat-and-dog.jpg", ["transformer_attribution", "rollout"], classes=2).save("classes.html")

The model is run once to rank the classes, then once per class.
"""

from collections.abc import Sequence

from whyformer._engine import TargetLike, read_logits, record
from whyformer._explain.compare import MethodsLike, compare
from whyformer._explain.default_method import OTHER_CLASS_METHODS, choose_default_method
from whyformer._explain.explain import ModelLike, as_model
from whyformer._model import EncodedBatch, InputLike, Model
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import TargetError
from whyformer.results.class_grid import ClassGrid


@neutral_torch()
def explain_classes(
    model: ModelLike,
    inputs: InputLike,
    methods: MethodsLike | None = None,
    *,
    classes: int | Sequence[TargetLike] | None = None,
    versus: TargetLike = None,
) -> ClassGrid:
    """Several classes, each explained by several methods.

    methods: names, functions or partials of them; by default the default method for this kind of input and four others.
    classes: how many of the likeliest (by default three), or a list of indices, labels or other targets
    (whyformer.targets).
    versus: what each class is contrasted with, as in `explain`; True: the likeliest of the other classes.
    """
    model = as_model(model)
    encoded = model.encode(inputs)
    needs_ranking = versus is True or classes is None or isinstance(classes, int)
    ranking = rank_classes(model, encoded) if needs_ranking else [[] for _ in range(encoded.batch)]
    methods = (choose_default_method(encoded), *OTHER_CLASS_METHODS) if methods is None else methods
    comparisons = []
    for targets in choose_classes(ranking, min(3, len(ranking[0])) if classes is None else classes):
        against = find_strongest_others(ranking, targets, model) if versus is True else versus
        comparisons.append(compare(model, encoded, methods, target=targets, versus=against))
    return ClassGrid(tuple(comparisons))


def rank_classes(model: Model, encoded: EncodedBatch) -> list[list[int]]:
    """The classes of each example, likeliest first."""
    capture = record(model, encoded, keep={"mask"})
    if capture.fixed is not None or any(target.index < 0 for target in capture.targets):
        raise TargetError(
            f"{model.name} does not choose one class (or next token) for each example. Name what to explain: "
            "classes=[...] with targets of whyformer.targets."
        )
    answers, _, _ = read_logits(encoded, capture.logits)
    return answers.argsort(dim=-1, descending=True, stable=True).tolist()


def choose_classes(ranking: list[list[int]], classes: int | Sequence[TargetLike]) -> list[list[TargetLike]]:
    """For each row of the grid, the target of every example."""
    if isinstance(classes, bool | str | bytes) or not isinstance(classes, int | Sequence):
        raise TargetError(f"classes must be a number or a list of classes, got {classes!r}.")
    if not isinstance(classes, int):
        if not classes:
            raise TargetError("No classes to explain. Name at least one, or pass how many of the likeliest.")
        return [[wanted] * len(ranking) for wanted in classes]
    if not 1 <= classes <= len(ranking[0]):
        raise TargetError(f"classes must be from 1 to {len(ranking[0])}, the number of classes, got {classes}.")
    return [[likeliest[rank] for likeliest in ranking] for rank in range(classes)]


def find_strongest_others(ranking: list[list[int]], targets: Sequence[TargetLike], model: Model) -> list[int]:
    """For each example, the likeliest class other than the target."""
    if len(ranking[0]) < 2:
        raise TargetError(f"{model.name} has one class, so there is no other to contrast it with.")
    labels = model.labels or ()
    indices = [labels.index(t) if isinstance(t, str) and t in labels else t for t in targets]
    return [next(i for i in likeliest if i != own) for likeliest, own in zip(ranking, indices, strict=True)]
