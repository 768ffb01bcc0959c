"""The algebra of targets: a span is the sum of its tokens, a group of its classes, a contrast the difference."""

import pickle

import pytest
import torch
import transformers as hf
from conftest import QUICK, TEXT
from tiny_text import bert, byte_pairs, gpt2, wordpiece

import whyformer
from whyformer import targets
from whyformer.errors import MethodError, TargetError
from whyformer.metrics._rerun import Rerun
from whyformer.targets import (
    AnswerSpan,
    Character,
    Choice,
    Class,
    Entity,
    Frame,
    Group,
    LogProbability,
    Representation,
    Token,
    TokenClasses,
    Tokens,
    Value,
)

torch.set_num_threads(1)

LINEAR = ["gradient_x_input", "attnlrp", "libragrad", "lrp_gamma", "decompx", "leave_one_out"]
IDS = torch.tensor([[5, 6, 7, 8, 9], [6, 7, 8, 9, 5]])
LABELS = ["O", "B-PER", "I-PER", "B-LOC"]
PROMPT = "The Eiffel Tower is in the city"


@pytest.fixture(scope="module")
def language_model() -> whyformer.Model:
    return whyformer.open(gpt2(), tokenizer=byte_pairs())


@pytest.fixture(scope="module")
def classifier() -> whyformer.Model:
    torch.manual_seed(0)
    return whyformer.open(hf.BertForSequenceClassification(hf.BertConfig(**TEXT)).double().eval())


@pytest.fixture(scope="module")
def tagger() -> whyformer.Model:
    torch.manual_seed(0)
    config = bert().config
    config.num_labels = len(LABELS)
    config.id2label, config.label2id = dict(enumerate(LABELS)), {label: i for i, label in enumerate(LABELS)}
    return whyformer.open(hf.BertForTokenClassification(config).double().eval(), tokenizer=wordpiece())


def explain(model, inputs, method, target, **more):
    return whyformer.explain(model, inputs, method, target=target, **QUICK.get(method, {}), **more)


def assert_sum(whole, parts):
    assert torch.allclose(whole.scores, sum(part.scores for part in parts), rtol=1e-7, atol=1e-9)
    assert whole.targets[0].score == pytest.approx(sum(part.targets[0].score for part in parts), abs=1e-9)


# --- sums -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", LINEAR)
def test_a_span_is_the_sum_of_its_tokens(language_model, method):
    whole = explain(language_model, PROMPT, method, Tokens(2, 4))
    assert_sum(whole, [explain(language_model, PROMPT, method, Tokens(n)) for n in (2, 3, 4)])


@pytest.mark.parametrize("method", LINEAR)
def test_an_entity_is_the_sum_of_its_tokens(tagger, method):
    text = "the film is good"
    whole = explain(tagger, text, method, Entity(1, 2, "PER"))
    assert_sum(whole, [explain(tagger, text, method, target) for target in (Entity(1, label=1), Entity(2, label=2))])


