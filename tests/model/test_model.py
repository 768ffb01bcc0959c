"""Texts, images and tensors become inputs of the module; wrong inputs get a clear error."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
import transformers as hf
from conftest import animal
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tiny_text import WORDS, bert, byte_pairs, gpt2, llama, roberta, unigram, wordpiece
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

import whyformer
from whyformer._model.encoded import EncodedBatch
from whyformer._plain.fingerprint import fingerprint_tensor
from whyformer.errors import InputError, TargetError

torch.set_num_threads(1)

TOKENIZERS = {"wordpiece": wordpiece(), "byte_pairs": byte_pairs(), "unigram": unigram()}
every_tokenizer = pytest.mark.parametrize("kind", TOKENIZERS)
SHORT, LONG = "the film", "the film is not good, not bad"


@pytest.fixture(scope="module")
def text_model() -> whyformer.Model:
    return whyformer.open(bert(), tokenizer=wordpiece())


@pytest.fixture(scope="module")
def vit(zoo) -> whyformer.Model:
    processor = hf.ViTImageProcessorPil(size={"height": 16, "width": 16})
    return whyformer.open(zoo("vit").module, processor=processor)


def open_with_tokenizer(kind: str, **changes: object) -> whyformer.Model:
    return whyformer.open(bert(words=400, max_position_embeddings=200, **changes), tokenizer=TOKENIZERS[kind])


# --- texts ------------------------------------------------------------------------------------------------------------


def test_tokenizes_a_text(text_model):
    encoded = text_model.encode("The film is good!")
    assert encoded.words == (("[CLS]", "the", "film", "is", "good", "!", "[SEP]"),)
    assert encoded.special_mask.tolist() == [[True, False, False, False, False, False, True]]
    assert encoded.spans == ((None, (0, 3), (4, 8), (9, 11), (12, 16), (16, 17), None),)
    assert encoded.inputs["input_ids"].tolist() == [[2, 5, 6, 7, 9, 17, 3]]
    assert encoded.texts == encoded.names == ("The film is good!",)
    assert encoded.notes == ()


def test_texts_of_different_lengths_are_padded(text_model):
    encoded = text_model.encode([SHORT, LONG])
    assert encoded.words[0] == ("[CLS]", "the", "film", "[SEP]") + ("[PAD]",) * 6
    assert encoded.token_mask.sum(-1).tolist() == [4, 10]
    assert encoded.inputs["attention_mask"].tolist() == encoded.token_mask.long().tolist()
    short = encoded.pieces(10)[0]
    assert short.padding == (False,) * 4 + (True,) * 6
    assert short.special == (True, False, False, True) + (False,) * 6
    assert (short.text, short.spans[1:3]) == (SHORT, ((0, 3), (4, 8)))


def test_padding_uses_the_pad_token_of_the_model():
    """RoBERTa derives positions from it; the pad token of this tokenizer differs."""
    encoded = whyformer.open(roberta(), tokenizer=wordpiece()).encode([SHORT, LONG])
    assert encoded.inputs["input_ids"][0, 4:].tolist() == [1] * 6


def test_padding_uses_the_end_of_text_without_a_pad_token():
    encoded = whyformer.open(gpt2(), tokenizer=byte_pairs("right")).encode([SHORT, LONG])
    assert encoded.inputs["input_ids"][0, -1] == 0
    assert "position_ids" not in encoded.inputs


LOOKALIKES = {
    "wordpiece": "the [SEP] film[CLS] is [PAD] good",
    "byte_pairs": "the<|endoftext|> film <|endoftext|>",
    "unigram": "the <s> film</s> is <pad>good",
}


@every_tokenizer
def test_text_that_looks_like_a_special_token_stays_text(kind):
    model, tokenizer, text = open_with_tokenizer(kind), TOKENIZERS[kind], LOOKALIKES[kind]
    encoded = model.encode(text)
    ids, special = encoded.inputs["input_ids"][0].tolist(), encoded.special_mask[0].tolist()
    known = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id} | ({0} if kind == "byte_pairs" else set())
    assert not [i for i, s in zip(ids, special, strict=True) if i in known and not s]
    covered = {at for span in encoded.spans[0] if span for at in range(*span)}
    assert {at for at, character in enumerate(text) if not character.isspace()} <= covered


@every_tokenizer
def test_other_texts_are_tokenized_as_usual(kind):
    encoded = open_with_tokenizer(kind).encode(LONG)
    assert encoded.inputs["input_ids"].tolist() == [TOKENIZERS[kind](LONG)["input_ids"]]


def test_a_word_level_tokenizer_keeps_lookalikes_too():
    words = {word: i for i, word in enumerate(("[UNK]", "[SEP]", "the", "film"))}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", sep_token="[SEP]")
    encoded = whyformer.open(bert(), tokenizer=tokenizer).encode("the [SEP] film")
    assert encoded.words == (("the", "[UNK]", "film"),)
    assert encoded.notes == ("The model cannot read 1 of 3 tokens of the text: '[SEP]'.",)


def test_a_tokenizer_that_cannot_keep_lookalikes_says_so():
    class Slow:
        """The smallest tokenizer that works."""

        is_fast, padding_side, pad_token = False, "right", "[PAD]"
        all_special_ids, all_special_tokens, unk_token_id = [3], ["[SEP]"], 1

        def __call__(self, text, **_):
            ids = [3 if word == "[SEP]" else 5 for word in text.split()]
            return {"input_ids": ids, "attention_mask": [1] * len(ids), "special_tokens_mask": [0] * len(ids)}

        def convert_ids_to_tokens(self, ids):
            return [str(i) for i in ids]

    model = whyformer.open(bert(), tokenizer=Slow())
    with pytest.raises(
        InputError, match=r"The text contains '\[SEP\]', which this tokenizer always reads as a special"
    ):
        model.encode("the [SEP] film")


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(lambda t: t.strip())


@every_tokenizer
@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_every_piece_points_into_the_text(kind, text):
    """Emoji, combining marks, right-to-left, NUL: spans are in order and inside, and only special tokens lack one."""
    encoded = TEXT_MODELS[kind].encode(f"{text}.")
    spans = [span for span in encoded.spans[0] if span is not None]
    assert all(0 <= a < b <= len(text) + 1 for a, b in spans)
    assert spans == sorted(spans)
    assert len(encoded.words[0]) == encoded.inputs["input_ids"].size(1)


TEXT_MODELS = {kind: open_with_tokenizer(kind) for kind in TOKENIZERS}


def test_does_not_modify_the_tokenizer():
    tokenizer = byte_pairs()
    whyformer.open(gpt2(), tokenizer=tokenizer).encode([SHORT, LONG])
    assert tokenizer.pad_token is None
    assert not tokenizer.backend_tokenizer.encode_special_tokens


def test_four_threads_encode_alike(text_model):
    texts = [SHORT, LONG, "not good [SEP]", "bad."] * 5
    serial = [text_model.encode(text).inputs["input_ids"].tolist() for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda text: text_model.encode(text).inputs["input_ids"].tolist(), texts)) == serial


def test_unknown_tokens_are_noted(text_model):
    assert text_model.encode("the zebra").notes == ("The model cannot read 1 of 2 tokens of the text: 'zebra'.",)
    noted = text_model.encode(["the film", "x y"]).notes
    assert noted == ("The model cannot read 2 of 2 tokens of text 1: 'x', 'y'.",)


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u3000"])
def test_an_empty_text(text_model, text):
    with pytest.raises(InputError, match="The text is empty"):
        text_model.encode(text)
    with pytest.raises(InputError, match="Text 1 is empty"):
        text_model.encode(["the film", text])


def test_a_text_without_tokens(text_model):
    with pytest.raises(InputError, match="The tokenizer of this model finds no token in the text"):
        text_model.encode("\x00\x00")


def test_a_text_that_is_too_long(text_model):
    assert text_model.max_length == 16
    text_model.encode("film " * 14)
    with pytest.raises(
        InputError, match=r"The text is 17 tokens long; BertForSequenceClassification accepts at most 16. Shorten"
    ):
        text_model.encode("film " * 15)
    with pytest.raises(InputError, match="Text 1 is 102 tokens long"):
        text_model.encode(["the film", "film " * 100])
    with pytest.raises(InputError, match="The text has 1,000,000 characters; the limit is 200,000"):
        text_model.encode("a" * 1_000_000)


def test_positions_derived_from_the_padding_reduce_the_max_length():
    model = whyformer.open(roberta(), tokenizer=wordpiece())
    assert model.max_length == 32
    assert whyformer.explain(model, "film " * 30, "rollout").scores.shape == (1, 32)
    with pytest.raises(InputError, match="33 tokens long; RobertaForSequenceClassification accepts at most 32"):
        model.encode("film " * 31)


def test_values_that_are_not_texts(text_model):
    for wrong, name in ((None, "None"), (5, "int"), (b"film", "bytes"), (["a", "b"], "list")):
        with pytest.raises(InputError, match=f"Text 1 must be a string, got {name}"):
            text_model.encode(["the film", wrong])
    with pytest.raises(InputError, match="The text must be a string, got None"):
        text_model.encode(None)
    with pytest.raises(InputError, match="not valid Unicode at character 4"):
        text_model.encode("film\ud800")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("", "E_TXT_EMPTY"),
        (" \n\t", "E_TXT_EMPTY"),
        ("\x00\x00", "E_TXT_EMPTY"),
        ("a" * 1_000_000, "E_TXT_TOO_LONG"),
        ("film " * 100, "E_TXT_TOO_LONG"),
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467" * 45_000, "E_TXT_TOO_LONG"),
        ("film\ud800", "E_TXT_ENCODING"),
        (b"\xff\xfe", "E_TXT_TYPE"),
        (None, "E_TXT_TYPE"),
        (7, "E_TXT_TYPE"),
        ([["nested"]], "E_TXT_TYPE"),
        (("the film", ""), "E_TXT_EMPTY"),
    ],
)
def test_codes_of_texts(text_model, given, code):
    with pytest.raises(InputError) as raised:
        text_model.encode(given)
    assert raised.value.code == code


def test_a_tokenizer_that_fails(text_model):
    """Its files name an unknown token that is not in its vocabulary."""
    backend = Tokenizer(models.WordPiece({"the": 0}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    model = whyformer.open(bert(), tokenizer=hf.PreTrainedTokenizerFast(tokenizer_object=backend))
    with pytest.raises(InputError, match=r"The tokenizer of this model fails on the text: .*UNK") as raised:
        model.encode("film")
    assert raised.value.code == "E_MODEL_TOKENIZER"


def test_an_image_processor_that_fails(zoo):
    processor = hf.ViTImageProcessorPil(size={"height": 16, "width": 16}, image_mean=[0.5] * 7)
    model = whyformer.open(zoo("vit").module, processor=processor)
    with pytest.raises(InputError, match=r"The image processor of .* fails on these images") as raised:
        model.encode(Image.new("RGB", (4, 4)))
    assert raised.value.code == "E_MODEL_CONFIG"


def test_a_processor_of_the_user_fails_with_its_own_exception(zoo):
    def process(**_):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        whyformer.open(zoo("vit").module, processor=process).encode(Image.new("RGB", (4, 4)))


def test_a_tokenizer_of_another_model():
    model = whyformer.open(bert(words=12), tokenizer=wordpiece())
    model.encode("the film")
    with pytest.raises(
        InputError, match=r"BertFor.* has no token 17: its token ids are 0 to 11. The tokenizer probably belongs"
    ):
        model.encode("the film!")


def test_a_custom_module_can_name_its_input_freely():
    model = whyformer.open(animal("gpt").module, tokenizer=wordpiece())
    e = whyformer.explain(model, "the film is", "gradient_x_input", target="good")
    assert (e.tokens[0].pieces[1:4], e.targets[0].index) == (("the", "film", "is"), WORDS.index("good"))


def test_texts_of_different_lengths_need_a_mask(zoo):
    class Bare(nn.Module):
        def forward(self, input_ids):
            raise AssertionError("not run")

    model = whyformer.open(Bare(), tokenizer=wordpiece())
    assert model.encode([SHORT, SHORT]).batch == 2
    with pytest.raises(
        InputError, match=r"different lengths, but Bare has no attention_mask. Pass one text to each call"
    ):
        model.encode([SHORT, LONG])


# --- padding on the left ----------------------------------------------------------------------------------------------

LEFT = {"gpt2": gpt2, "llama": llama}
SENTENCES = ["the city", "The Eiffel Tower is in the city of", "a film"]


@pytest.mark.parametrize("family", LEFT)
def test_with_padding_on_the_left_positions_start_at_the_first_real_token(family):
    encoded = whyformer.open(LEFT[family](), tokenizer=byte_pairs()).encode(SENTENCES)
    for positions, real in zip(encoded.inputs["position_ids"], encoded.token_mask, strict=True):
        assert positions[real].tolist() == list(range(int(real.sum())))
    assert not encoded.token_mask[0, 0] and encoded.token_mask[:, -1].all()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", LEFT)
@pytest.mark.parametrize(
    "method", ["gradient_x_input", "rollout", "grad_cam", "generic_attention", "transformer_attribution"]
)
def test_explains_each_text_as_if_it_were_alone(family, side, method):
    model = whyformer.open(LEFT[family](), tokenizer=byte_pairs(side))
    together = whyformer.explain(model, SENTENCES, method)
    for i, sentence in enumerate(SENTENCES):
        alone = whyformer.explain(model, sentence, method)
        real = ~torch.tensor(together.tokens[i].padding)
        torch.testing.assert_close(together.scores[i][real], alone.scores[0], rtol=1e-10, atol=1e-10)
        assert not together.scores[i][~real].any()
        assert together.targets[i].index == alone.targets[0].index
        assert together.targets[i].score == pytest.approx(alone.targets[0].score, abs=1e-10)


def mpnet():
    """It counts positions from the padding by a function, RoBERTa by a method."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48, "max_position_embeddings": 34}
    config = hf.MPNetConfig(vocab_size=60, hidden_size=24, pad_token_id=1, **sizes)
    return hf.MPNetForSequenceClassification(config).double().eval()


