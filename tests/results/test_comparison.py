"""A comparison: agreement, reading, displaying and saving."""

import pytest
import torch

from whyformer._engine.targets.target import Target
from whyformer._plain.tokens import Grid, Pieces
from whyformer.errors import InputError, MethodError
from whyformer.results.comparison import Comparison, describe_consensus, mean_ranks, rank_correlation
from whyformer.results.explanation import Explanation
from whyformer.show.terminal import Screen

SPANS = (None, (0, 1), (2, 3), (4, 5), None)
PIECES = Pieces(("[CLS]", "a", "b", "c", "[PAD]"), (True, *(False,) * 4), (False,) * 4 + (True,), SPANS, "a b c")


def an_explanation(scores, tokens, **changes) -> Explanation:
    scores = torch.tensor(scores, dtype=torch.double)
    facts = dict(settings={}, model="tiny", versions={}, method="lrp", class_specific=True, signed=True) | changes
    batch = len(scores)
    return Explanation(
        scores, (tokens,) * batch, (Target(1, "cat", 1.0, 0.5),) * batch, tuple(f"{i}" for i in range(batch)), **facts
    )  # fmt: skip


# --- agreement --------------------------------------------------------------------------------------------------------


def test_ranks_by_hand():
    """10 10 7 30: the two tens share ranks 2 and 3."""
    assert mean_ranks(torch.tensor([10.0, 10.0, 7.0, 30.0])).tolist() == [2.5, 2.5, 1, 4]


def test_agrees_with_the_definition_written_slowly():
    """A rank is one more than the scores below, plus half of the others that are equal; then Pearson's correlation."""
    torch.manual_seed(0)
    scores = torch.randint(0, 6, (5, 20)).double()  # many ties
    ranks = [[1 + sum(b < a for b in row) + (sum(b == a for b in row) - 1) / 2 for a in row] for row in scores.tolist()]
    torch.testing.assert_close(rank_correlation(scores), torch.corrcoef(torch.tensor(ranks, dtype=torch.double)))


def test_the_same_order_is_1_and_the_reverse_is_minus_1():
    scores = torch.tensor([[1.0, 2.0, 3.0], [-9.0, 0.0, 100.0], [3.0, 2.0, 1.0]])
    torch.testing.assert_close(rank_correlation(scores), torch.tensor([[1.0, 1, -1], [1, 1, -1], [-1, -1, 1]]).double())


def test_agreement_is_averaged_over_examples_and_looks_only_at_words():
    """Example 0 agrees (1), example 1 is reversed (-1); class token and padding would change that."""
    one = an_explanation([[9, 1, 2, 3, 0], [9, 1, 2, 3, 0]], PIECES)
    other = an_explanation([[-9, 4, 5, 6, 0], [-9, 6, 5, 4, 0]], PIECES)
    found = Comparison({"one": one, "other": other}).agreement()
    torch.testing.assert_close(found, torch.eye(2, dtype=torch.double))


def test_scores_without_an_order_have_no_agreement():
    flat, other = an_explanation([[1, 1, 1, 1]], Grid(2, 2)), an_explanation([[1, 2, 3, 4]], Grid(2, 2))
    comparison = Comparison({"flat": flat, "other": other})
    assert comparison.agreement()[0].isnan().all()
    assert comparison.agreement()[1, 1] == 1
    assert "all the same" in str(comparison)


# --- reading ----------------------------------------------------------------------------------------------------------


def a_comparison(tokens=None, **more) -> Comparison:
    tokens = tokens or Grid(2, 2)
    rows = [[1, 2, 3, 4]] if isinstance(tokens, Grid) else [[9, 1, 2, 3, 0]]
    one, other = an_explanation(rows, tokens), an_explanation(rows, tokens, class_specific=False, signed=False)
    return Comparison({"one": one, "other(start=1)": other}, **more)


def test_explanations_by_label():
    comparison = a_comparison()
    assert comparison.labels == ("one", "other(start=1)")
    assert len(comparison) == 2
    assert [e.class_specific for e in comparison] == [True, False]
    assert comparison["one"].class_specific
    with pytest.raises(MethodError, match=r"This comparison has no 'two'\. It has: one, other\(start=1\)"):
        comparison["two"]
    assert repr(comparison) == "<Comparison of one, other(start=1): 1 examples>"


