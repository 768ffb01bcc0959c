"""Sounds for a Whisper: files, arrays and dictionaries give what its feature extractor gives."""

import wave

import numpy as np
import pytest
import torch
import transformers as hf

import whyformer as why
from whyformer.errors import InputError

SAMPLES = np.sin(np.arange(12000) * 0.3).astype(np.float32) * np.linspace(0, 0.8, 12000, dtype=np.float32)
WRITTEN = torch.tensor([[3, 5, 6]])


@pytest.fixture(scope="module")
def extractor():
    return hf.WhisperFeatureExtractor(feature_size=8, chunk_length=1)


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    config = hf.WhisperConfig(
        vocab_size=20, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_source_positions=50,
        max_target_positions=140, decoder_start_token_id=3, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    made = hf.WhisperForConditionalGeneration(config).eval()
    made.generation_config = hf.GenerationConfig(
        decoder_start_token_id=3, pad_token_id=0, bos_token_id=1, eos_token_id=2, max_new_tokens=5
    )
    return made


@pytest.fixture(scope="module")
def wanted(module, extractor):
    features = extractor(SAMPLES, sampling_rate=16000, return_tensors="pt")["input_features"]
    return why.explain(module, {"input_features": features, "decoder_input_ids": WRITTEN}, "gradient_x_input", target=7)


def save_wave(path, samples=SAMPLES, rate=16000, channels=1, width=2):
    whole = np.repeat(np.round(samples * 2 ** (8 * width - 1)).astype(f"<i{width}"), channels)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(whole.tobytes())
    return path


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("width", [2, 4])
def test_a_file_is_read(module, extractor, wanted, tmp_path, channels, width):
    path = save_wave(tmp_path / "tone.WAV", channels=channels, width=width)
    sound = {"audio": str(path), "decoder_input_ids": WRITTEN[0].tolist()}
    found = why.explain(why.open(module, processor=extractor), sound, "gradient_x_input", target=7)
    torch.testing.assert_close(found.scores, wanted.scores, rtol=0.05, atol=1e-3 * float(wanted.scores.abs().max()))
    assert found.stream("source").tokens[0].pieces[:3] == ("0.00s", "0.02s", "0.04s")


@pytest.mark.parametrize(
    "sound", [SAMPLES, torch.from_numpy(SAMPLES), {"array": SAMPLES, "sampling_rate": 16000}, {"raw": SAMPLES}]
)
def test_samples_give_what_features_give(module, extractor, wanted, sound):
    given = {"audio": sound, "decoder_input_ids": WRITTEN}
    found = why.explain(why.open(module, processor=extractor), given, "gradient_x_input", target=7)
    torch.testing.assert_close(found.scores, wanted.scores)


def test_without_a_prefix_the_last_token_that_the_model_writes_is_explained(module, extractor):
    features = extractor(SAMPLES, sampling_rate=16000, return_tensors="pt")["input_features"]
    with torch.no_grad():
        written = module.generate(input_features=features)[0].tolist()
    while written[-1] in (0, 2):
        written.pop()
    written = written if written[0] == 3 else [3, *written]
    found = why.explain(why.open(module, processor=extractor), SAMPLES, "gradient_x_input")
    assert found.targets[0].index == written[-1]
    assert found.streams["prefix"].stop - found.streams["prefix"].start == len(written) - 1


def test_a_batch_gives_what_single_sounds_give(module, extractor):
    model = why.open(module, processor=extractor)
    sounds = [{"audio": SAMPLES, "decoder_input_ids": [3, 5, 6]}, {"audio": SAMPLES[:5000], "decoder_input_ids": [3]}]
    together = why.explain(model, sounds, "gradient_x_input", target=7)
    for row, sound in enumerate(sounds):
        alone = why.explain(model, sound, "gradient_x_input", target=7).scores[0]
        torch.testing.assert_close(together.scores[row, : len(alone)], alone)


def test_a_folder_brings_its_feature_extractor(module, extractor, wanted, tmp_path):
    module.save_pretrained(tmp_path)
    extractor.save_pretrained(tmp_path)
    model = why.open(tmp_path)
    found = why.explain(model, {"audio": SAMPLES, "decoder_input_ids": WRITTEN}, "gradient_x_input", target=7)
    torch.testing.assert_close(found.scores, wanted.scores)


def test_what_cannot_be_heard_is_refused(module, extractor, tmp_path):
    model = why.open(module, processor=extractor)
    with pytest.raises(InputError, match=r"has 8,000 samples a second; .* listens to 16,000. Resample it"):
        model.encode(str(save_wave(tmp_path / "slow.wav", rate=8000)))
    with pytest.raises(InputError, match="There is no file"):
        model.encode(str(tmp_path / "none.wav"))
    (tmp_path / "text.wav").write_text("no sound")
    with pytest.raises(InputError, match=r"text\.wav could not be read as a WAV file"):
        model.encode(str(tmp_path / "text.wav"))
    with pytest.raises(InputError, match="without a feature extractor"):
        why.open(module).encode(SAMPLES)
    with pytest.raises(InputError, match="a row of finite samples"):
        model.encode({"array": np.zeros((2, 5)), "sampling_rate": 16000})


@pytest.mark.parametrize("verb", [why.generate, why.explain_generation])
def test_a_sound_is_no_prompt(module, extractor, verb):
    with pytest.raises(InputError, match="reads sound, and a prompt is a text"):
        verb(why.open(module, processor=extractor), "speech.wav")
