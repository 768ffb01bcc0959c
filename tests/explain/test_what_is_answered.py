"""What is said about an answer: one of several labels, a value, an entity, and what came next."""

import pytest
import torch
import transformers as hf
from tiny_text import bert, byte_pairs, gpt2, wordpiece

import whyformer as why
from whyformer.errors import TargetError
from whyformer.show.wording import ask_why, describe_considered

TEXT = "the film is good"
KINDS = ("toxic", "insult", "threat")


def make_labelled(biases: list[float], **config: object) -> why.Model:
    """A classifier whose logits are close to these numbers."""
    module = bert(id2label=dict(enumerate(KINDS)), **config)
    with torch.no_grad():
        module.classifier.weight.mul_(1e-3)
        module.classifier.bias.copy_(torch.tensor(biases))
    return why.open(module, tokenizer=wordpiece())


@pytest.fixture(scope="module")
def labels() -> why.Model:
    return make_labelled([2.0, 1.0, -1.0], problem_type="multi_label_classification")


def make_regression(**config: object) -> why.Model:
    return why.open(bert(num_labels=1, problem_type="regression", **config), tokenizer=wordpiece())


def test_every_label_above_one_half_is_an_answer(labels):
    second, third = (why.explain(labels, TEXT, target=name).targets[0] for name in ("insult", "threat"))
    assert second.predicted and "not the prediction" not in ask_why(second)
    assert not third.predicted and ask_why(third).endswith("below 50%")


def test_a_sigmoid_at_the_end_makes_labels_of_their_own():
    class Scores(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make_labelled([2.0, 1.0, -1.0]).module

        def forward(self, input_ids, attention_mask):
            return self.inner(input_ids, attention_mask).logits.sigmoid()

    model = why.open(Scores().eval(), tokenizer=wordpiece(), labels=KINDS)
    assert why.explain(model, TEXT, "gradient_x_input", target="insult").targets[0].predicted
    assert not why.explain(model, TEXT, "gradient_x_input", target="threat").targets[0].predicted


def test_the_labels_that_are_given_can_be_explained_together(labels):
    together = why.explain(labels, TEXT, "gradient_x_input", target="labels")
    each = [why.explain(labels, TEXT, "gradient_x_input", target=name).scores for name in ("toxic", "insult")]
    assert together.targets[0].label == "toxic + insult"
    assert torch.allclose(together.scores, each[0] + each[1])


def test_labels_need_a_model_that_gives_several():
    with pytest.raises(TargetError, match="Labels needs a multi-label classifier"):
        why.explain(make_labelled([2.0, 1.0, -1.0]), TEXT, target="labels")


def test_other_labels_are_named_with_their_probabilities(labels):
    line = describe_considered(why.explain(labels, TEXT).targets[0])
    assert line.startswith("Other labels (each above 50% is an answer too): insult 7") and "threat 2" in line


def test_a_regression_is_asked_for_its_value():
    e = why.explain(make_regression(), TEXT, check=True)
    assert ask_why(e.targets[0]) == f"Why {e.targets[0].score:.4g}?"
    for shown in (str(e), repr(e), e.to_html()):
        assert "LABEL_0" not in shown and "robability" not in shown and "%" not in shown.partition("style")[0]


def test_a_value_has_the_name_that_the_model_gives_it():
    e = why.explain(make_regression(id2label={0: "price"}, label2id={"price": 0}), TEXT, target="value")
    assert ask_why(e.targets[0]) == f"Why price = {e.targets[0].score:.4g}?"


def test_a_target_may_be_written_as_text_in_python():
    torch.manual_seed(0)
    config = bert(id2label={0: "O", 1: "B-PER", 2: "B-LOC"}).config
    tagger = why.open(hf.BertForTokenClassification(config).double().eval(), tokenizer=wordpiece())
    by_text = why.explain(tagger, TEXT, "gradient_x_input", target="entity:FILM=PER")
    by_kind = why.explain(tagger, TEXT, "gradient_x_input", target=why.targets.Entity("film", label="PER"))
    assert torch.equal(by_text.scores, by_kind.scores)
    several = why.explain(tagger, [TEXT, TEXT], "gradient_x_input", target=["entity:film", "entity:good"])
    assert [target.label.split()[-1] for target in several.targets] == ["'film'", "'good'"]


def test_a_word_that_names_a_kind_of_target_is_a_token_of_a_language_model():
    model = why.open(gpt2(), tokenizer=byte_pairs())
    with pytest.raises(TargetError, match="not one token"):
        why.explain(model, "The Eiffel Tower", target="answer")


def test_a_contrast_says_who_is_ahead():
    ahead, behind = (
        why.explain(make_labelled([2.0, 1.0, -1.0]), TEXT, target=one, versus=other).targets[0]
        for one, other in (("toxic", "insult"), ("threat", "insult"))
    )
    assert "toxic rather than insult? ahead by " in ask_why(ahead)
    assert "behind by " in ask_why(behind) and ask_why(behind).endswith("not the prediction")


@pytest.mark.parametrize(
    ("target", "line"), [(None, "Next likeliest: insult 2"), ("threat", "The model's own answer: toxic 7")]
)
def test_what_else_was_considered_is_named(target, line):
    e = why.explain(make_labelled([2.0, 1.0, -1.0]), TEXT, target=target)
    assert describe_considered(e.targets[0]).startswith(line)
    assert line in " ".join(str(e).split())
    assert line in e.formats[".html"](e).decode().replace("&#x27;", "'")


def test_what_was_considered_is_saved(tmp_path):
    e = why.explain(make_labelled([2.0, 1.0, -1.0]), TEXT)
    for name in ("e.json", "e.safetensors"):
        e.save(tmp_path / name)
        assert why.load(tmp_path / name).targets[0].considered == e.targets[0].considered != ()


def test_no_label_above_one_half_is_no_answer():
    model = make_labelled([-2.0, -1.0, -3.0], problem_type="multi_label_classification")
    assert ask_why(why.explain(model, TEXT).targets[0]) == "Why insult? 26.9%, below 50%"
    assert "No label is above 50%; the likeliest is explained." in why.explain(model, TEXT, target="labels").notes


def test_the_classes_of_a_regression_are_its_value():
    assert len(why.explain_classes(make_regression(), TEXT, ["gradient_x_input"]).comparisons) == 1
