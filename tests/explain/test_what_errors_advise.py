"""What an error advises can be done, and is what the person wanted."""

import pytest
import torch
import transformers as hf
from PIL import Image
from tiny_text import bert, byte_pairs, wordpiece

import whyformer as why
from whyformer.errors import InputError, ModelNotFound, TargetError

TEXT = "the film is good"


def tag() -> why.Model:
    torch.manual_seed(0)
    config = bert(id2label={0: "O", 1: "B-PER", 2: "B-LOC"}).config
    return why.open(hf.BertForTokenClassification(config).double().eval(), tokenizer=wordpiece())


def test_a_model_of_images_needs_a_processor():
    config = hf.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=16, patch_size=8
    )
    with pytest.raises(InputError, match=r"without a processor.*open\(module, processor=\.\.\.\).*pixel_values"):
        why.explain(hf.ViTForImageClassification(config).eval(), Image.new("RGB", (16, 16)))
    with pytest.raises(InputError, match=r"without a tokenizer.*tokenizer=\.\.\."):
        why.explain(bert(), TEXT)


def test_a_trainer_holds_the_model():
    class Trainer:
        model, processing_class = bert(), wordpiece()

    with pytest.raises(ModelNotFound, match=r"Pass its \.model, opened with tokenizer= or processor="):
        why.explain(Trainer(), TEXT)  # type: ignore[arg-type]


def test_a_pair_is_named_where_two_texts_are_nested():
    with pytest.raises(InputError, match=r"TextPair\(first, second\)"):
        why.explain(why.open(bert(), tokenizer=wordpiece()), [["the film", "is good"]])  # type: ignore[list-item]


def test_a_word_is_named_as_an_entity():
    model = tag()
    with pytest.raises(TargetError, match=r"no class 'film'.*Entity\('film'\), or 'entity:film'"):
        why.explain(model, TEXT, target="film")
    assert "'film'" in why.explain(model, TEXT, target="entity:film").targets[0].label


def test_a_class_by_number_is_noted_by_name():
    e = why.explain(tag(), TEXT, target=1)
    assert not any("no 1 here" in note for note in e.notes)


def test_a_word_is_no_span():
    config = bert(num_labels=2, id2label={0: "a", 1: "b"}).config
    model = why.open(hf.BertForQuestionAnswering(config).double().eval(), tokenizer=wordpiece())
    with pytest.raises(TargetError, match=r"'good' names none. Pass AnswerSpan\(first, last\).*2 'film'"):
        why.explain(model, TEXT, target="good")


def test_judge_measures_what_runs_one_example_at_a_time():
    """A decoder that classifies without a pad_token_id refuses batches: texts, and the variants of one."""
    torch.manual_seed(0)
    sizes = {"n_embd": 12, "n_layer": 2, "n_head": 3, "vocab_size": 400, "n_positions": 32, "num_labels": 3}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = hf.GPT2ForSequenceClassification(hf.GPT2Config(**sizes, **ends)).eval()
    model = why.open(model, tokenizer=byte_pairs())
    with pytest.raises(InputError, match=r"pad_token_id = tokenizer\.eos_token_id"):
        why.explain(model, [TEXT, "good"])
    judged = why.judge(model, [TEXT, "good", "the film"], ["gradient_x_input"], ["comprehensiveness"])
    assert {line.count for line in judged.table.lines} == {3}


def test_texts_of_different_lengths_without_a_mask():
    class Unmasked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = bert()

        def forward(self, input_ids):
            return self.inner(input_ids).logits

    model = why.open(Unmasked().eval(), tokenizer=wordpiece())
    with pytest.raises(InputError, match=r"Pass one text to each call; judge\(\) and bulk\(\) do so"):
        why.explain(model, [TEXT, "good"])
    judged = why.judge(model, [TEXT, "good"], ["gradient_x_input"], ["comprehensiveness"])
    assert not judged.failed
