"""Any function of the output as the target: where relevance starts, where it is read, and what is refused."""

import pytest
import torch
import transformers as hf
from conftest import IMAGE, QUICK, TEXT

import whyformer
from whyformer._engine.record import record
from whyformer._engine.relevance.recipes import RECIPES
from whyformer.errors import TargetError
from whyformer.targets import AnswerSpan, Group

torch.set_num_threads(1)

IDS = torch.tensor([[5, 6, 7, 8, 9], [6, 7, 8, 9, 5]])
PERTURBING = ["leave_one_out", "value_zeroing", "integrated_gradients"]
SLOPES = ["gradient_x_input", "attnlrp", "libragrad", "attcat", "grad_cam", "decompx", "agcam", "legrad", "grads"]


def make_classifier() -> whyformer.Model:
    torch.manual_seed(0)
    return whyformer.open(hf.BertForSequenceClassification(hf.BertConfig(**TEXT)).double().eval())


@pytest.fixture(scope="module")
def classifier() -> whyformer.Model:
    return make_classifier()


def explain(model, method, target, inputs=IDS):
    return whyformer.explain(model, inputs, method, target=target, **QUICK.get(method, {})).scores


@pytest.mark.parametrize("method", [*SLOPES, *PERTURBING])
def test_a_function_that_picks_a_class_gives_what_the_class_gives(classifier, method):
    own = explain(classifier, method, 1)
    assert torch.equal(explain(classifier, method, lambda out: out.logits[:, 1]), own)


@pytest.mark.parametrize("method", ["lrp", "lrp_epsilon"])
def test_recipes_that_send_relevance_start_with_slope_times_output(classifier, method):
    e = whyformer.explain(classifier, IDS, method, target=lambda out: 2 * out.logits[:, 1])
    own = whyformer.explain(classifier, IDS, method, target=1)
    logits = torch.tensor([target.score for target in own.targets], dtype=torch.float64)
    assert torch.allclose(e.scores, 2 * logits[:, None] * own.scores, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["gradient_x_input", "attnlrp", "decompx", "leave_one_out"])
def test_a_weighted_sum_gives_the_sum_of_the_explanations(classifier, method):
    together = explain(classifier, method, lambda out: out.logits[:, 0] - 3 * out.logits[:, 2])
    parts = explain(classifier, method, 0) - 3 * explain(classifier, method, 2)
    assert torch.allclose(together, parts, rtol=1e-9, atol=1e-12)


def test_the_gradient_of_a_log_probability(classifier):
    """By the chain rule: the gradients of the logits weighted by [class] - p(class)."""
    target = lambda out: out.logits.log_softmax(-1)[:, 1]  # noqa: E731
    with torch.no_grad():
        logits = classifier.module(IDS).logits
    slope = torch.eye(logits.size(1), dtype=torch.float64)[1] - logits.softmax(-1)
    by_class = torch.stack([explain(classifier, "gradient_x_input", c) for c in range(logits.size(1))], -1)
    expected = torch.einsum("btc,bc->bt", by_class, slope)
    assert torch.allclose(explain(classifier, "gradient_x_input", target), expected, atol=1e-12)


def test_a_batch_gives_what_each_example_gives_alone(classifier):
    functions = [lambda out: out.logits[:, 0], lambda out: out.logits[:, 1] ** 2]
    for method in ("attnlrp", "lrp", "leave_one_out", "rollout"):
        together = explain(classifier, method, functions)
        for row, function in enumerate(functions):
            alone = explain(classifier, method, function, IDS[row : row + 1])
            assert torch.allclose(together[row], alone[0], rtol=1e-9, atol=1e-12)


def test_a_function_with_something_for_each_example_is_asked_for_the_rows_of_variants(classifier):
    class Weighted:
        label = "a weighted logit"

        def __init__(self, weights):
            self.weights = weights

        def __call__(self, out):
            return out.logits[:, 0] * self.weights

        def pick_examples(self, of):
            return Weighted(self.weights[of])

    weights = torch.tensor([2.0, -1.0], dtype=torch.float64)
    e = whyformer.explain(classifier, IDS, "leave_one_out", target=Weighted(weights))
    assert e.targets[0].label == "a weighted logit"
    assert torch.allclose(e.scores, explain(classifier, "leave_one_out", 0) * weights[:, None])


def test_relevance_is_conserved_for_a_sum_of_logits(classifier):
    for method in ("attnlrp", "lrp_epsilon"):
        target = lambda out: out.logits[:, 0] + out.logits[:, 1]  # noqa: E731
        e = whyformer.explain(classifier, IDS, method, target=target, health=True)
        scores = torch.tensor([one.score for one in e.targets], dtype=torch.float64)
        assert torch.allclose(e.health.sent.double(), scores)


