"""cite: which passage made it say that? Parts of a prompt scored for its answer, and verified by leaving them out."""

from whyformer._cite.cite import cite

__all__ = ["cite"]
