"""Generated data: scenes in which every pixel of the object is known, and pairs of texts with known evidence."""

from whyformer._model import TextPair
from whyformer.data import Data, Example, read
from whyformer_papers.worlds import entailment


def make_shape_examples(count: int) -> Data:
    """Scenes with one object of a known class and outline, for demo/shapes."""
    return read("demo/shapes", limit=count)


def make_entailment_examples(count: int, seed: int = 17) -> Data:
    """Premises and hypotheses whose evidence is known in both texts, for demo/entailment."""
    examples = (
        Example(f"pair {i}", TextPair(*pair.texts), pair.label, rationale=pair.rationale)
        for i, pair in enumerate(entailment.generate(count, seed))
    )
    return Data(f"generated entailment (seed {seed})", tuple(examples))
