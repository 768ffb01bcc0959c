"""measure_citations: how often cite() agrees with all subsets of the sources, on the user's own model and prompts.

The truth is the reading from all subsets of up to eight sources; of more, from each alone and left out and the pairs of
five. Intervals are Wilson's.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

from whyformer._cite.answer_parts import AnswerPart
from whyformer._cite.documents import ManyPrompts, choose_unit, cite_each, make_cited_prompt
from whyformer._cite.measuring import Measured, measure_completely
from whyformer._cite.run import Study, list_answer_parts
from whyformer._cite.sources import find_sources
from whyformer._explain.explain import ModelLike, as_model
from whyformer._model.prompt import SplitBy
from whyformer._plain.statistics import compute_wilson_interval
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError
from whyformer.results.citations import describe_dependence
from whyformer.results.result import Result, choose_formats
from whyformer.show.blocks import Report
from whyformer.show.score_rows import CellValue
from whyformer.show.visible import make_visible


@dataclass(frozen=True)
class Rate:
    """How many, of how many."""

    count: int
    total: int

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, by Wilson."""
        return compute_wilson_interval(self.count, self.total)

    def __str__(self) -> str:
        low, high = self.interval
        share = 100 * self.count / self.total if self.total else math.nan
        return f"{self.count} of {self.total}, {share:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


@dataclass(frozen=True)
class CheckedClaim:
    """A claim as cite() reads it, and by all subsets."""

    text: str
    quick: str
    truth: str
    agrees: bool
    is_borderline: bool  # the truth
    is_false_one: bool  # one source is named, and the truth is another
    is_missed: bool  # the truth names sources, and the quick answer none


@dataclass(frozen=True, eq=False, repr=False)
class CitationAgreement(Result):
    """How often the quick answer agrees with all subsets. `claims` has each claim with both readings."""

    formats = choose_formats(".json .csv .txt")
    csv_columns = ("text", "quick", "truth", "agrees", "is_borderline", "is_false_one", "is_missed")

    claims: Sequence[CheckedClaim]
    forwards: float  # of a quick answer, the mean
    model: str

    def __repr__(self) -> str:
        return f"<CitationAgreement of {len(self.claims)} claims: {self.rates['agrees, not borderline']}>"

    @property
    def rates(self) -> Mapping[str, Rate]:
        clear, total = [one for one in self.claims if not one.is_borderline], len(self.claims)
        return {
            "agrees, not borderline": Rate(sum(one.agrees for one in clear), len(clear)),
            "agrees": Rate(sum(one.agrees for one in self.claims), total),
            "borderline": Rate(total - len(clear), total),
            '"one" said wrongly': Rate(sum(one.is_false_one for one in self.claims), total),
            "missed": Rate(sum(one.is_missed for one in self.claims), total),
        }

    def describe(self) -> list[str]:
        own = f"{len(self.claims)} claims of {make_visible(self.model)}, {self.forwards:.1f} forwards an answer."
        return [own, *(f"{name}: {rate}" for name, rate in self.rates.items())]

    def _report(self) -> Report:
        return Report("Quick citations and all subsets", self.describe(), is_titled=False)

    def _list_rows(self) -> Iterator[tuple[CellValue, ...]]:
        yield from (tuple(getattr(one, name) for name in self.csv_columns) for one in self.claims)


@neutral_torch()
def measure_citations(model: ModelLike, prompts: ManyPrompts, by: SplitBy | None = None) -> CitationAgreement:
    """How often cite() says of these answers what all subsets of their sources say: agreement, false "one", missed.

    prompts: prompts with answers, or records of a log, as for cite(). by: as for cite().
    Of up to eight sources the truth is measured by all subsets, so six of them take about 32 forwards; of more, by each
    alone and left out and the pairs of five. Every claim of an answer counts.
    """
    opened = as_model(model)
    if not isinstance(prompts, list) or not prompts:
        raise InputError("prompts must be a list of prompts with answers, or of records of a log.", code="E_TXT_TYPE")

    def check(given: object) -> tuple[list[CheckedClaim], float]:
        prompt = make_cited_prompt(opened, given)  # type: ignore[arg-type]
        divided = find_sources(prompt, choose_unit(prompt, by), None)
        study = Study(opened, prompt, divided, list_answer_parts(prompt, None))
        parts = [part for part in study.parts if part.kind == "claim"]
        quick = [study.measure(part, is_first=not n) for n, part in enumerate(parts)]
        spent = study.opened.ablations.forwards
        return [check_claim(study, part, found) for part, found in zip(parts, quick, strict=True) if found], spent

    claims, spent = zip(*cite_each(check, prompts), strict=True)
    return CitationAgreement(tuple(chain(*claims)), fmean(spent), opened.name)


def check_claim(study: Study, part: AnswerPart, quick: Measured) -> CheckedClaim:
    truth = measure_completely(study.opened.ablations, study.place(part))
    agrees = quick.reading == truth.reading
    said, true = (describe_dependence(one.reading.how, study.name(one.reading.sources)) for one in (quick, truth))
    return CheckedClaim(
        part.text, said, true, agrees, truth.is_borderline,
        is_false_one=quick.reading.how == "one" and not agrees,
        is_missed=bool(truth.reading.sources) and quick.reading.how in ("several", "hardly any"),
    )  # fmt: skip
