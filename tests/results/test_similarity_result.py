"""The result of explain_similarity: reading, displaying and saving."""

import json

import pytest
import torch

import whyformer as why
from whyformer._engine.targets.target import Target
from whyformer._plain.tokens import Grid, Pieces
from whyformer.errors import InputError
from whyformer.show.terminal import Screen

SPANS = (None, (0, 1), (2, 3), (4, 5), None)
PIECES = Pieces(("[CLS]", "a", "b", "c", "[PAD]"), (True, *(False,) * 4), (False,) * 4 + (True,), SPANS, "a b c")
PLAIN = Screen(width=100, colours=None)


def make_side(scores: list, tokens) -> why.Explanation:
    facts = dict(settings={}, model="tiny", versions={}, method="lrp", class_specific=True, signed=True)
    targets = (Target(0, "similarity to b", 7.5),) * len(scores)
    names = tuple(f"{i}" for i in range(len(scores)))
    return why.Explanation(torch.tensor(scores, dtype=torch.double), (tokens,) * len(scores), targets, names, **facts)


def make_result(**changes) -> why.Similarity:
    """Rows [CLS] a b c [PAD] elsewhere; columns are four patches and elsewhere."""
    matrix = torch.zeros(1, 6, 5, dtype=torch.double)
    matrix[0, 1, 2], matrix[0, 3, 0], matrix[0, 0, 0], matrix[0, 5, 1] = 3.0, -1.0, 5.0, 0.5
    fields = {
        "a": make_side([[1, 2, 3, 4, 0]], PIECES),
        "b": make_side([[1, 2, 3, 4]], Grid(2, 2)),
        "scores": torch.tensor([7.5], dtype=torch.double),
        "score_kind": "cosine",
        "matrix": matrix,
        "matrix_method": "attnlrp",
        "notes": ("a note",),
    }
    return why.Similarity(**fields | changes)


def test_names_the_pairs_that_add_most_without_special_tokens_and_padding():
    s = make_result()
    assert s.top(1) == [("a", "1,0", 3.0)]
    assert s.top(2, special=True) == [("[CLS]", "0,0", 5.0), ("a", "1,0", 3.0)]
    assert len(s.top(1000)) == 3 * 4
    with pytest.raises(InputError, match="k must be a whole number >= 0, got -1"):
        s.top(-1)


def test_elsewhere_is_the_last_row_and_column():
    assert make_result().elsewhere.tolist() == [0.5]
    assert "+0.5 of 7.5 (7 %) is elsewhere" in make_result().render(PLAIN)


def test_a_batch_is_read_pair_by_pair():
    s = make_result()
    assert len(s) == 1 and s.score == 7.5 and s[0].matrix.shape == (1, 6, 5)
    two = why.Similarity(
        make_side([[1, 2, 3, 4]] * 2, Grid(2, 2)), make_side([[1, 2, 3, 4]] * 2, Grid(2, 2)),
        torch.tensor([1.0, 2.0]), "dot", None, "",
    )  # fmt: skip
    assert [one.score for one in two] == [1.0, 2.0]
    with pytest.raises(InputError, match=r"There are 2 pairs\. Use \.scores"):
        _ = two.score
    with pytest.raises(InputError, match="Pass matrix= to explain_similarity"):
        _ = two.elsewhere


def test_refuses_a_matrix_of_another_shape():
    with pytest.raises(InputError, match=r"The matrix has the shape \[1, 2, 2\], expected \[1, 6, 5\]"):
        make_result(matrix=torch.zeros(1, 2, 2))


def test_comes_back_bit_for_bit(tmp_path):
    s = make_result(scores=torch.tensor([0.1], dtype=torch.double))
    s.save(tmp_path / "s.json")
    loaded = why.Similarity.load(tmp_path / "s.json")
    assert torch.equal(loaded.matrix, s.matrix) and torch.equal(loaded.scores, s.scores)
    assert torch.equal(loaded.b.scores, s.b.scores)
    assert (loaded.score_kind, loaded.matrix_method, loaded.notes) == ("cosine", "attnlrp", ("a note",))


def test_refuses_a_damaged_file(tmp_path):
    make_result().save(tmp_path / "s.json")
    saved = json.loads((tmp_path / "s.json").read_text())
    for change in ({"score_kind": "guess"}, {"matrix": 3}, {"scores": None}):
        (tmp_path / "bad.json").write_text(json.dumps(saved | change))
        with pytest.raises(InputError, match=r"bad\.json"):
            why.Similarity.load(tmp_path / "bad.json")


@pytest.mark.parametrize("suffix", ["html", "png", "svg", "csv", "parquet", "txt"])
@pytest.mark.parametrize("has_matrix", [True, False])
def test_is_saved_in_every_format(tmp_path, suffix, has_matrix):
    s = make_result() if has_matrix else make_result(matrix=None)
    s.save(tmp_path / f"s.{suffix}")
    contents = (tmp_path / f"s.{suffix}").read_bytes()
    assert len(contents) > 150
    if suffix == "html":
        assert ("elsewhere" in contents.decode()) is has_matrix
    if suffix == "csv":
        assert contents.decode().count("\r\n") == 1 + 4 + 4


def test_shows_both_sides_in_a_notebook_and_in_a_line():
    s = make_result()
    assert repr(s) == "<Similarity by lrp: cosine 7.5>"
    assert s._repr_html_().count("<div") >= 2
    assert str(s).startswith("Why alike? The cosine 7.5 (by lrp)")
