"""The models that `demo/...` names: small, trained for whyformer, with a card each. No code."""

from pathlib import Path

MODELS = Path(__file__).parent / "models"
