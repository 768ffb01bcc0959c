"""cite: score the parts of a prompt for its answer, and verify the highest by leaving them out.

    c = cite(model, prompt, by="passage")            prompt: with an answer, from generate() or Prompt.from_text(...)
    c[0].name, c[0].verdict; print(c); c.save("why.html")

One explanation of the log-odds of the answer gives a score to every token; the score of a source is their sum. Then the
model reads the prompt without the top sources, without controls, and without random ones (verification.py,
faithfulness.py). Log-odds, because the slope of a log-probability is 1 - p: it rounds to 0 where the model is certain.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from whyformer._cite.ablations import Ablations
from whyformer._cite.documents import choose_unit, make_cited_prompt
from whyformer._cite.faithfulness import measure_faithfulness
from whyformer._cite.likelihood import Likelihood, measure_likelihood
from whyformer._cite.mention import is_mentioned
from whyformer._cite.sources import find_sources, make_source_players
from whyformer._cite.verification import Verification, describe_verification, verify_sources
from whyformer._engine import SCORE_NAMES, Answer, Probe, Scale, record
from whyformer._explain.explain import ModelLike, as_model, explain_encoded
from whyformer._explain.method_call import MethodLike, choose_method
from whyformer._model import AnswerPart, Model, PromptLike, refuse_learned_prompt
from whyformer._model.prompt import DocumentLike, Prompt, Region, SplitBy
from whyformer._plain.json_value import JsonValue
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError, TargetError
from whyformer.methods._players import Players, choose_players
from whyformer.methods._registry import Setting
from whyformer.results.citations import Citation, Citations
from whyformer.results.explanation import Explanation

CITE_METHOD = "attnlrp"  # the best of one relevance pass on demo/reader (docs/language-models.md)
MOST = 2**31  # of any count
CITED_SCORE: Scale = "log_odds"


@neutral_torch()
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
    verify: int = 3,
    samples: int = 32,
    seed: int = 0,
    **settings: Setting,
) -> Citations:
    """Which passages or documents of a prompt its answer comes from, each with a verdict from leaving it out.

    prompt: a Prompt with an answer; a text or a list of messages with answer=, a text or token ids; or a record of a
    log, such as a request and its response of an API like that of OpenAI.
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
    verify: how many of the top sources are left out, and at most how many with strongly negative scores; 0 for none.
    samples: random ablations for the linear datamodelling
    score; 0 for none. seed: of all random numbers.
    """
    choose_method(method, settings)  # refuse misspelt names before the model is opened
    check_counts(verify=verify, samples=samples, seed=seed)
    model = as_model(model)
    refuse_learned_prompt(model.module, "cite")
    prompt = make_cited_prompt(model, prompt, answer, documents)
    aim = aim_at_part(select)
    divided = find_sources(prompt, choose_unit(prompt, by), within)
    sources = divided.sources
    players = make_source_players(prompt, sources)
    explanation = explain_sources(model, prompt, method, settings, aim, players)
    scores = explanation.scores[0].double().cpu()
    per_source = sum_regions(scores, sources)
    ablations = Ablations(make_answer_probe(model, prompt, aim), players)
    tokens = aim.find_tokens(prompt)
    likelihood = measure_likelihood(model, prompt, tokens)
    doubts = list_doubts(likelihood, is_mentioned(prompt, tokens, sources))
    verified = verify_sources(ablations, per_source, verify, doubts) if verify else None
    fingerprint = ablations.probe.fingerprints[0]
    faithfulness = measure_faithfulness(ablations, per_source, samples, seed, fingerprint) if samples else None
    rest = float(scores.sum() - per_source.sum())
    total = float(per_source.abs().sum()) + abs(rest)
    names = [one.name for one in sources]
    target = explanation.targets[0]  # named by the answer: 'Lisbon' for the log-odds of 'Lisbon'
    return Citations(
        prompt=prompt,
        citations=tuple(sorted(list_citations(sources, per_source, total, verified), key=lambda one: -one.score)),
        apart=list_citations(divided.apart, sum_regions(scores, divided.apart), total),
        target=replace(target, label=target.label.removeprefix(SCORE_NAMES[CITED_SCORE].format(""))),
        scores=scores,
        rest=rest,
        log_odds=ablations.full,
        log_probability=likelihood.log_probability,
        margin=None if verified is None else verified.margin,
        together=None if verified is None else verified.together,
        faithfulness=faithfulness,
        method=explanation.method,
        settings=explanation.settings,
        model=explanation.model,
        versions=explanation.versions,
        spent=add_spent(explanation.spent, ablations),
        notes=(*explanation.notes, *(describe_verification(verified, names) if verified is not None else ())),
    )


# --- what is asked for ------------------------------------------------------------------------------------------------


def check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST:
            raise InputError(f"{name} must be a whole number >= 0 and below 2**31, got {value!r:.80}.", code="E_OPTION")
    if counts["samples"] == 1:
        raise InputError("samples must be 0 or at least 2: one ablation has no rank correlation.", code="E_OPTION")


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
) -> Explanation:
    """The explanation of the answer. Methods that remove parts of the input get the sources as players.

    score: what other methods explain. Those that rerun the model explain the log-odds, as ablations do.
    """
    call = choose_method(method, settings)
    reruns = "probe" in call.method.needs
    if reruns and call.settings.get("fill", "") is None:
        call = choose_method(method, {**settings, "fill": "delete"})
    target = Answer(aim.select, unit=aim.unit, score=CITED_SCORE if reruns else score)
    with choose_players([players]):
        return explain_encoded(model, model.encode(prompt), call, target)


def make_answer_probe(model: Model, prompt: Prompt, aim: Answer) -> Probe:
    """Reads the log-odds of the answer off variants of the prompt."""
    target = Answer(aim.select, unit=aim.unit, score=CITED_SCORE)
    return record(model, model.encode(prompt), target=target, keep={"probe"})["probe"]


def sum_regions(scores: Tensor, regions: Sequence[Region]) -> Tensor:
    """[region]: the sum of the scores of its tokens."""
    return torch.tensor([float(scores[one.start : one.stop].sum()) for one in regions], dtype=scores.dtype)


def list_citations(
    parts: Sequence[Region], scores: Tensor, total: float, verified: Verification | None = None
) -> tuple[Citation, ...]:
    """Parts of the prompt with their scores and, of sources, verdicts, in its order; total: what shares are of."""
    return tuple(
        Citation(
            one.name, one.kind, one.start, one.stop, one.text, score,
            share=score / total if total else 0.0,
            drop=None if verified is None else verified.drops.get(i),
            verdict=None if verified is None else verified.judge(i),
            is_control=verified is not None and i in verified.controls,
            id=one.id,
            metadata=one.metadata,
        )
        for i, (one, score) in enumerate(zip(parts, scores.tolist(), strict=True))
    )  # fmt: skip


def list_doubts(likelihood: Likelihood, mentioned: bool) -> list[str]:
    """Why no source can support the answer, in sentences."""
    doubts = []
    if not likelihood.is_plausible:
        doubts.append(
            f"the model would hardly give this answer itself. Its log-probability is {likelihood.log_probability:z.1f}"
            f"; of answers that the model draws it is about {likelihood.expected:z.1f}. That a source makes it less "
            "unlikely does not support it."
        )
    if not mentioned:
        doubts.append(
            "no source contains the answer as it is written. It may be put in other words, derived or made up, so none "
            "is called supported, whatever leaving it out changes."
        )
    return doubts


def add_spent(spent: Mapping[str, float], ablations: Ablations) -> dict[str, float]:
    """Passes through the model: those of the explanation and of the ablations, one for the log-odds, one for log p."""
    total = {name: spent.get(name, 0.0) + ablations.probe.spent[name] for name in (*spent, *ablations.probe.spent)}
    return {**total, "forward": total.get("forward", 0.0) + 2}
