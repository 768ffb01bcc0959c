"""Why a document is above another: what the words add, and whether hiding them turns the order."""

import pytest
import tiny_text
import torch
import transformers as hf
from tiny_towers import SMALL, as_double

import whyformer as why
from whyformer._explain.ranking import hide_words, locate_words
from whyformer.errors import InputError

torch.set_num_threads(1)
QUERY = "the good film"
DOCUMENTS = ["not a bad film !", "a film", "the film is good .", "bad"]


@pytest.fixture(scope="module")
def encoder() -> why.Model:
    torch.manual_seed(2)
    config = hf.BertConfig(vocab_size=len(tiny_text.WORDS), max_position_embeddings=24, **SMALL)
    return why.open(as_double(hf.BertModel(config)), tokenizer=tiny_text.wordpiece())


def make_reranker(labels: int) -> why.Model:
    torch.manual_seed(3)
    config = hf.BertConfig(vocab_size=len(tiny_text.WORDS), max_position_embeddings=48, num_labels=labels, **SMALL)
    return why.open(as_double(hf.BertForSequenceClassification(config)), tokenizer=tiny_text.wordpiece())


@pytest.mark.parametrize("score", ["cosine", "dot", "late_interaction"])
def test_scores_are_those_of_each_pair(encoder, score):
    found = why.explain_ranking(encoder, QUERY, DOCUMENTS, "attnlrp", score=score)
    pairs = [
        why.explain_similarity(encoder, QUERY, document, "attnlrp", score=score, matrix=None) for document in DOCUMENTS
    ]
    assert found.scores == pytest.approx([pair.score for pair in pairs], rel=1e-9)
    assert [found.scores[number] for number in found.order] == sorted(found.scores, reverse=True)


@pytest.mark.parametrize("labels", [1, 3])
def test_a_model_that_reads_both_ranks_by_its_logit(labels):
    reranker = make_reranker(labels)
    target = None if labels == 1 else 2
    found = why.explain_ranking(reranker, QUERY, DOCUMENTS, "attnlrp", target=target)
    inputs = reranker.tokenizer([QUERY] * 4, DOCUMENTS, return_tensors="pt", padding=True)
    with torch.no_grad():
        logits = reranker.module(**inputs).logits[:, labels - 1]
    assert found.scores == pytest.approx(logits.tolist(), rel=1e-9)
    assert {part for part, _, _ in found.contrast()} == {"query", "above", "below"}


def test_the_contrast_is_the_difference_of_two_explanations(encoder):
    found = why.explain_ranking(encoder, QUERY, DOCUMENTS, "leave_one_out", versus=(2, 0))
    above, below = (
        why.explain_similarity(encoder, QUERY, DOCUMENTS[number], "leave_one_out", matrix=None) for number in (2, 0)
    )
    words = found.contrast(2, 0)
    expected = sorted(score for _, score in above.b.words().top(9))
    assert sorted(added for part, _, added in words if part == "above") == pytest.approx(expected)
    expected = sorted(-score for _, score in below.b.words().top(9))
    assert sorted(added for part, _, added in words if part == "below") == pytest.approx(expected)
    query = dict(above.a.words().top(9)), dict(below.a.words().top(9))
    difference = {word: query[0][word] - query[1][word] for word in query[0]}
    assert {word: added for part, word, added in words if part == "query"} == pytest.approx(difference)
    assert [added for *_, added in words] == sorted((added for *_, added in words), reverse=True)


@pytest.mark.parametrize("hide", [1, 2])
def test_hides_the_words_of_the_upper_document_and_scores_it_again(encoder, hide):
    found = why.explain_ranking(encoder, QUERY, DOCUMENTS, "attnlrp", versus=(0, 3), hide=hide)
    check = found.checks[0]
    best = [str(word) for part, word, _ in found.contrast(0, 3) if part == "above"][:hide]
    assert list(check.words) == best
    left = " ".join(word for word in DOCUMENTS[0].split() if word not in best)
    alone = why.explain_similarity(encoder, QUERY, left, "attnlrp", matrix=None).score
    assert check.hidden_gap == pytest.approx(alone - found.scores[3])
    assert check.gap == pytest.approx(found.scores[0] - found.scores[3])
    assert len(check.random_gaps) == 10 and len(set(check.random_gaps)) > 1
    assert check.turned == (check.hidden_gap < 0)


