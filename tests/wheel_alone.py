"""What works with whyformer's wheel alone, without the demo models: run by `make wheel` in an empty environment."""

import tempfile
from pathlib import Path

import torch
from transformers import ViTConfig, ViTForImageClassification

import whyformer as why
from whyformer.errors import ModelNotFound

assert "site-packages" in why.__file__, f"this is not the wheel: {why.__file__}"

torch.manual_seed(0)
sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
module = ViTForImageClassification(ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=3)).eval()
pixels = torch.randn(1, 3, 32, 32)
assert why.explain(module, pixels).scores.shape == (1, 16)

with tempfile.TemporaryDirectory() as folder:
    module.save_pretrained(folder)
    assert Path(folder, "model.safetensors").is_file()
    assert why.explain(why.open(folder), pixels).scores.shape == (1, 16)

refused = None
try:
    why.open("demo/pets")
except ModelNotFound as error:
    refused = str(error)
assert refused is not None and "pip install 'whyformer[demo]'" in refused, refused
print(refused)
