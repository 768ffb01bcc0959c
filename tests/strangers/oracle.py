"""What the right scores are, from the construction of a model.

By hand, with nothing but forwards of the model itself, one row at a time: leave-one-out, Shapley values. For methods
that look inside: the scores of the same function written plainly, with the same weights. Where neither is known, the
planted token, if it changes the answer by far most, has the highest score under methods that are signed.
"""

import copy
from collections.abc import Callable, Sequence
from itertools import combinations
from math import factorial
from typing import Any

import torch
from strangers import anatomy as a
from strangers.draft import Draft, Given, matches, remove_tokens
from torch import Tensor, nn

import whyformer as why
from whyformer.errors import WhyformerError

POINTS_AT_PLANTED = ("libragrad", "attnlrp", "gradient_x_input")
BY_HAND = ("leave_one_out", "kernel_shap")
CLOSE = 1e-4  # of the largest score
DOMINATES = 2.0  # times the next largest change by leave-one-out

Row = list[Tensor]  # the scores of one example that are right, of which any will do


def pick_row(given: Given, row: int) -> Given:
    return {name: tensor[row : row + 1] for name, tensor in given.items()}


class Oracle:
    """Of one draft. `module` is the strange model, `twin` the plain one."""

    def __init__(self, draft: Draft) -> None:
        self.draft = self.rules = draft
        self.kinds = tuple(draft.kinds)
        self.anatomy, self.twin = draft.strange.build(), draft.plain.build()
        self.module = draft.wrap(self.fresh(self.anatomy))

    # --- by hand -----------------------------------------------------------------------------------------------------

    def values(self, of: str) -> list[Callable[[Given], float]]:
        """What of the answer is explained: the logit beneath what is returned, or the number that is returned."""
        d = self.draft

        def read_logit(given: Given) -> float:
            return float(self.logits(given)[0, d.logit_of_target])

        def read_probability(given: Given) -> float:
            logits = self.logits(given)
            return float(logits.softmax(-1)[0, d.target] if d.probability is None else d.probability(logits)[0])

        def read_own(given: Given) -> float:
            return float(d.own_value(d.called(self.fresh(self.module), given)).flatten()[0])

        if of == "probability":
            return [read_probability]
        return [read_logit] * d.has_logits + [read_own] * (d.own_value is not None)

    def logits(self, given: Given) -> Tensor:
        return self.fresh(self.anatomy).logits(*given.values())

    def fresh(self, module: nn.Module) -> Any:
        """The model as it is before a question."""
        return copy.deepcopy(module) if self.draft.remembers else module

    @torch.no_grad()
    def leave_one_out(self, row: int, of: str = "score") -> Row:
        given = pick_row(self.draft.strange.given, row)
        found: Row = []
        for value in self.values(of):
            whole = value(given)
            variants = zip(*(self.remove(given, [j]) for j in range(self.length)), strict=True)
            found += [torch.tensor([whole - value(one) for one in fill]) for fill in variants]
        return found

    @torch.no_grad()
    def kernel_shap(self, row: int) -> Row:
        """Exact, by all coalitions. The last fill, deletion, is left out: there is no answer to nothing."""
        given, n = pick_row(self.draft.strange.given, row), self.length
        sets = [gone for size in range(n + 1) for gone in combinations(range(n), size)]
        fills = list(zip(*(self.remove(given, gone) if gone else self.same(given) for gone in sets), strict=False))
        worth = [map(value, fill) for value in self.values("score") for fill in fills]
        return [sum_shapley(dict(zip(sets, answers, strict=True)), n) for answers in worth]

    def same(self, given: Given) -> list[Given]:
        return [given] * len(self.remove(given, [0]))

    def remove(self, given: Given, tokens: Sequence[int]) -> list[Given]:
        d = self.draft
        return d.remove(given, tokens) if d.remove else remove_tokens(d.modality, given, d.main, tokens)

    @property
    def length(self) -> int:
        d = self.draft
        return 16 if d.modality == "image" else d.strange.given[d.main].size(1)

    # --- what is asked -----------------------------------------------------------------------------------------------

    def explain(self, method: str | None, **settings: Any) -> why.Explanation:
        d = self.draft
        target = d.target if d.target_passed is None else d.target_passed
        return why.explain(self.module, d.passes(d.strange.given), method, target=target, **settings)

    def may_be_refused(self, method: str | None) -> bool:
        """Whether the same function written plainly is refused too."""
        d = self.draft
        return (
            d.has_twin
            and d.trusts_refusals
            and method not in BY_HAND
            and isinstance(self.expect(method), WhyformerError)
        )

    def find_mistake(self, e: why.Explanation, settings: dict[str, Any]) -> str | None:
        """What is wrong with the numbers; "" if nothing, None if nobody knows."""
        d = self.draft
        if shown := self.find_wrong_probability(e):
            return shown
        if self.knows(e.method):
            wanted = self.expect(e.method, **settings)
            if isinstance(wanted, WhyformerError):
                return None
            for row, options in enumerate(wanted):
                if not any(is_close(content(e, row), one) for one in options):
                    return f"{e.method} gives {shorten(content(e, row))}, right is {shorten(options[0])}."
            return ""
        if e.method in POINTS_AT_PLANTED:
            return self.find_lost_plant(e)
        return "" if any(matches([methods], e.method) for methods, _ in d.must) else None

    def knows(self, method: str) -> bool:
        d = self.draft
        if method in BY_HAND:
            return d.perturbed and not d.is_random
        return d.has_twin and not matches([d.unknown], method)

    def find_lost_plant(self, e: why.Explanation) -> str | None:
        d = self.draft
        decided = [row for row in range(d.batch) if self.is_decided(row)]
        for row in decided:
            scores = sum_to_patches(content(e, row)) if d.modality == "image" else content(e, row)[: self.length]
            if int(scores.argmax()) != d.decides[row]:
                return f"{e.method} gives {shorten(scores)}, token {d.decides[row]} decides."
        return "" if decided or d.must else None

    def find_wrong_probability(self, e: why.Explanation) -> str:
        d = self.draft
        if d.target_passed is not None or d.is_random:
            return ""
        with torch.no_grad():
            logits = self.logits(d.strange.given)
        own = logits.softmax(-1)[:, d.target] if d.probability is None else d.probability(logits)
        for row, target in enumerate(e.targets):
            if target.probability is not None and abs(target.probability - float(own[row])) > CLOSE:
                return f"The probability shown is {target.probability:.4f}, the model's is {float(own[row]):.4f}."
        return ""

    # --- by the plain model ------------------------------------------------------------------------------------------

    def explain_twin(self, method: str | None, target: Any) -> why.Explanation:
        """Row by row where the rows of the plain model are another matter together."""
        return why.explain(self.twin, self.draft.plain.given, method, target=target)

    def expect(self, method: str | None, **settings: Any) -> list[Row] | WhyformerError:
        """For each row the scores that are right; or the error, where the plain model is refused too."""
        rows = range(self.draft.batch)
        if method == "leave_one_out":
            return [self.leave_one_out(row, **settings) for row in rows]
        if method == "kernel_shap":
            return [self.kernel_shap(row) for row in rows]
        targets: list[Any] = [self.draft.logit_of_target]
        if self.draft.own_value is not None:
            targets.append(why.targets.LogProbability(self.draft.logit_of_target))
        try:
            made = [self.explain_twin(method, target) for target in targets]
        except WhyformerError as error:
            return error
        return [[self.place(content(e, row)) for e in made] for row in rows]

    def place(self, scores: Tensor) -> Tensor:
        """The plain model's scores at the tokens of the strange one."""
        scores = scores[self.draft.own_tokens]
        if self.draft.spread is not None:
            places, length = self.draft.spread
            scores = torch.zeros(length, dtype=scores.dtype).index_copy(0, places, scores)
        return scores if self.draft.reorder is None else scores[self.draft.reorder]

    def is_decided(self, row: int) -> bool:
        """Whether the planted token changes the answer by far most, by leave-one-out."""
        planted, d = self.draft.decides[row], self.draft
        if not d.perturbed:
            return False
        for lost in self.leave_one_out(row):
            others = lost.abs()[torch.arange(len(lost)) != planted]
            if not float(lost[planted]) > DOMINATES * float(others.max()):
                return False
        return True


