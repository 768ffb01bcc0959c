"""Hide what an explanation calls important, and then everything: what does the model say then?

The highest words, or patches, that together have half of the positive scores are hidden by the model's own fill (mask
token, padding or zero), and in a second variant every word. Both variants of all examples run in one batch.
"""

from dataclasses import replace

import torch
from torch import Tensor

from whyformer._engine import FunctionReading, Probe, TermSum
from whyformer._model import EncodedBatch, Model, list_offloaded
from whyformer._plain.tokens import Grid, ScoredTokens
from whyformer._plain.words import group_by_unit
from whyformer.errors import WhyformerError
from whyformer.results.explanation import Explanation
from whyformer.results.hiding import make_hiding_detail

LONGEST = 512  # tokens
HALF = 0.5  # of the sum of the positive scores


def is_cheap_to_hide(model: Model, encoded: EncodedBatch) -> bool:
    """Whether two more forwards take little time: not for long texts or offloaded weights."""
    mask = encoded.token_mask
    is_long = encoded.texts and mask is not None and mask.size(1) > LONGEST
    return not is_long and not list_offloaded(model.module.modules())


def add_hiding(e: Explanation, probe: Probe) -> Explanation:
    """The explanation with the answers to its examples without their highest units, and without any."""
    try:
        return replace(e, details={**e.details, **hide_and_ask(e, probe)})
    except WhyformerError as error:
        note = f"What the model says with parts hidden was not checked: {error}"
        return replace(e, notes=(*e.notes, note))


def hide_and_ask(e: Explanation, probe: Probe) -> dict[str, Tensor]:
    """The detail of `results.hiding`, from two variants of each example."""
    own = torch.stack([probe.real[i] & mark_prompt(tokens) for i, tokens in enumerate(e.tokens)])
    rows = [find_highest(tokens, e.scores[i], own[i]) for i, tokens in enumerate(e.tokens)]
    keep = torch.ones(len(e), probe.units, dtype=torch.bool)
    for i, (highest, _) in enumerate(rows):
        keep[i, highest] = False
    of = torch.arange(len(e))
    reading = read_answer_probability(probe.reading)
    have = all(one.probability is not None and one.versus is None and one.index >= 0 for one in e.targets)
    asked = "probability" if have else "score"  # of a contrast, or of what is no class or token
    if reading is not None:
        probe = Probe(probe.model, probe.encoded, probe.layout, probe.targets, reading, runs_alone=probe.runs_alone)
        before = probe.before.score.exp()
    else:
        before = torch.tensor([getattr(target, asked) for target in e.targets], dtype=torch.double)
    found = probe.keep_only(torch.cat([keep, ~own]), torch.cat([of, of]))
    hidden = found.score.exp() if reading is not None else getattr(found, asked)
    answers = [before, *hidden.split(len(e))]
    columns = torch.stack([part.detach().double().cpu() for part in answers], 1)
    measure = asked if reading is None else "per token"
    return make_hiding_detail(columns, [count for _, count in rows], measure)


def read_answer_probability(reading: object) -> FunctionReading | None:
    """The mean log-probability of the tokens of an answer, for a target that is the sum of their logits."""
    function = reading.function if isinstance(reading, FunctionReading) else None
    if not isinstance(function, TermSum):
        return None
    for row in function.terms:
        if not all(term.has_token and len(term.at) == 2 and not term.field and term.weight == 1 for term in row):
            return None
        if not row or len({term.at[0] for term in row}) < len(row):
            return None
    rows = tuple(tuple(replace(one, scale="logp", weight=1 / len(row)) for one in row) for row in function.terms)
    return FunctionReading(replace(function, terms=rows))


def mark_prompt(tokens: ScoredTokens) -> Tensor:
    """[unit]: False for the answer that a language model gave, which is never hidden."""
    asked = torch.ones(len(tokens), dtype=torch.bool)
    for region in () if isinstance(tokens, Grid) else tokens.regions:
        if region.kind == "answer":
            asked[region.start : region.stop] = False
    return asked


def find_highest(tokens: ScoredTokens, scores: Tensor, real: Tensor) -> tuple[list[int], int]:
    """The positions of the fewest words or patches with half of the positive scores, and how many these are."""
    joins = not isinstance(tokens, Grid) and tokens.text is not None
    groups = group_by_unit(tokens, "words") if joins else [[i] for i in range(len(scores))]
    own = [group for group in groups if all(bool(real[i]) for i in group)]
    sums = sorted(((float(scores[group].double().sum()), group) for group in own), key=lambda pair: -pair[0])
    positive = [(value, group) for value, group in sums if value > 0]
    least, reached, chosen = HALF * sum(value for value, _ in positive), 0.0, list[list[int]]()
    for value, group in positive:
        if reached >= least:
            break
        reached += value
        chosen.append(group)
    return [i for group in chosen for i in group], len(chosen)
