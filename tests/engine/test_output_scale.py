"""Probabilities at the end of a forward: the logits beneath are explained as if the model had returned them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whyformer as why
from whyformer.errors import NonFinite, UnsupportedModel

WIDTH = 12
IDS = torch.tensor([[3, 9, 17, 5, 22, 8], [11, 2, 30, 7, 19, 4]])
METHODS = ["libragrad", "attnlrp", "lrp", "gradient_x_input", "rollout", "leave_one_out", "kernel_shap"]


class Classifier(nn.Module):
    """An encoder with a mean of its tokens, or an answer for each; `end` makes what it returns of its logits."""

    def __init__(self, end: Callable[[Tensor], object], classes: int = 3, *, each: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head, self.each = nn.Embedding(40, WIDTH), nn.Linear(WIDTH, classes), each
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 24, dropout=0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.end = end

    def forward(self, input_ids: Tensor) -> object:
        states = self.blocks(self.table(input_ids))
        return self.end(6 * self.head(states if self.each else states.mean(1)))


def build(end: Callable[[Tensor], object], classes: int = 3, **more: bool) -> nn.Module:
    return Classifier(end, classes, **more).double().eval()


def explain(module: nn.Module, method: str, **more: object) -> why.Explanation:
    settings = {"budget": 12} if method == "kernel_shap" else {}
    return why.explain(module, {"input_ids": IDS}, method, **settings, **more)


def write_out(logits: Tensor) -> Tensor:
    powers = (logits - logits.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


ENDS: dict[str, Callable[[Tensor], object]] = {
    "softmax": lambda z: z.softmax(-1),
    "module": nn.Softmax(dim=-1),
    "log_softmax": lambda z: F.log_softmax(z, dim=1),
    "log of softmax": lambda z: (z.softmax(-1) + 1e-9).log(),
    "clipped": lambda z: z.softmax(-1).clamp(1e-6, 1 - 1e-6),
    "written out": write_out,
    "sigmoid": torch.sigmoid,
    "dictionary": lambda z: {"probs": z.softmax(-1)},
    "field": lambda z: {"logits": z.softmax(-1), "other": z.mean()},
    "tuple": lambda z: (z.softmax(-1), z.mean()),
}


@pytest.mark.parametrize("end", ENDS)
def test_probabilities_are_explained_by_the_logits_beneath(end):
    plain, ending = build(lambda z: z), build(ENDS[end])
    for method in METHODS:
        torch.testing.assert_close(explain(ending, method, target=1).scores, explain(plain, method, target=1).scores)


TWO_ENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "[1 - p, p]": lambda z: torch.stack([1 - z[:, 0].sigmoid(), z[:, 0].sigmoid()], 1),
    "[1 - p, p] joined": lambda z: torch.cat([torch.sub(1, z.sigmoid()), z.sigmoid()], -1),
}


@pytest.mark.parametrize("end", TWO_ENDS)
def test_of_one_probability_and_its_rest_the_logit_or_its_negative_is_explained(end):
    plain, ending = build(lambda z: z, 1), build(TWO_ENDS[end], 1)
    for method in ("libragrad", "attnlrp", "gradient_x_input", "leave_one_out"):
        wanted = explain(plain, method).scores
        torch.testing.assert_close(explain(ending, method, target=1).scores, wanted)
        torch.testing.assert_close(explain(ending, method, target=0).scores, -wanted)


def test_a_column_of_a_softmax_is_explained_by_its_log_odds():
    for classes in (2, 4):
        plain, ending = build(lambda z: z, classes), build(lambda z: z.softmax(-1)[:, 1], classes)
        odds = lambda z: z[:, 1] - torch.cat([z[:, :1], z[:, 2:]], 1).logsumexp(1)  # noqa: E731
        for method in ("gradient_x_input", "leave_one_out"):
            torch.testing.assert_close(explain(ending, method).scores, explain(plain, method, target=odds).scores)


def test_probabilities_from_elsewhere_are_converted():
    """A mean of softmaxes has no logits; rows that sum to 1 are log-probabilities then."""
    mean = lambda z: (z.softmax(-1) + (z / 3).softmax(-1)) / 2  # noqa: E731
    plain, ending = build(lambda z: mean(z).log() + 5), build(mean)
    found = explain(ending, "gradient_x_input", target=1)
    torch.testing.assert_close(found.scores, explain(plain, "gradient_x_input", target=1).scores)
    assert "log-probabilities are explained" in found.notes[0]


@pytest.mark.parametrize("end", [*ENDS, *TWO_ENDS])
def test_the_probability_shown_is_the_models_own(end):
    module = build((ENDS | TWO_ENDS)[end], 1 if end in TWO_ENDS else 3)
    returned = module(IDS)
    returned = next(iter(returned.values())) if isinstance(returned, dict) else returned
    own = returned[0] if isinstance(returned, tuple) else returned
    own = own.exp() if "log" in end else own
    for method in ("attnlrp", "leave_one_out"):
        found = explain(module, method, target=1)
        assert [one.probability for one in found.targets] == pytest.approx(own[:, 1].tolist(), abs=1e-6)
        assert [one.predicted for one in found.targets] == (own.argmax(-1) == 1).tolist()
        assert "the probability shown is the model's own" in found.notes[0]


def test_the_change_of_a_probability_is_that_of_the_models_own():
    module = build(lambda z: z.sigmoid())
    found = explain(module, "leave_one_out", of="probability", target=2).scores
    for token in range(IDS.size(1)):
        without = IDS.clone()
        without[:, token] = 0
        change = (module(IDS) - module(without))[:, 2]
        torch.testing.assert_close(found[:, token], change.detach(), check_dtype=False)


def test_log_probabilities_of_every_token_are_explained_by_their_logits():
    plain, ending = build(lambda z: z, 40, each=True), build(lambda z: z.log_softmax(-1), 40, each=True)
    target = why.targets.Token(7, at=2)
    for method in ("libragrad", "leave_one_out"):
        found = explain(ending, method, target=target)
        torch.testing.assert_close(found.scores, explain(plain, method, target=target).scores)
        own = ending(IDS)[:, 2, 7].exp().tolist()
        assert [one.probability for one in found.targets] == pytest.approx(own, abs=1e-6)


def test_a_function_of_the_output_gets_what_the_model_returns():
    found = explain(build(lambda z: z.softmax(-1)), "gradient_x_input", target=lambda out: out[:, 1])
    wanted = explain(build(lambda z: z), "gradient_x_input", target=lambda out: out.softmax(-1)[:, 1])
    torch.testing.assert_close(found.scores, wanted.scores)
    assert not found.notes


def test_logits_in_the_unit_interval_stay_logits():
    found = explain(build(lambda z: z.sigmoid() * 0.5 + 0.1), "gradient_x_input", target=1)
    assert not found.notes


UNUSABLE = torch.tensor([True, False, True])
WITHOUT_A_VALUE: dict[str, Callable[[Tensor], Tensor]] = {
    "masked": lambda z: z.masked_fill(UNUSABLE, -torch.inf),
    "chosen": lambda z: torch.where(UNUSABLE, -torch.inf, z),
    "added": lambda z: z + torch.where(UNUSABLE, -torch.inf, 0.0),
    "not a number": lambda z: z.masked_fill(UNUSABLE, torch.nan),
    "softmax of masked": lambda z: z.masked_fill(UNUSABLE, -torch.inf).softmax(-1),
}


@pytest.mark.parametrize("end", WITHOUT_A_VALUE)
def test_classes_without_a_value_leave_the_others_as_they_are(end):
    plain, ending = build(lambda z: z), build(WITHOUT_A_VALUE[end])
    for method in METHODS:
        torch.testing.assert_close(explain(ending, method, target=1).scores, explain(plain, method, target=1).scores)
    found = explain(ending, "attnlrp")
    assert [one.index for one in found.targets] == [1, 1] and found.targets[0].probability == pytest.approx(1)


def test_a_class_without_a_value_is_refused():
    with pytest.raises(NonFinite, match="not finite"):
        explain(build(WITHOUT_A_VALUE["not a number"]), "attnlrp", target=0)


# --- other shapes ----------------------------------------------------------------------------------------------------


class Named(NamedTuple):
    states: Tensor
    class_scores: Tensor


@dataclass
class Fields:
    features: Tensor
    class_scores: Tensor


SHAPES: dict[str, Callable[[Tensor], object]] = {
    "classes before rows": lambda z: z.T,
    "named tuple": lambda z: Named(z.new_ones(len(z), 5), z),
    "dataclass": lambda z: Fields(z.new_ones(len(z), 5), z),
    "nested": lambda z: {"out": {"tokens": z.new_ones(len(z), 6, 5), "cls": [z]}},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3])  # as many rows as classes: only labels tell them apart
def test_logits_of_another_shape_are_explained_as_the_logits_are(shape, method, rows):
    ids = torch.cat([IDS, IDS.flip(1)])[:rows]
    settings = {"budget": 12} if method == "kernel_shap" else {}
    own, plain = (
        why.explain(build(end), {"input_ids": ids}, method, target=1, **settings)
        for end in (SHAPES[shape], lambda z: z)
    )
    assert torch.allclose(own.scores, plain.scores)
    assert [t.probability for t in own.targets] == pytest.approx([t.probability for t in plain.targets])
    assert any("several outputs" in note for note in own.notes) is (shape != "classes before rows")


@pytest.mark.parametrize("method", METHODS)
def test_one_row_without_its_axis(method):
    module = build(lambda z: z.squeeze())
    settings = {"budget": 12} if method == "kernel_shap" else {}
    own, plain = (
        why.explain(one, {"input_ids": IDS[:1]}, method, target=2, **settings) for one in (module, build(lambda z: z))
    )
    assert torch.allclose(own.scores, plain.scores)


def test_a_function_of_the_output_gets_classes_before_rows_if_the_model_returns_them():
    module = build(lambda z: z.T)
    own = why.explain(module, {"input_ids": IDS}, "gradient_x_input", target=lambda out: out[1])
    assert torch.allclose(own.scores, explain(module, "gradient_x_input", target=1).scores)


def test_an_answer_to_other_rows_is_refused():
    """The first axis of the ids is that of their tokens."""
    with pytest.raises(UnsupportedModel, match="answers 2 rows for 6"):
        why.explain(TokensFirst(), {"input_ids": IDS.T.contiguous()}, "attnlrp", target=1)


class TokensFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = build(lambda z: z)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.model(input_ids.T)