def test_neighbours_are_compared_down_the_ranking(encoder):
    found = why.explain_ranking(encoder, QUERY, DOCUMENTS[:3], "attnlrp", versus="neighbours")
    assert found.pairs == tuple(zip(found.order, found.order[1:], strict=False))
    assert [(check.above, check.below) for check in found.checks] == list(found.pairs)
    assert all(check.gap >= 0 for check in found.checks)


def test_only_documents_that_are_compared_are_explained(encoder):
    found = why.explain_ranking(encoder, QUERY, DOCUMENTS, "attnlrp", hide=0)
    assert {*found.similarities} == {*found.order[:2]} and found.checks == ()
    with pytest.raises(InputError, match=r"versus=\(\d, \d\)"):
        found.contrast(*found.order[2:])


def test_a_document_keeps_a_word_when_others_are_hidden(encoder):
    short = why.explain_ranking(encoder, QUERY, ["a film", "bad"], "attnlrp", versus=(0, 1), hide=5)
    assert len(short.checks[0].words) == 1
    assert why.explain_ranking(encoder, QUERY, ["a film", "bad"], "attnlrp", versus=(1, 0)).checks == ()


def test_images_are_ranked_without_hiding_words():
    torch.manual_seed(0)
    vit = as_double(hf.ViTModel(hf.ViTConfig(image_size=12, patch_size=4, **SMALL)))
    query, *images = torch.randn(4, 3, 12, 12, dtype=torch.double)
    found = why.explain_ranking(vit, query, images, "attnlrp")
    assert found.checks == () and {word for _, word, _ in found.contrast()} == {
        (r, c) for r in range(3) for c in range(3)
    }


@pytest.mark.parametrize(
    ("documents", "changes", "message"),
    [
        ("a film", {}, "list of two documents"),
        (["a film"], {}, "list of two documents"),
        (DOCUMENTS, {"versus": (0, 4)}, "0 to 3"),
        (DOCUMENTS, {"versus": (1, 1)}, "0 to 3"),
        (DOCUMENTS, {"versus": "worst"}, "0 to 3"),
        (DOCUMENTS, {"hide": -1}, "hide must be"),
        (DOCUMENTS, {"hide": True}, "hide must be"),
    ],
)
def test_says_what_was_wrong(encoder, documents, changes, message):
    with pytest.raises(InputError, match=message):
        why.explain_ranking(encoder, QUERY, documents, "attnlrp", **changes)


def test_words_are_cut_out_with_the_blank_behind_them():
    assert hide_words("one two  three", [(0, 3), (9, 14)]) == "two  "
    assert hide_words("eins", [(0, 4)]) == ""


def test_finds_the_words_of_the_second_text_where_they_are():
    e = why.explain(make_reranker(1), why.TextPair("good film", "a bad film"), "attnlrp").segment(1)
    places, scores = locate_words(e)
    assert ["a bad film"[start:end] for start, end in places] == ["a", "bad", "film"]
    assert len(scores) == 3


def test_shows_the_order_the_words_and_the_check_with_hostile_text_escaped(encoder, tmp_path):
    documents = ["a film <script>alert(1)</script>", "the good film"]
    found = why.explain_ranking(encoder, QUERY, documents, "attnlrp")
    text = str(found)
    assert "Document 1 is above document 0" in text and "Hiding" in text and "random words" in text
    found.save(tmp_path / "ranking.html")
    page = (tmp_path / "ranking.html").read_text()
    assert "<script>alert" not in page and "&lt;script&gt;" in page
    found.save(tmp_path / "ranking.csv")
    assert len((tmp_path / "ranking.csv").read_text().splitlines()) == 1 + len(found.contrast())
