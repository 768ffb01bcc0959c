"""cite: score the parts of a prompt for its answer, and verify the highest by leaving them out.

    c = cite(model, prompt, by="passage")            prompt: with an answer, from generate() or Prompt.from_text(...)
    c[0].name, c[0].verdict; print(c.support); c.save("why.html")

One explanation of the log-odds of the answer gives a score to every token, and a relevance to every source; its forward
also has the probabilities of the answer. Then the model reads the prompt without the first source and without others
(verification.py), which gives the scores of the sources (estimate.py) and the verdict on the answer (calibration.py).
Log-odds, because the slope of a log-probability is 1 - p: it rounds to 0 where the model is certain. Tempered
(targets/terms.py), because the log-odds of a sharp model are a contrast with one other word.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import overload

import torch
from torch import Tensor

from whyformer._cite.ablations import Ablations
from whyformer._cite.calibration import CHECKED, FAST, judge_support, measure_features
from whyformer._cite.documents import (
    ManyPrompts,
    choose_unit,
    cite_each,
    is_list_of_prompts,
    make_cited_prompt,
    refuse_shared_answer,
)
from whyformer._cite.effort import PER_RELEVANCE, RIVAL, Effort, choose_effort, describe_effort
from whyformer._cite.estimate import Table, Vector
from whyformer._cite.faithfulness import measure_faithfulness
from whyformer._cite.likelihood import Likelihood, measure_likelihood
from whyformer._cite.mention import find_asked_words, is_mentioned, match_question
from whyformer._cite.sources import find_sources, make_source_players
from whyformer._cite.verification import Evidence, find_evidence, find_rival_basis
from whyformer._engine import SCORE_NAMES, Answer, Capture, Scale
from whyformer._explain.explain import ModelLike, as_model, explain_and_probe
from whyformer._explain.method_call import MethodLike, choose_method
from whyformer._model import AnswerPart, Model, PromptLike, refuse_learned_prompt
from whyformer._model.prompt import DocumentLike, Prompt, Region, SplitBy
from whyformer._plain.json_value import JsonValue
from whyformer._plain.progress import Wait, show_activity
from whyformer._plain.random_generator import make_generator
from whyformer._plain.sentences import find_sentence_starts
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError, MethodError, TargetError
from whyformer.methods._players import Players, choose_players
from whyformer.methods._registry import Setting
from whyformer.methods.context_cite import draw_ablations
from whyformer.results.citations import (
    CAUTION,
    CONTRADICTED,
    NOT_NEEDED,
    NOT_SUPPORTED,
    ONE,
    SUPPORTED,
    UNDECIDED,
    Citation,
    Citations,
    Faithfulness,
    Support,
)
from whyformer.results.explanation import Explanation

CITE_METHOD = "attnlrp"  # the best of one relevance pass on demo/reader (docs/language-models.md)
MOST = 2**31  # of any count
CITED_SCORE: Scale = "tempered"
WORST_FIRST = (CONTRADICTED, NOT_SUPPORTED, UNDECIDED, SUPPORTED)


@overload
def cite(
    model: ModelLike,
    prompt: PromptLike | Mapping[str, JsonValue],
    by: SplitBy | Sequence[Region] | None = None,
    *,
    answer: str | Sequence[int] | None = None,
    documents: Sequence[DocumentLike] | None = None,
    select: AnswerPart | Answer = None,
    within: Region | str | None = None,
    method: MethodLike = CITE_METHOD,
    effort: str = "checked",
    seed: int = 0,
    **settings: Setting,
) -> Citations: ...


@overload
def cite(
    model: ModelLike,
    prompt: ManyPrompts,
    by: SplitBy | Sequence[Region] | None = None,
    *,
    answer: None = None,
    documents: None = None,
    select: None = None,
    within: Region | str | None = None,
    method: MethodLike = CITE_METHOD,
    effort: str = "checked",
    seed: int = 0,
    **settings: Setting,
) -> list[Citations]: ...


@neutral_torch()
def cite(
    model: ModelLike,
    prompt: PromptLike | Mapping[str, JsonValue] | ManyPrompts,
    by: SplitBy | Sequence[Region] | None = None,
    *,
    answer: str | Sequence[int] | None = None,
    documents: Sequence[DocumentLike] | None = None,
    select: AnswerPart | Answer = None,
    within: Region | str | None = None,
    method: MethodLike = CITE_METHOD,
    effort: str = "checked",
    seed: int = 0,
    **settings: Setting,
) -> Citations | list[Citations]:
    """Which passages or documents of a prompt its answer comes from, each with a verdict from leaving it out.

    prompt: a Prompt with an answer; a text or a list of messages with answer=, a text or token ids; or a record of a
    log, such as a request and its response of an API like that of OpenAI. A list of these, each with its answer, gives
    a list of results; cite_log() does so on several processes, and goes on after errors.
    documents: of LangChain or LlamaIndex, dictionaries, (id, text, metadata) or texts. Where the prompt does not
    contain them, the chat template writes them, or they are put before the question. Ids and metadata are kept.
    by: what the prompt is split into: "passage", "sentence", "paragraph", "document", "role"; a list of texts that
    occur in it, of (start, stop) in characters or of regions; or a function of its text. By default documents and
    results of tools, if there are several, else passages. The question, instructions and
    what the system or the assistant says are no sources: they are shown apart (`apart`) and never left out.
    select: the part of the answer that is cited for: a text that occurs in it, numbers of its tokens, a slice or
    targets.Answer(...); by default all of it.
    within: only sources in this part of the prompt: a region, its name ("user 1"), or a text. The rest, such as a
    question, always stays.
    method: any method; the score of a source is the sum over its tokens. Methods that remove words remove sources
    instead, by deleting them.
    effort: "fast", one relevance pass (3 forwards); "checked", sources left out to confirm what the answer rests on,
    and for the scores (12 forwards, an ablation counted by the tokens that it reads); "thorough", 64 random ablations
    more for the scores and 32 fresh ones to measure them (at most 139). An answer of several sentences costs as much
    for each.
    seed: of all random numbers.
    """
    try:
        choose_method(method, settings)  # refuse misspelt names before the model is opened
    except MethodError:
        refuse_former_options(settings)
        raise
    plan = choose_effort(effort)
    check_counts(seed=seed)
    model = as_model(model)
    refuse_learned_prompt(model.module, "cite")
    if is_list_of_prompts(prompt):
        refuse_shared_answer(answer, documents, select)
        same = {"within": within, "method": method, "effort": effort, "seed": seed, **settings}
        return cite_each(partial(cite, model, by=by, **same), prompt)
    prompt = make_cited_prompt(model, prompt, answer, documents)
    divided = find_sources(prompt, choose_unit(prompt, by), within)
    study = Study(model, prompt, divided.sources, method, settings, plan, seed)
    sentences = list_sentences(prompt) if select is None else []
    with show_activity(
        Wait(f"citing, {describe_effort(effort, max(len(sentences), 1), name_own_runs(method, settings))}")
    ):
        whole = study.examine(aim_at_part(select))
        parts = [study.examine(one) for one in sentences]
    per_source = sum_regions(whole.scores, divided.sources)
    rest = float(whole.scores.sum() - per_source.sum())
    found = whole.evidence
    is_fitted = found.scores is not found.relevance
    total = float(abs(found.scores).sum()) + (0.0 if is_fitted else abs(rest))
    magnitude = float(per_source.abs().sum()) + abs(rest)
    target = whole.explanation.targets[0]  # named by the answer: 'Lisbon' for the log-odds of 'Lisbon'
    cited = list_citations(divided.sources, torch.from_numpy(found.scores), total, [whole, *parts])
    return Citations(
        prompt=prompt,
        citations=tuple(sorted(cited, key=lambda one: -one.score)),
        apart=list_citations(divided.apart, sum_regions(whole.scores, divided.apart), magnitude),
        target=replace(target, label=target.label.removeprefix(SCORE_NAMES[CITED_SCORE].format(""))),
        scores=whole.scores,
        rest=rest,
        log_odds=whole.log_odds,
        log_probability=whole.likelihood.log_probability,
        margin=found.margin if plan.leaves_out else None,
        together=found.drop if len(found.basis) > 1 else None,
        faithfulness=whole.faithfulness,
        method=whole.explanation.method,
        settings=whole.explanation.settings,
        model=whole.explanation.model,
        versions=whole.explanation.versions,
        spent=sum_counts([whole.spent, *(part.spent for part in parts)]),
        notes=(*whole.explanation.notes, *list_doubts(whole)),
        support=join_support(whole.support, [part.support for part in parts]),
        sentences=tuple(part.support for part in parts) or (whole.support,),
    )


@dataclass(frozen=True)
class Examined:
    """What was found out about the answer, or a part of it."""

    explanation: Explanation
    scores: Tensor  # [token]
    log_odds: float
    likelihood: Likelihood
    mentioned: bool
    evidence: Evidence
    support: Support
    basis: tuple[int, ...]  # the sources that the answer is said to rest on
    features: Mapping[str, float]
    faithfulness: Faithfulness | None
    spent: Mapping[str, float]


@dataclass(frozen=True)
class Study:
    """Asks one model about one prompt and its sources."""

    model: Model
    prompt: Prompt
    sources: Sequence[Region]
    method: MethodLike
    settings: Mapping[str, Setting]
    plan: Effort
    seed: int = 0

    @property
    def reruns(self) -> bool:
        """Whether the method removes sources itself. Its scores are kept, and nothing is explained twice."""
        return bool(name_own_runs(self.method, self.settings))

    @cached_property
    def asked(self) -> Table:
        """[word source]: which sources contain each word of the question."""
        return find_asked_words(self.prompt, self.sources)

    def examine(self, aim: Answer) -> Examined:
        """The sources of this part of the answer, and whether they support it."""
        players = make_source_players(self.prompt, self.sources)
        tokens = sorted(aim.find_tokens(self.prompt))  # as their logits are, where only these were computed
        explanation, capture = explain_sources(self.model, self.prompt, self.method, self.settings, aim, players)
        scores = explanation.scores[0].double().cpu()
        relevance = sum_regions(scores, self.sources).numpy()
        likelihood = measure_likelihood(capture.logits[0], self.prompt, tokens)
        mentioned = is_mentioned(self.prompt, tokens, self.sources)
        spent: list[Mapping[str, float]] = [explanation.spent, {"cost": count_forwards(explanation)}]
        log_odds, faithfulness = float(explanation.targets[0].score), None
        evidence = Evidence(relevance, int(relevance.argmax()), relevance)
        if self.plan.leaves_out:
            ablations, before = Ablations(capture["probe"], players, log_odds), Counter(capture["probe"].spent)
            evidence = self._find_evidence(ablations, relevance, spent, likelihood)
            faithfulness = self._measure(ablations, evidence)
            spent += [ablations.probe.spent - before, {"cost": ablations.forwards}]
        rule = CHECKED if self.plan.leaves_out else FAST
        topic = match_question(self.asked, evidence.likely_basis)
        features = measure_features(likelihood, evidence, mentioned, topic)
        probability = rule.estimate_support(features)
        verdict = judge_support(probability, bool(evidence.against))
        basis = evidence.likely_basis if verdict == SUPPORTED else evidence.basis
        support = Support(
            cut_answer_text(self.prompt, tokens), verdict,
            sources=tuple(self.sources[i].name for i in basis),
            how=evidence.how or (ONE if basis else ""),
            against=tuple(self.sources[i].name for i in evidence.against),
            probability=probability,
            drop=evidence.drop if self.plan.leaves_out else None,
        )  # fmt: skip
        return Examined(
            explanation, scores, log_odds, likelihood, mentioned, evidence, support, basis, features, faithfulness,
            sum_counts(spent),
        )  # fmt: skip

    def _find_evidence(
        self,
        ablations: Ablations,
        relevance: Vector,
        spent: list[Mapping[str, float]],
        likelihood: Likelihood,
    ) -> Evidence:
        """What the answer rests on; if the model would rather say something else, also what that rests on."""
        plan, rival, more = self.plan, likelihood.rival, None
        if rival is not None and (self.reruns or self._says_the_same(*rival)):
            rival = None
        if plan.samples:
            generator = make_generator(self.seed, ablations.probe.fingerprints[0])
            more = draw_ablations(len(relevance), plan.samples, generator)
        left = plan.forwards - PER_RELEVANCE - RIVAL * (rival is not None)
        found = find_evidence(ablations, relevance, left, likelihood.least_log_odds, plan.checks, more, self.asked)
        if rival is not None:
            found.against = self._find_rivals(rival, spent) or found.against
        return replace(found, scores=relevance) if self.reruns else found

    def _says_the_same(self, place: int, token: int) -> bool:
        """Whether the answer, written from there on with other blanks or capitals, begins with this token."""
        rest, tokenizer = cut_answer_text(self.prompt, range(place, len(self.prompt.answer))), self.model.tokenizer
        if tokenizer is None or not rest:
            return False
        writings = {before + text for before in ("", " ") for text in (rest, rest.lower(), rest.capitalize())}
        return any(tokenizer(text, add_special_tokens=False)["input_ids"][:1] == [token] for text in writings)

    def _find_rivals(self, rival: tuple[int, int], spent: list[Mapping[str, float]]) -> tuple[int, ...]:
        """The sources that make the model prefer this token in that place of the answer."""
        place, token = rival
        before = list(self.prompt.ids[: self.prompt.prompt_length + place])
        other, aim = Prompt.from_tokens(self.model, before, [token]), Answer(None)
        players = make_source_players(other, self.sources)
        explanation, capture = explain_sources(self.model, other, self.method, self.settings, aim, players)
        relevance = sum_regions(explanation.scores[0].double().cpu(), self.sources).numpy()
        ablations = Ablations(capture["probe"], players, float(explanation.targets[0].score))
        containing = [i for i, one in enumerate(self.sources) if token in self.prompt.ids[one.start : one.stop]]
        found = find_rival_basis(ablations, relevance, containing)
        spent += [explanation.spent, ablations.probe.spent, {"cost": count_forwards(explanation) + ablations.forwards}]
        return found

    def _measure(self, ablations: Ablations, evidence: Evidence) -> Faithfulness | None:
        """On ablations that the scores were not fitted to."""
        if not self.plan.measured:
            return None
        scores, fingerprint = torch.from_numpy(evidence.scores), ablations.probe.fingerprints[0]
        return measure_faithfulness(ablations, scores, self.plan.measured, self.seed + 10, fingerprint)


# --- what is asked for ------------------------------------------------------------------------------------------------


def refuse_former_options(settings: Mapping[str, Setting]) -> None:
    """What is left out, and how often, was asked for by two counts once."""
    for name in ("verify", "samples"):
        if name in settings:
            raise InputError(
                f"cite() has no option {name}: effort= says how much is left out: 'fast' (nothing), 'checked' or "
                "'thorough' (96 random ablations, with the linear datamodelling score).",
                code="E_OPTION",
            )


def check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST:
            raise InputError(f"{name} must be a whole number >= 0 and below 2**31, got {value!r:.80}.", code="E_OPTION")


def name_own_runs(method: MethodLike, settings: Mapping[str, Setting]) -> str:
    """The method, if it runs the model as often as it likes, or ""."""
    chosen = choose_method(method, settings).method
    return chosen.name if "probe" in chosen.needs else ""


def aim_at_part(select: AnswerPart | Answer) -> Answer:
    """The selected part of the answer as a target."""
    if not isinstance(select, Answer):
        return Answer(select)
    if select.versus is not None or select.weights is not None:
        raise TargetError("cite() takes a part of the answer, without versus and weights. Explain those by explain().")
    return Answer(select.select, unit=select.unit)


# --- scores -----------------------------------------------------------------------------------------------------------


def explain_sources(
    model: Model,
    prompt: Prompt,
    method: MethodLike,
    settings: Mapping[str, Setting],
    aim: Answer,
    players: Players,
    score: Scale = CITED_SCORE,
) -> tuple[Explanation, Capture]:
    """The explanation of the answer, and the capture it is from: its logits, and a probe of the log-odds of the answer.

    Methods that remove parts of the input get the sources as players.
    score: what other methods explain. Those that rerun the model explain the log-odds, as ablations do.
    """
    call = choose_method(method, settings)
    reruns = "probe" in call.method.needs
    if reruns and call.settings.get("fill", "") is None:
        call = choose_method(method, {**settings, "fill": "delete"})
    target = Answer(aim.select, unit=aim.unit, score="log_odds" if reruns else score)
    with choose_players([players]):
        return explain_and_probe(model, model.encode(prompt), call, target)


def count_forwards(explanation: Explanation) -> float:
    """What an explanation costs: its forwards, and two for each backward or relevance pass."""
    passes = {name: explanation.spent.get(name, 0.0) for name in ("forward", "backward", "relevance")}
    return passes["forward"] + (PER_RELEVANCE - 1) * (passes["backward"] + passes["relevance"])


def sum_regions(scores: Tensor, regions: Sequence[Region]) -> Tensor:
    """[region]: the sum of the scores of its tokens."""
    return torch.tensor([float(scores[one.start : one.stop].sum()) for one in regions], dtype=scores.dtype)


def list_sentences(prompt: Prompt) -> list[Answer]:
    """The sentences of the answer as targets; none if there is only one."""
    count = len(find_sentence_starts(prompt.answer_text))
    return [Answer(number, unit="sentence") for number in range(count)] if count > 1 else []


def cut_answer_text(prompt: Prompt, tokens: Sequence[int]) -> str:
    """The text of these tokens of the answer."""
    spans = [prompt.pieces.spans[prompt.prompt_length + token] for token in tokens]
    known = [span for span in spans if span is not None]
    return prompt.text[min(one[0] for one in known) : max(one[1] for one in known)].strip() if known else ""


def list_citations(
    parts: Sequence[Region], scores: Tensor, total: float, examined: Sequence[Examined] = ()
) -> tuple[Citation, ...]:
    """Parts of the prompt with their scores and, of sources, verdicts, in its order; total: what shares are of.

    examined: the whole answer, then its sentences. A source that one of them rests on is judged by that one.
    """
    return tuple(
        Citation(
            one.name, one.kind, one.start, one.stop, one.text, score,
            share=score / total if total else 0.0,
            drop=next((found.evidence.drops[i,] for found in examined if (i,) in found.evidence.drops), None),
            verdict=name_source_verdict(i, examined),
            id=one.id, metadata=one.metadata or {},
        )
        for i, (one, score) in enumerate(zip(parts, scores.tolist(), strict=True))
    )  # fmt: skip


def name_source_verdict(source: int, examined: Sequence[Examined]) -> str | None:
    """None for a source that was never left out, alone or with others that say the same."""
    resting = [one.support.verdict for one in examined if source in one.basis]
    if resting:
        return SUPPORTED if SUPPORTED in resting else CAUTION
    if any(source in one.evidence.against for one in examined):
        return CONTRADICTED
    return NOT_NEEDED if any((source,) in one.evidence.drops for one in examined) else None


def join_support(whole: Support, sentences: Sequence[Support]) -> Support:
    """Several sentences are supported as well as the worst of them, by all the sources that they rest on."""
    if not sentences:
        return whole
    worst = min(sentences, key=lambda one: (WORST_FIRST.index(one.verdict), one.probability))
    return replace(
        whole,
        verdict=worst.verdict,
        sources=tuple(dict.fromkeys(name for one in sentences for name in one.sources)),
        how="",
        against=tuple(dict.fromkeys(name for one in sentences for name in one.against)),
        probability=worst.probability,
    )


def list_doubts(whole: Examined) -> list[str]:
    """What speaks against support, in sentences."""
    doubts, likelihood = [], whole.likelihood
    if not likelihood.is_plausible:
        doubts.append(
            "Caution: the model would hardly give this answer itself. Its log-probability is "
            f"{likelihood.log_probability:z.1f}; of answers that it draws it is about {likelihood.expected:z.1f}."
        )
    if not whole.mentioned:
        doubts.append(
            "Caution: no source contains the answer as it is written. It may be put in other words, derived or made up."
        )
    return doubts


def sum_counts(counts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Passes through the model, by kind."""
    return {name: sum(one.get(name, 0.0) for one in counts) for name in dict.fromkeys(k for one in counts for k in one)}
