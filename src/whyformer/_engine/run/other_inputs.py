"""What a model makes of an input, measured by running it with other values there.

Which way round a mask of tokens is: some models hide the tokens at which their mask is 1.

The names and values of a mask leave that open. So a model of the user's own runs with other tokens where the mask would
hide them: if the answer changes with these, and with no others, they are the real ones.

Inputs that a model reads besides the explained one: they have no scores, and a note says so.

Whether an input matters is measured: does the answer change when it does? Masks, positions and lengths, which describe
the tokens of the explained one, are known by their values and not asked for. Nor is code of libraries, whose inputs
have known names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from whyformer._engine.run.foreign_errors import FOREIGN_ERRORS
from whyformer._engine.run.forward import Run, choose_relevance_dtype, run_plain
from whyformer._engine.run.model_code import are_modules_known
from whyformer._engine.run.model_memory import recall
from whyformer._engine.run.quantised import has_rounding_layers
from whyformer._engine.run.shadow import make_shadow
from whyformer._model import EncodedBatch, Model, is_added, list_modules, unwrap
from whyformer._plain.failure import is_out_of_memory
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError, WhyformerError

TOLERANCE = 1e-4  # of the largest number of an answer: smaller changes are rounding


@neutral_torch()
def settle_mask(model: Model, encoded: EncodedBatch) -> EncodedBatch:
    """The batch with its mask the way round in which the model reads it; found once for a model."""
    name, real = encoded.mask_name, encoded.token_mask
    if name is None or real is None or bool(real.all()) or encoded.inverts_mask or is_added(encoded.inputs[name]):
        return encoded
    if are_modules_known(list_modules(unwrap(model.module))):
        return encoded
    known = recall(model.module, "inverted masks")
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

    return (
        bool(before.isfinite().flatten(1).any(1).all()) and changes(~real) and not (bool(real.any()) and changes(real))
    )


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
    new, old = (answer.nan_to_num(0, 0, 0) for answer in (new, old))  # classes without a value
    return not bool(((new - old).abs() <= TOLERANCE * old.abs().amax()).all())


# --- inputs beside the explained one ----------------------------------------------------------------------------------


CONTENT = {"pixel_values", "input_ids", "input_values", "input_features"}  # names that libraries give to what is read
DESCRIPTIONS = {"attention_mask", "token_type_ids", "position_ids", "head_mask", "labels"}  # and to what describes it
MOST_ALONE = 2  # inputs that are changed one by one; the others together


def note_other_inputs(model: Model, encoded: EncodedBatch, run: Run) -> tuple[str, ...]:
    """Which inputs have no scores though the answer depends on them."""
    others = [name for name in encoded.inputs if name != encoded.main and not encoded.is_picture(name)]
    if run.is_library_code:
        read = [name for name in others if name in CONTENT]
    else:
        asked = [name for name in others if name in CONTENT or not is_description(name, encoded)]
        known = recall(model.module, "inputs that matter") if asked else {}
        known.update(measure_reading(model, encoded, run, [name for name in asked if name not in known]))
        read = [name for name in asked if known[name]]
    if not read:
        return ()
    verb = "has" if len(read) == 1 else "have"
    return (
        f"The model also reads {', '.join(map(repr, read))}, which {verb} no scores: only {encoded.main!r} is "
        "explained. To explain another input, pass a module that takes it first and holds the others.",
    )


def is_description(name: str, encoded: EncodedBatch) -> bool:
    """Whether an input is the mask, the positions or the lengths of the tokens of the explained one."""
    given, main = encoded.inputs[name], encoded.inputs[encoded.main]
    length = main.size(1 - encoded.batch_axis) if main.dim() in (2, 3) else 0
    is_named = name in DESCRIPTIONS and (name != "token_type_ids" or given.size(-1) == length)
    if is_named or name == encoded.mask_name or given.dtype == torch.bool or is_added(given):
        return True
    if given.dim() == 1:
        return not given.is_floating_point() and int(given.min()) > 0 and int(given.max()) == length
    rises = given.double().diff(dim=-1)
    is_padding_mask = bool(((given == 0) | (given == 1)).all()) and (is_constant_sign(rises) or given.dim() > 2)
    is_counted = not given.is_floating_point() and bool((rises == 1).all())
    return given.size(-1) == length > 1 and (is_padding_mask or is_counted)


def is_constant_sign(rises: Tensor) -> bool:
    """Whether rows only rise or only fall, as masks of padding at one end do."""
    return bool(((rises >= 0).all(-1) | (rises <= 0).all(-1)).all())


def measure_reading(model: Model, encoded: EncodedBatch, run: Run, names: Sequence[str]) -> Mapping[str, bool]:
    """Whether the answer changes with each of these inputs."""
    if not names:
        return {}
    shadow, before = make_shadow(model.module), run.output.detach()
    answer: Callable[[EncodedBatch], Tensor] = partial(run_plain, shadow)
    if choose_relevance_dtype(model) is not None or has_rounding_layers(unwrap(model.module)):
        before = run_plain(shadow, encoded)
    groups = [[name] for name in names[:MOST_ALONE]] + ([list(names[MOST_ALONE:])] if names[MOST_ALONE:] else [])

    def changes(group: Sequence[str]) -> bool:
        other = replace(
            encoded, inputs={**encoded.inputs, **{name: make_other_values(encoded.inputs[name]) for name in group}}
        )
        try:
            return differ(answer(other), before)
        except (WhyformerError, *FOREIGN_ERRORS) as error:  # it does not take these values, so it looks at them
            if is_out_of_memory(error):
                raise
            return True

    state = torch.get_rng_state()
    found = [(group, changes(group)) for group in groups]
    if any(is_read for _, is_read in found) and not torch.equal(state, torch.get_rng_state()):  # it answers at random
        answer = partial(run_seeded, shadow)
        with torch.random.fork_rng():
            before = answer(encoded)
            found = [(group, changes(group)) for group in groups]
    return {name: is_read for group, is_read in found for name in group}


def run_seeded(shadow: nn.Module, encoded: EncodedBatch) -> Tensor:
    """As `run_plain`, with the same random numbers every time."""
    torch.manual_seed(0)
    return run_plain(shadow, encoded)
