"""The world of tones: each word comes from a known moment."""

import numpy as np
import pytest
import torch

import whyformer as why
from whyformer_papers.worlds import tones

TUNES = tones.generate(40, 0)


def test_a_tone_is_where_its_band_is_loud():
    for tune in TUNES:
        sound = tune.features
        assert sound.shape == (tones.BANDS, tones.STEPS) and sound.dtype == np.float32
        for word, (start, stop) in zip(tune.words, tune.times, strict=True):
            loudness = sound[:, 2 * start : 2 * stop].mean(1)
            assert int(loudness.argmax()) // 2 == tones.PITCHES.index(word)


def test_tones_follow_each_other_with_pauses():
    for tune in TUNES:
        ends = [0, *(stop for _, stop in tune.times)]
        starts = [*(start for start, _ in tune.times), tones.FRAMES]
        assert all(start - end >= tones.SHORTEST_PAUSE for start, end in zip(starts, ends, strict=True))


def test_sounds_depend_on_the_seed_and_their_number_only():
    again = tones.generate(2, 0)
    assert again == TUNES[:2] != tones.generate(2, 1)
    assert np.array_equal(again[0].features, TUNES[0].features)


@pytest.mark.parametrize("method", ["libragrad", "attnlrp"])
def test_the_moment_of_each_word_is_found(method):
    """Chance is 0.12, tones at equal distances 0.5."""
    model, hits = why.open("demo/tones"), []
    start = model.module.config.decoder_start_token_id
    for tune in TUNES[:5]:
        ids = model.tokenizer.convert_tokens_to_ids(list(tune.words))
        for step, (first, stop) in enumerate(tune.times):
            written = torch.tensor([[start, *ids[:step]]])
            sound = torch.from_numpy(tune.features)[None]
            e = why.explain(model, {"input_features": sound, "decoder_input_ids": written}, method)
            assert e.targets[0].label == tune.words[step]
            hits.append(first - 1 <= int(e.stream("source").scores.argmax()) <= stop)
    assert sum(hits) / len(hits) > 0.95