@pytest.mark.parametrize(("family", "derives_positions"), [(bert, False), (roberta, True), (mpnet, True)])
def test_encoders_see_the_same_with_padding_on_the_left(family, derives_positions):
    """They read the first token, so there is no answer to explain, but the hidden states must stay the same."""
    tokenizer = wordpiece()
    tokenizer.padding_side = "left"
    model = whyformer.open(family(), tokenizer=tokenizer)
    together, alone = model.encode([SHORT, LONG]).inputs, model.encode(SHORT).inputs
    assert ("position_ids" in together) == (not derives_positions)
    with torch.no_grad():
        states = [model.module.base_model(**inputs).last_hidden_state[0, -4:] for inputs in (together, alone)]
    torch.testing.assert_close(*states, rtol=1e-10, atol=1e-10)


def test_a_module_without_position_ids_is_padded_on_the_right():
    """Padding on the left would silently shift its positions."""
    tokenizer = wordpiece()
    tokenizer.padding_side = "left"
    model = whyformer.open(animal("encoder").module, tokenizer=tokenizer)
    encoded = model.encode([SHORT, LONG])
    assert encoded.token_mask[:, 0].all() and not encoded.token_mask[0, -1]
    together, alone = (whyformer.explain(model, texts, "attcat", target=1) for texts in ([SHORT, LONG], SHORT))
    torch.testing.assert_close(together.scores[0, :4], alone.scores[0], rtol=1e-10, atol=1e-10)


