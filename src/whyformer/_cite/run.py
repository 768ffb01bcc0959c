"""cite: what an answer and each of its sentences rest on, measured on the model that is asked.

    c = cite(model, prompt, by="passage")            prompt: with an answer, from generate() or Prompt.from_text(...)
    c.claim.how, c.claim.rests_on, c.claim.values, c.claim.instead; print(c); c.save("why.html")

The model reads the prompt without some of its sources, by a code (design.py) and by direct checks (measuring.py), and
what it makes of every token of the answer is read (ablations.py). How that is read is in dependence.py. Log-odds, since
log p of an answer that the model is certain of hardly changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import exp
from typing import overload

import numpy as np
import torch
from torch import Tensor

from whyformer._cite.ablations import Opened, list_kept, open_answer
from whyformer._cite.answer_parts import AnswerPart, check_cited_marks, divide_answer, find_quotations, number_labels
from whyformer._cite.dependence import NOTHING, Dependence, Sources
from whyformer._cite.design import MOST_UNITS, Vector, make_units
from whyformer._cite.documents import (
    ManyPrompts,
    choose_unit,
    cite_each,
    is_list_of_prompts,
    make_cited_prompt,
    refuse_shared_answer,
)
from whyformer._cite.effort import EFFORTS, OPENING, Effort, choose_effort
from whyformer._cite.measuring import Measured, measure_claim, measure_completely, sum_tokens
from whyformer._cite.sources import DividedPrompt, find_sources, merge_copies
from whyformer._cite.states import CheckerLike, CheckFunction, find_states, open_checker
from whyformer._engine import SCORE_NAMES, Answer
from whyformer._explain.explain import ModelLike, as_model
from whyformer._explain.method_call import MethodLike, choose_method
from whyformer._explain.token_generation import generate_tokens
from whyformer._model import AnswerPart as Selection
from whyformer._model import Model, PromptLike, refuse_learned_prompt
from whyformer._model.prompt import DocumentLike, Prompt, Region, SplitBy
from whyformer._plain.json_value import JsonValue
from whyformer._plain.progress import Wait, show_activity
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import TargetError
from whyformer.methods._registry import Setting
from whyformer.results.citations import Citation, Citations, Claim, ClaimReading, Role, SentenceKind, Values
from whyformer.show.wording import join_with_and

CITE_METHOD = "attnlrp"  # what chooses among many sources; the best of one relevance pass on demo/reader
LONGER = 8  # tokens that the model may say instead, more than the answer has


@overload
def cite(
    model: ModelLike,
    prompt: PromptLike | Mapping[str, JsonValue],
    by: SplitBy | None = None,
    *,
    answer: str | Sequence[int] | None = None,
    documents: Sequence[DocumentLike] | None = None,
    select: Selection | Answer = None,
    within: Region | str | None = None,
    method: MethodLike | None = None,
    effort: str = "checked",
    checker: CheckerLike | None = None,
    **settings: Setting,
) -> Citations: ...


@overload
def cite(
    model: ModelLike,
    prompt: ManyPrompts,
    by: SplitBy | None = None,
    *,
    answer: None = None,
    documents: None = None,
    select: None = None,
    within: Region | str | None = None,
    method: MethodLike | None = None,
    effort: str = "checked",
    checker: CheckerLike | None = None,
    **settings: Setting,
) -> list[Citations]: ...


@neutral_torch()
def cite(
    model: ModelLike,
    prompt: PromptLike | Mapping[str, JsonValue] | ManyPrompts,
    by: SplitBy | None = None,
    *,
    answer: str | Sequence[int] | None = None,
    documents: Sequence[DocumentLike] | None = None,
    select: Selection | Answer = None,
    within: Region | str | None = None,
    method: MethodLike | None = None,
    effort: str = "checked",
    checker: CheckerLike | None = None,
    **settings: Setting,
) -> Citations | list[Citations]:
    """Which passages or documents of a prompt its answer, and each sentence of it, rests on: measured by leaving out.

    prompt: a Prompt with an answer; a text or a list of messages with answer=, a text or token ids; or a record of a
    log, such as a request and its response of an API like that of OpenAI. A list of these, each with its answer, gives
    a list of results; cite_log() does so on several processes, and goes on after errors.
    documents: of LangChain or LlamaIndex, dictionaries, (id, text, metadata) or texts. Where the prompt does not
    contain them, the chat template writes them, or they are put before the question. Ids and metadata are kept.
    by: what the prompt is split into: "passage", "sentence", "paragraph", "document", "role"; a list of texts that
    occur in it, of (start, stop) in characters or of regions; or a function of its text. By default documents and
    results of tools, if there are several, else passages. The question, instructions and
    what the system or the assistant says are no sources: they are shown apart (`apart`) and never left out.
    select: the part of the answer to ask for: a text that occurs in it, numbers of its tokens, a slice or
    targets.Answer(...); by default all of it, and each of its sentences.
    within: only sources in this part of the prompt: a region, its name ("user 1"), or a text. The rest, such as a
    question, always stays.
    method: what scores the tokens; by default nothing does, and a source has the weight that ablations give it. Of more
    than eight sources, attnlrp chooses those that are asked about one by one.
    effort: "checked", at most 14 forwards and 4 for each further sentence, an ablation counted by the tokens that it
    reads; "fast", one relevance pass and no reading; "thorough", all subsets of up to eight sources.
    checker: what judges whether a source states a sentence: a model that reads two texts, or a function of the text of
    a source and the sentence, which returns True, False or a probability.
    """
    choose_method(method or CITE_METHOD, settings)  # refuse misspelt names before the model is opened
    plan, check = choose_effort(effort), open_checker(checker)
    model = as_model(model)
    refuse_learned_prompt(model.module, "cite")
    if is_list_of_prompts(prompt):
        refuse_shared_answer(answer, documents, select)
        same = {"within": within, "method": method, "effort": effort, "checker": check, **settings}
        return cite_each(partial(cite, model, by=by, **same), prompt)
    prompt = make_cited_prompt(model, prompt, answer, documents)
    divided = find_sources(prompt, choose_unit(prompt, by, within), within)
    with show_activity(Wait(f"citing, {plan.says}")):
        return Study(model, prompt, divided, list_answer_parts(prompt, select), plan, check, method, settings).examine()


@dataclass(frozen=True)
class Study:
    """Asks one model about one prompt, its answer and its sources."""

    model: Model
    prompt: Prompt
    divided: DividedPrompt
    parts: Sequence[AnswerPart]  # of the answer that is asked about
    plan: Effort = EFFORTS["checked"]
    check: CheckFunction | None = None
    method: MethodLike | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict)

    @cached_property
    def copies(self) -> list[tuple[Region, ...]]:
        """The places of each source."""
        return merge_copies(self.divided.sources)

    @property
    def sources(self) -> list[Region]:
        return [places[0] for places in self.copies]

    @cached_property
    def opened(self) -> Opened:
        is_chosen = not self.plan.forwards or (len(self.copies) > MOST_UNITS and not self.plan.is_complete)
        method = self.method or (CITE_METHOD if is_chosen else None)
        return open_answer(self.model, self.prompt, self.copies, self.tokens, method, dict(self.settings))

    @cached_property
    def tokens(self) -> list[int]:
        """Those of the answer that are measured, in order."""
        return sorted(token for part in self.parts for token in part.tokens)

    def place(self, part: AnswerPart) -> list[int]:
        """Where the tokens of a part are among those that are measured."""
        return [self.tokens.index(token) for token in part.tokens]

    @cached_property
    def relevance(self) -> list[float]:
        """Of each source; 0 without a relevance pass."""
        scores = self.opened.relevance
        return [0.0 if scores is None else sum(sum_region(scores, one) for one in places) for places in self.copies]

    @cached_property
    def units(self) -> list[Sources]:
        return make_units(self.relevance)

    def examine(self) -> Citations:
        parts = self.parts
        claimed = [one for one in parts if one.kind == "claim"]
        tokens = tuple(sorted({token for one in claimed or parts for token in one.tokens}))
        kind: SentenceKind = "claim" if claimed else parts[0].kind
        whole = AnswerPart(" ".join(one.text for one in claimed or parts), kind, tokens)
        measured = self.measure(whole, is_first=True)
        claim = self.describe_claim(whole, measured)
        claims = [claim if one.tokens == tokens else self.describe_claim(one, self.measure(one)) for one in parts]
        claim = replace(claim, marks=tuple(mark for one in claims for mark in one.marks))  # each of its own sentence
        return self.make_result(claim, claims, measured, self.place(whole))

    def measure(self, part: AnswerPart, *, is_first: bool = False) -> Measured | None:
        """None if nothing is left out. The first part may cost more: it asks for the ablations that all share."""
        ablations, plan, tokens = self.opened.ablations, self.plan, self.place(part)
        if not plan.forwards or not (is_first or part.kind == "claim"):
            return None
        if plan.is_complete:
            return measure_completely(ablations, tokens)
        limit = ablations.forwards + (plan.forwards - 1 if is_first else plan.each)
        limit += OPENING * (len(self.copies) > MOST_UNITS)
        return measure_claim(ablations, tokens, self.units, limit)

    # --- one claim ---

    def describe_claim(self, part: AnswerPart, measured: Measured | None) -> Claim:
        """What is said of a part of the answer; nothing of what is no claim."""
        claim = Claim(part.text, part.kind, "", quotations=find_quotations(part.text, self.sources))
        if part.kind != "claim":
            return claim
        first = {one.name: places[0].name for places in self.copies for one in places}
        labels = {n: first[name] for n, name in number_labels(self.prompt, self.divided.sources).items()}
        claim = replace(claim, states=find_states(part.text, self.sources, self.check))
        return check_cited_marks(claim if measured is None else self.add_reading(claim, part, measured), labels)

    def add_reading(self, claim: Claim, part: AnswerPart, measured: Measured) -> Claim:
        named = () if measured.reading.how == "against" else measured.reading.sources
        around = [one for one in measured.around if one is not None]
        return replace(
            claim,
            how=measured.reading.how,
            rests_on=self.name(named),
            also=self.name(measured.also),
            against=self.name(measured.against),
            effect=measured.effect,
            around=tuple(map(self.name_reading, around)) if measured.is_borderline else (),
            by_log_p=None if measured.by_log_p is None else self.name_reading(measured.by_log_p),
            values=self.find_values(measured, self.place(part)),
            is_cut=measured.is_cut,
            writer=partial(self.write_instead, part.tokens, frozenset(named)),
        )

    def name(self, sources: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.sources[j].name for j in sources)

    def name_reading(self, reading: Dependence) -> ClaimReading:
        return ClaimReading(reading.how, self.name(reading.sources))

    def find_values(self, measured: Measured, tokens: Sequence[int]) -> dict[str, Values]:
        """Of each named source, from the runs that were made."""
        ablations = self.opened.ablations
        everything, found = ablations.everything, {}
        for j in dict.fromkeys((*measured.reading.sources, *measured.also, *measured.against)):
            sets = (everything, everything - {j}, frozenset([j]), NOTHING)
            odds = [ablations.known.get(one) for one in sets]
            summed = [None if one is None else sum_tokens(one, tokens) for one in odds]
            log_p = [None if one is None else sum_tokens(one, tokens, of_log_p=True) for one in odds]
            shares = [None if one is None else exp(one / len(tokens)) for one in log_p]
            found[self.sources[j].name] = Values(*shares, tuple(summed))  # type: ignore[arg-type, call-arg]
        return found

    def write_instead(self, tokens: Sequence[int], without: Sources) -> str:
        """What the model says there without these sources, or else without any."""
        kept = self.opened.ablations.everything - without if without else NOTHING
        before = list_kept(self.prompt, self.copies, kept) + list(self.prompt.answer_ids[: tokens[0]])
        shortened = Prompt.from_tokens(self.model, before)
        ids = generate_tokens(self.model, shortened, len(tokens) + LONGER)
        tokenizer = self.model.tokenizer
        return " ".join(map(str, ids)) if tokenizer is None else tokenizer.decode(ids).strip()

    # --- the result ---

    def make_result(
        self, claim: Claim, claims: Sequence[Claim], measured: Measured | None, tokens: Sequence[int]
    ) -> Citations:
        opened = self.opened
        weights = np.array(self.relevance) if measured is None else measured.weights
        scores = opened.relevance if opened.relevance is not None else self.spread(weights)
        inside = sum(sum_region(scores, one) for one in self.divided.sources)
        rest = float(scores.sum()) - inside
        total = float(np.abs(weights).sum()) + (abs(rest) if measured is None else 0.0)
        explained, full = opened.explanation, opened.ablations.known[opened.ablations.everything]
        target = opened.capture.targets[0]
        spent = {**(explained.spent if explained is not None else {"forward": 1.0}), "cost": opened.ablations.forwards}
        spent["forward"] = spent.get("forward", 0.0) + opened.capture["probe"].spent["forward"]
        return Citations(
            prompt=self.prompt,
            citations=tuple(sorted(self.list_citations(weights, total, [claim, *claims]), key=lambda one: -one.score)),
            apart=tuple(make_citation(one, sum_region(scores, one), total) for one in self.divided.apart),
            target=replace(target, label=target.label.removeprefix(SCORE_NAMES["log_odds"].format(""))),
            scores=scores,
            rest=rest,
            log_odds=sum_tokens(full, tokens),
            log_probability=sum_tokens(full, tokens, of_log_p=True),
            method="ablations" if explained is None else explained.method,
            settings={} if explained is None else explained.settings,
            model=self.model.name,
            versions=self.model.describe_versions(),
            spent=spent,
            notes=(*(self.prompt.notes if explained is None else explained.notes), *self.list_notes(claims)),
            claim=claim,
            sentences=tuple(claims),
        )

    def spread(self, weights: Vector) -> Tensor:
        """[token]: the weight of each source divided among its tokens."""
        scores = torch.zeros(len(self.prompt.ids), dtype=torch.float64)
        for places, weight in zip(self.copies, weights, strict=True):
            for one in places:
                scores[one.start : one.stop] = float(weight) / sum(map(len, places))
        return scores

    def list_citations(self, weights: Vector, total: float, claims: Sequence[Claim]) -> list[Citation]:
        return [
            replace(
                make_citation(places[0], float(weight), total),
                role=find_role(places[0].name, claims),
                copies=tuple(one.name for one in places[1:]),
            )
            for places, weight in zip(self.copies, weights, strict=True)
        ]

    def list_notes(self, claims: Sequence[Claim]) -> list[str]:
        notes = []
        for places in self.copies:
            if len(places) > 1:
                names = join_with_and([one.name for one in places])
                notes.append(f"{names} have the same text: they are one source, left out together.")
        cut = sum(one.is_cut for one in claims)
        if cut:
            what = "A sentence" if cut == 1 else f"{cut} sentences"
            notes.append(f"{what} would need more direct checks than effort='checked' makes: 'several' is said there.")
        if not self.plan.forwards:
            notes.append(
                "Nothing was left out (effort='fast'): scores are relevance, what the answer rests on is not known."
            )
        return notes


def find_role(name: str, claims: Sequence[Claim]) -> Role:
    lists: dict[Role, str] = {"rests on": "rests_on", "also": "also", "against": "against"}
    return next((role for role, own in lists.items() if any(name in getattr(one, own) for one in claims)), "")


def make_citation(one: Region, score: float, total: float) -> Citation:
    return Citation(**vars(one), score=score, share=score / total if total else 0.0)


def sum_region(scores: Tensor, one: Region) -> float:
    return float(scores[one.start : one.stop].sum())


def list_answer_parts(prompt: Prompt, select: Selection | Answer) -> list[AnswerPart]:
    """The sentences of the answer, or the selected part of it."""
    if select is None:
        return divide_answer(prompt)
    tokens = tuple(sorted(aim_at_part(select).find_tokens(prompt)))
    return [AnswerPart(cut_answer_text(prompt, tokens), "claim", tokens)]


def aim_at_part(select: Selection | Answer) -> Answer:
    """The selected part of the answer as a target."""
    if not isinstance(select, Answer):
        return Answer(select)
    if select.versus is not None or select.weights is not None:
        raise TargetError("cite() takes a part of the answer, without versus and weights. Explain those by explain().")
    return Answer(select.select, unit=select.unit)


def cut_answer_text(prompt: Prompt, tokens: Sequence[int]) -> str:
    """The text of these tokens of the answer."""
    spans = [prompt.pieces.spans[prompt.prompt_length + token] for token in tokens]
    known = [span for span in spans if span is not None]
    return prompt.text[min(one[0] for one in known) : max(one[1] for one in known)].strip() if known else ""
