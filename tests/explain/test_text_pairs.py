"""Pairs of texts that a model reads together: one example with two segments, shown apart and never mixed up."""

import json
from collections import deque
from functools import partial

import pytest
import torch
import transformers as hf
from tiny_text import WORDS, bert, wordpiece_pairs
from torch import nn

import whyformer as why
from whyformer import TextPair
from whyformer._model.variants import TEXT_FILLS
from whyformer._runs.preparation import cut_to_fit, prepare_example, share_room
from whyformer.data import read
from whyformer.data.example import Example
from whyformer.errors import InputError
from whyformer.show.terminal import Screen

PAIR = TextPair("the film is good!", "a bad film")
CLS, SEP = WORDS.index("[CLS]"), WORDS.index("[SEP]")
FILLINGS = tuple(WORDS.index(token) for token in ("[MASK]", "[UNK]", "[PAD]"))


def pair_model(longest=32, **changes):
    return why.open(bert(max_position_embeddings=longest, type_vocab_size=2), tokenizer=wordpiece_pairs(**changes))


@pytest.fixture(scope="module")
def model():
    return pair_model()


# --- one example ------------------------------------------------------------------------------------------------------


def test_a_pair_is_one_example_and_a_tuple_of_texts_is_two(model):
    one = why.explain(model, PAIR, "attcat")
    assert len(one) == 1 and one.names == ("the film is good! / a bad film",)
    assert len(why.explain(model, tuple(PAIR), "attcat")) == 2
    for same in ([PAIR], [tuple(PAIR)], {"text": PAIR.first, "text_pair": PAIR.second}):
        assert torch.equal(why.explain(model, same, "attcat").scores, one.scores)


def test_the_model_gets_the_segment_of_every_token(model):
    encoded = model.encode([PAIR, TextPair("good", "the film is not good")])
    pieces = [word for word in encoded.words[0] if word != "[PAD]"]
    assert pieces == "[CLS] the film is good ! [SEP] a bad film [SEP]".split()
    assert encoded.inputs["token_type_ids"][0].tolist() == [0] * 7 + [1] * 4
    assert encoded.inputs["token_type_ids"][1].tolist() == [0] * 3 + [1] * 6 + [0] * 2


@pytest.mark.parametrize(
    ("template", "segments"),
    [
        ("[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", [0, 0, 0, 1, 1]),
        ("[CLS]:0 $A:0 [SEP]:0 [SEP]:0 $B:0 [SEP]:0", [0, 0, 0, 0, 1, 1]),  # RoBERTa: two separators, one type
        ("$A:0 [SEP]:0 $B:1 [SEP]:1 [CLS]:1", [0, 0, 1, 1, 1]),  # XLNet: the class token comes last
    ],
    ids=["bert", "roberta", "xlnet"],
)
def test_segments_of_tokenizers_with_other_separators(template, segments):
    tokens = pair_model(template=template).encode(TextPair("good", "bad")).pieces(len(segments))[0]
    assert list(tokens.segments) == segments


def test_segments_with_padding_on_the_left():
    tokens = pair_model(side="left").encode([TextPair("good", "bad"), PAIR]).pieces(11)[0]
    assert list(tokens.segments) == [None] * 6 + [0, 0, 0, 1, 1]


def test_a_line_break_inside_the_first_text_does_not_begin_the_second(model):
    tokens = why.explain(model, TextPair("good\nfilm", "bad"), "attcat").tokens[0]
    assert tokens.segments == (0, 0, 0, 0, 1, 1)
    assert tokens.find_place(4) == (0, 3) and tokens.text[slice(*tokens.spans[4])] == "bad"


def test_a_single_text_has_no_segments(model):
    assert set(why.explain(model, "the film", "attcat").tokens[0].segments) == {None}


def test_a_batch_of_pairs_gives_what_each_gives_alone(model):
    pairs = [PAIR, TextPair("bad", "the film is not good, is it")]
    both = why.explain(model, pairs, "attcat")
    for i, pair in enumerate(pairs):
        alone = why.explain(model, pair, "attcat")
        assert torch.allclose(both.scores[i, : alone.scores.shape[1]], alone.scores[0], atol=1e-12)