def test_a_batch_for_a_decoder_that_classifies_needs_a_pad_token():
    config = dict(vocab_size=400, n_embd=24, n_layer=1, n_head=3, n_positions=32, num_labels=3)
    bare = whyformer.open(hf.GPT2ForSequenceClassification(hf.GPT2Config(**config)).eval(), tokenizer=byte_pairs())
    assert whyformer.explain(bare, SHORT, "rollout").scores.shape[0] == 1
    for batch in ([SHORT, LONG], torch.tensor([[5, 6], [7, 8]])):
        with pytest.raises(
            InputError, match="GPT2ForSequenceClassification accepts only one example at a time, because its config"
        ):
            bare.encode(batch)
    module = hf.GPT2ForSequenceClassification(hf.GPT2Config(**config, pad_token_id=399)).double().eval()
    model = whyformer.open(module, tokenizer=byte_pairs())
    together, alone = (
        whyformer.explain(model, texts, "gradient_x_input", target=1) for texts in ([SHORT, LONG], SHORT)
    )
    real = ~torch.tensor(together.tokens[0].padding)
    torch.testing.assert_close(together.scores[0][real], alone.scores[0], rtol=1e-10, atol=1e-10)


# --- images -----------------------------------------------------------------------------------------------------------


def test_images_and_paths(vit, tmp_path):
    image = Image.effect_noise((30, 20), 60).convert("RGB")
    image.save(tmp_path / "noise.png")
    encoded = vit.encode([image, tmp_path / "noise.png", str(tmp_path / "noise.png")])
    assert encoded.names == ("image 0", "noise.png", "noise.png")
    pixels = encoded.inputs["pixel_values"]
    assert (pixels.shape, pixels.dtype) == ((3, 3, 16, 16), torch.float64)
    assert torch.equal(pixels[0], pixels[1])
    assert len(set(encoded.fingerprints())) == 1


