"""What people pass: labels of a training batch, pairs in any form, masks of any form, a second input."""

import pytest
import torch
import transformers as hf
from tiny_text import bert, wordpiece_pairs
from torch import Tensor, nn
from torch.nn import functional as F

import whyformer as why

WIDTH = 16
IDS = torch.tensor([[5, 9, 31, 7, 3, 12, 8], [4, 30, 2, 6, 17, 21, 3]])
REAL = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]])
PAIR = why.TextPair("the film is good!", "a bad film")


class Reader(nn.Module):
    """A model of the user's own."""

    def __init__(self):
        super().__init__()
        self.table, self.other, self.head = nn.Embedding(40, WIDTH), nn.Embedding(40, WIDTH), nn.Linear(WIDTH, 3)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0, batch_first=True, norm_first=True) for _ in range(2)
        )

    def read(self, h: Tensor) -> Tensor:
        for block in self.blocks:
            h = block(h)
        return self.head(h.mean(1))


def make(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


# --- labels -----------------------------------------------------------------------------------------------------------


class Training(Reader):
    def forward(self, input_ids, labels=None):
        logits = self.read(self.table(input_ids))
        return logits if labels is None else (F.cross_entropy(logits, labels), logits)


class WithTwoLosses(Reader):
    def forward(self, input_ids, labels=None):
        logits = self.read(self.table(input_ids))
        if labels is None:
            return {"logits": logits}
        one_hot = F.one_hot(labels, 3).to(logits)
        loss = F.kl_div(logits.log_softmax(-1), one_hot, reduction="batchmean") + F.mse_loss(
            logits.softmax(-1), one_hot
        )
        return {"loss": loss, "logits": logits}


def tiny_bert() -> nn.Module:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return hf.BertForSequenceClassification(hf.BertConfig(vocab_size=50, num_labels=3, **sizes))


@pytest.mark.parametrize("method", ["libragrad", "attnlrp", "transformer_attribution", "leave_one_out"])
@pytest.mark.parametrize("kind", [Training, WithTwoLosses, tiny_bert])
def test_labels_in_a_batch_change_nothing(kind, method):
    module, labels = make(kind), torch.tensor([1, 0])
    with_labels = why.explain(module, {"input_ids": IDS, "labels": labels}, method, target=1)
    without = why.explain(module, {"input_ids": IDS}, method, target=1)
    torch.testing.assert_close(with_labels.scores, without.scores)


def test_an_operation_without_a_rule_is_refused_where_the_answer_depends_on_it():
    class OnTheWay(Reader):
        def forward(self, input_ids):
            h = self.table(input_ids)
            return self.read(h + torch.logcumsumexp(h, 1))

    with pytest.raises(why.WhyformerError, match="No relevance rule for logcumsumexp, called in the model"):
        why.explain(make(OnTheWay), {"input_ids": IDS}, "attnlrp", target=1)


# --- pairs ------------------------------------------------------------------------------------------------------------


def open_pair_model(*labels: str) -> why.Model:
    return why.open(bert(max_position_embeddings=32, type_vocab_size=2), tokenizer=wordpiece_pairs(), labels=labels)


@pytest.mark.parametrize(
    "form",
    [
        tuple(PAIR),
        {"premise": PAIR.first, "hypothesis": PAIR.second},
        {"question": PAIR.first, "context": PAIR.second},
        {"text": PAIR.first, "text_pair": PAIR.second},
        [{"sentence1": PAIR.first, "sentence2": PAIR.second}],
        {"premise": [PAIR.first], "hypothesis": [PAIR.second]},
    ],
    ids=str,
)
def test_every_form_of_a_pair_is_the_pair(form):
    model = open_pair_model("entailment", "neutral", "contradiction")
    wanted, found = why.explain(model, PAIR, "attcat"), why.explain(model, form, "attcat")
    assert len(found) == 1 and found.tokens == wanted.tokens and torch.equal(found.scores, wanted.scores)


def test_a_tuple_is_two_texts_for_a_model_of_single_texts():
    model = open_pair_model("negative", "neutral", "positive")
    found = why.explain(model, tuple(PAIR), "attcat")
    assert len(found) == 2 and not any("two texts" in note for note in found.notes)


@pytest.mark.parametrize("given", [PAIR.first, list(PAIR)], ids=["a text", "a list of texts"])
def test_a_single_text_for_a_model_that_reads_pairs_is_noted(given):
    notes = why.explain(open_pair_model("not_entailment", "entailment", "other"), given, "attcat").notes
    assert any("reads two texts together" in note and "TextPair(first, second)" in note for note in notes)


# --- masks ------------------------------------------------------------------------------------------------------------


class Masked(Reader):
    """Hides tokens from its one attention and from the mean, by a mask of one of three forms."""

    form = "kept"

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, input_ids, attention_mask):
        h = self.table(input_ids)
        mask = attention_mask.reshape(len(h), -1)
        real = {"kept": mask > 0, "added": mask > -1, "inverted": mask == 0}[self.form]
        q, k, v = self.project(h).chunk(3, -1)
        h = h + (q @ k.mT / 4).masked_fill(~real[:, None], -torch.inf).softmax(-1) @ v
        return self.head((h * real[..., None]).sum(1) / real.sum(1, keepdim=True))


