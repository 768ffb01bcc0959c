"""Whether scores belong to the tokens they are shown at: by leaving each token out by hand, and by one loud token.

`order`: leave_one_out against a loop over the tokens that calls the module itself; for images over the patches.

`loud`: one token, and nothing else, is changed: it gets an embedding ten times as long as those of the others, a patch
pixels ten times as strong, in the direction in which the explained answer grows (a norm in the first layer undoes the
length alone). By hand it is told at which positions that is heard: leaving this token out then matters more than
leaving out any other, by half at least, and what leaving it out changes has grown the most there, by half at least.
leave_one_out must rank the token first at every such position. The default must, at more than half of them (of six at
most), rank it first, or have changed its score more than that of any other: the answer changed because of this token
alone, while some positions score high with and without it, since relevance reaches them over the residual stream.
Half, since softmax and routing make a single token matter by taking attention from others, which relevance, with
attention held constant, gives to those. `first` counts the positions at which the default ranks it first.

Not among them: the last token of a text (left out, a language model would be read elsewhere) and the one token at which
the answer is read, if there is one: the default, a sum over blocks, gives it the states that others wrote to it.
"""

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from families.cases import Case
from families.outcome import Outcome, explain_case, find_answer, take_second
from torch import Tensor, nn

import whyformer as why
from whyformer._plain.tokens import Grid
from whyformer.errors import WhyformerError

LOUD, HEARD = 10, 1.5  # times the embedding; times what any other token matters
MOST_TRIALS = 6
Inputs = dict[str, Any]


def check_order(outcome: Outcome, model: Any, case: Case, found: Any) -> None:
    """`leave_one_out` of the second example alone, with the fill that a loop by hand can repeat."""
    if found is None or not found.targets:
        return
    alone, index = take_second(case.inputs), found.targets[-1].index
    scores = leave_out(model, alone, index)
    by_hand = None if scores is None else leave_out_by_hand(case.module, model, alone, index, scores.tokens[0])
    if by_hand is None or not bool(by_hand.any()):
        return
    off = float((scores.scores[0, : len(by_hand)] - by_hand).abs().max() / by_hand.abs().max().clamp_min(1e-12))
    outcome.note("order", "ok" if off < 1e-2 else "WRONG", "" if off < 1e-2 else f"Off by {off:.0e} of the largest.")


def check_loud_token(outcome: Outcome, case: Case, found: Any) -> None:
    """The first six positions at which it is heard."""
    if found is None or not found.targets or (index := found.targets[-1].index) < 0:
        return
    alone, tokens, model = take_second(case.inputs), found.tokens[-1], why.open(case.module)
    gradient = find_gradient(case.module, alone, index)
    left_out = leave_out_by_hand(case.module, model, alone, index, tokens)
    if gradient is None or left_out is None:
        return
    quiet = Scores(model, alone, index, left_out)
    trials, ranked = [], find_ranked(case.module, alone, index, len(left_out))
    for place in ranked:
        if len(trials) == MOST_TRIALS or (planted := plant(case, model, tokens, place, gradient)) is None:
            break
        loud = Scores(why.open(planted[0]), planted[1], index, None, planted[0], tokens)
        if is_heard(loud.by_hand, place) and is_heard(loud.by_hand - quiet.by_hand, place):
            trials.append(compare_loud(quiet, loud, place, ranked))
    note_trials(outcome, trials)


class Scores:
    """What leaving each token out changes, and the scores of leave_one_out and of the default; None where refused."""

    def __init__(self, model: Any, inputs: Inputs, index: int, by_hand: Any, module: Any = None, tokens: Any = None):
        self.model, self.inputs, self.index = model, inputs, index
        self.by_hand = leave_out_by_hand(module, model, inputs, index, tokens) if by_hand is None else by_hand

    @cached_property
    def left_out(self) -> Any:
        return leave_out(self.model, self.inputs, self.index)

    @cached_property
    def default(self) -> Any:
        return explain_by_default(self.model, self.inputs, self.index)


@dataclass(frozen=True)
class Trial:
    """One position at which the loud token is heard: where leave_one_out and the default see it."""

    place: int
    left_out: int | None  # the token that leave_one_out ranks first
    changed: int | None  # the token whose score of the default changed the most
    first: int | None  # the token that the default ranks first


