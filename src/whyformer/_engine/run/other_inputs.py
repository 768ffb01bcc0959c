"""Inputs that a model reads besides the explained one: they have no scores, and a note says so."""

from whyformer._model import EncodedBatch

CONTENT = {"pixel_values", "input_ids", "input_values", "input_features"}  # names that libraries give to what is read
# Parts of names of inputs that describe the tokens of another one.
DESCRIPTIONS = (
    "mask position pos_ type segment length label bbox grid time age index cache size bias head order".split()
)


def note_other_inputs(encoded: EncodedBatch, *, is_library: bool) -> tuple[str, ...]:
    """Which inputs have no scores. is_library: their names are those of libraries."""
    others = [name for name in encoded.inputs if name != encoded.main]
    read = [name for name in others if is_content(name, encoded, is_library=is_library)]
    if not read:
        return ()
    verb = "has" if len(read) == 1 else "have"
    return (
        f"The model also reads {', '.join(map(repr, read))}, which {verb} no scores: only {encoded.main!r} is "
        "explained. To explain another input, pass a module that takes it first and holds the others.",
    )


def is_content(name: str, encoded: EncodedBatch, *, is_library: bool) -> bool:
    """Whether an input is something to read, and not a description of the tokens of the explained one."""
    given = encoded.inputs[name]
    if is_library or name in CONTENT:
        return name in CONTENT
    if any(word in name.lower() for word in DESCRIPTIONS):
        return False
    has_many_values = given.dim() == 2 and len(given.flatten()[:4096].unique()) > 3
    return given.dim() >= 3 or has_many_values