@pytest.mark.parametrize("method", LINEAR)
def test_a_group_is_the_weighted_sum_of_its_members(classifier, method):
    whole = explain(classifier, IDS, method, Group(0, "LABEL_2", weights=[2, -0.5]))
    zero, two = (explain(classifier, IDS, method, number).scores for number in (0, 2))
    assert torch.allclose(whole.scores, 2 * zero - 0.5 * two, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("method", LINEAR)
def test_a_contrast_is_the_difference(tagger, method):
    text = "the film is good"
    one, other = Entity("film", label="PER"), Entity("film", label="LOC")
    e = explain(tagger, text, method, one, versus=other)
    difference = explain(tagger, text, method, one).scores - explain(tagger, text, method, other).scores
    assert torch.allclose(e.scores, difference, rtol=1e-7, atol=1e-9)


def test_the_last_of_a_span_is_the_next_token(language_model):
    """Teacher forcing: the last token of a text is read where the text without it is continued."""
    ids = language_model.tokenizer.encode(PROMPT)
    whole = explain(language_model, PROMPT, "attnlrp", Tokens(len(ids) - 1))
    before = language_model.tokenizer.decode(ids[:-1])
    alone = explain(language_model, before, "attnlrp", ids[-1])
    assert torch.allclose(whole.scores[0, :-1], alone.scores[0], atol=1e-9)
    assert whole.targets[0].score == pytest.approx(alone.targets[0].score, abs=1e-9)


def test_a_log_probability_is_what_it_says(language_model):
    e = explain(language_model, PROMPT, "rollout", LogProbability(Tokens(2, 3)))
    ids = torch.tensor([language_model.tokenizer.encode(PROMPT)])
    with torch.no_grad():
        logs = language_model.module(ids).logits[0].log_softmax(-1)
    assert e.targets[0].score == pytest.approx(float(logs[1, ids[0, 2]] + logs[2, ids[0, 3]]), abs=1e-9)
    assert e.targets[0].label.startswith("log p(")


def test_recipes_that_send_relevance_start_with_one_for_each_logit(classifier):
    one = explain(classifier, IDS, "lrp", Group(1))
    assert torch.allclose(one.scores, explain(classifier, IDS, "lrp", 1).scores, atol=1e-12)


def test_readout_of_an_entity_is_at_its_tokens(tagger):
    encoded = tagger.encode("the film is good")
    capture = whyformer.record(tagger, encoded, target=Entity(1, 2), keep={"readout"})
    assert capture["readout"][0].tolist() == [0, 0.5, 0.5, 0, 0, 0]


# --- entities ---------------------------------------------------------------------------------------------------------


def test_an_entity_by_word_by_token_and_by_characters(tagger):
    text = "the film is good"
    by_word = explain(tagger, text, "gradient_x_input", Entity("film", label="LOC"))
    for target in (Entity(2, label="LOC"), Entity(4, 8, "B-LOC", unit="character"), Entity(2, 2, 3)):
        assert torch.equal(explain(tagger, text, "gradient_x_input", target).scores, by_word.scores)
    assert by_word.targets[0].label == "LOC at 'film'"


def test_the_default_is_an_entity(tagger):
    e = explain(tagger, "the film is good", "gradient_x_input", None)
    with torch.no_grad():
        ids = tagger.tokenizer("the film is good", return_tensors="pt")["input_ids"]
        probabilities = tagger.module(ids).logits[0, 1:-1].softmax(-1)
    place, chosen = divmod(int(probabilities[:, 1:].argmax()), 3)
    classes = dict(part.split("=#") for part in e.targets[0].spec.removeprefix("classes:").split(","))
    assert int(classes[str(place + 1)]) == chosen + 1


def test_an_entity_that_is_not_there(tagger):
    with pytest.raises(TargetError, match=r"'Berlin' does not occur in the text. Its tokens are: 0 '\[CLS\]', 1 'the'"):
        explain(tagger, "the film", "rollout", Entity("Berlin"))
    with pytest.raises(TargetError, match=r"There is no token 9 in 'the film'. Tokens are 0 to 3: 0 '\[CLS\]'"):
        explain(tagger, "the film", "rollout", Entity(9))
    with pytest.raises(TargetError, match=r"There is no class 'ORG'.* Available: O, B-PER, I-PER, B-LOC"):
        explain(tagger, "the film", "rollout", Entity(1, label="ORG"))
    with pytest.raises(TargetError, match="must not end before it starts, got 2 to 1"):
        explain(tagger, "the film", "rollout", Entity(2, 1))


def test_deleting_the_token_that_is_explained_is_refused_and_the_way_out_works(tagger):
    target = Entity("film", label="LOC")
    with pytest.raises(
        MethodError, match=r'read at token 2, which fill="delete" removes. Use another fill, such as "mask"'
    ):
        whyformer.explain(tagger, "the film is good", "leave_one_out", target=target, fill="delete")
    assert whyformer.explain(tagger, "the film is good", "leave_one_out", target=target, fill="mask").scores.any()


def test_padding_and_deleting_other_tokens_keep_the_place(tagger):
    """In a batch with padding, the fill "pad" removes the padding first; in one with deletions, tokens move."""
    texts = ["the film is not bad at all", "a film"]
    for fill in ("pad", "mask"):
        together = whyformer.explain(tagger, texts, "leave_one_out", target=Entity("film", label="LOC"), fill=fill)
        alone = whyformer.explain(tagger, texts[1], "leave_one_out", target=Entity("film", label="LOC"), fill=fill)
        assert torch.allclose(together.scores[1, : alone.scores.shape[1]], alone.scores[0], atol=1e-9)


# --- wrong targets list what exists -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Token("film"), "Token needs a language model, but .* answers one class .* Targets for it: a class by name"),
        (Entity(1), "Entity needs a model that classifies tokens"),
        (AnswerSpan(), "AnswerSpan needs start_logits and end_logits"),
        (Frame(), "Frame needs a model that answers for every frame"),
        (Character(), "Character needs a model that answers for every frame"),
        (Choice(0), "Choice needs a multiple-choice model"),
        (Representation(), "Representation needs a model without a head"),
        (Tokens(1, 2), "Tokens needs a language model that answers at every position"),
        (Group("dog"), r"There is no class 'dog'.* Available: LABEL_0"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_target_of_another_task_is_refused(classifier, target, message):
    with pytest.raises(TargetError, match=message):
        whyformer.explain(classifier, IDS, "rollout", target=target)


def test_groups_are_checked():
    with pytest.raises(TargetError, match="at least one class"):
        Group()
    with pytest.raises(TargetError, match="2 members, but 1 weights"):
        Group("a", "b", weights=[1])


def test_the_first_token_of_a_causal_model(language_model):
    with pytest.raises(TargetError, match=r"does not predict the first token of a text\. Start the span"):
        explain(language_model, PROMPT, "rollout", Tokens(0, 2))


# --- as text ----------------------------------------------------------------------------------------------------------

TEXTS = {
    "class:cat": Class("cat"),
    "group:cat,dog": Group("cat", "dog"),
    "group:cat,-0.5*#3": Group("cat", 3, weights=[1, -0.5]),
    'group:["a, b", "2*c"]': Group("a, b", "c", weights=[1, 2]),
    "logp:cat": LogProbability("cat"),
    "logp": LogProbability(),
    "logp:tokens:4-7": LogProbability(Tokens(4, 7)),
    "value:1": Value(1),
    "token:Paris@mask": Token("Paris", "mask"),
    "token:a@b@3": Token("a@b", 3),
    "token@4": Token(at=4),
    "token": Token(),
    "tokens:4-7": Tokens(4, 7),
    "entity:Berlin=LOC": Entity("Berlin", label="LOC"),
    "entity:3-4=#1": Entity(3, 4, 1),
    "entity:characters 10-16": Entity(10, 16, unit="character"),
    "entity:=PER": Entity(label="PER"),
    "entity": Entity(),
    "classes:3=#1,4=#2": TokenClasses((3, 4), (1, 2)),
    "logodds:answer-tokens:0-2": targets.Answer((0, 1, 2), score="log_odds"),
    "tempered:answer-tokens:0-2": targets.Answer((0, 1, 2), score="tempered"),
    "answer:12-15": AnswerSpan(12, 15),
    "answer": AnswerSpan(),
    "choice:1": Choice(1),
    "frame:12=a": Frame(12, "a"),
    "frame:12": Frame(12),
    "character:2": Character(2),
    "query:3=cat": targets.Query(3, "cat"),
    "query:3@width": targets.Query(3, side="width"),
    "query:=#1": targets.Query(label=1),
    "query": targets.Query(),
    "representation": Representation(),
}


@pytest.mark.parametrize(("text", "target"), TEXTS.items(), ids=TEXTS)
def test_every_target_can_be_written_as_text(text, target):
    assert targets.parse(text) == target
    assert str(target) == text
    assert targets.is_target_text(text)
    assert pickle.loads(pickle.dumps(target)) == target


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grp:cat", r"'grp:cat' is not a target. Did you mean 'group'\? Write a class, or one of: class:cat, group:"),
        (5, r"A target must be a text such as 'group:cat,dog', got int"),
        ('group:["0",[[]]]', r"Write it like group:cat,dog"),
        ("group:" + "[" * 100_000, r"Write it like group:cat,dog"),
        ("logodds:cat", r"Write it like logodds:answer-tokens"),
        ("tokens:a-b", r"'tokens:a-b' is not a target. Write it like tokens:4-7"),
        ("token:a@middle", r"Write it like token:Paris@mask"),
        ("representation:1", "Write it like representation"),
        ("class:", "Write it like class:cat"),
    ],
)
def test_a_text_that_is_no_target_lists_the_forms(text, message):
    with pytest.raises(TargetError, match=message):
        targets.parse(text)


