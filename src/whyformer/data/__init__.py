"""Data to judge on: examples with whatever truth is known of them, from the layouts people keep them in.

    data = read("photos/")                    a folder of pictures, one folder for each class, masks beside them
    data = read("reviews.csv")                also .tsv, .jsonl, .parquet, each of them gzipped too
    data = read("movies/", split="test")      ERASER
    data = read(dataset)                      an object of Hugging Face `datasets`

A row that is wrong becomes a `Problem` with its place and reason; it is counted and reported and never stops a run.
"""

from whyformer.data.example import Data, Example, LazyContent, Problem
from whyformer.data.read import read

__all__ = ["Data", "Example", "LazyContent", "Problem", "read"]