def compare_loud(quiet: Scores, loud: Scores, place: int, ranked: list[int]) -> Trial:
    def find_largest(sizes: Tensor) -> int:
        return ranked[int(sizes[ranked].argmax())]

    left_out = None if loud.left_out is None else find_largest(loud.left_out.scores[0].abs())
    if loud.default is None or quiet.default is None:
        return Trial(place, left_out, None, None)
    before, after = (one.default.scores[0] for one in (quiet, loud))
    return Trial(place, left_out, find_largest((after - before).abs()), find_largest(after.abs()))


def note_trials(outcome: Outcome, trials: list[Trial]) -> None:
    """The words of `loud` and of `first`."""
    for trial in trials:
        if trial.left_out not in (None, trial.place):
            outcome.note("loud", "WRONG", f"leave_one_out ranks token {trial.left_out} first, not {trial.place}.")
            return
    made = [trial for trial in trials if trial.changed is not None]
    if not made:
        return
    right, first = (sum(getattr(one, name) == one.place for one in made) for name in ("changed", "first"))
    outcome.words["first"] = f"{first}/{len(made)}"
    if 2 * max(right, first) > len(made):
        outcome.note("loud", "ok")
    else:
        found = ", ".join(f"{one.changed} for {one.place}" for one in made)
        outcome.note("loud", "WRONG", f"The score of the default changes the most at token {found}.")


def find_ranked(module: nn.Module, inputs: Inputs, index: int, count: int) -> list[int]:
    """The positions that are compared: all that can be left out, but the one at which the answer is read."""
    read = find_read_token(module, inputs, index)
    return [place for place in range(count) if place != read]


def find_read_token(module: nn.Module, inputs: Inputs, index: int) -> int | None:
    """The one token of the last states that the answer has a gradient by; None if there are several, or no states."""
    if takes_images(inputs):
        return None
    try:
        returned = copy.deepcopy(module)(**inputs, output_hidden_states=True)
        states, answer = (
            returned.hidden_states[-1],
            returned.logits[0].reshape(-1, returned.logits.shape[-1])[-1, index],
        )
        gradient = torch.autograd.grad(answer, states)[0]
    except Exception:  # no such output, or no gradient by it
        return None
    places = gradient[0].abs().sum(-1).nonzero().flatten().tolist() if gradient.dim() == 3 else []
    return places[0] if len(places) == 1 else None


def explain_by_default(model: Any, inputs: Inputs, index: int) -> Any:
    try:
        return explain_case(model, inputs, "default", index)
    except WhyformerError:
        return None


def leave_out(model: Any, inputs: Inputs, index: int) -> Any:
    if index < 0:
        return None
    fill = {"fill": "zero"} if takes_images(inputs) else {}
    try:
        return why.explain(model, inputs, "leave_one_out", target=index, **fill)
    except WhyformerError:
        return None


def leave_out_by_hand(module: nn.Module, model: Any, inputs: Inputs, index: int, tokens: Any) -> Tensor | None:
    """What the answer loses without each token but the last, or each patch. None where a loop cannot tell."""
    variants = list_variants(module, model, inputs, tokens)
    if not variants:
        return None
    with torch.no_grad():
        answers = [find_answer(module, one) for one in (inputs, *variants)]
    if any(one is None or one.dim() != 2 or one.size(1) <= index for one in answers):
        return None
    before, *after = (one[0, index] for one in answers)
    return before - torch.stack(after)


def list_variants(module: nn.Module, model: Any, inputs: Inputs, tokens: Any) -> list[Inputs]:
    if takes_images(inputs) and isinstance(tokens, Grid):
        changed = (change_patch(inputs["pixel_values"], tokens, i, 0.0) for i in range(len(tokens)))
        return [{**inputs, "pixel_values": pixels} for pixels in changed]
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.dim() != 2 or takes_more(inputs):
        return []
    inputs = {**inputs, **find_repeated(module, inputs)}
    return [leave_out_token(model, inputs, i) for i in range(ids.size(1) - 1)]


def find_repeated(module: nn.Module, inputs: Inputs) -> Inputs:
    """The ids that a classifier with a decoder gives it: the source, moved by one, which is a stream of its own."""
    if not getattr(module.config, "is_encoder_decoder", False):
        return {}
    seen: list[Any] = []
    keep = lambda _, args, given: seen.append(given.get("input_ids", args[0] if args else None))  # noqa: E731
    handle = module.get_decoder().register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        module(**inputs)
    handle.remove()
    return {"decoder_input_ids": seen[0]} if isinstance(seen[0], Tensor) else {}


