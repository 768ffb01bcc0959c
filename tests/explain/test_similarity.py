"""The similarity of two inputs: what each adds, and what every pair of tokens adds."""

import math

import pytest
import tiny_text
import torch
import transformers as hf
from tiny_towers import SMALL, as_double, make_captioned, make_two_towers
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import whyformer as why
from whyformer.errors import InputError, UnsupportedModel

torch.set_num_threads(1)
TEXTS = ["the good film", "a film"]
OTHERS = ["not a bad film !", "the film is good ."]


@pytest.fixture(scope="module")
def encoder() -> why.Model:
    config = hf.BertConfig(vocab_size=len(tiny_text.WORDS), max_position_embeddings=16, **SMALL)
    return why.open(as_double(hf.BertModel(config)), tokenizer=tiny_text.wordpiece())


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    return as_double(hf.ViTModel(hf.ViTConfig(image_size=12, patch_size=4, **SMALL)))


@pytest.fixture(scope="module")
def images() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(2, 3, 12, 12, generator=generator, dtype=torch.double) for _ in range(2))


# --- by hand ----------------------------------------------------------------------------------------------------------


class MeanOfWords(nn.Module):
    """The embedding is the mean of the vectors of the words: attention without a preference, and nothing else."""

    def __init__(self, vectors: list[list[float]], bias: list[float]) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(torch.tensor(vectors, dtype=torch.double))
        self.last = nn.Linear(2, 2).double()
        with torch.no_grad():
            self.last.weight.copy_(torch.eye(2))
            self.last.bias.copy_(torch.tensor(bias))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        states = self.words(input_ids)[:, None]
        even = torch.zeros(len(input_ids), 1, 1, 2, dtype=torch.double)  # a query to which all keys are alike
        pooled = scaled_dot_product_attention(even, torch.zeros_like(states), states)
        return self.last(pooled[:, 0, 0])


BY_HAND = MeanOfWords([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]], bias=[0.5, 0.0])


@pytest.mark.parametrize("matrix", ["attnlrp", "gradient_x_input"])
def test_pairs_of_words_by_hand(matrix):
    """a = words 0 and 1: halves (1/2, 0) and (0, 1), elsewhere the bias (1/2, 0). b = word 2: (3, 1), and the bias."""
    s = why.explain_similarity(
        BY_HAND, torch.tensor([[0, 1]]), torch.tensor([[2]]), "gradient_x_input", score="dot", matrix=matrix
    )
    expected = torch.tensor([[[1.5, 0.25], [1.0, 0.0], [1.5, 0.25]]], dtype=torch.double)
    torch.testing.assert_close(s.matrix, expected)
    assert math.isclose(s.score, (1 * 3.5) + (1 * 1))
    torch.testing.assert_close(s.elsewhere, torch.tensor([2.0], dtype=torch.double))
    torch.testing.assert_close(s.a.scores, torch.tensor([[1.75, 1.0]], dtype=torch.double))
    torch.testing.assert_close(s.b.scores, torch.tensor([[4.0]], dtype=torch.double))


def test_cosine_divides_by_both_lengths():
    dot, cosine = (
        why.explain_similarity(BY_HAND, torch.tensor([[0, 1]]), torch.tensor([[2]]), "attnlrp", score=score)
        for score in ("dot", "cosine")
    )
    lengths = math.hypot(1, 1) * math.hypot(3.5, 1)
    torch.testing.assert_close(cosine.matrix, dot.matrix / lengths)
    assert math.isclose(cosine.score, dot.score / lengths)


# --- the definition, written slowly -----------------------------------------------------------------------------------


