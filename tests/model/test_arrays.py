"""Numpy arrays as inputs: images, pixel values, token ids and texts."""

import numpy as np
import pytest
import tiny_text
import torch
from conftest import animal
from PIL import Image

import whyformer as why
from whyformer._model.arrays import image_from_array, read_arrays
from whyformer.errors import InputError

BYTES = np.random.default_rng(0).integers(0, 256, (32, 40, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def image_model():
    return why.open("demo/untrained-vit")


@pytest.fixture(scope="module")
def text_model():
    return why.open(tiny_text.bert(), tokenizer=tiny_text.wordpiece())


def pixels_of(model, inputs):
    return model.encode(inputs).inputs["pixel_values"]


# --- images -----------------------------------------------------------------------------------------------------------

SAME_IMAGE = {
    "uint8": BYTES,
    "int64": BYTES.astype(np.int64),
    "float64 from 0 to 1": BYTES / 255,
    "float32 from 0 to 1": (BYTES / 255).astype(np.float32),
    "uint16": BYTES.astype(np.uint16) * 257,
    "not contiguous": BYTES[:, :, ::-1][:, :, ::-1],
    "column-major": np.asfortranarray(BYTES),
    "opaque": np.dstack([BYTES, np.full((32, 40), 255, dtype=np.uint8)]),
}


@pytest.mark.parametrize("array", SAME_IMAGE.values(), ids=list(SAME_IMAGE))
def test_an_array_is_the_image_of_its_values(image_model, array):
    encoded = image_model.encode(array)
    assert torch.equal(encoded.inputs["pixel_values"], pixels_of(image_model, Image.fromarray(BYTES)))
    assert encoded.names == ("image",) and encoded.images[0].image.size == (40, 32)


def test_grey_and_black_and_white():
    grey = BYTES[..., 0]
    for array in (grey, grey[..., None], grey / 255):
        assert np.array_equal(np.asarray(image_from_array(array)), grey)
    assert np.asarray(image_from_array(np.eye(2, dtype=bool))).tolist() == [[255, 0], [0, 255]]


def test_a_stack_or_a_list_of_arrays_is_a_batch(image_model):
    expected = pixels_of(image_model, [Image.fromarray(BYTES), Image.fromarray(255 - BYTES)])
    assert torch.equal(pixels_of(image_model, np.stack([BYTES, 255 - BYTES])), expected)
    assert torch.equal(pixels_of(image_model, [BYTES, 255 - BYTES]), expected)
    assert torch.equal(pixels_of(image_model, [Image.fromarray(BYTES), 255 - BYTES]), expected)


def test_channels_in_front_are_pixel_values_as_in_a_tensor(image_model):
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(pixels_of(image_model, pixels.numpy()), pixels)
    assert torch.equal(pixels_of(image_model, pixels[0].double().numpy()), pixels[:1])
    assert torch.equal(pixels_of(image_model, {"pixel_values": pixels.numpy()}), pixels)


@pytest.mark.parametrize(
    ("array", "code", "message"),
    [
        (BYTES.transpose(2, 0, 1), "E_IMG_SHAPE", r"got \[3, 32, 40\]. Its channels seem to come first"),
        (np.zeros((8, 8, 2), dtype=np.uint8), "E_IMG_SHAPE", r"got \[8, 8, 2\]\.$"),
        (np.zeros((0, 4, 3), dtype=np.uint8), "E_IMG_SHAPE", "is empty"),
        (np.zeros(5), "E_IMG_SHAPE", r"got \[5\]"),
        (
            BYTES.astype(np.float32),
            "E_IMG_VALUES",
            "from 0 to 255; floating-point values must be between 0 and 1",
        ),
        (BYTES / 255 - 0.5, "E_IMG_VALUES", r"from -0.5 to 0.5; floating-point"),
        (BYTES.astype(int) * 2, "E_IMG_VALUES", "from 0 to 510; integers must be between 0 and 255"),
        (np.full((4, 4), np.nan), "E_IMG_VALUES", "NaN or infinity"),
        (np.full((4, 4), None), "E_IMG_VALUES", "must hold numbers, got the type object"),
    ],
    ids=["first", "two_channels", "empty", "line", "float_255", "negative", "large", "nan", "object"],
)
def test_arrays_that_are_no_image(image_model, array, code, message):
    with pytest.raises(InputError, match=message) as raised:
        image_model.encode(array)
    assert raised.value.code == code


def test_an_explanation_of_an_array(image_model):
    e = why.explain(image_model, BYTES, "rollout")
    assert torch.equal(e.scores, why.explain(image_model, Image.fromarray(BYTES), "rollout").scores)


# --- pixel values of 0 to 255 -----------------------------------------------------------------------------------------


def test_pixel_values_of_0_to_255_are_refused_where_the_processor_normalises(image_model):
    raw = torch.from_numpy(BYTES[:32, :32].copy()).permute(2, 0, 1).float()
    for inputs in (raw, raw[None], {"pixel_values": raw[None]}, [raw, raw], raw.numpy()):
        with pytest.raises(
            InputError, match=r"run from 0 to 255, as in .* gives values from -\d.* Pass the image itself"
        ):
            image_model.encode(inputs)
    assert image_model.encode(raw / 255).notes == ()


def test_without_a_processor_there_is_a_note():
    raw = torch.from_numpy(BYTES[:16, :16].copy()).permute(2, 0, 1).double()
    e = why.explain(animal("vit").module, raw, "rollout")
    assert [note.startswith("The pixel values run from 0 to 25") for note in e.notes] == [True]
    assert why.explain(animal("vit").module, raw / 255, "rollout").notes == ()
    assert why.explain(animal("vit").module, raw / 60 - 2, "rollout").notes == ()


def test_pixels_that_have_a_gradient_are_read_without_a_warning(image_model):
    assert image_model.encode(torch.rand(3, 32, 32, requires_grad=True)).notes == ()


# --- ids and texts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, ">i4"])
def test_ids_of_every_integer_type(text_model, dtype):
    ids = [[2, 5, 6, 9, 3], [2, 9, 6, 5, 3]]
    for given, expected in ((np.array(ids, dtype), ids), (np.array(ids[0], dtype), ids[:1])):
        assert text_model.encode(given).inputs["input_ids"].tolist() == expected
    ragged = text_model.encode([np.array(ids[0], dtype), np.array(ids[1][:3], dtype)])
    assert ragged.inputs["attention_mask"].sum(-1).tolist() == [5, 3]


def test_what_a_tokenizer_returns_as_arrays(text_model):
    given = {name: np.array(row) for name, row in dict(text_model.tokenizer(["the film", "is bad"])).items()}
    named = text_model.encode({key: given[key] for key in ("input_ids", "attention_mask")})
    assert torch.equal(named.inputs["input_ids"], text_model.encode(["the film", "is bad"]).inputs["input_ids"])


def test_an_array_of_strings_is_a_list_of_texts(text_model):
    assert text_model.encode(np.array(["the film", "is bad"])).names == ("the film", "is bad")


def test_a_module_without_tokenizer_takes_the_same_numbers():
    it = animal("bert")
    arrays = {key: value.numpy() for key, value in it.inputs.items()}
    assert torch.equal(
        why.explain(it.module, arrays, "rollout").scores, why.explain(it.module, it.inputs, "rollout").scores
    )


def test_arrays_that_no_tensor_can_hold(text_model):
    with pytest.raises(InputError, match="An array of the type object cannot become a tensor") as raised:
        text_model.encode(np.array([None, 3]))
    assert raised.value.code == "E_TENSOR"


def test_the_array_itself_is_not_touched():
    ids = np.arange(4)
    read_arrays(ids, are_images=False).zero_()
    assert ids.tolist() == [0, 1, 2, 3]
    ids.setflags(write=False)
    assert read_arrays([ids], are_images=False)[0].tolist() == [0, 1, 2, 3]


# --- names of image files ---------------------------------------------------------------------------------------------


def test_the_name_of_an_image_file_is_no_text(text_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert text_model.encode("film.jpg").names == ("film.jpg",)  # there is no such file
    Image.new("RGB", (8, 8)).save("film.jpg")
    message = r"film.jpg' is an image file, but .* takes texts.* pass \{\"text\": '"
    for inputs in ("film.jpg", ["the film", str(tmp_path / "film.jpg")]):
        with pytest.raises(InputError, match=message) as raised:
            text_model.encode(inputs)
        assert raised.value.code == "E_TXT_TYPE"
    assert text_model.encode("the film.jpg").names == ("the film.jpg",)


def test_a_text_that_is_called_a_text(text_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 8)).save("film.jpg")
    plain = text_model.encode("film . jpg").inputs["input_ids"]
    assert torch.equal(text_model.encode({"text": "film.jpg"}).inputs["input_ids"], plain)
    assert text_model.encode([{"text": "film.jpg"}, "the film"]).names == ("film.jpg", "the film")
    pair = text_model.encode({"text": "the film", "text_pair": "is bad"}).inputs["input_ids"]
    assert torch.equal(pair, text_model.encode([("the film", "is bad")]).inputs["input_ids"])
