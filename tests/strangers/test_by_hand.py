"""Models that a stranger wrote by hand: right by default and under methods of every kind, or refused for a reason."""

import pytest
import torch
from strangers.by_hand import HANDS, TARGET, Given
from strangers.oracle import content, is_close

import whyformer as why
from whyformer.errors import WhyformerError

METHODS = (None, "attnlrp", "gradient_x_input", "rollout", "transformer_attribution")


def to_double(given: Given) -> Given:
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in given.items()}


@pytest.fixture(params=HANDS)
def hand(request):
    torch.manual_seed(5)
    made = HANDS[request.param]()
    made.model.double().eval()
    made.given = to_double(made.given)
    if made.twin is not None:
        made.twin.double().eval()
    return made


def explain(module, given, method):
    return why.explain(module, given, method, target=TARGET)


@pytest.mark.parametrize("method", METHODS)
def test_scores_are_those_of_the_function_written_plainly(hand, method):
    if hand.refused or (method or "default") in hand.refused_by:
        with pytest.raises(WhyformerError, match=hand.refused or None) as refusal:
            explain(hand.model, hand.given, method)
        assert "bug in whyformer" not in str(refusal.value)
    elif hand.twin is None:
        assert bool(explain(hand.model, hand.given, method).scores.any())
    else:
        e = explain(hand.model, hand.given, method)
        wanted = explain(hand.twin, hand.twin_given, e.method)
        for row in range(len(wanted.scores)):
            right = content(wanted, row)[hand.own_tokens or slice(None)]
            own = content(e, row)
            assert is_close(own[: len(right)], right)
            assert not own[len(right) :].any()  # padding that the model alone knows


def test_leave_one_out_is_that_by_hand(hand):
    if hand.refused:
        with pytest.raises(WhyformerError, match=hand.refused):
            explain(hand.model, hand.given, "leave_one_out")
    elif hand.read is not None:
        e = explain(hand.model, hand.given, "leave_one_out")
        for row in range(len(e.scores)):
            one = {name: tensor[row : row + 1] for name, tensor in hand.given.items()}
            with torch.no_grad():
                ask = lambda given: float(hand.read(hand.model(**given))[0])  # noqa: E731
                lost = [ask(one) - ask(hand.remove(one, token)) for token in range(e.scores.size(1))]
            assert is_close(content(e, row), torch.tensor(lost, dtype=torch.float64))


@pytest.mark.parametrize("method", [None, "attnlrp", "gradient_x_input"])
def test_a_token_that_was_written_over_has_no_score(method):
    torch.manual_seed(5)
    made = HANDS["first_token_written_over"]()
    assert not explain(made.model.eval(), made.given, method).scores[:, 0].any()
