"""Which way round a mask of tokens is: some models hide the tokens at which their mask is 1.

The names and values of a mask leave that open. So a model of the user's own runs with other tokens where the mask would
hide them: if the answer changes with these, and with no others, they are the real ones.
"""

from dataclasses import replace

import torch
from torch import Tensor

from whyformer._engine.run.forward import run_plain
from whyformer._engine.run.known_code import are_modules_known
from whyformer._engine.run.model_memo import ModelMemo
from whyformer._engine.run.shadow import make_shadow
from whyformer._model import EncodedBatch, Model, is_added, list_modules, unwrap
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError

TOLERANCE = 1e-4  # of the largest number of an answer: smaller changes are rounding
INVERTED: ModelMemo[bool] = ModelMemo()


@neutral_torch()
def settle_mask(model: Model, encoded: EncodedBatch) -> EncodedBatch:
    """The batch with its mask the way round in which the model reads it; found once for a model."""
    name, real = encoded.mask_name, encoded.token_mask
    if name is None or real is None or bool(real.all()) or encoded.inverts_mask or is_added(encoded.inputs[name]):
        return encoded
    if are_modules_known(list_modules(unwrap(model.module))):
        return encoded
    known = INVERTED.recall(model.module)
    if name not in known:
        known[name] = hides_real_tokens(model, encoded)
    if known[name]:
        return replace(encoded, token_mask=~real, inverts_mask=True)
    if not bool(real.any(-1).all()):
        raise InputError(f"{name} masks every token of an example.")
    return encoded


def hides_real_tokens(model: Model, encoded: EncodedBatch) -> bool:
    """Whether the answer changes with the tokens that the mask seems to hide, and with no others."""
    assert encoded.token_mask is not None
    shadow, real = make_shadow(model.module), encoded.token_mask
    before = run_plain(shadow, encoded)

    def changes(at: Tensor) -> bool:
        main = change_tokens(encoded.inputs[encoded.main], at, encoded.batch_axis)
        return differ(run_plain(shadow, replace(encoded, inputs={**encoded.inputs, encoded.main: main})), before)

    return bool(before.isfinite().all()) and changes(~real) and not (bool(real.any()) and changes(real))


def change_tokens(given: Tensor, at: Tensor, axis: int) -> Tensor:
    """Other tokens at [batch token]; ids become others that the batch has."""
    at = (at.T if axis else at).to(given.device).view(*given.shape[:2], *[1] * (given.dim() - 2))
    return torch.where(at, make_other_values(given), given)


def make_other_values(given: Tensor) -> Tensor:
    """Other numbers of the same range, and not the same ones in another order: a sum over all would not change."""
    values, which = given.unique(return_inverse=True)
    if given.is_floating_point():
        return values.roll(-1)[which] + max(float(values[-1] - values[0]) / 3, 1e-3)
    if len(values) == 1:
        return torch.where(given > 0, given - 1, given + 1)
    unused = torch.arange(int(values[0]), int(values[-1]), device=given.device)
    unused = unused[~torch.isin(unused, values)].to(given.dtype)
    others = unused if len(unused) else values[-1:]
    return others[which % len(others)]


def differ(new: Tensor, old: Tensor) -> bool:
    """Whether two answers differ by more than rounding."""
    if new.shape != old.shape:
        return True
    return not bool(((new - old).abs() <= TOLERANCE * old.abs().amax()).all())