def test_the_matrix_is_the_sum_over_channels_of_products_of_relevance(encoder):
    """Each channel explained by a function of the output, one at a time."""

    def read_channel(channel):
        return lambda output: output.last_hidden_state.mean(1)[:, channel]

    s = why.explain_similarity(encoder, TEXTS[0], OTHERS[0], "chance", score="dot", pooling="mean")
    total = torch.zeros(s.matrix.shape[1:], dtype=torch.double)
    for channel in range(SMALL["hidden_size"]):
        rows = []
        for text in (TEXTS[0], OTHERS[0]):
            e = why.explain(encoder, text, "gradient_x_input", target=read_channel(channel))
            rows.append(torch.cat([e.scores[0], e.targets[0].score - e.scores[0].sum()[None]]))
        total += rows[0][:, None] * rows[1]
    by_gradient = why.explain_similarity(
        encoder, TEXTS[0], OTHERS[0], "chance", score="dot", pooling="mean", matrix="gradient_x_input"
    )
    torch.testing.assert_close(by_gradient.matrix[0], total)
    assert not torch.allclose(by_gradient.matrix, s.matrix)


def test_late_interaction_is_the_sum_of_best_matches(encoder):
    s = why.explain_similarity(encoder, TEXTS, OTHERS, "attnlrp", score="late_interaction")
    for i, (text, other) in enumerate(zip(TEXTS, OTHERS, strict=True)):
        query, document = (
            nn.functional.normalize(encoder.module(**encoder.encode(t).inputs).last_hidden_state[0].detach(), dim=-1)
            for t in (text, other)
        )
        total = 0.0
        for m, vector in enumerate(query):
            best = max(range(len(document)), key=lambda j, vector=vector: float(vector @ document[j]))
            total += float(vector @ document[best])
            assert math.isclose(float(s.matrix[i, m, best]), float(vector @ document[best]), rel_tol=1e-9)
        assert math.isclose(float(s.scores[i]), total, rel_tol=1e-9)
        assert int((s.matrix[i] != 0).sum()) == len(query)


# --- properties -------------------------------------------------------------------------------------------------------


def list_pairs(encoder, vit, images) -> dict:
    image, text = make_captioned()
    return {
        "cosine": (encoder, TEXTS, OTHERS, {}),
        "dot": (encoder, TEXTS, OTHERS, {"score": "dot", "pooling": "first"}),
        "states": (encoder, TEXTS, OTHERS, {"matrix": "states"}),
        "late": (encoder, TEXTS, OTHERS, {"score": "late_interaction"}),
        "images": (vit, *images, {}),
        "clip": (make_two_towers("clip"), image, text, {}),
        "siglip": (make_two_towers("siglip"), image, text, {}),
        "clip cosine": (make_two_towers("clip"), text, image, {"score": "cosine"}),
    }


@pytest.mark.parametrize("name", ["cosine", "dot", "states", "late", "images", "clip", "siglip", "clip cosine"])
def test_the_matrix_sums_to_the_score_and_turns_with_the_inputs(name, encoder, vit, images):
    model, a, b, settings = list_pairs(encoder, vit, images)[name]
    s = why.explain_similarity(model, a, b, "attnlrp", **settings)
    torch.testing.assert_close(s.matrix.sum((1, 2)), s.scores, rtol=1e-5, atol=1e-5)
    assert len(set(s.scores.tolist())) == 2
    turned = why.explain_similarity(model, b, a, "attnlrp", **settings)
    if name == "late":  # the query comes first
        assert not torch.allclose(turned.scores, s.scores)
        return
    torch.testing.assert_close(turned.matrix, s.matrix.mT)
    torch.testing.assert_close(turned.a.scores, s.b.scores)
    torch.testing.assert_close(turned.b.scores, s.a.scores)


def test_either_side_is_the_sum_of_the_matrix_over_the_other(encoder):
    """For relevance, which is linear in what is explained; elsewhere of the other side counts."""
    s = why.explain_similarity(encoder, TEXTS, OTHERS, "attnlrp")
    torch.testing.assert_close(s.a.scores, s.matrix.sum(2)[:, :-1])
    torch.testing.assert_close(s.b.scores, s.matrix.sum(1)[:, :-1])