class Added(Masked):
    form = "added"


class Inverted(Masked):
    form = "inverted"


HIDDEN = (REAL == 0).float() * -1e9
FORMS = {
    "added": (Added, HIDDEN),
    "added, with axes for heads and queries": (Added, HIDDEN[:, None, None]),
    "inverted": (Inverted, 1 - REAL),
    "inverted, as truth values": (Inverted, REAL == 0),
}


@pytest.mark.parametrize("method", ["libragrad", "rollout", "leave_one_out", "kernel_shap"])
@pytest.mark.parametrize("form", FORMS)
def test_a_mask_of_any_form_hides_the_same_tokens(form, method):
    kind, mask = FORMS[form]
    wanted = why.explain(make(Masked), {"input_ids": IDS, "attention_mask": REAL}, method, target=1)
    found = why.explain(make(kind), {"input_ids": IDS, "attention_mask": mask}, method, target=1)
    assert [piece.padding for piece in found.tokens] == [piece.padding for piece in wanted.tokens]
    torch.testing.assert_close(found.scores, wanted.scores)


def test_an_inverted_mask_that_hides_nothing_is_no_mask_of_everything():
    mask = torch.zeros_like(IDS)
    wanted = why.explain(make(Masked), {"input_ids": IDS, "attention_mask": 1 - mask}, "libragrad", target=1)
    found = why.explain(make(Inverted), {"input_ids": IDS, "attention_mask": mask}, "libragrad", target=1)
    torch.testing.assert_close(found.scores, wanted.scores)


def test_a_mask_of_everything_is_refused():
    with pytest.raises(why.WhyformerError, match="masks every token"):
        why.explain(make(Masked), {"input_ids": IDS, "attention_mask": torch.zeros_like(IDS)}, "libragrad", target=1)


# --- relations between tokens -----------------------------------------------------------------------------------------


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.project, self.head = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x, edges):
        h = self.enter(x)
        q, k, v = self.project(h).chunk(3, -1)
        return self.head((h + (q @ k.mT / 4 + edges).softmax(-1) @ v).mean(1))


@pytest.mark.parametrize("edges", [torch.rand(2, 7, 7), torch.full((7, 7), -1e9).triu(1)], ids=["each its own", "one"])
def test_relations_go_with_the_tokens_that_are_left_out(edges):
    module, x = make(Graph), torch.randn(2, 7, 4)
    found = why.explain(module, {"x": x, "edges": edges}, "leave_one_out", target=1).scores
    left = [0, 1, 2, 4, 5, 6]
    with torch.no_grad():
        change = module(x, edges)[:, 1] - module(x[:, left], edges[..., left, :][..., left])[:, 1]
    torch.testing.assert_close(found[:, 3], change.to(found))


def test_relations_that_all_examples_share_are_refused_where_each_would_need_its_own():
    with pytest.raises(why.WhyformerError, match=r"one matrix \[7, 7\] of tokens for all examples"):
        why.explain(make(Graph), {"x": torch.randn(2, 7, 4), "edges": torch.rand(7, 7)}, "leave_one_out", target=1)


# --- a second input ---------------------------------------------------------------------------------------------------


def make_two(name: str, *, is_used: bool = True) -> nn.Module:
    class Two(Reader):
        def forward(self, body_ids, **others):
            h = self.table(body_ids)
            return self.read(torch.cat([h, 3 * self.other(others[name])], 1) if is_used else h)

    return make(Two)


@pytest.mark.parametrize("name", ["headline_ids", "message_ids", "language_ids", "categories", "image_type"])
@pytest.mark.parametrize("method", ["libragrad", "leave_one_out"])
def test_a_second_input_that_matters_is_noted_whatever_its_name(name, method):
    given = {"body_ids": IDS[:1], name: torch.tensor([[3, 9]])}
    notes = why.explain(make_two(name), given, method, target=1).notes
    assert any(f"also reads {name!r}" in note for note in notes)


def test_a_second_input_that_changes_nothing_is_not_noted():
    notes = why.explain(make_two("text_ids", is_used=False), {"body_ids": IDS, "text_ids": IDS}, target=1).notes
    assert not any("also reads" in note for note in notes)


def test_masks_and_positions_are_not_noted():
    class Usual(Reader):
        def forward(self, body_ids, mask, places, lengths):
            h = self.table(body_ids) + self.other(places)
            return self.read(h * mask[..., None]) * body_ids.size(1) / lengths[:, None]

    places, lengths = torch.arange(7).expand(2, -1), torch.tensor([7, 5])
    given = {"body_ids": IDS, "mask": REAL, "places": places, "lengths": lengths}
    assert not any("also reads" in note for note in why.explain(make(Usual), given, target=1).notes)


def test_whether_a_second_input_matters_is_measured_once(monkeypatch):
    from whyformer._engine.run import other_inputs

    runs, run_plain = [], other_inputs.run_plain
    monkeypatch.setattr(other_inputs, "run_plain", lambda *args: runs.append(1) or run_plain(*args))
    module, given = make_two("headline_ids"), {"body_ids": IDS, "headline_ids": IDS}
    for _ in range(3):
        why.explain(module, given, "libragrad", target=1)
    assert len(runs) == 1