def test_a_label_of_the_model_is_no_target_text():
    assert not targets.is_target_text("group:a", ["group:a"])
    assert not targets.is_target_text("dog") and not targets.is_target_text("group") and not targets.is_target_text(3)


# --- everything that explains -----------------------------------------------------------------------------------------


def test_several_targets_at_once(tagger):
    grid = whyformer.explain_classes(
        tagger, "the film is good", ["rollout", "attnlrp"], classes=[Entity("film", label="PER"), Entity("good")]
    )
    assert len(grid.comparisons) == 2
    with pytest.raises(TargetError, match=r"does not choose one class .* Name what to explain: classes="):
        whyformer.explain_classes(tagger, "the film is good", ["rollout"], classes=2)


def test_a_rerun_has_the_same_target(tagger):
    encoded = tagger.encode("the film is good")
    e = whyformer.explain(tagger, encoded, "attnlrp", target=Entity("film"), versus=Entity("good"))
    again = Rerun(tagger, encoded, e)()
    torch.testing.assert_close(again.scores, e.scores)  # a planned run rounds otherwise than the full engine
    function = whyformer.explain(tagger, encoded, "attnlrp", target=lambda out: out.logits[:, 1, 0])
    with pytest.raises(TargetError, match="is a function of the output"):
        Rerun(tagger, encoded, function)()


