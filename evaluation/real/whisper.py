"""How the three packages of Whisper become folders; their graphs hold 8-bit weights and round activations too."""

import json
from pathlib import Path

import numpy as np
from transformers import AutoModelForSpeechSeq2Seq, AutoTokenizer, WhisperConfig, WhisperFeatureExtractor
from transformers import WhisperForConditionalGeneration as Recogniser

from real.checks import compare, expect_correlated
from real.onnx_weights import fill, read_weights, rename
from real.shelf import Package, RealModel


def make_whisper(size: str, parameters: str, package: str, weights: str) -> RealModel:
    root = f"package/models/Xenova/whisper-{size}"

    def convert(sources: list[Path], folder: Path) -> None:
        source = sources[0] / root
        model = Recogniser(WhisperConfig(**json.loads((source / "config.json").read_text())))
        tensors = rename(read_weights(source / "onnx/encoder_model_quantized.onnx"), "^", "model.encoder.")
        tensors |= read_weights(source / "onnx/decoder_model_merged_quantized.onnx")
        tensors["proj_out.weight"] = tensors["model.decoder.embed_tokens.weight"]
        fill(model, tensors)
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source).save_pretrained(folder)
        WhisperFeatureExtractor.from_pretrained(source).save_pretrained(folder)

    def check(sources: list[Path], folder: Path) -> str:
        model = AutoModelForSpeechSeq2Seq.from_pretrained(folder).eval()
        listen = WhisperFeatureExtractor.from_pretrained(folder)
        chirp = np.sin(np.cumsum(np.linspace(0.02, 0.5, 5 * 16000)))
        inputs = dict(listen(chirp, sampling_rate=16000, return_tensors="pt"))
        graph = sources[0] / root / "onnx/encoder_model_quantized.onnx"
        return "encoder: " + expect_correlated(*compare(model.get_encoder(), graph, inputs), least=0.9)

    return RealModel(
        what=f"Whisper {size} ({parameters}), an encoder-decoder",
        task="writes down speech",
        licence="Apache-2.0",
        packages=(Package("npm", f"sts-whisper-{size}", "1.0.0", package),),
        weights=weights,
        convert=convert,
        check=check,
        open_model=AutoModelForSpeechSeq2Seq.from_pretrained,
    )
