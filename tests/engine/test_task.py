"""Tasks: what a model answers is read from what it returns, and its own answer is explained by default."""

from functools import partial

import pytest
import torch
import transformers as hf
from conftest import IMAGE, QUICK, TEXT
from tiny_text import bert, wordpiece
from torch import nn

import whyformer
from whyformer import targets
from whyformer.errors import InputError, TargetError, UnsupportedModel

torch.set_num_threads(1)

IDS = torch.tensor([[5, 6, 7, 8, 9], [6, 7, 8, 9, 5]])
PADDED = {"input_ids": IDS, "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])}
METHODS = ["rollout", "gradient_x_input", "attnlrp", "lrp", "decompx", "leave_one_out"]


def open_seeded(make) -> whyformer.Model:
    torch.manual_seed(0)
    return whyformer.open(make().double().eval())


def run_module(model, inputs):
    with torch.no_grad():
        return model.module(**inputs)


def explain(model, inputs, method, **more):
    return whyformer.explain(model, inputs, method, **QUICK.get(method, {}), **more)


TASKS = {
    "token class": lambda: hf.BertForTokenClassification(hf.BertConfig(**TEXT)),
    "answer span": lambda: hf.BertForQuestionAnswering(hf.BertConfig(**TEXT | {"num_labels": 2})),
    "headless": lambda: hf.BertModel(hf.BertConfig(**TEXT)),
}


@pytest.mark.parametrize("make", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("method", METHODS)
def test_a_padded_batch_gives_what_each_example_gives_alone(make, method):
    model = open_seeded(make)
    together = explain(model, PADDED, method)
    for row, length in enumerate((5, 3)):
        alone = explain(model, {name: rows[row : row + 1, :length] for name, rows in PADDED.items()}, method)
        assert alone.targets[0].label == together.targets[row].label
        assert alone.targets[0].score == pytest.approx(together.targets[row].score, abs=1e-9)
        assert torch.allclose(together.scores[row, :length], alone.scores[0], atol=1e-8)
        assert not together.scores[row, length:].any()


# --- masked tokens ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def masked() -> whyformer.Model:
    torch.manual_seed(0)
    return whyformer.open(hf.BertForMaskedLM(bert().config).double().eval(), tokenizer=wordpiece())


def test_the_predicted_token_at_the_mask(masked):
    text = "the film is [MASK] good"
    e = whyformer.explain(masked, text, "gradient_x_input")
    ids = masked.tokenizer(text, return_tensors="pt")["input_ids"]
    place = int((ids[0] == masked.tokenizer.mask_token_id).nonzero())
    logits = run_module(masked, {"input_ids": ids}).logits[0, place]
    best = int(logits.argmax())
    (target,) = e.targets
    assert target.label == f"{masked.tokenizer.decode([best])!r} at the mask"
    assert (target.score, target.predicted) == (pytest.approx(float(logits[best]), abs=1e-9), True)
    assert target.probability == pytest.approx(float(logits.softmax(0)[best]), abs=1e-9)
    assert e.tokens[0].special[place]


def test_a_token_at_the_mask_by_name_and_a_contrast(masked):
    text = "the film is [MASK]"
    good, bad = (whyformer.explain(masked, text, "attnlrp", target=word).scores for word in ("good", "bad"))
    e = whyformer.explain(masked, text, "attnlrp", target="good", versus="bad")
    assert torch.allclose(e.scores, good - bad, atol=1e-10)
    assert e.targets[0].versus_label == "'bad' at the mask"
    named = whyformer.explain(masked, text, "attnlrp", target=targets.Token("good", at="mask"))
    assert torch.equal(named.scores, good)


def test_several_masks_and_none(masked):
    e = whyformer.explain(masked, "a [MASK] film is [MASK]", "rollout")
    assert e.notes[-1] == "The text has 2 masks; the first one is explained."
    with pytest.raises(TargetError, match=r"predicts the token at a mask, and this text has none\. Put \[MASK\] where"):
        whyformer.explain(masked, "the film is good", "rollout")
    e = whyformer.explain(masked, "the film is good", "rollout", target=targets.Token(at=3))
    assert "at token 3 (is)" in e.targets[0].label
    with pytest.raises(InputError, match=r"contains '\[MASK\]' and '\[SEP\]'"):
        whyformer.explain(masked, "the [MASK] [SEP]", "rollout")


def test_only_a_model_that_predicts_tokens_reads_the_mask():
    model = whyformer.open(bert(), tokenizer=wordpiece())
    assert model.tokenizer.mask_token_id not in model.encode("the [MASK]").inputs["input_ids"]


# --- answer spans -----------------------------------------------------------------------------------------------------


def test_the_best_span_by_trying_all():
    model = open_seeded(TASKS["answer span"])
    out = run_module(model, {"input_ids": IDS})
    e = whyformer.explain(model, IDS, "gradient_x_input")
    for row in range(2):
        sums = {(a, b): float(out.start_logits[row, a] + out.end_logits[row, b]) for a in range(5) for b in range(a, 5)}
        best = max(sums, key=lambda span: sums[span])
        assert e.targets[row].spec == f"answer:{best[0]}-{best[1]}"
        assert e.targets[row].score == pytest.approx(sums[best], abs=1e-9)


def test_xlnet_answers_with_a_span_and_not_with_a_class():
    config = hf.XLNetConfig(vocab_size=50, d_model=16, n_layer=2, n_head=4, d_inner=32)
    model = open_seeded(lambda: hf.XLNetForQuestionAnsweringSimple(config))
    assert whyformer.explain(model, IDS, "rollout").targets[0].label.startswith("the answer ")
    with pytest.raises(TargetError, match=r"answers a span of the text, and 2 names none\. Pass AnswerSpan"):
        whyformer.explain(model, IDS, "rollout", target=2)


# --- choices ----------------------------------------------------------------------------------------------------------


def test_the_chosen_text_is_explained():
    model = open_seeded(lambda: hf.BertForMultipleChoice(hf.BertConfig(**TEXT)))
    inputs = {"input_ids": torch.stack([IDS, IDS.flip(1), IDS + 1], 1)}
    logits = run_module(model, inputs).logits
    e = whyformer.explain(model, inputs, "gradient_x_input")
    best = logits.argmax(-1).tolist()
    assert [target.label for target in e.targets] == [f"choice {number}" for number in best]
    assert [target.score for target in e.targets] == pytest.approx(logits.amax(-1).tolist(), abs=1e-9)
    assert [list(tokens.pieces) for tokens in e.tokens] == [
        [str(int(i)) for i in inputs["input_ids"][row, number]] for row, number in enumerate(best)
    ]
    other = whyformer.explain(model, inputs, "leave_one_out", target=targets.Choice(2))
    assert [target.score for target in other.targets] == pytest.approx(logits[:, 2].tolist(), abs=1e-9)
    with pytest.raises(TargetError, match=r"There is no choice 3\. Choices are 0 to 2"):
        whyformer.explain(model, inputs, "rollout", target=3)
    with pytest.raises(TargetError, match="versus does not work for multiple choice"):
        whyformer.explain(model, inputs, "rollout", versus=1)


# --- sounds -----------------------------------------------------------------------------------------------------------


def make_ctc():
    config = hf.Wav2Vec2BertConfig(
        vocab_size=6, hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32,
        feature_projection_input_dim=8, add_adapter=False, pad_token_id=0,
    )  # fmt: skip
    return hf.Wav2Vec2BertForCTC(config)


def test_the_first_character_of_a_sound():
    model = open_seeded(make_ctc)
    inputs = {"input_features": torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(0)).double()}
    best = run_module(model, inputs).logits.argmax(-1).tolist()
    e = whyformer.explain(model, inputs, "gradient_x_input")
    for row in range(2):
        frame = next(i for i, index in enumerate(best[row]) if index != 0)
        assert e.targets[row].spec == f"frame:{frame}=#{best[row][frame]}"
    character = whyformer.explain(model, inputs, "gradient_x_input", target=targets.Character(0))
    frame = next(i for i, index in enumerate(best[0]) if index != 0)
    last = next((i for i in range(frame, 9) if best[0][i] != best[0][frame]), 9)
    frames = targets.Group(*(targets.Frame(i, best[0][frame]) for i in range(frame, last)))
    parts = whyformer.explain(
        model, {"input_features": inputs["input_features"][:1]}, "gradient_x_input", target=frames
    )
    assert torch.allclose(character.scores[0], parts.scores[0], atol=1e-10)
    with pytest.raises(TargetError, match="There is no character 30: the model reads"):
        whyformer.explain(model, inputs, "rollout", target=targets.Character(30))


# --- what a model returns ---------------------------------------------------------------------------------------------


class Language(nn.Module):
    """A GPT-2 that answers in other shapes."""

    def __init__(self, answer) -> None:
        super().__init__()
        self.inner = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=16))
        self.answer = answer

    def forward(self, idx):
        return self.answer(self.inner.transformer(idx).last_hidden_state, self.inner.lm_head)