def test_the_scores_of_one_text_of_the_pair(model):
    e = why.explain(model, [PAIR, TextPair("good", "the film is not good")], "attcat")
    first, second = e.segment(0), e.segment(1)
    assert second.tokens[0].pieces[:4] == ("a", "bad", "film", "[SEP]") and second.tokens[0].text == PAIR.second
    assert [second.tokens[0].text[slice(*s)] for s in second.tokens[0].spans[:3]] == ["a", "bad", "film"]
    assert torch.allclose(first.scores.sum(1) + second.scores.sum(1), e.scores.sum(1))
    with pytest.raises(InputError, match="number must be 0"):
        e.segment(2)
    with pytest.raises(InputError, match="not a pair of texts"):
        why.explain(model, "good", "attcat").segment(0)


def test_words_of_a_pair_keep_their_segments(model):
    words = why.explain(model, PAIR, "attcat").words()
    tokens = words.tokens[0]
    assert tokens.pieces == ("[CLS]", "the", "film", "is", "good!", "[SEP]", "a", "bad", "film", "[SEP]")
    assert tokens.segments == (0,) * 6 + (1,) * 4
    assert words.segment(1).tokens[0].spans[:3] == ((0, 1), (2, 5), (6, 10))


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (TextPair("good", " "), "The second text of the pair is empty"),
        (TextPair("", "good"), "The first text of the pair is empty"),
        (TextPair("good", 5), "The second text of the pair must be a string, got int"),
    ],
    ids=["second", "first", "number"],
)
def test_what_is_wrong_with_a_pair_is_said(model, pair, message):
    with pytest.raises(InputError, match=message):
        why.explain(model, pair)


# --- perturbations ----------------------------------------------------------------------------------------------------


HEARD = deque()  # not a list: a model whose global lists change is checked again on every call


class Listening(nn.Module):
    """A BERT that tells what it was given."""

    def __init__(self):
        super().__init__()
        self.inner = bert(max_position_embeddings=32, type_vocab_size=2)
        self.config = self.inner.config

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        HEARD.append((input_ids.tolist(), attention_mask.tolist(), token_type_ids.tolist()))
        return self.inner(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).logits


