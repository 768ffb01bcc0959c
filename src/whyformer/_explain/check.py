"""Test an explanation that is there: what does the model say with its highest words hidden, and with every word?

    e = explain(model, "She is a nurse.")
    print(check(model, e).hiding)

`explain(..., check=True)` does the same as part of the explanation.
"""

from whyformer._engine import record, restore_target_like
from whyformer._explain.explain import as_model
from whyformer._explain.hiding import add_hiding
from whyformer._model import InputLike, ModelLike, TextPair
from whyformer._plain.tokens import Pieces, ScoredTokens
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError
from whyformer.results.explanation import Explanation


@neutral_torch()
def check(model: ModelLike, explanation: Explanation, inputs: InputLike | None = None) -> Explanation:
    """The explanation with the answers to its examples when the highest words or patches are hidden, and when all are.

    They are in `.hiding`, and below the title wherever the explanation is shown. Two variants of each example run in
    one batch.
    inputs: what was explained; may be left out for texts and pairs of texts, which the explanation holds.
    """
    model = as_model(model)
    if not isinstance(explanation, Explanation):
        raise InputError(f"check needs an Explanation, got {type(explanation).__name__}. Make one with explain().")
    if not len(explanation):
        return explanation
    encoded = model.encode([find_text(one) for one in explanation.tokens] if inputs is None else inputs)
    target = [restore_target_like(one.index, one.spec) for one in explanation.targets]
    versus = [restore_target_like(one.versus, one.versus_spec) for one in explanation.targets]
    capture = record(model, encoded, target=target, versus=versus, keep=("probe",))
    if list(map(list_units, capture.tokens)) != list(map(list_units, explanation.tokens)):
        raise InputError(
            "These inputs are not those of the explanation: their tokens or patches differ. Pass the inputs that were "
            "explained, and the explanation of tokens rather than of words or sentences."
        )
    return add_hiding(explanation, capture["probe"])


def find_text(tokens: ScoredTokens) -> str | TextPair:
    """The text that these tokens are of."""
    if not isinstance(tokens, Pieces) or tokens.text is None or tokens.regions:
        raise InputError("Only texts can be read from an explanation. Pass the inputs: check(model, e, inputs).")
    if tokens.second is None:
        return tokens.text
    return TextPair(tokens.text[: tokens.second - 1], tokens.text[tokens.second :])


def list_units(tokens: ScoredTokens) -> tuple[str, ...] | tuple[int, int]:
    """What must be equal for scores to belong to the same tokens."""
    return tokens.pieces if isinstance(tokens, Pieces) else (tokens.rows, tokens.columns)
