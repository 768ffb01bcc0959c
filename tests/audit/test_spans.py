"""Models that mark an answer in a text, audited as classifiers of spans."""

import itertools

import pytest
import torch
import transformers as hf
from tiny_text import WORDS, wordpiece_pairs

import whyformer as why
from whyformer import TextPair
from whyformer._audit.checks import AuditedAttention, as_audited, choose_attention, split_span
from whyformer._audit.checks.importance import measure_leave_one_out
from whyformer._audit.checks.span_model import LONGEST_ANSWER, SpanClassifier, add_span_logits
from whyformer._audit.examples import AuditExamples, find_span_labels
from whyformer._audit.report.summary import average_span_f1
from whyformer.data import Data, Example

QUESTION = "is the film good"
TEXTS = (
    ("the film is not good", "not good"),
    ("a film is not bad , good !", "not bad"),
    ("the bad film is good", "bad"),
)


def mark(text: str, answer: str) -> Example:
    start = len(QUESTION) + 1 + text.index(answer)
    return Example(text, TextPair(QUESTION, text), rationale=((start, start + len(answer)),))


DATA = Data("squad", tuple(mark(*one) for one in TEXTS))
INPUTS = [example.load() for example in DATA.examples]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48)
    config = hf.BertConfig(vocab_size=len(WORDS), max_position_embeddings=24, initializer_range=0.5, **sizes)
    return why.open(hf.BertForQuestionAnswering(config).double().eval(), tokenizer=wordpiece_pairs())


@pytest.fixture(scope="module")
def audited(model):
    return why.audit(model, DATA, samples=5, search_limit=1, steps=30)


def in_order(audited, test):
    rows = [row for row in audited.rows if row["test"] == test]
    return sorted(rows, key=lambda row: row["example"])


def list_answers(model, text: str, masked: int | None = None) -> dict[tuple[int, int], float]:
    """Every span of the text and its probability, one by one."""
    encoded = model.tokenizer(QUESTION, text, return_tensors="pt")
    if masked is not None:
        encoded["input_ids"][0, masked] = model.tokenizer.mask_token_id
    out = model.module(**encoded)
    second = [i for i, kind in enumerate(encoded["token_type_ids"][0].tolist()) if kind == 1][:-1]  # without [SEP]
    pairs = [(i, j) for i, j in itertools.product(second, second) if i <= j < i + LONGEST_ANSWER]
    logits = torch.stack([out.start_logits[0, i] + out.end_logits[0, j] for i, j in pairs])
    return dict(zip(pairs, logits.softmax(-1).tolist(), strict=True))


def test_the_probability_of_every_span_worked_one_by_one(model):
    spans = as_audited(model, model.encode(INPUTS[:1]))
    encoded = spans.encode(INPUTS)  # padded to the longest
    with torch.no_grad():
        probabilities = spans.module(**encoded.inputs).softmax(-1)
    for row, (text, _) in zip(probabilities, TEXTS, strict=True):
        wanted = list_answers(model, text)
        for (first, last), probability in wanted.items():
            assert float(row[first * LONGEST_ANSWER + last - first]) == pytest.approx(probability, abs=1e-6)
        assert float(row.sum()) - sum(wanted.values()) < 1e-5


def test_the_audited_answer_is_the_one_that_is_explained(model, audited):
    for row, (text, _) in zip(in_order(audited, "answer"), TEXTS, strict=True):
        wanted = list_answers(model, text)
        best = max(wanted, key=wanted.get)
        assert split_span(row["predicted"]) == best
        assert row["probability"] == pytest.approx(wanted[best], abs=1e-5)
        explained = why.explain(model, TextPair(QUESTION, text), "gradient_x_input")
        assert explained.targets[0].spec == f"answer:{best[0]}-{best[1]}" or best[0] == best[1]


def test_uniform_weights_in_the_last_block_are_those_of_a_model_without_scores(model, audited):
    """The change of the answer, beside a copy whose last queries are 0: every score is equal."""
    import copy

    flat = copy.deepcopy(model.module)
    query = flat.bert.encoder.layer[-1].attention.self.query
    torch.nn.init.zeros_(query.weight), torch.nn.init.zeros_(query.bias)
    other = why.open(flat, tokenizer=model.tokenizer)
    for row, (text, _) in zip(in_order(audited, "replacement"), TEXTS, strict=True):
        before, after = list_answers(model, text), list_answers(other, text)
        tvd = sum(abs(before[span] - after[span]) for span in before) / 2
        assert row["kinds"]["uniform"]["tvd"] == pytest.approx(tvd, abs=1e-5)


