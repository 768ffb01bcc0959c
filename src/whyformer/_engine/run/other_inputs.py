"""Inputs that a model reads besides the explained one: they have no scores, and a note says so."""

from torch import Tensor

from whyformer._model import EncodedBatch

CONTENT = {"pixel_values", "input_ids", "input_values", "input_features"}  # names that libraries give to what is read
# Parts of names of inputs that describe the tokens of another one.
DESCRIPTIONS = (
    "mask position pos_ type segment length label bbox grid time age index cache size bias head order".split()
)


def note_other_inputs(encoded: EncodedBatch, *, is_library: bool) -> tuple[str, ...]:
    """Which inputs have no scores. is_library: their names are those of libraries."""
    others = [name for name in encoded.inputs if name != encoded.main and not encoded.is_picture(name)]
    read = [name for name in others if name in CONTENT or not (is_library or is_description(name, encoded))]
    if not read:
        return ()
    verb = "has" if len(read) == 1 else "have"
    return (
        f"The model also reads {', '.join(map(repr, read))}, which {verb} no scores: only {encoded.main!r} is "
        "explained. To explain another input, pass a module that takes it first and holds the others.",
    )


def is_description(name: str, encoded: EncodedBatch) -> bool:
    """Whether an input describes the tokens of the explained one, and is nothing to read."""
    given = encoded.inputs[name]
    if any(word in name.lower() for word in DESCRIPTIONS):
        return True
    return given.dim() < 2 or (given.dim() == 2 and not has_many_values(given))


def has_many_values(given: Tensor) -> bool:
    return len(given.flatten()[:4096].unique()) > 3