def test_hidden_states_beside_the_logits_are_not_counted_twice():
    """The logits depend on the last hidden state; only what the function itself reads counts."""
    torch.manual_seed(0)
    config = hf.BertConfig(**TEXT | {"output_hidden_states": True})
    model = whyformer.open(hf.BertForSequenceClassification(config).double().eval())
    assert torch.equal(explain(model, "attnlrp", lambda out: out.logits[:, 1]), explain(model, "attnlrp", 1))


def test_the_readout_follows_the_positions_that_are_read():
    torch.manual_seed(0)
    model = whyformer.open(hf.BertForTokenClassification(hf.BertConfig(**TEXT)).double().eval())
    encoded = model.encode(IDS)
    target = lambda out: 3 * out.logits[:, 1, 0] + out.logits[:, 4, 2]  # noqa: E731
    capture = record(model, encoded, target=target, keep={"readout"})
    assert torch.allclose(capture["readout"], torch.tensor([[0, 0.75, 0, 0, 0.25]] * 2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        (AnswerSpan(1, 3), [0, 0.5, 0, 0.5, 0]),
        (AnswerSpan(2, 2), [0, 0, 1, 0, 0]),
        (Group(AnswerSpan(0, 1), AnswerSpan(0, 4)), [0.5, 0.25, 0, 0, 0.25]),
        (lambda out: out.start_logits[:, 3], [0, 0, 0, 1, 0]),
        (lambda out: out.start_logits[:, 0] - out.end_logits[:, 1:].mean(1), [0.5, *[0.125] * 4]),
    ],
)
def test_a_span_is_read_at_its_ends(target, wanted):
    torch.manual_seed(0)
    model = whyformer.open(hf.BertForQuestionAnswering(hf.BertConfig(**TEXT | {"num_labels": 2})).double().eval())
    capture = record(model, model.encode(IDS), target=target, keep={"readout", "attention"})
    torch.testing.assert_close(capture["readout"], torch.tensor([wanted] * 2, dtype=torch.float64))
    rows = torch.einsum("q,bhqk->bk", torch.tensor(wanted, dtype=torch.float64), capture["attention"][-1]) / 4
    torch.testing.assert_close(explain(model, "raw_attention", target).to(rows), rows / rows.sum(1, keepdim=True))


def test_a_function_of_a_headless_model():
    torch.manual_seed(0)
    model = whyformer.open(hf.ViTModel(hf.ViTConfig(**IMAGE)).double().eval())
    pixels = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    target = lambda out: out.last_hidden_state[:, 0, :3].sum(-1)  # noqa: E731
    for method in ("gradient_x_input", "attnlrp", "transformer_attribution", "rollout", "occlusion"):
        assert whyformer.explain(model, pixels, method, target=target, **QUICK.get(method, {})).scores.any()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (lambda out: out.logits, r"must return one number per example, .* of shape \[2\], got \[2, 4\]"),
        (lambda out: 1.0, r"of shape \[2\], got float. What the model returned: logits \[2, 4\]"),
        (lambda out: out.logits.argmax(-1), r"floating-point tensor of shape \[2\], got \[2\] of torch.int64"),
        (lambda out: out.logits.detach()[:, 0], "does not depend on the output of the model"),
        (lambda out: out.scores[:, 0], r"failed on what the model returned \(logits \[2, 4\]\): AttributeError"),
        (lambda out: out.logits[:, 0] * float("nan"), "returned NaN or infinity"),
        ([lambda out: out.logits[:, 0]], "a list of 2 functions, one for each example"),
        ([lambda out: out.logits[:, 0], 1], "a list of 2 functions, one for each example"),
    ],
    ids=["matrix", "number", "integers", "constant", "field", "nan", "too few", "mixed"],
)
def test_functions_that_give_no_score_are_refused(classifier, target, message):
    with pytest.raises(TargetError, match=message):
        whyformer.explain(classifier, IDS, "rollout", target=target)


def test_versus_beside_a_function_is_refused(classifier):
    with pytest.raises(TargetError, match="Subtract inside the function"):
        whyformer.explain(classifier, IDS, "rollout", target=lambda out: out.logits[:, 0], versus=1)


def test_every_recipe_starts_from_a_function(classifier):
    for recipe in RECIPES.values():
        encoded = classifier.encode(IDS)
        target = lambda out: out.logits.softmax(-1)[:, 0]  # noqa: E731
        capture = record(classifier, encoded, target=target, keep={"input_relevance"}, recipes=[recipe])
        assert capture.get("input_relevance", recipe).isfinite().all()
