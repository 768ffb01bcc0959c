"""Whether scores belong to the tokens they are shown at: by leaving each token out by hand, and by one loud token.

`order`: leave_one_out against a loop over the tokens that calls the module itself; for images over the patches.
`loud`: one token gets an embedding ten times as long as those of the others, a patch pixels ten times as strong, in the
direction in which the explained answer grows: a norm in the first layer undoes the length alone. Where leaving it out
by hand matters more than leaving out any other, by half at least, it must have the highest score of the default and of
leave_one_out; where it does not, nothing is told. The last token is not among them: left out, a language model would be
read elsewhere, and the default, a sum over blocks, gives it the states that the others have written to it.
"""

import copy
from typing import Any

import torch
from families.cases import Case
from families.outcome import Outcome, explain_case, find_answer, take_second
from torch import Tensor, nn

import whyformer as why
from whyformer._plain.tokens import Grid
from whyformer.errors import WhyformerError

LOUD, HEARD = 10, 1.5  # times the embedding; times what any other token matters
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
    """The first two positions at which it is heard."""
    if found is None or not found.targets or (index := found.targets[-1].index) < 0:
        return
    alone, tokens, left = take_second(case.inputs), found.tokens[-1], 2
    gradient = find_gradient(case.module, alone, index)
    if gradient is None:
        return
    for place in range(len(tokens) if isinstance(tokens, Grid) else len(take_ids(alone))):
        planted = plant(case, alone, tokens, place, gradient)
        if planted is None or not left:
            return
        model = why.open(planted[0])
        by_hand = leave_out_by_hand(planted[0], model, planted[1], index, tokens)
        if by_hand is None or not is_heard(by_hand, place):
            continue
        left -= 1
        compare_first(outcome, model, planted[1], index, place)


def compare_first(outcome: Outcome, model: Any, inputs: Inputs, index: int, place: int) -> None:
    made = {"leave_one_out": leave_out(model, inputs, index), "default": explain_by_default(model, inputs, index)}
    for name, explanation in made.items():
        if explanation is None:
            continue
        scores = explanation.scores[0].abs()
        first = int((scores if takes_images(inputs) else scores[:-1]).argmax())
        if first != place:
            outcome.note("loud", "WRONG", f"{name} ranks token {first} first, not {place}.")
        elif outcome.words["loud"] == "n/a":
            outcome.note("loud", "ok")


def take_ids(inputs: Inputs) -> Any:
    ids = inputs.get("input_ids")
    return ids[0, :-1] if isinstance(ids, Tensor) and ids.dim() == 2 else ()


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
    return [leave_out_token(model, inputs, i) for i in range(ids.size(1) - 1)]


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


def plant(case: Case, inputs: Inputs, tokens: Any, place: int, gradient: Tensor) -> tuple[nn.Module, Inputs] | None:
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
    token = next(i for i in range(5, 99) if not bool((ids == i).any()))
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
    return place < len(sizes) and bool(sizes[place] > HEARD * others.max())
