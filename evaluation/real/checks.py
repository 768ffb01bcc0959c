"""What folders are compared with: graphs of ONNX, or another reading of the same file."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from real.onnx_weights import run_graph

SENTENCE = "Paris is the capital of France, and Berlin is the capital of Germany."
PAIR = ("A man is eating a pizza in Rome.", "A man is eating.")


def compare(
    model: torch.nn.Module, graph: Path, inputs: dict[str, torch.Tensor], read: Callable = lambda output: output[0]
) -> tuple[torch.Tensor, np.ndarray]:
    """What the model and the graph's first output give for the same inputs."""
    with torch.no_grad():
        return read(model(**inputs)), run_graph(graph, inputs)[0]


def expect_close(ours: torch.Tensor, theirs: np.ndarray, most: float) -> str:
    """For float graphs, and for integer weights in float arithmetic."""
    difference = float(np.abs(ours.numpy() - theirs).max())
    assert difference <= most, difference
    return f"outputs within {difference:.1g} of ONNX"


def expect_correlated(ours: torch.Tensor, theirs: np.ndarray, least: float) -> str:
    """For graphs that round their activations to integers too: those cannot be equal."""
    correlation = float(np.corrcoef(ours.numpy().ravel(), theirs.ravel())[0, 1])
    assert correlation >= least, correlation
    return f"outputs correlated {correlation:.3f} with ONNX, whose activations are integers"


def tokenize(folder: Path, *texts: str) -> dict[str, torch.Tensor]:
    return dict(AutoTokenizer.from_pretrained(folder)(*texts, return_tensors="pt"))
