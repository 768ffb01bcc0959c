"""Targets: classes by index or label, next tokens and contrasts, and what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as hf
from conftest import IMAGE, TEXT, animal
from tiny_text import bert, byte_pairs, gpt2, unigram, wordpiece

import whyformer
from whyformer._engine.targets.target import (
    REPRESENTATION,
    TargetNames,
    choose_target,
    encode_as_continuation,
    expand_per_example,
)
from whyformer.errors import TargetError, UnsupportedModel

torch.set_num_threads(1)

LABELS = ("cat", "dog", "Cat", "bird", "bird")
LOGITS = torch.tensor([[1.0, 4.0, 2.0, 0.0, 0.5], [3.0, 1.0, 0.0, 2.0, 0.5]], dtype=torch.float64)


def choose(target=None, versus=None, *, logits=LOGITS, labels=LABELS, config=None):
    """The scores and targets of a classifier that returned `logits`."""
    module = torch.nn.Identity()
    module.config = config
    model = SimpleNamespace(module=module, labels=labels, tokenizer=None)
    answer, targets = choose_target(model, SimpleNamespace(token_mask=None), logits, target, versus)
    assert [one.score for one in targets] == answer.score.tolist()
    return answer.score.tolist(), targets


# --- classes ----------------------------------------------------------------------------------------------------------


def test_the_default_is_the_predicted_class():
    scores, targets = choose()
    assert scores == [4.0, 3.0]
    assert [(t.index, t.label, t.predicted) for t in targets] == [(1, "dog", True), (0, "cat", True)]
    assert targets[0].probability == pytest.approx(float(LOGITS[0].softmax(0)[1]), abs=1e-12)
    assert targets[0].position is None and targets[0].versus is None


@pytest.mark.parametrize(
    "wanted",
    [1, "dog", "DOG", np.int64(1), torch.tensor(1), [1, "dog"], (1, 1), torch.tensor([1, 1]), np.array([1, 1])],
)
def test_a_class_for_all_or_one_for_each(wanted):
    scores, targets = choose(wanted)
    assert scores == [4.0, 1.0]
    assert [t.label for t in targets] == ["dog", "dog"]
    assert [t.predicted for t in targets] == [True, False]


def test_a_class_for_some():
    assert choose([None, "dog"])[0] == [4.0, 1.0]
    assert choose(["dog", 3])[0] == [4.0, 2.0]


def test_the_exact_label_comes_before_one_in_other_case():
    assert [choose(label)[1][0].index for label in ("cat", "Cat")] == [0, 2]


def test_a_contrast():
    scores, targets = choose("dog", "cat")
    assert scores == [3.0, -2.0]
    assert (targets[0].versus, targets[0].versus_label, targets[0].score) == (0, "cat", 3.0)
    assert choose("dog", [None, "cat"])[0] == [4.0, -2.0]
    assert choose(None, 3)[0] == [4.0, 1.0]


@pytest.mark.parametrize("wanted", [-1, 5, 10**30, 1.5, float("nan"), True, object(), torch.tensor(1.5), b"dog", {}])
def test_unknown_classes_are_refused(wanted):
    with pytest.raises(TargetError, match=r"There is no class .* Classes are 0 to 4: cat, dog, Cat, bird, bird"):
        choose(wanted)


def test_an_unknown_label_lists_the_labels():
    with pytest.raises(
        TargetError, match=r"There is no class 'dgo'. Did you mean 'dog'[?] Available: cat, dog, Cat, bird"
    ):
        choose("dgo")
    many = tuple(f"class {i}" for i in range(1000))
    with pytest.raises(TargetError, match=r"Available: class 0, class 1, .*class 19 and 980 more"):
        choose("zebra", labels=many, logits=torch.zeros(1, 1000))


def test_a_label_of_several_classes():
    with pytest.raises(TargetError, match=r"2 classes are called 'bird': \[3, 4\]. Pass a number"):
        choose("bird")
    assert choose(4)[0] == [0.5, 0.5]
    with pytest.raises(TargetError, match=r"2 classes are called 'CAT': \[0, 2\]"):
        choose("CAT")


def test_a_model_without_labels():
    assert choose(2, labels=None)[1][0].label == "2"
    with pytest.raises(
        TargetError, match=r"There is no class 'dog': this model has no labels. Pass a number from 0 to 4"
    ):
        choose("dog", labels=None)
    assert choose(2, labels=("too", "few"))[1][0].label == "2"


@pytest.mark.parametrize("wanted", [[1], [1, 1, 1], [], torch.tensor([1, 2, 3])])
def test_a_list_of_another_length(wanted):
    with pytest.raises(
        TargetError, match=rf"target has {len(wanted)} entries for 2 examples. Pass one for all, or one per"
    ):
        choose(wanted)
    with pytest.raises(TargetError, match=rf"versus has {len(wanted)} entries for 2 examples"):
        choose(None, wanted)


def test_target_and_versus_must_differ():
    with pytest.raises(TargetError, match=r"target and versus are both 'dog'\. Choose two different ones"):
        choose("dog", 1)


def test_one_entry_for_all():
    assert expand_per_example("dog", 3, "target") == ["dog"] * 3
    assert expand_per_example(None, 2, "target") == [None, None]


def test_a_regression_has_no_probability():
    for logits in (torch.tensor([[0.7], [0.1]]), torch.tensor([0.7, 0.1])):
        scores, targets = choose(logits=logits, labels=None)
        assert scores == pytest.approx([0.7, 0.1])
        assert [t.probability for t in targets] == [None, None]
    several = choose(1, config=SimpleNamespace(problem_type="regression"))
    assert several[1][0].probability is None


def test_multi_label_probabilities_are_independent():
    _, targets = choose(config=SimpleNamespace(problem_type="multi_label_classification"))
    assert targets[0].probability == pytest.approx(float(LOGITS[0, 1].sigmoid()))


# --- models that answer something else --------------------------------------------------------------------------------


def test_an_answer_of_another_shape():
    module = torch.nn.Module()
    model = SimpleNamespace(module=module, labels=None, tokenizer=None)
    with pytest.raises(
        UnsupportedModel, match=r"a tensor of shape \[1, 2, 3, 4\]; a classifier returns \[batch, class\]"
    ):
        choose_target(model, SimpleNamespace(token_mask=None), torch.zeros(1, 2, 3, 4), None, None)


# --- models without a head --------------------------------------------------------------------------------------------

PIXELS = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([[5, 6, 7, 8, 9], [6, 7, 8, 9, 5]])


class Features(torch.nn.Module):
    """As in timm: [batch channel], with an identity as head."""

    def __init__(self, num_classes=None):
        super().__init__()
        self.body = hf.ViTModel(hf.ViTConfig(**IMAGE))
        self.head = torch.nn.Identity()
        if num_classes is not None:
            self.head, self.num_classes = torch.nn.ReLU(), num_classes

    def forward(self, pixel_values):
        return self.head(self.body(pixel_values).last_hidden_state[:, 0])


HEADLESS = {
    "vit": (lambda: hf.ViTModel(hf.ViTConfig(**IMAGE)), PIXELS, "its first token"),
    "dinov2": (lambda: hf.Dinov2Model(hf.Dinov2Config(**IMAGE)), PIXELS, "its first token"),
    "bert": (lambda: hf.BertModel(hf.BertConfig(**TEXT)), IDS, "the mean of its tokens"),
    "llama": (lambda: hf.LlamaModel(hf.LlamaConfig(**TEXT)), IDS, "its last token"),
    "features": (Features, PIXELS, None),
    "no classes": (lambda: Features(0), PIXELS, None),
}
without_a_head = pytest.mark.parametrize(("make", "inputs", "read"), HEADLESS.values(), ids=HEADLESS)


@without_a_head
@pytest.mark.parametrize("method", ["redistribution", "rollout", "raw_attention", "chance"])
def test_the_representation_is_explained_where_there_is_no_head(make, inputs, read, method):
    e = whyformer.explain(whyformer.open(make().double().eval()), inputs, method)
    assert {(target.index, target.label, target.probability) for target in e.targets} == {(-1, REPRESENTATION, None)}
    assert e.scores.isfinite().all()
    if read is not None:
        assert e.notes[0] == f"The model has no head. The explanation is of its representation: {read}."


def test_the_class_token_of_features_is_found_from_where_it_was_taken():
    torch.manual_seed(0)
    module = Features().double().eval()
    whole = whyformer.explain(whyformer.open(module.body), PIXELS, "rollout")
    assert torch.equal(whyformer.explain(whyformer.open(module), PIXELS, "rollout").scores, whole.scores)
    with torch.no_grad():
        length = module(PIXELS.double()).norm(dim=-1)
    assert [target.score for target in whole.targets] == pytest.approx(length.tolist(), abs=1e-10)


def test_the_readout_of_a_representation_can_be_chosen():
    module = hf.ViTModel(hf.ViTConfig(**IMAGE)).double().eval()
    e = whyformer.explain(whyformer.open(module, readout="mean"), PIXELS, "rollout")
    assert e.notes[0] == "The model has no head. The explanation is of its representation: the mean of its tokens."
    e = whyformer.explain(whyformer.open(module, readout=3), PIXELS, "rollout")
    assert e.notes[0] == "The model has no head. The explanation is of its representation: token 3."
    assert e.scores.argmax(-1).tolist() == [2, 2]  # the residual: patch 2 is token 3


def test_a_text_is_read_at_its_class_token_if_the_tokenizer_has_one():
    model = whyformer.open(hf.BertModel(bert().config).double().eval(), tokenizer=wordpiece())
    together = whyformer.explain(model, ["the film is good", "bad"], "redistribution")
    assert together.notes[-1] == "The model has no head. The explanation is of its representation: its first token."
    alone = whyformer.explain(model, "bad", "redistribution")
    assert (together.scores[1, : alone.scores.shape[1]] - alone.scores[0]).abs().max() < 1e-10


@without_a_head
@pytest.mark.parametrize("method", ["gradient_x_input", "attnlrp", "lrp", "transformer_attribution", "occlusion"])
def test_class_specific_methods_explain_the_projection_of_the_representation(make, inputs, read, method):
    torch.manual_seed(0)
    e = whyformer.explain(whyformer.open(make().double().eval()), inputs, method)
    assert {(target.label, target.spec) for target in e.targets} == {(REPRESENTATION, "representation")}
    assert (e.scores.abs().amax(-1) > 1e-6).all()
    assert "Score: its projection on the direction in which it differs from that of a blank input." in e.notes[0]


@pytest.mark.parametrize("wanted", [{"target": 1}, {"versus": 1}, {"target": [None, "cat"]}])
def test_a_target_needs_a_head(wanted):
    model = whyformer.open(hf.ViTModel(hf.ViTConfig(**IMAGE)).eval())
    with pytest.raises(TargetError, match=r"ViTModel has no head, so there is no (target|versus) .*\. Leave it out to"):
        whyformer.explain(model, PIXELS, "rollout", **wanted)


# --- next tokens ------------------------------------------------------------------------------------------------------

PROMPT = "The Eiffel Tower is in the city of"


@pytest.fixture(scope="module")
def language_model() -> whyformer.Model:
    return whyformer.open(gpt2(), tokenizer=byte_pairs())


def test_the_next_token(language_model):
    e = whyformer.explain(language_model, PROMPT, "gradient_x_input", target=" Paris", versus=" film")
    (target,) = e.targets
    paris, film = (language_model.tokenizer.encode(word)[0] for word in (" Paris", " film"))
    assert (target.index, target.label, target.versus, target.versus_label) == (paris, " Paris", film, " film")
    ids = torch.tensor([language_model.tokenizer.encode(PROMPT)])
    with torch.no_grad():
        logits = language_model.module(ids).logits[0, -1]
    assert target.position == ids.size(1) - 1
    assert target.score == pytest.approx(float(logits[paris] - logits[film]), abs=1e-10)
    assert target.probability == pytest.approx(float(logits.softmax(0)[paris]), abs=1e-10)


def test_a_next_token_for_each_text(language_model):
    texts = [PROMPT, "the city", "a film"]
    together = whyformer.explain(language_model, texts, "gradient_x_input", target=[" Paris", " of", 7])
    for i, (text, wanted) in enumerate(zip(texts, (" Paris", " of", 7), strict=True)):
        alone = whyformer.explain(language_model, text, "gradient_x_input", target=wanted).targets[0]
        assert together.targets[i].score == pytest.approx(alone.score, abs=1e-10)
        assert (together.targets[i].label, together.targets[i].index) == (alone.label, alone.index)
    assert len({target.position for target in together.targets}) == 1  # padded on the left, all end together


def test_a_target_is_tokenised_as_a_continuation():
    """A unigram tokenizer adds a space before a text: ' Paris' on its own would become two spaces and a word."""
    for tokenizer in (unigram(), byte_pairs()):
        (blank,) = encode_as_continuation(tokenizer, " a")
        (joined,) = encode_as_continuation(tokenizer, "a")
        assert tokenizer.convert_ids_to_tokens([blank, joined]) in (["Ġa", "a"], ["▁a", "a"])


def test_the_end_of_the_text_can_be_a_target(language_model):
    assert whyformer.explain(language_model, PROMPT, "gradient_x_input", target="<|endoftext|>").targets[0].index == 0


def test_unknown_next_tokens_are_refused(language_model):
    names = TargetNames(language_model, 400, is_language=True)
    with pytest.raises(
        TargetError, match=r"Target ' Berlin' is not one token for this model: it is ' B' \+|' ' \+ 'B'"
    ):
        names.index(" Berlin")
    with pytest.raises(TargetError, match="Target '' is not one token for this model: it is nothing"):
        names.index("")
    for wrong in (-1, 400, 1.5):
        with pytest.raises(TargetError, match=r"There is no token .*. Tokens are 0 to 399"):
            names.index(wrong)
    with pytest.raises(
        TargetError, match=r"Target ' Paris' is token .*, but the model has only 100 tokens: the tokenizer belongs to"
    ):
        TargetNames(language_model, 100, is_language=True).index(" Paris")


def test_next_tokens_without_a_tokenizer():
    gpt = whyformer.open(animal("gpt").module)
    e = whyformer.explain(gpt, torch.tensor([[3, 4, 5]]), "gradient_x_input", target=7)
    assert (e.targets[0].label, e.targets[0].position) == ("7", 2)
    with pytest.raises(
        TargetError, match="' Paris' cannot be converted to a token: the model was opened without a tokenizer"
    ):
        whyformer.explain(gpt, torch.tensor([[3, 4, 5]]), "gradient_x_input", target=" Paris")


def test_a_classifier_of_texts_has_classes_and_not_tokens():
    model = whyformer.open(bert(), tokenizer=wordpiece())
    e = whyformer.explain(model, ["the film is good", "bad"], "rollout", target=["positive", 0])
    assert [target.label for target in e.targets] == ["positive", "negative"]
    with pytest.raises(TargetError, match=r"There is no class 'film'. Available: negative, neutral, positive"):
        whyformer.explain(model, "the film", "rollout", target="film")