def list_variants(metric):
    """Every row of (id, segment), without padding, that the model is given while this metric is computed."""
    model = why.open(Listening(), tokenizer=wordpiece_pairs())
    why.explain(model, PAIR, "attcat")  # the first call also checks the order of tokens, on other texts
    HEARD.clear()
    why.judge(model, [(PAIR, 0)], ["attcat"], [metric], report=False)
    return [
        [(i, segment) for i, real, segment in zip(*row, strict=True) if real]
        for call in HEARD for row in zip(*call, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize("fill", TEXT_FILLS)
def test_removal_keeps_the_separators_and_the_segments(fill):
    original = [(CLS, 0), *((WORDS.index(w), 0) for w in "the film is good !".split()), (SEP, 0),
                *((WORDS.index(w), 1) for w in "a bad film".split()), (SEP, 1)]  # fmt: skip
    for metric in (why.metrics.aopc, why.metrics.log_odds):
        rows = list_variants(partial(metric, fill=fill))
        assert len({tuple(row) for row in rows}) >= 6  # the original, and shorter and shorter variants
        for row in rows:
            assert row[0] == (CLS, 0) and row[-1] == (SEP, 1) and row.count((SEP, 0)) == 1
            words = [entry for entry in row if entry[0] not in (CLS, SEP)]
            kept = [entry for entry in words if entry[0] not in FILLINGS]
            assert all(entry in original for entry in kept)
            places = [segment for _, segment in row]
            assert places == sorted(places)  # the first text is still before the second


@pytest.mark.parametrize("fill", TEXT_FILLS)
def test_leave_one_out_gives_separators_nothing(fill):
    model = pair_model()
    e = why.explain(model, PAIR, "leave_one_out", fill=fill)
    special = torch.tensor(e.tokens[0].special)
    assert bool((e.scores[0][special] == 0).all()) and bool((e.scores[0][~special] != 0).all())


# --- shown apart ------------------------------------------------------------------------------------------------------


def test_the_two_texts_are_shown_apart(model, tmp_path):
    e = why.explain(model, TextPair("good <b>", "bad"), "attcat")
    lines = e.render(Screen(80, None)).splitlines()
    assert lines[1].startswith("Next likeliest: ") and lines[2] == "first text:" and "second text:" in lines[3:]
    coloured = e.render(Screen(80, "truecolor"))
    assert coloured.index("first text") < coloured.index("good") < coloured.index("second text") < coloured.index("bad")
    page = tmp_path / "pair.html"
    e.save(page)
    html = page.read_text("utf-8")
    assert html.count('<span class="segment">') >= 2 and "<b>" not in html.split("<body")[1].split("<script")[0]
    e.save(tmp_path / "pair.svg")
    svg = (tmp_path / "pair.svg").read_text("utf-8")
    assert svg.count("first text") == svg.count("second text") >= 1
    e.save(tmp_path / "pair.tex")
    assert "first text" in (tmp_path / "pair.tex").read_text("utf-8")
    assert "second text" in e._repr_html_()


def test_a_single_text_is_shown_as_before(model):
    assert "first text" not in why.explain(model, "good film", "attcat").render(Screen(80, None))


def test_offsets_in_tables_count_within_each_text(model, tmp_path):
    e = why.explain(model, PAIR, "attcat")
    e.save(tmp_path / "pair.csv")
    header, *rows = [line.split(",") for line in (tmp_path / "pair.csv").read_text("utf-8").splitlines()]
    rows = [dict(zip(header, row, strict=True)) for row in rows]
    bad = next(row for row in rows if row["token"] == "bad")
    assert (bad["segment"], bad["start"], bad["end"]) == ("2", "2", "5")
    assert [row["segment"] for row in rows] == ["1"] * 7 + ["2"] * 4


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_saved_and_loaded(model, tmp_path, suffix):
    e = why.explain(model, PAIR, "attcat")
    e.save(tmp_path / f"pair.{suffix}")
    assert why.load(tmp_path / f"pair.{suffix}").tokens == e.tokens


@pytest.mark.parametrize("second", [0, 999, "4"], ids=str)
def test_a_file_with_a_wrong_border_between_the_texts_is_refused(model, tmp_path, second):
    why.explain(model, PAIR, "attcat").save(tmp_path / "pair.json")
    saved = json.loads((tmp_path / "pair.json").read_text())
    tokens = next(fields for fields in find_dicts(saved) if "second" in fields)
    tokens["second"] = second
    (tmp_path / "pair.json").write_text(json.dumps(saved))
    with pytest.raises(why.WhyformerError):
        why.load(tmp_path / "pair.json")


def find_dicts(value):
    """Every dictionary inside, the outermost first."""
    if isinstance(value, dict):
        yield value
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        yield from find_dicts(child)


# --- too long ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "room", "kept"),
    [(3, 4, 10, (3, 4)), (9, 2, 8, (6, 2)), (2, 9, 8, (2, 6)), (9, 9, 8, (4, 4)), (9, 9, 7, (4, 3)), (9, 5, 8, (4, 4))],
    ids=str,
)
def test_the_longer_text_gives_up_tokens_first(first, second, room, kept):
    assert share_room(first, second, room) == kept
    a, b = first, second
    while a + b > room:  # the rule, one token at a time
        a, b = (a - 1, b) if a > b else (a, b - 1)
    assert sorted((a, b)) == sorted(kept)


def test_the_longer_text_is_cut_and_the_note_says_so():
    model = pair_model(longest=16)
    long = TextPair("the film is good " * 9, "a bad film")
    short = cut_to_fit(model, long)
    assert short.second == "a bad film" and long.first.startswith(short.first)
    assert len(model.tokenize(short)) == 16
    one = prepare_example(model, read([long]), 0)
    assert one.note == "with the first text of the pair cut, to 16 tokens in all" and one.content == short
    both = prepare_example(model, read([TextPair("good film " * 9, "bad film " * 9)]), 0)
    assert both.note == "with both texts of the pair cut, to 16 tokens in all"
    assert prepare_example(model, read([PAIR]), 0).note == ""
    with pytest.raises(InputError, match="42 tokens long"):
        why.explain(model, long)


def test_evidence_moves_with_the_cut():
    model = pair_model(longest=16)
    pair = TextPair("the film is good " * 5, "a bad film")
    begin = len(pair.first) + 1
    spans = ((4, 8), (begin - 6, begin - 2), (begin + 2, begin + 5))  # "film", the last "good" (cut off), "bad"
    prepared = prepare_example(model, read([Example("one", pair, 0, rationale=spans)]), 0)
    words = "\n".join(prepared.content).split()
    assert [word for word, mark in zip(words, prepared.rationale.marks, strict=True) if mark] == ["film", "bad"]


# --- the other verbs --------------------------------------------------------------------------------------------------


def test_judge_takes_pairs(model):
    data = read([Example("one", PAIR, 2, rationale=((12, 16), (20, 23))), (TextPair("bad", "good"), 0)])
    judged = why.judge(model, data, ["attcat", "rollout"], ["aopc", "token_f1"], report=False)
    assert judged.failed == 0
    assert "aopc" in judged.render()


def test_audit_takes_pairs(model):
    pairs = [(TextPair("good film", "bad film"), 0), (TextPair("the film is good", "a film"), 1), (PAIR, 2)]
    audit = why.audit(model, pairs, tests=["agreement", "replacement"], samples=3)
    assert "3 examples" in audit.render()


def test_bulk_takes_pairs(model, tmp_path):
    run = why.bulk(model, read([PAIR, TextPair("bad", "good")]), ["attcat"], out=tmp_path / "out")
    table = run.table(["source", "error", "tokens"]).to_pydict()
    assert sorted(table["source"]) == ["bad\ngood", "the film is good!\na bad film"]
    assert table["error"] == [None, None] and len(table["tokens"][0]) in (5, 11)


# --- questions --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader():
    """A model that marks the answer to a question in a context."""
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=len(WORDS), hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48,
        max_position_embeddings=40, type_vocab_size=2, initializer_range=0.3,
    )  # fmt: skip
    return why.open(hf.BertForQuestionAnswering(config).double().eval(), tokenizer=wordpiece_pairs())


