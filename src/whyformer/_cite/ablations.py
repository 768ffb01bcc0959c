"""The runs of a model behind the ablations of an answer: sources deleted, and the log-odds of every token read.

Deleted means: the tokens are not there, and those after them move up. Several ablations go through the model in one
call of the probe, in batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from whyformer._cite.dependence import NOTHING, Sources
from whyformer._cite.design import Vector
from whyformer._cite.measuring import Ablations
from whyformer._cite.sources import make_source_players
from whyformer._engine import Answer, Answers, Capture, FunctionReading, Probe, TermSum, find_output, record
from whyformer._explain.explain import explain_and_probe
from whyformer._explain.method_call import MethodLike, choose_method
from whyformer._model import EncodedBatch, Model
from whyformer._model.prompt import Prompt, Region
from whyformer.methods._players import Players, choose_players
from whyformer.methods._registry import Setting
from whyformer.results.explanation import Explanation

Copies: TypeAlias = Sequence[Sequence[Region]]  # of each source, the places where its text is
PER_BACKWARD = 2  # forwards that a backward or relevance pass counts as


@dataclass(frozen=True)
class TokenReading(FunctionReading):
    """Reads the log-odds of every token of the target, as columns of `logits`; the score is their sum."""

    def read(self, encoded: EncodedBatch, returned: Any, of: Tensor) -> Answers:
        assert isinstance(self.function, TermSum)
        terms = self.function.pick_examples(of).follow_tokens(encoded).terms
        output = find_output(returned, self.function.module)
        places = torch.tensor([[term.at[0] for term in row] for row in terms], device=output.device)
        ids = torch.tensor([[term.at[1] for term in row] for row in terms], device=output.device)
        rows = torch.arange(len(places), device=output.device)[:, None]
        odds = find_log_odds(output[rows, places].flatten(0, 1), ids.flatten()).view(ids.shape)
        return Answers(odds.sum(-1), odds.sum(-1), odds)


def find_log_odds(logits: Tensor, ids: Tensor) -> Tensor:
    """[n] in float64 of logits [n word]: that of the token minus the logarithm of the summed exponentials of others."""
    wide = logits.double()
    others = wide.scatter(-1, ids[:, None], -torch.inf).logsumexp(-1)
    return wide.gather(-1, ids[:, None])[:, 0] - others


@dataclass(frozen=True)
class Opened:
    """An answer with all its sources: its ablations, and the relevance of its tokens if it was asked for."""

    ablations: Ablations
    capture: Capture
    explanation: Explanation | None
    relevance: Tensor | None  # [token]


def open_answer(
    model: Model,
    prompt: Prompt,
    copies: Copies,
    tokens: Sequence[int],
    method: MethodLike | None,
    settings: dict[str, Setting],
) -> Opened:
    """One run of the whole prompt; with a method, its explanation of the log-odds of these tokens of the answer."""
    players = make_source_players(prompt, copies)
    if method is None:
        capture = record(model, model.encode(prompt), target=Answer(tuple(tokens), score="log_odds"), keep={"probe"})
        explanation, relevance, cost = None, None, 1.0
    else:
        call = choose_method(method, settings)
        reruns = "probe" in call.method.needs
        if reruns and call.settings.get("fill", "") is None:
            call = choose_method(method, {**settings, "fill": "delete"})
        target = Answer(tuple(tokens), score="log_odds" if reruns else "tempered")
        with choose_players([players]):
            explanation, capture = explain_and_probe(model, model.encode(prompt), call, target)
        relevance, spent = explanation.scores[0].double().cpu(), explanation.spent
        backward = spent.get("backward", 0.0) + spent.get("relevance", 0.0)
        cost = spent.get("forward", 0.0) + PER_BACKWARD * backward
    ablations = make_ablations(capture["probe"], prompt, players)
    logits, ids = capture.logits[0], torch.tensor([prompt.answer_ids[token] for token in tokens])
    if len(logits) == len(prompt.ids):  # else only those from which these tokens are predicted
        logits = logits[[prompt.prompt_length - 1 + token for token in tokens]]
    ablations.learn(ablations.everything, as_vector(find_log_odds(logits, ids.to(logits.device))))
    ablations.forwards = cost
    return Opened(ablations, capture, explanation, relevance)


def make_ablations(probe: Probe, prompt: Prompt, players: Players) -> Ablations:
    """Those of one probe, of the tokens that its target has."""
    probe.reading = TokenReading(probe.reading.function)  # type: ignore[attr-defined]
    always = torch.zeros(1, players.count, dtype=torch.bool)

    def run(sets: Sequence[Sources]) -> list[Vector]:
        keep = torch.tensor([[j in kept for j in range(players.count)] for kept in sets])
        of = torch.zeros(len(sets), dtype=torch.long)
        return [as_vector(row) for row in probe.keep_only(players.keep(keep), of, "delete").logits]

    sizes = [int((players.owner == number).sum()) for number in range(players.count)]
    return Ablations(run, sizes, int(players.keep(always).sum()))


def as_vector(values: Tensor) -> Vector:
    return values.detach().double().cpu().numpy()


def list_kept(prompt: Prompt, copies: Copies, kept: Sources = NOTHING) -> list[int]:
    """The tokens of the prompt, without its answer, if only these sources are kept."""
    owner = make_source_players(prompt, copies).owner
    return [i for place, i in enumerate(prompt.ids[: prompt.prompt_length]) if int(owner[place]) in {-1, *kept}]
