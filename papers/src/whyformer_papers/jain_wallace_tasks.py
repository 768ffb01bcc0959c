"""The tasks that the models of Jain & Wallace are trained and audited on here, and the data sets that they are like.

    sst2, imdb                           real: sentences and reviews (training/jain_wallace/tasks.py reads them)
    babi-1, babi-2, babi-3, snli, cnn    generated, with the structure of the data sets they are named after

The paper's other data sets (ADR tweets, 20 Newsgroups, AG News, MIMIC) have no counterpart here.
"""

from collections.abc import Sequence

from whyformer_papers.worlds.reading import generate_reading

TaskExample = tuple[str | tuple[str, str], str]  # a text, or a text and a question; and the label
DATA_SETS = {
    "sst2": "SST", "imdb": "IMDB", "babi-1": "bAbI 1", "babi-2": "bAbI 2", "babi-3": "bAbI 3", "snli": "SNLI",
    "cnn": "CNN QA",
}  # fmt: skip
PARTS = ("train", "dev", "test")
SIZES = (8_000, 500, 500)  # of the parts of a generated task


def generate_task(name: str, sizes: Sequence[int] = SIZES) -> dict[str, list[TaskExample]]:
    """Train, dev and test. No text of dev or test is also in train."""
    parts: dict[str, list[TaskExample]] = {}
    seen: set[tuple[str, str]] = set()
    for seed, (part, size) in enumerate(zip(PARTS, sizes, strict=True)):
        fresh = [one for one in generate_reading(name, size, seed) if one.pair not in seen]
        seen |= {one.pair for one in fresh}
        parts[part] = [(one.pair, one.answer) for one in fresh]
    return parts