def test_the_answer_is_read_at_the_ends_of_its_span(model):
    spans = as_audited(model, model.encode(INPUTS[:1]))
    examples = AuditExamples(spans, INPUTS, [None] * 3, [12] * 3)
    replay = examples.replay([0, 1, 2], [1])
    (choice,) = choose_attention("last", replay.heads)
    attention = replay.attention[-1].mean(1)
    for i, target in enumerate(replay.targets):
        rows = attention[i, list(split_span(target.index))].mean(0)
        torch.testing.assert_close(AuditedAttention(replay, choice).distribution[i], rows)
    assert replay.remainders.find({1: replay.every_query(1)}, torch.arange(3)) is not None  # nothing is run in full


def test_labels_are_the_tokens_of_the_marked_answer(model):
    labels = find_span_labels(as_audited(model, model.encode(INPUTS[:1])), DATA)
    words = [model.encode([pair]).words[0] for pair in INPUTS]
    found = [" ".join(words[i][split_span(label)[0] : split_span(label)[1] + 1]) for i, label in enumerate(labels)]
    assert found == ["not good", "not bad", "bad"]
    assert find_span_labels(model, Data("no answers", (Example("a", INPUTS[0]),))) == [None]


def test_the_text_is_what_follows_the_first_separator():
    reader = SpanClassifier(torch.nn.Identity(), special=[0, 1, 2], separator=2)
    ids = torch.tensor([[1, 7, 2, 2, 8, 9, 2, 0], [1, 7, 8, 2, 0, 0, 0, 0]])
    found = reader.find_text(ids, (ids != 0).long())
    assert found.nonzero().tolist() == [[0, 4], [0, 5], [1, 1], [1, 2]]  # no second text: the first


def test_masked_and_unknown_words_may_be_part_of_an_answer(model):
    spans = as_audited(model, model.encode(INPUTS[:1]))
    ids = spans.encode([INPUTS[0]]).inputs["input_ids"]
    hidden = ids.clone()
    hidden[0, -3], hidden[0, -2] = model.tokenizer.mask_token_id, model.tokenizer.unk_token_id
    assert torch.equal(spans.module.find_text(ids, None), spans.module.find_text(hidden, None))


def test_leaving_out_is_the_change_of_the_span_with_a_masked_token(model, audited):
    """The importance behind the agreement, from single runs of the model itself."""
    text = TEXTS[0][0]
    replay = AuditExamples(as_audited(model, model.encode(INPUTS[:1])), INPUTS[:1], [None], [12]).replay([0])
    found = measure_leave_one_out(replay, "mask")[0]
    before = list_answers(model, text)
    best = max(before, key=before.get)
    for token in range(1, 11):
        if token != 5:  # [SEP] between the texts
            after = list_answers(model, text, masked=token)[best]
            assert float(found[token]) == pytest.approx(abs(before[best] - after), abs=1e-6)


def test_a_span_has_at_most_thirty_tokens():
    zeros, text = torch.zeros(1, 40), torch.ones(1, 40, dtype=torch.bool)
    allowed = add_span_logits(zeros, zeros, text).reshape(40, LONGEST_ANSWER) > -1
    assert int(allowed.sum()) == sum(min(LONGEST_ANSWER, 40 - i) for i in range(40))


def test_f1_of_tokens_by_hand():
    span = lambda first, last: first * LONGEST_ANSWER + last - first  # noqa: E731
    label = str(span(4, 6))
    answers = [({label: 1}, label), ({str(span(5, 8)): 1, str(span(9, 9)): 1}, label)]
    assert average_span_f1(answers) == pytest.approx((1 + (2 * 2 / 7 + 0) / 2) / 2)


def test_the_report_names_answers_and_has_no_classes(audited, tmp_path):
    said = str(audited)
    assert "token F1" in said and "leave-one-out, masked" in said and "leave-one-out, deleted" not in said
    assert "learns classes" in said  # no diagnostic model
    assert audited.summary["attention"][audited.attention[0]]["replacement"]["kinds"]["uniform"]["classes"] == {}
    audited.save(tmp_path / "audit.json")
    assert str(why.Audit.load(tmp_path / "audit.json")) == said
    audited.save(tmp_path / "audit.html")
    assert "spans of the text" in (tmp_path / "audit.html").read_text("utf-8")


def test_seeds_and_a_baseline_mark_spans_too(model):
    found = why.audit(model, DATA, tests=["seeds", "baseline"], checkpoints=[model], baseline=model)
    assert found.summary["baseline"]["gain"]["mean"] == 0
    assert max(row["jsd"][0] for row in found.of("seeds", found.attention[0])) < 1e-9


def test_what_is_refused(model):
    with pytest.raises(why.WhyformerError, match="Leave out target"):
        why.audit(model, DATA, target=1)
    left = why.open(model.module, tokenizer=wordpiece_pairs(side="left"))
    with pytest.raises(why.WhyformerError, match="pads on the right"):
        why.audit(left, DATA)