ANSWERS = {
    "logits": lambda states, head: head(states),
    "last only": lambda states, head: (head(states[:, [-1]]), None),
    "loss, logits": lambda states, head: (states.sum() * 0, head(states)),
    "features, logits": lambda states, head: (states.mean(1), head(states[:, -1])),
    "dictionary": lambda states, head: {"features": states, "logits": head(states)},
}


@pytest.mark.parametrize("method", ["rollout", "attnlrp", "decompx", "leave_one_out", "legrad"])
def test_the_logits_are_found_in_every_form_of_answer(method):
    found = {}
    for name, answer in ANSWERS.items():
        found[name] = explain(open_seeded(partial(Language, answer)), {"idx": IDS}, method)
    for e in found.values():
        assert [t.label for t in e.targets] == [t.label for t in found["logits"].targets]
        assert torch.allclose(e.scores, found["logits"].scores, atol=1e-9)


def test_a_bare_encoder_is_explained_as_a_representation_with_a_note():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = open_seeded(lambda: nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    for method in ("rollout", "attnlrp", "leave_one_out"):
        e = whyformer.explain(model, torch.randn(2, 5, 16, dtype=torch.float64), method)
        assert e.targets[0].label == "the representation"
        assert e.notes[0].startswith("The model has no head. The explanation is of its representation")


# --- encoders and decoders --------------------------------------------------------------------------------------------

T5 = {"vocab_size": 50, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4}


@pytest.mark.parametrize(
    "make",
    [
        lambda: hf.UMT5EncoderModel(hf.UMT5Config(**T5)),
        lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)).get_encoder(),
    ],
    ids=["umt5", "get_encoder"],
)
def test_an_encoder_that_only_looks_like_an_encoder_and_decoder(make):
    for method in ("rollout", "attnlrp"):
        assert whyformer.explain(open_seeded(make), IDS, method).scores.any()


def test_an_encoder_taken_out_of_such_a_model():
    module = hf.T5ForConditionalGeneration(hf.T5Config(**T5)).eval()
    e = whyformer.explain(whyformer.open(module.get_encoder()), IDS, "rollout")
    assert e.scores.any() and not e.streams


def test_models_that_answer_something_else_are_refused_and_the_way_out_works():
    torch.manual_seed(0)
    model = whyformer.open(hf.ViTForMaskedImageModeling(hf.ViTConfig(**IMAGE | {"encoder_stride": 4})).eval())
    pixels = torch.randn(1, 3, 16, 16)
    with pytest.raises(UnsupportedModel, match=r"predicts an image\. Pass a function of what the model"):
        whyformer.explain(model, pixels, "gradient_x_input")
    target = lambda out: out.reconstruction.flatten(1).mean(1)  # noqa: E731
    assert whyformer.explain(model, pixels, "gradient_x_input", target=target).scores.any()