def test_the_table_has_agreement_class_and_top_tokens():
    text = str(a_comparison(failures={"bad": "because\x1b"})).split("\n")
    assert text[0] == "0: cat (50.0%)"
    rows = [line.split() for line in text]
    assert ["one", "+1.00", "yes", "(1,", "1)", "(1,", "0)", "(0,", "1)"] in rows
    assert ["other(start=1)", "+1.00", "any", "(1,", "1)", "(1,", "0)", "(0,", "1)"] in rows
    assert ["Not", "used"] in rows and ["bad", r"because\x1b"] in rows


def test_in_colour_the_scores_are_side_by_side():
    screen = Screen(80, "truecolor")
    assert "▀" in a_comparison().render(screen)
    text = a_comparison(PIECES).render(screen)
    assert text.count("[CLS]") == 2


def test_round_trip_through_a_file(tmp_path):
    saved = a_comparison(failures={"bad": "because"})
    saved.save(tmp_path / "c.json")
    loaded = Comparison.load(tmp_path / "c.json")
    assert loaded.labels == saved.labels
    assert loaded.failures == saved.failures
    for one, other in zip(saved, loaded, strict=True):
        assert torch.equal(one.scores, other.scores)
        assert one.tokens == other.tokens
        assert one.targets == other.targets


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "c.json").write_bytes(Comparison.formats[".json"](Comparison({})))
    with pytest.raises(InputError, match="is not a saved comparison, or the file is damaged"):
        Comparison.load(tmp_path / "c.json")


def test_other_formats_and_other_results(tmp_path):
    a_comparison().save(tmp_path / "c.txt")
    assert (tmp_path / "c.txt").read_text() == a_comparison().render(Screen(100, None)) + "\n"
    with pytest.raises(InputError, match=r"Supported suffixes: \.json, .*\.txt"):
        a_comparison().save(tmp_path / "c.safetensors")
    a_comparison()["one"].save(tmp_path / "e.json")
    with pytest.raises(InputError, match="contains a saved explanation, not a saved comparison"):
        Comparison.load(tmp_path / "e.json")


# --- what the methods agree on ----------------------------------------------------------------------------------------


WORDS = Pieces(
    ("[CLS]", "a", "witty", "film", "and", "long"),
    (True, *(False,) * 5),
    (False,) * 6,
    (None,) * 6,
    "a witty film and long",
)
ALIKE = torch.full((3, 3), 0.8)


def test_words_that_most_methods_put_first():
    rows = [[9, 0, 5, 4, 3, 0.0], [9, 0, 5, 4, 0, 3.0], [9, 5, 4, 0, 0, 3.0]]  # [CLS] does not count
    sentence = describe_consensus([an_explanation([row], WORDS) for row in rows], ALIKE)
    assert sentence.startswith(
        "What they agree on: 'witty', 'film', 'long' are among the first 3 of 2 or more of the 3 me"
    )
    assert sentence.endswith("they rank alike (mean rank correlation +0.80); agreement is no proof.")


def test_no_patch_in_common():
    maps = [torch.eye(9)[i].tolist() for i in (0, 4, 8)]
    sentence = describe_consensus([an_explanation([row], Grid(3, 3)) for row in maps], torch.full((3, 3), -0.1))
    assert "no patch is in the highest tenth of 2 or more of the 3 methods" in sentence
    assert "rank differently (mean rank correlation -0.10)" in sentence


def test_patches_in_common_have_a_place():
    maps = [torch.eye(9)[i].tolist() for i in (2, 2, 8)]
    sentence = describe_consensus([an_explanation([row], Grid(3, 3)) for row in maps], ALIKE)
    assert "1 patch, all in the upper right, is in the highest tenth" in sentence


def test_two_methods_and_constant_maps_have_no_ranking():
    two = [an_explanation([[1.0, 2.0, 3.0, 4.0]], Grid(2, 2))] * 2
    assert describe_consensus(two, ALIKE[:2, :2]) == ""
    three = describe_consensus([*two, two[0]], torch.full((3, 3), float("nan")))
    assert three.endswith("Their rankings cannot be compared.")