def test_the_explanation_of_an_answer_is_that_of_its_start_plus_that_of_its_end(reader):
    """AttCAT's own variant for SQuAD: explain both ends and add."""
    pair = TextPair("is the film good", "the film is not good , a bad film")
    whole = why.explain(reader, pair, "attcat", target=why.targets.AnswerSpan(9, 10))
    assert whole.targets[0].label == "the answer 'not good'"
    ends = [
        why.explain(reader, pair, "attcat", target=lambda output: output.start_logits[:, 9]),
        why.explain(reader, pair, "attcat", target=lambda output: output.end_logits[:, 10]),
    ]
    assert torch.allclose(whole.scores, ends[0].scores + ends[1].scores, atol=1e-6)


class MarksEverything(torch.nn.Module):
    """Finds the first word the likeliest start and end of an answer, whichever text it is in."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(len(WORDS), 4)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        x = self.embed(input_ids)
        x = x + torch.nn.functional.scaled_dot_product_attention(x, x, x)
        falling = -torch.arange(input_ids.shape[1], dtype=x.dtype)
        start = x.sum(-1) * 1e-3 + falling
        return hf.modeling_outputs.QuestionAnsweringModelOutput(start_logits=start, end_logits=start)


def test_an_answer_is_never_marked_in_the_question():
    model = why.open(MarksEverything().double().eval(), tokenizer=wordpiece_pairs())
    e = why.explain(model, TextPair("is the film good", "a bad film"), "leave_one_out")
    assert e.targets[0].label == "the answer 'a'"
    single = why.explain(model, "is the film good", "leave_one_out")
    assert single.targets[0].label == "the answer 'is'"
    ids = model.encode([TextPair("is the film good", "a bad film")]).inputs
    assert why.explain(model, {**ids}, "leave_one_out").targets[0].spec == e.targets[0].spec


def test_judge_counts_the_tokens_of_squads_answers(reader, tmp_path):
    context = "the film is not good , a bad film"
    row = {"question": "is the film good", "context": context, "answers": {"text": ["bad"], "answer_start": [25]}}
    (tmp_path / "squad.jsonl").write_text(json.dumps(row))
    judged = why.judge(
        reader, tmp_path / "squad.jsonl", ["attcat"], [partial(why.metrics.answer_tokens, k=3)], report=False
    )
    e = why.explain(reader, TextPair(row["question"], context), "attcat")
    bad = e.tokens[0].pieces.index("bad")
    content = [i for i in range(len(e.tokens[0])) if not e.tokens[0].special[i]]
    wanted = bad in sorted(content, key=lambda i: -e.scores[0, i].item())[:3]
    assert judged.rows.of(0, 0)[0].value == float(wanted)