def test_an_image_rotated_by_exif_is_explained_upright(vit, tmp_path):
    image = Image.effect_noise((16, 16), 60).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6
    image.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    upright, turned = (whyformer.explain(vit, i, "gradient_x_input") for i in (image, tmp_path / "turned.png"))
    assert torch.equal(upright.scores, turned.scores)


def test_inputs_that_are_not_images(vit, tmp_path):
    (tmp_path / "text.png").write_text("hello")
    with pytest.raises(InputError, match=r"'text\.png' is not a PNG"):
        vit.encode(tmp_path / "text.png")
    with pytest.raises(InputError, match="Cannot read 'a gorgeous film': there is no such file"):
        vit.encode("a gorgeous film")


def test_a_processor_for_another_size(zoo):
    processor = hf.ViTImageProcessorPil(size={"height": 20, "width": 20})
    model = whyformer.open(zoo("vit").module, processor=processor)
    with pytest.raises(InputError, match="The image has 20 x 20 pixels; ViTForImageClassification needs 16 x 16"):
        model.encode(Image.new("RGB", (50, 50)))


# --- tensors ----------------------------------------------------------------------------------------------------------


def test_a_tensor_a_dictionary_and_a_list_are_the_same_batch(zoo):
    animal = zoo("bert")
    model, ids = whyformer.open(animal.module), animal.inputs["input_ids"]
    ways = [ids, {"input_ids": ids}, list(ids), [{"input_ids": row} for row in ids], [row[None] for row in ids]]
    for way in ways:
        encoded = model.encode(way)
        assert (encoded.main, encoded.batch) == ("input_ids", 3)
        assert torch.equal(encoded.inputs["input_ids"], ids)
    assert model.encode(encoded) is encoded


