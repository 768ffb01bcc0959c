"""An attention view shows the attention that the model itself computed."""

import pytest
import torch

from whyformer._explain.attention import inspect_attention
from whyformer._explain.explain import explain
from whyformer.errors import InputError


@pytest.mark.parametrize("name", ["vit", "bert", "gpt2"])
def test_attention_is_the_models_own(zoo, name):
    one = zoo(name).alone(0)
    view = inspect_attention(zoo(name).module, one)
    reported = zoo(name, "eager").module(**one, output_attentions=True).attentions
    torch.testing.assert_close(view.parts["attention"], torch.stack(reported)[:, 0].float())
    assert view.parts["gradient"].shape == view.parts["attention"].shape == view.parts["relevance"].shape


def test_the_row_where_the_answer_is_read(zoo):
    """BERT reads the answer at its first token; raw attention of one head is that row."""
    one = zoo("bert").alone(0)
    view = inspect_attention(zoo("bert").module, one)
    torch.testing.assert_close(view.rows()[2, 1], view.parts["attention"][2, 1, 0])
    alone = explain(zoo("bert").module, one, "raw_attention", heads=1)
    torch.testing.assert_close(view.rows()[2, 1], alone.scores[0].float())


def test_heads_of_an_image_are_grids_of_patches(zoo):
    view = inspect_attention(zoo("vit").module, zoo("vit").alone(0))
    assert view.maps().shape == (3, 3, 4, 4)
    torch.testing.assert_close(view.maps()[0, 0].flatten(), view.rows()[0, 0, 1:])
    assert view.pieces[:3] == ("special", "0,0", "0,1")


def test_files_and_drawings(zoo, tmp_path):
    view = inspect_attention(zoo("bert").module, zoo("bert").alone(2), target=1)
    for suffix in (".html", ".svg", ".png", ".pdf"):
        view.save(tmp_path / f"i{suffix}")
    page = (tmp_path / "i.html").read_text()
    assert page.count('class="crisp tile"') == 3 * 3 * 3  # layers, heads, kinds
    assert "Which token attends to which" in page
    for drawing in (view.draw("gradient"), view.tokens(0, 1), view.matrix()):
        assert drawing.svg().startswith("<?xml")
    assert "<img" in view._repr_html_()
    assert "3 layers x 3 heads, attention, gradient, relevance" in repr(view)


def test_invalid_requests_are_refused(zoo):
    with pytest.raises(InputError, match="one example at a time, got 3"):
        inspect_attention(zoo("bert").module, zoo("bert").inputs)
    view = inspect_attention(zoo("bert").module, zoo("bert").alone(0))
    with pytest.raises(InputError, match="kind must be one of attention, gradient, relevance, got 'value'"):
        view.draw("value")
    long = inspect_attention(zoo("vit").module, zoo("vit").alone(0))
    long.tokens(0)
