"""Whether scores belong to the tokens they are shown at: by leaving each token out by hand, and by one loud token.

`order`: leave_one_out against a loop over the tokens that calls the module itself; for images over the patches.

`loud`: one token, and nothing else, is made loud, at one of the first eight positions after the other, in up to eight
inputs (the second example and others drawn like it). Which way is decided by the module alone, before anything is
explained:

- An image: the pixels of a patch, ten times as strong, in the direction in which the explained answer grows.
- A text: an embedding ten times as long as those of the others, in that direction (a pre-norm block undoes the length
  alone).
- Either of them, if the first block is given the output of a norm: that norm undoes the length, so what it returns for
  the token is made ten times as long as well.

Whether the token is heard is told by hand as well: leaving it out then matters more than leaving out any other, by half
at least, and what leaving it out changes has grown the most there, by half at least. The first eight positions at which
it is heard count. leave_one_out must rank the token first at every one of them, and the default at more than half:
softmax and routing make a token matter by taking attention from others, which relevance, with attention constant, gives
to those. Ranking first is the only thing that counts. `first` has the positions at which the default ranks it first.

Not compared: the last token of a text (left out, a language model would be read elsewhere) and the one token at which
the answer is read, if there is one: the default, a sum over blocks, gives it the states that others wrote to it.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from families.cases import Case
from families.outcome import Outcome, explain_case, find_answer, take_second
from torch import Tensor, nn

import whyformer as why
from whyformer._plain.tokens import Grid
from whyformer.errors import WhyformerError

LOUD, HEARD = 10, 1.5  # times the embedding; times what any other token matters
MOST_TRIALS, MOST_INPUTS, MOST_PLACES = 8, 8, 8
BATCH = 32
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
    """The first eight positions at which it is heard."""
    if found is None or not found.targets or (index := found.targets[-1].index) < 0:
        return
    trials = islice(list_trials(case, index, found.tokens[-1]), MOST_TRIALS)
    note_trials(outcome, list(trials))


@dataclass(frozen=True)
class Trial:
    """One position at which the loud token is heard, and which tokens leave_one_out and the default rank first."""

    place: int
    left_out: int | None
    first: int | None  # None where the default is refused


def list_trials(case: Case, index: int, tokens: Any) -> Iterator[Trial]:
    model, norm = why.open(case.module), find_embedding_norm(case.module, take_second(case.inputs))
    for inputs in draw_like(case, model):
        quiet = leave_out_by_hand(case.module, model, inputs, index, tokens)
        gradient = find_gradient(case.module, inputs, index)
        if quiet is None or gradient is None:
            return
        ranked = find_ranked(case.module, inputs, index, len(quiet))
        length = len(tokens) if takes_images(inputs) else inputs["input_ids"].size(1)
        for place in ranked[:MOST_PLACES]:
            if (planted := plant(case, model, inputs, tokens, place, gradient)) is None:
                return
            module, changed = planted
            module = scale_norm(module, norm, length - place) if norm else module
            loud = leave_out_by_hand(module, why.open(module), changed, index, tokens)
            if is_heard(loud, place) and is_heard(loud - quiet, place):
                yield rank_loud(why.open(module), changed, index, place, ranked)


def draw_like(case: Case, model: Any) -> Iterator[Inputs]:
    """The second example alone, then others like it: an image of new noise, a text of new tokens but the last."""
    inputs, generator = take_second(case.inputs), torch.Generator().manual_seed(31)
    yield inputs
    for _ in range(MOST_INPUTS - 1):
        if takes_images(inputs):
            pixels = inputs["pixel_values"]
            yield {**inputs, "pixel_values": torch.randn(pixels.shape, generator=generator)}
            continue
        ids = inputs["input_ids"].clone()
        special = find_special_tokens(case.module) | {model.padding}
        usual = torch.tensor([i for i in range(5, int(ids.max()) + 1) if i not in special])
        drawn = usual[torch.randint(len(usual), ids.shape, generator=generator)]
        is_special = torch.isin(ids, torch.tensor(sorted(special)))
        is_special[:, -1] = True
        yield {**inputs, "input_ids": torch.where(is_special, ids, drawn)}


def rank_loud(model: Any, inputs: Inputs, index: int, place: int, ranked: list[int]) -> Trial:
    """Among the tokens that are compared."""
    explained = leave_out(model, inputs, index), explain_by_default(model, inputs, index)
    first = [None if one is None else ranked[int(one.scores[0].abs()[ranked].argmax())] for one in explained]
    return Trial(place, *first)


def note_trials(outcome: Outcome, trials: list[Trial]) -> None:
    """The words of `loud` and of `first`."""
    for trial in trials:
        if trial.left_out not in (None, trial.place):
            outcome.note("loud", "WRONG", f"leave_one_out ranks token {trial.left_out} first, not {trial.place}.")
            return
    made = [trial for trial in trials if trial.first is not None]
    if not made:
        return
    right = sum(trial.first == trial.place for trial in made)
    outcome.words["first"] = f"{right}/{len(made)}"
    if 2 * right > len(made):
        outcome.note("loud", "ok")
    else:
        found = ", ".join(f"{trial.first} for {trial.place}" for trial in made)
        outcome.note("loud", "WRONG", f"The default ranks first token {found}.")


def find_embedding_norm(module: nn.Module, inputs: Inputs) -> str:
    """The name of the norm whose output is what the first block is given; empty if there is none."""
    if not takes_images(inputs) and ("input_ids" not in inputs or takes_more(inputs)):
        return ""
    module, outputs = copy.deepcopy(module), {}
    for name, part in module.named_modules():
        if type(part).__name__.endswith(("Norm", "Norm1d")):
            part.register_forward_hook(lambda *args, name=name: outputs.setdefault(name, args[-1]))
    try:
        with torch.no_grad():
            states = module(**inputs, output_hidden_states=True).hidden_states[0]
    except Exception:  # no such output
        return ""
    is_first = lambda one: isinstance(one, Tensor) and one.shape == states.shape and torch.equal(one, states)  # noqa: E731
    return next((name for name, one in outputs.items() if states.dim() == 3 and is_first(one)), "")


class LoudNorm(nn.Module):
    """A norm with one loud token, counted from the end: ten times what it returns for it."""

    def __init__(self, norm: nn.Module, behind: int):
        super().__init__()
        self.norm, self.behind = norm, behind

    def forward(self, states: Tensor) -> Tensor:
        size = torch.ones(states.size(1), 1)
        size[-self.behind] = LOUD
        return self.norm(states) * size


def scale_norm(module: nn.Module, norm: str, behind: int) -> nn.Module:
    module = copy.deepcopy(module)
    module.set_submodule(norm, LoudNorm(module.get_submodule(norm), behind).eval())
    return module


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
    if takes_images(inputs):  # BATCH of them at once
        answers = [one for batch in answers for one in batch.split(1)] if None not in answers else answers
    if any(one is None or one.dim() != 2 or one.size(1) <= index for one in answers):
        return None
    before, *after = (one[0, index] for one in answers)
    return before - torch.stack(after)


def list_variants(module: nn.Module, model: Any, inputs: Inputs, tokens: Any) -> list[Inputs]:
    if takes_images(inputs) and isinstance(tokens, Grid):
        changed = torch.cat([change_patch(inputs["pixel_values"], tokens, i, 0.0) for i in range(len(tokens))])
        return [{**inputs, "pixel_values": pixels} for pixels in changed.split(BATCH)]
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


def plant(
    case: Case, model: Any, inputs: Inputs, tokens: Any, place: int, gradient: Tensor
) -> tuple[nn.Module, Inputs] | None:
    """The module and inputs with a loud token or patch at this position."""
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
