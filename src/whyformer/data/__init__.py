"""Data sets for judge() and audit(): inputs with labels, masks or rationales, read from the usual layouts.

    data = read("photos/")                    a folder of images, one folder per class, with masks if there are any
    data = read("reviews.csv")                also .tsv, .jsonl and .parquet, and all of them gzipped
    data = read("movies/", split="test")      ERASER
    data = read(dataset)                      a Hugging Face `datasets` object

A row that cannot be used becomes a `Problem` with its place and the reason. It is reported and never stops a run.
"""

from whyformer.data.example import Data, Example, LazyContent, Problem
from whyformer.data.read import read

__all__ = ["Data", "Example", "LazyContent", "Problem", "read"]
