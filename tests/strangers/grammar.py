"""The grammar: how tokens are made x how they are mixed x how the answer is read x what is returned x what is passed.

Every model has one kind as its subject; some have a second one of another axis. Some kinds are whole models.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

from strangers import made, mixed, passed, read, returned, unlisted  # noqa: F401  (they register their kinds)
from strangers.draft import Draft, draw_draft
from strangers.kinds import KINDS, Kind
from strangers.oracle import BY_HAND, Oracle
from strangers.outcome import Question
from strangers.whole import WHOLE, Whole

SECOND_KIND = 0.35  # of the models have two
ORDER = ("made", "read", "returned", "passed", "mixed")
FAMILIES = {kind.name: kind.point for kind in KINDS.values()} | {name: family for name, (family, _) in WHOLE.items()}
# Deterministic methods of all kinds: by rules, by slopes, by attention, by states, by perturbation.
METHODS = (
    "attnlrp cp_lrp lrp transformer_attribution attcat cat rollout raw_attention generic_attention gradient_x_input "
    "saliency grad_cam globenc alti decompx value_zeroing legrad tokentm attgrads norm_analysis libragrad "
    "leave_one_out leave_one_out leave_one_out leave_one_out leave_one_out/probability kernel_shap"
).split()
LONGEST_COALITIONS = 6
OF_EVERY_FAMILY = 20  # models, before any has more


def draw_question(name: str, seed: int, *, alone: bool = False) -> Question:
    """A model of this kind; alone=True: of no other."""
    dice = random.Random(f"{name} {seed}")
    if name in WHOLE:
        return WHOLE[name][1](dice)
    return Oracle(draw_draft_of(KINDS[name], dice, alone))


def draw_draft_of(kind: Kind, dice: random.Random, alone: bool) -> Draft:
    kinds = [kind]
    others = [other for other in KINDS.values() if kind.goes_with(other)]
    if others and not alone and dice.random() < SECOND_KIND:
        kinds.append(dice.choice(others))
    modality = dice.choice([m for m in kind.modalities if all(m in other.modalities for other in kinds)])
    draft = draw_draft(dice, modality, min((k.batch for k in kinds if k.batch), default=None))
    for one in sorted(kinds, key=lambda k: ORDER.index(k.axis)):
        one.build(draft)
        draft.kinds.append(one.name)
    if (labels := draft.strange.given.pop("labels", None)) is not None:  # behind what other kinds add
        draft.strange.given["labels"] = labels
    return draft


def draw_questions(count: int, seed: int, first: int = 0) -> Iterator[Question]:
    """So many models: of every family as many, at least, and then every kind as often as the others."""
    for number, name in islice(enumerate(list_kinds()), first, first + count):
        yield draw_question(name, seed * 10_000 + number)


def list_kinds() -> Iterator[str]:
    """Kinds without end; the first of them fill the quota of every family, a bit of each at a time."""
    sizes = Counter(FAMILIES.values())
    quotas = {name: math.ceil(OF_EVERY_FAMILY / sizes[family]) for name, family in FAMILIES.items()}
    turns = [((turn + 0.5) / quota, name) for name, quota in quotas.items() for turn in range(quota)]
    yield from (name for _, name in sorted(turns, key=lambda turn: turn[0]))
    yield from cycle(FAMILIES)


def draw_methods(question: Question, dice: random.Random) -> list[tuple[str | None, dict[str, Any]]]:
    """All methods that fit, in a random order, after the default."""
    if isinstance(question, Whole):
        methods = list(question.methods)
    else:
        assert isinstance(question, Oracle)
        methods = [name for name in METHODS if name != "kernel_shap" or has_few_tokens(question)]
        methods = [name for name in methods if question.draft.has_logits or "/" not in name]
    dice.shuffle(methods)
    return [(None, {}), *(read_call(name) for name in dict.fromkeys(methods))]


def has_few_tokens(question: Question) -> bool:
    assert isinstance(question, Oracle)
    return question.draft.modality == "ids" and question.length <= LONGEST_COALITIONS


def read_call(name: str) -> tuple[str, dict[str, Any]]:
    method, _, of = name.partition("/")
    return method, {"of": of} if of else {}


__all__ = ["BY_HAND", "FAMILIES", "draw_methods", "draw_question", "draw_questions"]