def test_the_target_survives_saving(tagger, tmp_path):
    e = whyformer.explain(tagger, "the film is good", "attnlrp", target=Entity("film", label="LOC"))
    for name in ("e.safetensors", "e.json"):
        e.save(tmp_path / name)
        assert whyformer.load(tmp_path / name).targets == e.targets
    assert e.targets[0].spec == "classes:2=#3"


def test_health_and_precision_keep_the_target(tagger):
    e = whyformer.explain(tagger, "the film is good", "attnlrp", target=Entity("film", label="LOC"), health=True)
    assert float(e.health.sent[0]) == pytest.approx(e.targets[0].score, abs=1e-9)


def test_a_long_span_in_bfloat16_is_summed_in_float32():
    """The log-softmax of the model's own logits, and their sum, keep the digits that bfloat16 does not have."""
    module = gpt2().to(torch.bfloat16)
    ids = torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7, 8, 9]])
    with torch.no_grad():
        logits = module(ids).logits[0].float()
    for target, read in ((Tokens(1, 9), logits), (LogProbability(Tokens(1, 9)), logits.log_softmax(-1))):
        wanted = read[torch.arange(9), ids[0, 1:]].sum().item()
        found = whyformer.explain(module, {"input_ids": ids}, "gradient_x_input", target=target).targets[0].score
        assert found == pytest.approx(wanted, rel=1e-6)
        assert found != float(torch.tensor(found).bfloat16())
