"""What the evaluations of models that write share: their arguments, the methods, and how hits are printed."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from whyformer._plain.statistics import bootstrap

MODELS = Path(__file__).parents[1] / "demo" / "src" / "whyformer_demo" / "models"
METHODS = (
    "libragrad", "attnlrp", "gradient_x_input", "integrated_gradients", "leave_one_out", "occlusion",
    "generic_attention", "transformer_attribution", "rollout", "raw_attention",
)  # fmt: skip


def read_arguments(about: str | None, model: str, count: int, examples: str) -> argparse.Namespace:
    """Which model, how many examples for the accuracy, how many of them are explained, and by which methods."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODELS / model)
    parser.add_argument("--count", type=int, default=count, help=f"{examples} for the accuracy")
    parser.add_argument("--explained", type=int, default=40, help=f"{examples} that are explained")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    return parser.parse_args()


def format_interval(values: Sequence[float]) -> str:
    """The mean with its 95 % interval."""
    return "{:.3f} [{:.3f}, {:.3f}]".format(*bootstrap(list(values)))