def test_one_example_needs_no_batch_axis(zoo):
    bert, vit = zoo("bert"), zoo("vit")
    assert whyformer.open(bert.module).encode(bert.inputs["input_ids"][0]).inputs["input_ids"].shape == (1, 9)
    one = whyformer.open(bert.module).encode({name: tensor[0] for name, tensor in bert.inputs.items()})
    assert one.inputs["attention_mask"].shape == (1, 9)
    assert whyformer.open(vit.module).encode(vit.inputs["pixel_values"][0]).inputs["pixel_values"].dim() == 4
    embedded = torch.randn(9, 24)
    assert whyformer.open(bert.module).encode(embedded).inputs["inputs_embeds"].shape == (1, 9, 24)


def test_sequences_of_different_lengths_are_padded_and_masked(zoo):
    animal = zoo("bert")
    model = whyformer.open(animal.module)
    rows = [animal.alone(i)["input_ids"][0] for i in range(3)]
    encoded = model.encode(rows)
    assert torch.equal(encoded.inputs["attention_mask"], animal.inputs["attention_mask"])
    assert torch.equal(encoded.inputs["input_ids"], animal.inputs["input_ids"])
    together = whyformer.explain(model, rows, "attcat", target=1)
    for i, row in enumerate(rows):
        alone = whyformer.explain(model, row, "attcat", target=1)
        torch.testing.assert_close(together.scores[i, : len(row)], alone.scores[0], rtol=1e-10, atol=1e-10)


def test_embeddings_of_different_lengths_are_padded_and_masked(zoo):
    model = whyformer.open(zoo("bert").module)
    encoded = model.encode([{"inputs_embeds": torch.randn(n, 24)} for n in (5, 1)])
    assert encoded.inputs["attention_mask"].tolist() == [[1] * 5, [1, 0, 0, 0, 0]]
    assert encoded.inputs["inputs_embeds"].dtype == torch.float64


def test_sequences_of_different_lengths_need_a_mask(zoo):
    with pytest.raises(InputError, match=r"different lengths, but the model has no attention_mask. Pad them"):
        whyformer.open(zoo("gpt").module).encode([torch.tensor([5, 6]), torch.tensor([5])])


