"""cite: which passage made it say that? Parts of a prompt scored for its answer, and verified by leaving them out."""

from whyformer._cite.run import cite

__all__ = ["cite"]