@pytest.mark.parametrize("score", ["cosine", "late_interaction"])
@pytest.mark.parametrize("method", ["attnlrp", "leave_one_out", "rollout"])
def test_a_pair_in_a_batch_is_as_alone(encoder, score, method):
    matrix = "auto" if method == "attnlrp" else None  # it does not depend on the method
    together = why.explain_similarity(encoder, TEXTS, OTHERS, method, score=score, matrix=matrix)
    for i in range(2):
        alone = why.explain_similarity(encoder, TEXTS[i], OTHERS[i], method, score=score, matrix=matrix)
        rows, columns = (side.scores.shape[1] for side in (alone.a, alone.b))
        torch.testing.assert_close(together[i].a.scores[0, :rows], alone.a.scores[0])
        torch.testing.assert_close(together[i].b.scores[0, :columns], alone.b.scores[0])
        if matrix is None:
            continue
        torch.testing.assert_close(together.matrix[i, :rows, :columns], alone.matrix[0, :-1, :-1])
        torch.testing.assert_close(together.elsewhere[i], alone.elsewhere[0])
        assert not together.matrix[i, rows:-1].any()
        assert not together.matrix[i, :, columns:-1].any()


@pytest.mark.parametrize("pooling", ["mean", "first", "last", "pooler", 1])
def test_every_pooling_gives_the_cosine_of_its_vectors(encoder, pooling):
    s = why.explain_similarity(encoder, TEXTS, OTHERS, "chance", pooling=pooling, matrix=None)
    for i, pair in enumerate(zip(TEXTS, OTHERS, strict=True)):
        outputs = [encoder.module(**encoder.encode(text).inputs) for text in pair]
        states = [output.last_hidden_state[0] for output in outputs]
        vectors = {
            "mean": [state.mean(0) for state in states],
            "first": [state[0] for state in states],
            "last": [state[-1] for state in states],
            "pooler": [output.pooler_output[0] for output in outputs],
            1: [state[1] for state in states],
        }[pooling]
        cosine = nn.functional.cosine_similarity(*vectors, dim=0).detach()
        assert math.isclose(s.scores[i], cosine, rel_tol=1e-9)


def test_perturbations_change_the_cosine_itself(encoder):
    """Also the length of the embedding, which relevance holds constant."""
    s = why.explain_similarity(encoder, TEXTS[0], OTHERS[0], "leave_one_out", matrix=None, fill="mask")
    assert s.b.targets[0].score == pytest.approx(s.score)
    ids = encoder.encode(TEXTS[0]).inputs["input_ids"].clone()
    ids[0, 3] = tiny_text.WORDS.index("[MASK]")
    vectors = [
        encoder.module(input_ids=i, attention_mask=torch.ones_like(i)).last_hidden_state[0].mean(0)
        for i in (ids, encoder.encode(OTHERS[0]).inputs["input_ids"])
    ]
    changed = float(nn.functional.cosine_similarity(*vectors, dim=0).detach())
    assert math.isclose(float(s.a.scores[0, 3]), s.score - changed, rel_tol=1e-6)


def test_two_encoders_can_be_compared(encoder):
    other = why.open(as_double(hf.BertModel(encoder.module.config), seed=7), tokenizer=tiny_text.wordpiece())
    s = why.explain_similarity((encoder, other), TEXTS[0], OTHERS[0], "attnlrp")
    vectors = [
        model.module(**model.encode(text).inputs).last_hidden_state[0].mean(0)
        for model, text in ((encoder, TEXTS[0]), (other, OTHERS[0]))
    ]
    assert math.isclose(s.score, nn.functional.cosine_similarity(*vectors, dim=0).detach(), rel_tol=1e-9)
    assert math.isclose(float(s.matrix.sum()), s.score, rel_tol=1e-6)


def test_an_image_encoder_reads_its_class_token(vit, images):
    s = why.explain_similarity(vit, *images, "attnlrp", matrix=None)
    states = [vit(pixel_values=image).last_hidden_state[:, 0] for image in images]
    torch.testing.assert_close(s.scores, nn.functional.cosine_similarity(*states).detach())
    assert s.notes == ("The embedding of an input is its first token.",)


