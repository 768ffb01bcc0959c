"""The worlds of captions and shared words: their ground truth is right, and the bundled models point at it."""

import numpy as np
import pytest
import torch
from PIL import Image

import whyformer as why
from whyformer_papers.worlds import captions, shared_words

torch.set_num_threads(1)
HITS = {"image": 0.6, "caption": 0.8, "word": 0.85}  # well below what is measured in docs/similarity.md
FRESH = 20_26  # a seed that was never used for training or evaluation


# --- the worlds -------------------------------------------------------------------------------------------------------


def test_an_image_depends_only_on_its_seed_and_number():
    few, many = captions.generate(3, 5), captions.generate(6, 5)
    np.testing.assert_array_equal(few.images, many.images[:3])
    assert few.captions == many.captions[:3]
    assert shared_words.generate(3, 5) == shared_words.generate(6, 5)[:3]


def test_objects_are_apart_and_differ_in_shape_and_colour():
    scenes = captions.generate(40, 1)
    assert scenes.masks.sum(1).max() == 1
    for first, second in scenes.labels.tolist():
        assert not {*captions.NAMES[first].split()} & {*captions.NAMES[second].split()}


def test_a_caption_names_the_first_object_and_only_that():
    scenes = captions.generate(40, 2)
    for caption, (first, second) in zip(scenes.captions, scenes.labels.tolist(), strict=True):
        assert " ".join(captions.words_of(caption)) == captions.NAMES[first]
        assert not {*captions.NAMES[second].split()} & {*caption.split()}


def test_the_mask_has_the_colour_of_its_object():
    scenes = captions.generate(10, 3)
    for image, label, mask in zip(scenes.images, scenes.labels[:, 0], scenes.masks[:, 0], strict=True):
        colour = captions.COLOURS[captions.NAMES[label].split()[0]]
        assert abs(image[mask].mean(0) - colour).max() < 12


def test_a_pair_of_sentences_shares_one_thing_and_no_other():
    for pair in shared_words.generate(200, 4):
        first, second = ({*text.split()} & {*shared_words.NOUNS} for text in (pair.first, pair.second))
        assert len(first) == len(second) == 2
        assert first & second == {pair.shared}


def test_every_word_is_known_to_the_tokenizer():
    tokenizer = why.open("demo/shared-words").tokenizer
    assert tokenizer.unk_token_id not in tokenizer(" ".join(shared_words.VOCABULARY)).input_ids
    tokenizer = why.open("demo/captions").tokenizer
    assert tokenizer.unk_token_id not in tokenizer(" ".join(captions.VOCABULARY)).input_ids


# --- the models -------------------------------------------------------------------------------------------------------


def test_captions_prefers_what_an_image_shows():
    scenes = captions.generate(40, FRESH)
    model = why.open("demo/captions")
    names = model.tokenizer([f"there is a {name} here" for name in captions.NAMES], return_tensors="pt")
    pixels = model.process_images([Image.fromarray(image) for image in scenes.images])
    with torch.inference_mode():
        logits = model.module(
            pixel_values=pixels, input_ids=names.input_ids, attention_mask=names.attention_mask
        ).logits_per_image
    assert (logits.argmax(-1, keepdim=True) == torch.from_numpy(scenes.labels)).any(-1).float().mean() > 0.85


def test_points_at_the_named_object_and_the_two_words():
    """24 pairs; chance finds a fifth of the objects and a third of the words."""
    scenes = captions.generate(24, FRESH)
    images = [Image.fromarray(image) for image in scenes.images]
    s = why.explain_similarity(why.open("demo/captions"), images, list(scenes.captions), "attnlrp", matrix=None)
    best = s.a.scores.argmax(-1).numpy()
    tiles = scenes.masks[:, 0].reshape(24, 6, 8, 6, 8).mean((2, 4)).reshape(24, 36)
    assert (tiles[np.arange(24), best] >= 0.2).mean() > HITS["image"]
    words = [s.b[i].top(1)[0][0] in captions.words_of(caption) for i, caption in enumerate(scenes.captions)]
    assert np.mean(words) > HITS["caption"]


@pytest.mark.parametrize("method", ["libragrad", "attnlrp", "leave_one_out"])
def test_points_at_the_shared_word_on_both_sides(method):
    pairs = shared_words.generate(12, FRESH)
    s = why.explain_similarity(
        why.open("demo/shared-words"), [p.first for p in pairs], [p.second for p in pairs], method, matrix=None
    )
    found = [e[i].top(1)[0][0] == pair.shared for e in (s.a, s.b) for i, pair in enumerate(pairs)]
    assert np.mean(found) > HITS["word"]


def test_the_matrix_finds_the_pair():
    pair = shared_words.generate(1, FRESH)[0]
    s = why.explain_similarity(why.open("demo/shared-words"), pair.first, pair.second, "chance")
    assert s.top(1)[0][:2] == (pair.shared, pair.shared)
    assert abs(float(s.matrix.sum()) - s.score) < 1e-5
