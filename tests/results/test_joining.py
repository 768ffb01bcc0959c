"""Joining the results of several batches."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from whyformer._engine.targets.target import Target
from whyformer._model.kept_image import KeptImage
from whyformer._plain.tokens import Grid, Pieces
from whyformer.errors import InputError, MethodError
from whyformer.results.comparison import Comparison
from whyformer.results.explanation import Explanation
from whyformer.results.joining import join_comparisons, join_explanations

FACTS = dict(settings={}, model="tiny", versions={}, method="lrp", class_specific=True, signed=True)


def explanation_of(scores, tokens, **changes) -> Explanation:
    scores = torch.tensor(scores, dtype=torch.double)
    batch = len(scores)
    names = tuple(f"{i}" for i in range(batch))
    return Explanation(scores, (tokens,) * batch, (Target(1, "cat", 1.0, 0.5),) * batch, names, **FACTS | changes)


def text_of(length: int) -> Pieces:
    return Pieces(tuple("abcdef"[:length]), (False,) * length, (False,) * length, (None,) * length)


def test_shorter_texts_are_padded_at_the_end():
    joined = join_explanations([explanation_of([[1, 2, 3]], text_of(3)), explanation_of([[4, 5]], text_of(2))])
    assert joined.scores.tolist() == [[1, 2, 3], [4, 5, 0]]
    assert joined.tokens[1].padding == (False, False, True)
    assert joined.names == ("0", "0")


def test_every_field_of_an_example_comes_along():
    """Two examples and one: passes through the model are the mean per example."""
    images = [KeptImage(Image.new("RGB", (4, 4), colour)) for colour in ("red", "green", "blue")]
    first = explanation_of(
        [[1, 2, 3, 4], [5, 6, 7, 8]],
        Grid(2, 2),
        pixels=torch.zeros(2, 4, 4),
        special=torch.ones(2, 1),
        notes=("a", "b"),
        details={"both": torch.zeros(2, 3), "first": torch.zeros(2), "shape": torch.zeros(2, 1)},
        spent={"forward": 4.0},
        images=tuple(images[:2]),
    )
    second = replace(
        first[:1],
        scores=torch.tensor([[9.0, 9, 9, 9]]).double(),
        notes=("b", "c"),
        details={"both": torch.ones(1, 3), "shape": torch.zeros(1, 2)},
        spent={"forward": 1.0},
        images=(images[2],),
    )
    joined = join_explanations([first, second])
    assert joined.scores[:, 0].tolist() == [1, 5, 9]
    assert joined.pixels.shape == (3, 4, 4) and joined.special.shape == (3, 1)
    assert joined.notes == ("a", "b", "c")
    assert joined.spent == {"forward": 3.0}
    assert joined.images == tuple(images)
    assert {name: detail.tolist() for name, detail in joined.details.items()} == {"both": [[0] * 3, [0] * 3, [1] * 3]}


def test_one_part_is_itself():
    e = explanation_of([[1, 2, 3]], text_of(3))
    assert join_explanations([e]) is e


def test_images_of_different_sizes_are_refused():
    parts = [explanation_of([[1, 2, 3, 4]], Grid(2, 2)), explanation_of([[1, 2]], Grid(1, 2))]
    with pytest.raises(InputError, match="different numbers of patches cannot be joined"):
        join_explanations(parts)


def test_a_method_must_have_worked_on_every_part():
    e = explanation_of([[1, 2, 3]], text_of(3))
    joined = join_comparisons([Comparison({"a": e, "b": e}), Comparison({"b": e}, {"a": "it broke"})])
    assert joined.labels == ("b",) and len(joined["b"]) == 2
    assert joined.failures == {"a": "it broke"}
    with pytest.raises(MethodError, match=r"No method works on all of these inputs\. it broke"):
        join_comparisons([Comparison({"a": e}), Comparison({"b": e}, {"a": "it broke"})])