# --- rerankers --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reranker() -> why.Model:
    words = tiny_text.WORDS
    tokenizer = tiny_text.wordpiece()
    from tokenizers import processors

    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, words.index(name)) for name in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    config = hf.BertConfig(vocab_size=len(words), max_position_embeddings=24, num_labels=1, **SMALL)
    return why.open(as_double(hf.BertForSequenceClassification(config)), tokenizer=tokenizer)


def test_a_reranker_scores_the_pair_and_its_two_texts_are_taken_apart(reranker):
    s = why.explain_similarity(reranker, TEXTS, OTHERS, "gradient_x_input")
    whole = why.explain(reranker, list(zip(TEXTS, OTHERS, strict=True)), "gradient_x_input")
    assert s.scores.tolist() == [target.score for target in whole.targets]
    torch.testing.assert_close(s.a.scores.sum(1) + s.b.scores.sum(1), whole.scores.sum(1))
    assert [piece for piece in s.a.tokens[0].pieces if piece] == ["[CLS]", "the", "good", "film", "[SEP]"]
    assert [piece for piece in s.b.tokens[0].pieces if piece][:3] == ["not", "a", "bad"]
    assert s.b.tokens[0].text == OTHERS[0]
    assert s.b.tokens[0].spans[0] == (0, 3)
    with pytest.raises(InputError, match="reads both inputs at once"):
        s.top()


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"score": "euclid"}, "score must be one of cosine, dot"),
        ({"score": "logit"}, 'Use "cosine" or "dot"'),
        ({"pooling": "max"}, "pooling must be one of mean, first"),
        ({"matrix": "rollout"}, "Use a class-specific one, such as attnlrp"),
        ({"matrix": 3}, "matrix must be the name of a method"),
    ],
)
def test_refuses_what_there_is_not(encoder, settings, message):
    with pytest.raises(InputError, match=message):
        why.explain_similarity(encoder, TEXTS, OTHERS, **settings)


def test_refuses_lists_of_different_lengths(encoder):
    with pytest.raises(InputError, match="a has 2 examples and b has 1"):
        why.explain_similarity(encoder, TEXTS, OTHERS[:1])


def test_refuses_a_classifier_and_the_way_out_works(encoder):
    config = hf.BertConfig(vocab_size=len(tiny_text.WORDS), max_position_embeddings=16, num_labels=3, **SMALL)
    classifier = as_double(hf.BertForSequenceClassification(config))
    with pytest.raises(UnsupportedModel, match="returns the scores of classes, not an embedding"):
        why.explain_similarity(why.open(classifier, tokenizer=tiny_text.wordpiece()), *TEXTS)
    inside = why.open(classifier.bert, tokenizer=tiny_text.wordpiece())
    assert len(why.explain_similarity(inside, *TEXTS, "chance", matrix=None)) == 1


def test_refuses_states_without_a_pooling_and_the_way_out_works(encoder):
    with pytest.raises(UnsupportedModel, match='Use matrix="attnlrp"'):
        why.explain_similarity(encoder, *TEXTS, pooling="pooler", matrix="states")
    assert why.explain_similarity(encoder, *TEXTS, "chance", pooling="pooler", matrix="attnlrp").matrix is not None


def test_refuses_embeddings_of_different_sizes(encoder):
    config = hf.BertConfig(vocab_size=30, max_position_embeddings=16, **(SMALL | {"hidden_size": 4}))
    narrow = why.open(as_double(hf.BertModel(config)), tokenizer=tiny_text.wordpiece())
    with pytest.raises(UnsupportedModel, match="so they cannot be compared"):
        why.explain_similarity((encoder, narrow), *TEXTS)


def test_refuses_the_logit_of_two_images():
    image, _ = make_captioned()
    clip = make_two_towers("clip")
    with pytest.raises(InputError, match='Use score="cosine"'):
        why.explain_similarity(clip, image, image)
    assert float(why.explain_similarity(clip, image, image, "chance", score="cosine", matrix=None).scores[0]) > 0.999