def test_images_with_one_channel_keep_it():
    config = hf.ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=12, num_hidden_layers=1, num_attention_heads=2
    )
    model = whyformer.open(hf.ViTForImageClassification(config).eval())
    assert model.encode([torch.randn(1, 8, 8), torch.randn(1, 8, 8)]).inputs["pixel_values"].shape == (2, 1, 8, 8)


def test_special_tokens_of_bare_ids():
    """From the tokenizer if there is one, else from the config; some models have several end-of-text tokens."""
    ids = torch.tensor([[2, 5, 1, 3, 0]])
    known = whyformer.open(bert(), tokenizer=wordpiece()).encode({"input_ids": ids, "attention_mask": ids > 0})
    assert known.words == (("[CLS]", "the", "[UNK]", "[SEP]", "[PAD]"),)
    assert known.special_mask.tolist() == [[True, False, False, True, False]]
    several = whyformer.open(llama()).encode(torch.tensor([[0, 7, 5, 8]]))
    assert several.words == (("0", "7", "5", "8"),)
    assert several.special_mask.tolist() == [[True, False, True, False]]
    beyond = whyformer.open(bert(words=30), tokenizer=wordpiece()).encode(torch.tensor([[5, 29]]))
    assert beyond.words == (("the", "29"),)


def test_tokens_are_numbered_if_the_model_adds_some():
    """There are more tokens than in the input, so the names of the input tokens would be shifted."""
    encoded = EncodedBatch({}, "x", 1, ("example",), words=(("a", "b"),), texts=("a b",), spans=(((0, 1), (2, 3)),))
    assert encoded.pieces(2)[0].pieces == ("a", "b")
    more = encoded.pieces(3)[0]
    assert (more.pieces, more.spans, more.text) == (("0", "1", "2"), (None, None, None), None)


def test_the_output_of_a_tokenizer_is_a_dictionary(text_model):
    made = wordpiece()(["the film", "good"], padding=True, return_tensors="pt")
    assert whyformer.explain(text_model, made, "rollout").scores.shape == (2, 4)


IDS, PIXELS = animal("bert").inputs["input_ids"], animal("vit").inputs["pixel_values"]
BAD_TENSORS = {
    "NaN": ("vit", PIXELS.where(PIXELS < 1, torch.nan), "Input 'pixel_values' contains NaN or infinity"),
    "no batch": ("vit", PIXELS[:0], r"Input 'pixel_values' is empty: shape \[0, 3, 16, 16\]"),
    "rank 2": ("vit", PIXELS[0, 0], r"pixel_values must have the shape \[batch, channel, .*got \[16, 16\]"),
    "rank 5": ("vit", PIXELS[None], r"pixel_values must have the shape \[batch, channel, .*got \[1, 3, 3, 16, 16\]"),
    "channels": ("vit", PIXELS[:, :1], r"pixel_values has 1 channel \(shape .*; ViTForImageClassification needs 3"),
    "channels last": ("vit", PIXELS.permute(0, 2, 3, 1), "channels seem to be the last axis: use permute"),
    "size": ("vit", PIXELS[..., :12], "The image has 16 x 12 pixels; ViTForImageClassification needs 16 x 16"),
    "bytes": ("vit", torch.zeros(1, 3, 16, 16, dtype=torch.uint8), "pixel_values must be floating point, got uint8"),
    "token": ("bert", IDS + 100, "BertForSequenceClassification has no token 137: its token ids are 0 to 59"),
    "negative": ("bert", IDS - 100, "has no token -"),
    "long": ("bert", IDS.repeat(1, 4), "The sequence is 36 tokens long; .* accepts at most 32"),
    "rank 3": ("bert", IDS[None], r"input_ids must have the shape \[batch, token\], got \[1, 3, 9\]"),
    "fractions": ("bert", {"input_ids": IDS.double()}, "input_ids must be integers, got float64"),
    "name": ("bert", {"input_idz": IDS}, "has no input 'input_idz'. Did you mean 'input_ids'"),
    "a list": ("bert", {"input_ids": IDS.tolist()}, "'input_ids' must be a tensor, got list. Call .* return_tensors"),
    "only a mask": ("bert", {"attention_mask": IDS}, "needs the input 'input_ids', got attention_mask"),
    "nothing": ("bert", {}, "needs the input 'input_ids', got nothing"),
    "mask": ("bert", {"input_ids": IDS, "attention_mask": IDS[:2]}, r"attention_mask has the shape \[2, 9\], but"),
    "all masked": ("bert", {"input_ids": IDS, "attention_mask": IDS * 0}, "masks every token of an example"),
    "empty list": ("bert", [], "The list of inputs is empty"),
    "mixed": ("bert", [IDS, "text"], "only tensors, only images or only texts; this one mixes them"),
    "others": ("bert", [{"input_ids": IDS[0]}, {"inputs_embeds": torch.ones(9, 24)}], "must have the same inputs"),
    "batches": ("bert", [IDS, IDS], r"shape \[3, 9\], which is already a batch"),
    "shapes": ("dinov2", [PIXELS[0], PIXELS[0, :, :8]], "cannot be combined into one batch"),
    "text": ("bert", "the film", "opened without a tokenizer, so it needs tensors, got str"),
}  # fmt: skip


