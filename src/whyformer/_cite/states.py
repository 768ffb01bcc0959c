"""Whether a source states a claim: a comparison of words, and the judgement of a model or a function of the user's.

Two different things, neither of which is what a claim rests on. The comparison says which words and numbers of the
claim are in the source as they are written, without those that any sentence has. It knows nothing of inflection,
negation or meaning.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import nn

from whyformer._cite.answer_parts import MARK
from whyformer._engine import make_shadow, probabilities_of, read_logits, run_plain
from whyformer._explain.explain import ModelLike, as_model
from whyformer._model import Model, TextPair
from whyformer._model.prompt import Region
from whyformer.errors import InputError
from whyformer.results.citations import State

CheckFunction: TypeAlias = Callable[[str, str], bool | float]
CheckerLike: TypeAlias = ModelLike | CheckFunction
WORD = re.compile(r"\d+(?:[.,:]\d+)*|\w+(?:['’]\w+)?")
OF_ANY_SENTENCE = frozenset(
    "a an the and or but of in on at to for from by with as is are was were be been being it its this that these those "
    "there he she they his her their him them i we you our your which who whom what when where has have had do does "
    "did not so than then also will would can could might s".split()
)
ENTAILS = re.compile(r"(?:entail|support|consistent|faithful|factual|true\b|yes\b|grounded)", re.IGNORECASE)
DENIES = re.compile(r"\b(?:not|non|un|in|no)[\s_-]?(?=entail|support|consistent|faithful|factual|true|grounded)", re.I)


def list_claimed_words(text: str) -> list[str]:
    """The words and numbers that tell the claim from other sentences, as they are first written; marks are none."""
    every = [found for found in WORD.findall(MARK.sub(" ", text)) if found.casefold() not in OF_ANY_SENTENCE]
    return list({fold_word(one): one for one in reversed(every)}.values())[::-1]


def fold_word(word: str) -> str:
    return re.sub(r"['’]s$", "", word.casefold())


def find_states(claim: str, sources: Sequence[Region], check: CheckFunction | None) -> dict[str, State]:
    """Of each source with a text."""
    return {one.name: compare_words(claim, one.text, check) for one in sources if one.text.strip()}


def compare_words(claim: str, source: str, check: CheckFunction | None) -> State:
    there, words = {fold_word(one) for one in WORD.findall(source)}, list_claimed_words(claim)
    contains = tuple(one for one in words if fold_word(one) in there)
    lacks = tuple(one for one in words if fold_word(one) not in there)
    return State(contains, lacks, *(judge_source(check, source, claim) if check and claim.strip() else ()))


def judge_source(check: CheckFunction, source: str, claim: str) -> tuple[bool, float | None]:
    found = check(source, claim)
    if isinstance(found, bool):
        return found, None
    if isinstance(found, int | float) and 0 <= found <= 1:
        return float(found) >= 0.5, float(found)
    raise InputError(
        f"checker must return True, False or a probability from 0 to 1, got {found!r:.80}. It is called as "
        "checker(text of the source, claim).",
        code="E_OPTION",
    )


def open_checker(checker: CheckerLike | None) -> CheckFunction | None:
    """A function of two texts; of a model, the probability of the label that says that the first entails the second."""
    if checker is None or (callable(checker) and not isinstance(checker, nn.Module | Model)):
        return checker
    model = as_model(checker)
    labels = list(model.labels or ())
    found = [n for n, label in enumerate(labels) if ENTAILS.search(label) and not DENIES.search(label)]
    if len(found) != 1:
        raise InputError(
            f"Which label of {model.name} says that a text states another is not known; its labels are "
            f"{', '.join(labels) or 'none'}. Pass a function instead: checker=lambda source, claim: probability.",
            code="E_OPTION",
        )
    return partial(find_probability, model, found[0])


def find_probability(model: Model, label: int, source: str, claim: str) -> float:
    encoded = model.encode([TextPair(source, claim)])
    with torch.no_grad():
        logits = read_logits(encoded, run_plain(make_shadow(model.module), encoded))[0]
    shares = probabilities_of(model.module, logits)
    if shares is None:
        raise InputError(f"{model.name} gives no probabilities. Pass a function as checker=.", code="E_OPTION")
    return float(shares[0, label])
