"""Models that a stranger wrote by hand: right by default and under methods of every kind, or refused for a reason."""

import pytest
import torch
from strangers.by_hand import HANDS, TARGET, VOCABULARY, WIDTH, Base, Given, draw_ids
from strangers.oracle import content, is_close
from torch import nn

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
        e = explain(hand.model, hand.given, method)
        assert bool(e.scores.any())
        assert not (hand.untrue and hand.untrue in str(e.notes))
    else:
        e = explain(hand.model, hand.given, method)
        assert not (hand.untrue and hand.untrue in str(e.notes))
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


class Changed(Base):
    """Steps of a series, changed first."""

    def __init__(self, change):
        super().__init__()
        self.line, self.change = nn.Linear(3, WIDTH), change

    def forward(self, x):
        return self.head(self.mix(self.line(self.change(x))).mean(1))


def draw_twins(*changes):
    """Models that differ in what they do with their input alone, and an input."""
    models = []
    for change in changes:
        torch.manual_seed(5)
        models.append(Changed(change).double().eval())
    return [*models, torch.randn(2, 7, 3, dtype=torch.float64)]


@pytest.mark.parametrize("method", METHODS)
def test_a_sign_that_is_given_back_takes_no_relevance(method):
    model, twin, x = draw_twins(
        lambda x: x.sign() * x.abs().log1p(), lambda x: torch.where(x < 0, -1.0, 1.0) * x.abs().log1p()
    )
    e, wanted = (explain(one, x, method) for one in (model, twin))
    assert is_close(e.scores, wanted.scores)
    assert e.notes == wanted.notes


@pytest.mark.parametrize("method", [None, "rollout", "attcat"])
def test_numbers_that_are_only_compared_are_explained_as_what_comes_out(method):
    model, twin, x = draw_twins(lambda x: (x > 0.3).to(x.dtype), lambda x: x)
    assert is_close(explain(model, x, method).scores, explain(twin, (x > 0.3).double(), method).scores)


class Mixture(Base):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(WIDTH, 3)

    def forward(self, ids):
        h = self.mix(self.table(ids)).mean(1)
        return (self.head(h).softmax(-1) + self.other(h).softmax(-1)) / 2


@pytest.mark.parametrize("method", [None, "attnlrp"])
def test_probabilities_without_logits_beneath_are_explained_in_the_direction_in_which_they_change(method):
    torch.manual_seed(5)
    model, ids = Mixture().double().eval(), draw_ids()
    e, right = (explain(model, ids, one) for one in (method, "gradient_x_input"))
    for scores, wanted in zip(e.scores, right.scores, strict=True):
        assert float(torch.corrcoef(torch.stack([scores, wanted]))[0, 1]) > 0.5
    assert not any("0 to every word" in note for note in e.notes)


class Joined(Base):
    def forward(self, ids, token_type_ids):
        return self.head(self.mix(torch.cat([self.table(ids), self.table(token_type_ids)], 1)).mean(1))


def test_a_second_text_that_is_called_token_type_ids_is_noted():
    torch.manual_seed(5)
    given = {"ids": draw_ids(), "token_type_ids": torch.randint(1, VOCABULARY, (2, 3))}
    assert any("'token_type_ids', which has no scores" in note for note in explain(Joined().eval(), given, None).notes)