@pytest.mark.parametrize("problem", BAD_TENSORS)
def test_tensors_that_cannot_be_explained(problem):
    name, inputs, message = BAD_TENSORS[problem]
    with pytest.raises(InputError, match=message):
        whyformer.open(animal(name).module).encode(inputs)


def test_a_forward_without_named_inputs():
    class Anything(nn.Module):
        def forward(self, *args):
            raise AssertionError("not run")

    with pytest.raises(InputError, match=r"The forward\(\) of Anything has no named input"):
        whyformer.open(Anything()).encode(torch.zeros(1, 3))


def test_a_forward_with_kwargs_accepts_any_input():
    class Anything(nn.Module):
        def forward(self, **kwargs):
            raise AssertionError("not run")

    assert whyformer.open(Anything()).encode({"x": torch.zeros(2, 3, 4)}).batch == 2


# --- fingerprints and readout -----------------------------------------------------------------------------------------


def test_a_fingerprint_depends_on_the_example_alone(text_model):
    alone = text_model.encode(SHORT).fingerprints()[0]
    assert text_model.encode([LONG, SHORT]).fingerprints()[1] == alone
    assert text_model.encode([LONG, SHORT]).fingerprints()[0] != alone


def test_fingerprints_of_any_tensor():
    numbers = torch.arange(6)
    assert fingerprint_tensor(numbers) == fingerprint_tensor(numbers.int()) != fingerprint_tensor(numbers + 1)
    assert fingerprint_tensor(numbers.view(2, 3)) != fingerprint_tensor(numbers.view(3, 2))
    for odd in (torch.tensor(1.5), torch.zeros(0, 3), torch.ones(3, dtype=torch.bfloat16), numbers.view(2, 3).T):
        assert 0 <= fingerprint_tensor(odd) < 2**64


def test_readout_by_name(text_model):
    mask = torch.tensor([[True, True, True], [False, True, True]])
    weights = {
        name: replace(text_model, readout=name).readout_weights(mask) for name in ("first", "last", "mean", 1, -3)
    }
    assert weights["first"].tolist() == [[1, 0, 0], [0, 1, 0]]
    assert weights["last"].tolist() == [[0, 0, 1], [0, 0, 1]]
    assert weights["mean"].tolist() == [[1, 1, 1], [0, 1, 1]]
    assert weights[1].tolist() == [[0, 1, 0], [0, 1, 0]]
    assert weights[-3].tolist() == [[1, 0, 0], [1, 0, 0]]
    for wrong in ("middle", 3, -4):
        with pytest.raises(TargetError, match=r"readout must be .*an index below 3"):
            replace(text_model, readout=wrong).readout_weights(mask)


def test_words_fit_the_tokenizer():
    assert len(wordpiece()) == len(WORDS)


def test_a_pair_of_texts_is_read_together(text_model):
    """One sequence for both; the spans of the second text refer to the second line."""
    encoded = text_model.encode([("the film", "the film"), "the film"])
    first, second = encoded.pieces(encoded.token_mask.size(1))
    assert first.text == "the film\nthe film"
    words = [first.text[slice(*span)] for span in first.spans if span]
    assert words == ["the", "film", "the", "film"]
    assert [span for span in first.spans if span][2] == (9, 12)
    assert second.text == "the film"
    with pytest.raises(InputError, match="The second text of pair 1 is empty"):
        text_model.encode(["the film", ("the film", "")])
    with pytest.raises(InputError, match="Text 1 must be a string, got tuple"):
        text_model.encode(["the film", ("the film", "the film", "the film")])
