"""Which attention a choice names."""

import pytest

from whyformer._audit.checks.attention_choice import AttentionChoice, choose_attention
from whyformer.errors import MethodError

HEADS = (2, 2, 3)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("last", ["block 2, mean of heads"]),
        (1, ["block 1, mean of heads"]),
        (-3, ["block 0, mean of heads"]),
        ((2, 1), ["block 2, head 1"]),
        ("2:-1", ["block 2, head 2"]),
        ("1:each", ["block 1, head 0", "block 1, head 1"]),
        ("last:0", ["block 2, head 0"]),
        ("rollout", ["rollout"]),
        ([0, "0", (0, 1)], ["block 0, mean of heads", "block 0, head 1"]),
        (AttentionChoice((2,), 1), ["block 2, head 1"]),
    ],
)
def test_choices_have_names(wanted, names):
    assert [choice.name for choice in choose_attention(wanted, HEADS)] == names


def test_each_head_in_turn():
    assert len(choose_attention("each", HEADS)) == 7


def test_a_block_with_one_head_is_named_by_its_block():
    assert {choice.name for wanted in (0, (0, 0), "each") for choice in choose_attention(wanted, (1,))} == {"block 0"}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (3, "There is no block 3: the model has 3, 0 to 2."),
        ((1, 2), "There is no head 2: block 1 has 2, 0 to 1."),
        ("first", "attention='first' is not a choice"),
        (1.5, "is not a choice"),
        (True, "is not a choice"),
        ([], "No attention was chosen"),
        (("a", 1), "is not a choice"),
    ],
)
def test_what_is_not_there_is_refused(wanted, message):
    with pytest.raises(MethodError, match=message):
        choose_attention(wanted, HEADS)


def test_a_description_says_what_is_replaced():
    descriptions = [choice.description for choice in choose_attention([2, (2, 1), "rollout"], HEADS)]
    assert descriptions == [
        "The weights of all heads of block 2 are replaced; everything after it is recomputed.",
        "Only the weights of head 1 of block 2 are replaced; everything after it is recomputed.",
        "Replacing the rollout replaces the weights of all heads of every block at once.",
    ]
