"""cite: which passage made it say that? Scores of the parts of a prompt for its answer, verified by leaving them out."""

from whyformer._cite.cite import cite

__all__ = ["cite"]