def leave_out_token(model: Any, inputs: Inputs, place: int) -> Inputs:
    """Masked, and the padding token in its place, unless the model counts those."""
    ids, mask = inputs["input_ids"].clone(), torch.ones_like(inputs["input_ids"])
    if not (model.takes_attention_mask and model.counts_positions):
        ids[:, place] = model.padding
    mask[:, place] = 0
    return {**inputs, "input_ids": ids, **({"attention_mask": mask} if model.takes_attention_mask else {})}


def change_patch(pixels: Tensor, grid: Grid, patch: int, factor: float) -> Tensor:
    (height, width), pixels = grid.covers or pixels.shape[-2:], pixels.clone()
    high, wide = height // grid.rows, width // grid.columns
    row, column = divmod(patch, grid.columns)
    pixels[..., row * high : (row + 1) * high, column * wide : (column + 1) * wide] *= factor
    return pixels


def plant(case: Case, model: Any, tokens: Any, place: int, gradient: Tensor) -> tuple[nn.Module, Inputs] | None:
    """The module and inputs with a loud token or patch at this position of the second example."""
    inputs = take_second(case.inputs)
    if takes_images(inputs) and isinstance(tokens, Grid):
        pixels = inputs["pixel_values"]
        there = pixels - change_patch(pixels, tokens, place, 0.0)  # the patch; 0 elsewhere
        along = gradient - change_patch(gradient, tokens, place, 0.0)
        loud = LOUD * there.norm() / along.norm().clamp_min(1e-12) * along
        return case.module, {**inputs, "pixel_values": pixels - there + loud}
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.dim() != 2 or gradient.shape[:2] != ids.shape:
        return None
    module = copy.deepcopy(case.module)
    table = module.get_input_embeddings().weight
    taken = {model.padding, *find_special_tokens(module), *ids.flatten().tolist()}
    token = next(i for i in range(5, 99) if i not in taken)
    along = gradient[0, place]
    with torch.no_grad():
        table[token] = LOUD * table[ids[0]].norm(dim=-1).mean() / along.norm().clamp_min(1e-12) * along
    ids = ids.clone()
    ids[:, place] = token
    return module, {**inputs, "input_ids": ids}


def find_gradient(module: nn.Module, inputs: Inputs, index: int) -> Tensor | None:
    """Of the answer, by the pixels or by what comes out of the table of embeddings; None where a loop cannot tell."""
    module, held = copy.deepcopy(module).requires_grad_(False), []
    if takes_images(inputs):
        held.append(inputs["pixel_values"].detach().clone().requires_grad_())
        inputs = {**inputs, "pixel_values": held[0]}
    elif isinstance(table := find_table(module), nn.Embedding) and not takes_more(inputs):
        table.register_forward_hook(lambda *args: held.append(args[-1].detach().requires_grad_()) or held[-1].clone())
    else:
        return None
    answer = find_answer(module, inputs)
    if answer is None or answer.dim() != 2 or answer.size(1) <= index or len(held) != 1 or not answer.requires_grad:
        return None
    try:
        answer[0, index].backward()
    except Exception:  # reversible layers refuse it outside of training
        return None
    return held[0].grad


def find_special_tokens(module: nn.Module) -> set[Any]:
    """Left out by no method."""
    settings = module.config.get_text_config().to_dict()
    return {value for name, value in settings.items() if name.endswith("_token_id") and isinstance(value, int)}


def find_table(module: nn.Module) -> nn.Module | None:
    try:
        return module.get_input_embeddings()
    except NotImplementedError:  # a model of sounds
        return None


def takes_images(inputs: Inputs) -> bool:
    pixels = inputs.get("pixel_values")
    return isinstance(pixels, Tensor) and pixels.dim() == 4 and "input_ids" not in inputs


def takes_more(inputs: Inputs) -> bool:
    return any(name.startswith(("pixel", "decoder", "input_features")) for name in inputs)


def is_heard(by_hand: Tensor, place: int) -> bool:
    sizes = by_hand.abs()
    others = torch.cat([sizes[:place], sizes[place + 1 :]])
    return place < len(sizes) and len(others) > 0 and bool(sizes[place] > HEARD * others.max())
