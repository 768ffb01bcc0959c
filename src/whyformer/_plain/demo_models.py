"""Where the models are that `demo/...` names: in the package whyformer-demo."""

from importlib.util import find_spec
from pathlib import Path

MISSING = "The models of demo/... are a package of their own: pip install 'whyformer[demo]'."


def find_demo_models() -> Path:
    """The folder with a folder for each model, or where it would be; the package is not imported."""
    found = find_spec("whyformer_demo")
    beside = Path(__file__).parents[2] / "whyformer_demo"
    return (beside if found is None or found.origin is None else Path(found.origin).parent) / "models"
