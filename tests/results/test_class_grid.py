"""A class grid: the likeliest class first, each class explained as if alone."""

import pytest
import torch

from whyformer._explain.classes import explain_classes, rank_classes
from whyformer._explain.explain import explain
from whyformer._model.loading import open as opened
from whyformer.errors import InputError, TargetError


@pytest.fixture
def model(zoo):
    return opened(zoo("vit").module, labels=["a", "b", "c", "d"])


def test_the_likeliest_classes_come_first(model, zoo):
    inputs = zoo("vit").inputs
    logits = zoo("vit").module(**inputs).logits
    assert rank_classes(model, model.encode(inputs)) == logits.argsort(-1, descending=True).tolist()
    grid = explain_classes(model, inputs, ["lrp"], classes=2)
    for place in range(2):
        targets = [target.index for target in grid[place]["lrp"].targets]
        assert targets == logits.argsort(-1, descending=True)[:, place].tolist()


def test_every_class_is_explained_as_if_alone(model, zoo):
    inputs = zoo("vit").inputs
    grid = explain_classes(model, inputs, ["attcat", "rollout"], classes=["c", 0])
    alone = explain(model, inputs, "attcat", target="c")
    torch.testing.assert_close(grid[0]["attcat"].scores, alone.scores)
    torch.testing.assert_close(grid[0]["rollout"].scores, grid[1]["rollout"].scores)  # the same for every class
    assert not torch.allclose(grid[0]["attcat"].scores, grid[1]["attcat"].scores)


def test_contrast_is_against_the_strongest_other_class(model, zoo):
    inputs = zoo("vit").inputs
    first, second = explain_classes(model, inputs, ["attcat"], classes=2, versus=True)
    for one, other in zip(first["attcat"].targets, second["attcat"].targets, strict=True):
        assert (one.index, one.versus) == (other.versus, other.index)
    torch.testing.assert_close(first["attcat"].scores, -second["attcat"].scores)
    named = explain_classes(model, inputs, ["attcat"], classes=["b"], versus=True)
    assert all(target.versus != 1 for target in named[0]["attcat"].targets)


def test_the_classes_of_a_language_model_are_tokens(zoo):
    grid = explain_classes(zoo("gpt2").module, zoo("gpt2").alone(0), ["attcat"], classes=2)
    assert grid[0]["attcat"].targets[0].predicted
    assert grid[0]["attcat"].targets[0].score > grid[1]["attcat"].targets[0].score


def test_a_page_names_the_answer_and_says_what_its_maps_cannot_show(model, zoo, tmp_path):
    explain_classes(model, zoo("vit").alone(0), ["rollout"], classes=2).save(tmp_path / "classes.html")
    page = (tmp_path / "classes.html").read_text()
    likeliest = explain(model, zoo("vit").alone(0), "rollout").targets[0].label
    assert f"<h1>Why {likeliest}?" in page and "class by class</h1>" in page
    assert "the scores sum, in other units, to +" in page
    untested = "Whether hiding the highest scores changes it was not tested"
    assert "Not shown: what speaks against this answer" in page and page.count(untested) == 1


def test_invalid_classes_are_refused(model, zoo):
    for count in (0, 5):
        with pytest.raises(TargetError, match="classes must be from 1 to 4"):
            explain_classes(model, zoo("vit").inputs, classes=count)
    with pytest.raises(TargetError, match="No classes to explain"):
        explain_classes(model, zoo("vit").inputs, classes=[])


def test_files(model, zoo, tmp_path):
    grid = explain_classes(model, zoo("vit").alone(0), ["rollout", "lrp"], classes=2)
    for suffix in (".html", ".png", ".svg", ".pdf", ".csv", ".parquet"):
        grid.save(tmp_path / f"s{suffix}")
        assert (tmp_path / f"s{suffix}").stat().st_size > 500
    with pytest.raises(InputError, match=r"Supported suffixes: \.html"):
        grid.save(tmp_path / "s.gif")
    assert repr(grid) == "<ClassGrid of 2 classes by rollout, lrp>"
    assert "agreement" in str(grid)
    assert grid._repr_html_().count("<img") == 4
