"""The generated data sets: their ground truth is correct, and the bundled models have learnt it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import whyformer as why
from whyformer.demo import shapes
from whyformer.errors import InputError
from whyformer_papers.worlds import agreement

torch.set_num_threads(1)
MODELS = Path(shapes.__file__).parent / "models"
FRESH = 20_26  # a seed that was never used for training or evaluation


def compute_logits(name: str, inputs: list) -> torch.Tensor:
    model = why.open(f"demo/{name}")
    encoded = [model.encode(inputs[i : i + 50]) for i in range(0, len(inputs), 50)]
    with torch.inference_mode():
        return torch.cat([model.module(**batch.inputs).logits for batch in encoded])


def as_images(images: np.ndarray) -> list[Image.Image]:
    return [Image.fromarray(image) for image in images]


def needs_weights(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not (MODELS / name / "model.safetensors").is_file(), reason=f"the weights of demo/{name} are missing"
    )


# --- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objects", [1, 2, 3])
def test_a_seed_gives_the_same_images_for_any_count(objects):
    few, many = shapes.generate(3, 5, objects=objects), shapes.generate(6, 5, objects=objects)
    for name in ("images", "labels", "masks", "backgrounds"):
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name)[:3])
    assert not (few.images == shapes.generate(3, 6, objects=objects).images).all()


@pytest.mark.parametrize("objects", [1, 2, 3])
def test_masks_are_exactly_the_pixels_that_objects_changed(objects):
    scenes = shapes.generate(20, 1, objects=objects)
    differs = (scenes.images != scenes.backgrounds).any(-1)
    covered = scenes.masks.any(1)
    assert not differs[~covered].any()
    assert differs[covered].mean() > 0.99  # a faint edge can round to the background colour


@pytest.mark.parametrize("objects", [2, 3])
def test_objects_do_not_touch_and_are_of_different_classes(objects):
    scenes = shapes.generate(30, 2, objects=objects)
    assert scenes.masks.sum(1).max() == 1
    assert all(len(set(row)) == objects for row in scenes.labels.tolist())


def test_removes_a_single_object():
    scenes = shapes.generate(5, 3, objects=2)
    without = scenes.without(0)
    np.testing.assert_array_equal(without[scenes.masks[:, 0]], scenes.backgrounds[scenes.masks[:, 0]])
    np.testing.assert_array_equal(without[~scenes.masks[:, 0]], scenes.images[~scenes.masks[:, 0]])


def test_every_object_is_inside_the_image_and_large_enough():
    sizes = shapes.generate(60, 4).masks.sum((1, 2, 3))
    assert sizes.min() > 100
    assert sizes.max() < np.pi * (shapes.LARGEST_RADIUS + 1) ** 2


def test_every_class_appears_about_equally_often():
    counts = np.bincount(shapes.generate(400, 5).labels[:, 0], minlength=len(shapes.CLASSES))
    assert counts.min() > 25


def test_shapes_have_the_areas_of_geometry():
    """A circle of radius 0.9, a square of half side 0.707, a triangle in the unit circle, a ring from 0.54 to 0.94."""
    x, y = np.meshgrid(np.linspace(-1, 1, 801), np.linspace(-1, 1, 801))
    areas = {name: 4 * inside(x, y).mean() for name, inside in shapes.SHAPE_TESTS.items()}
    assert areas["circle"] == pytest.approx(np.pi * 0.81, rel=0.01)
    assert areas["square"] == pytest.approx(2.0, rel=0.01)
    assert areas["triangle"] == pytest.approx(3 * np.sqrt(3) / 4, rel=0.01)
    assert areas["ring"] == pytest.approx(np.pi * (0.94**2 - 0.54**2), rel=0.01)


@pytest.mark.parametrize("name", shapes.CLASSES)
def test_shapes_fit_in_their_radius(name):
    """Nothing is outside the unit circle (with a small margin), so a rotated shape stays inside its window."""
    angles, radii = np.meshgrid(np.linspace(0, 2 * np.pi, 721), np.linspace(1.01, 1.42, 30))
    assert not shapes.SHAPE_TESTS[name](radii * np.cos(angles), radii * np.sin(angles)).any()


def test_refuses_more_objects_than_fit():
    with pytest.raises(InputError, match="objects must be between 1 and 3, got 4"):
        shapes.generate(1, 0, objects=4)


@needs_weights("shapes")
def test_the_shapes_model_knows_one_object():
    scenes = shapes.generate(500, FRESH)
    answers = compute_logits("shapes", as_images(scenes.images)).argmax(-1)
    assert (answers == torch.from_numpy(scenes.labels[:, 0])).float().mean() >= 0.98


@needs_weights("shapes")
def test_the_shapes_model_needs_the_object_and_nothing_else():
    """If one of two objects is removed, its logit falls and the other class becomes the answer."""
    scenes = shapes.generate(100, FRESH, objects=2)
    first, second = torch.from_numpy(scenes.labels).T
    both, alone = (
        compute_logits("shapes", as_images(scenes.images)),
        compute_logits("shapes", as_images(scenes.without(0))),
    )
    rows = torch.arange(len(scenes))
    assert (alone[rows, first] < both[rows, first]).float().mean() >= 0.98
    assert (alone.argmax(-1) == second).float().mean() >= 0.95


# --- agreement -------------------------------------------------------------------------------------------------------

NUMBER = {form: number for noun in agreement.NOUNS for number, form in enumerate(noun)}


@pytest.mark.parametrize("attractors", [None, 0, 1, 2, 3])
def test_a_seed_gives_the_same_sentences_for_any_count(attractors):
    few, many = agreement.generate(5, 5, attractors=attractors), agreement.generate(9, 5, attractors=attractors)
    assert few == many[:5]
    assert few != agreement.generate(5, 6, attractors=attractors)


def test_the_sentence_of_a_seed_never_changes():
    sentence = agreement.generate(1, 0, attractors=1)[0]
    assert sentence.text == "in summer, the quiet watches with the table have survived."


@pytest.mark.parametrize("attractors", [None, 1, 3])
def test_the_subject_alone_decides_the_verb(attractors):
    for sentence in agreement.generate(300, 1, attractors=attractors):
        assert NUMBER[sentence.evidence] == sentence.label
        verbs = next(forms for forms in agreement.VERBS if sentence.right_verb in forms)
        assert (sentence.right_verb, sentence.wrong_verb) == (verbs[sentence.label], verbs[1 - sentence.label])


@pytest.mark.parametrize("attractors", [None, 0, 1, 2, 3])
def test_attractors_are_all_nouns_of_the_other_number(attractors):
    for sentence in agreement.generate(300, 2, attractors=attractors):
        nouns = [place for place, word in enumerate(sentence.words) if word in NUMBER]
        others = tuple(place for place in nouns if NUMBER[sentence.words[place]] != sentence.label)
        assert sentence.attractors == others
        if attractors is not None:
            assert len(others) == attractors
            assert nouns == [sentence.subject, *others]
            assert all(sentence.subject < place < sentence.verb for place in others)


def test_nothing_but_nouns_and_the_verb_shows_number():
    """The other words are the same in singular and plural sentences."""
    shared = set(agreement.VOCABULARY) - set(NUMBER) - {form for forms in agreement.VERBS for form in forms}
    for sentence in agreement.generate(200, 3):
        rest = {word for place, word in enumerate(sentence.words) if word not in NUMBER and place != sentence.verb}
        assert rest <= shared


def test_half_of_the_sentences_are_plural():
    assert 0.45 < np.mean([s.label for s in agreement.generate(1000, 4)]) < 0.55


def test_training_and_held_out_sentences_are_disjoint():
    """If there is a noun besides the subject."""
    held_out = {s.prefix for s in agreement.generate(1500, 5)}
    training = {s.prefix for s in agreement.generate(1500, 5, part="training")}
    assert all(prefix.split().count("the") == 1 for prefix in held_out & training)


def test_texts_by_hand():
    sentence = agreement.Sentence(
        ("today", ",", "the", "key", "to", "the", "doors", "is", "gone", "."), 3, (6,), 7, "are"
    )
    assert sentence.text == "today, the key to the doors is gone."
    assert sentence.masked == "today, the key to the doors ___ gone."
    assert sentence.prefix == "today, the key to the doors"
    assert (sentence.label, sentence.evidence, sentence.right_verb) == (0, "key", "is")


def test_refuses_more_attractors_than_it_can_place():
    with pytest.raises(InputError, match="attractors must be between 0 and 3, got 4"):
        agreement.generate(1, 0, attractors=4)


@needs_weights("agreement")
def test_word_i_is_token_i_plus_one_for_the_classifier():
    tokenizer = why.open("demo/agreement").tokenizer
    for sentence in agreement.generate(100, FRESH):
        tokens = tokenizer.convert_ids_to_tokens(tokenizer(sentence.masked)["input_ids"])
        assert tokens == [
            "[CLS]",
            *(agreement.GAP if i == sentence.verb else w for i, w in enumerate(sentence.words)),
            "[SEP]",
        ]


@needs_weights("agreement")
@pytest.mark.parametrize("attractors", [None, 3])
def test_the_agreement_model_is_not_misled(attractors):
    sentences = agreement.generate(500, FRESH, attractors=attractors)
    answers = compute_logits("agreement", [s.masked for s in sentences]).argmax(-1)
    assert (answers == torch.tensor([s.label for s in sentences])).float().mean() >= 0.98


@needs_weights("decoder")
def test_word_i_is_token_i_for_the_language_model_and_verbs_are_one_token():
    tokenizer = why.open("demo/decoder").tokenizer
    for sentence in agreement.generate(100, FRESH):
        assert [tokenizer.decode([t]).strip() for t in tokenizer(sentence.text)["input_ids"]] == list(sentence.words)
        assert all(len(tokenizer(f" {verb}")["input_ids"]) == 1 for verb in (sentence.right_verb, sentence.wrong_verb))


@needs_weights("decoder")
def test_the_language_model_agrees_despite_attractors():
    sentences = agreement.generate(200, FRESH, attractors=2)
    model = why.open("demo/decoder")
    right = 0
    with torch.inference_mode():
        for sentence in sentences:
            logits = model.module(**model.encode(sentence.prefix).inputs).logits[0, -1]
            right += bool(
                logits[model.tokenizer.encode(f" {sentence.right_verb}")]
                > logits[model.tokenizer.encode(f" {sentence.wrong_verb}")]
            )
    assert right >= 0.95 * len(sentences)