def sum_shapley(values: dict[tuple[int, ...], float], n: int) -> Tensor:
    """From the answer without each set of tokens."""
    scores = torch.zeros(n, dtype=torch.float64)
    for gone, value in values.items():
        for j in range(n):
            if j not in gone:
                size = n - len(gone) - 1
                weight = factorial(size) * factorial(n - size - 1) / factorial(n)
                scores[j] += weight * (value - values[tuple(sorted((*gone, j)))])
    return scores


def content(e: why.Explanation, row: int) -> Tensor:
    """The scores of what is neither special nor padding."""
    tokens = e.tokens[row]
    if isinstance(tokens, why.Grid):
        return e.scores[row].double()
    kept = ~(torch.tensor(tokens.special) | torch.tensor(tokens.padding))
    return e.scores[row][kept].double()


def sum_to_patches(scores: Tensor) -> Tensor:
    """Where each pixel has a score of its own."""
    if len(scores) != a.SIDE**2:
        return scores
    side = a.SIDE // a.PATCH
    return scores.view(side, a.PATCH, side, a.PATCH).sum((1, 3)).flatten()


def is_close(scores: Tensor, wanted: Tensor, tolerance: float = CLOSE) -> bool:
    if scores.shape != wanted.shape or not bool(scores.isfinite().all()):
        return False
    return float((scores - wanted).abs().max()) <= tolerance * max(float(wanted.abs().max()), 1e-9)


def shorten(scores: Tensor) -> str:
    return str([round(score, 3) for score in scores.tolist()])
