"""The attention of Jain & Wallace's models and of transformers in one table: each head, each block, on the same texts.

    models = {"BiLSTM": bilstm, "demo/sentiment": sentiment}
    print(BesideTable({name: measure_each_head(model, examples) for name, model in models.items()}))

The only attention of a BiLSTM is between its encoder and the answer. A head of a transformer is one of many ways from
the tokens to the answer, so replacing one changes less: the columns are the same, what they say of the model is not.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table as Grid

from whyformer._audit import audit
from whyformer._audit.reruns import AttentionReplay
from whyformer._model import Model
from whyformer_papers.jain_wallace_rows import (
    ATTENTION_TESTS,
    PAIRS,
    Examples,
    JainWallaceRows,
    collect_jain_wallace_rows,
    load_first,
)
from whyformer_papers.table_result import TableOutline, TableResult, TextRows, make_grid

COLUMNS = (
    "model", "attention", "attention ~ gradient", "attention ~ leave-one-out", "gradient ~ leave-one-out",
    "permuted: median difference", "largest weight", "found: JSD", "of attainable",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class BesideTable(TableResult):
    """One line per attention of each model."""

    measured: Mapping[str, Mapping[str, JainWallaceRows]]  # by model, by attention

    def text_rows(self) -> TextRows:
        rows = [list(COLUMNS)]
        for model, attentions in self.measured.items():
            for index, (attention, found) in enumerate(attentions.items()):
                rows.append([model if index == 0 else "", attention, *format_rows(found)])
        return rows

    def outline(self) -> TableOutline:
        counts = {len(rows) for attentions in self.measured.values() for rows in attentions.values()}
        texts = " or ".join(f"{count:,}" for count in sorted(counts))
        return TableOutline(f"Attention per head and block, {texts} texts", self.text_rows())

    def make_grids(self) -> list[Grid]:
        return [make_grid(self.text_rows(), labels=2)]


def format_rows(found: JainWallaceRows) -> list[str]:
    taus = [f"{tau.mean:z.2f}±{tau.spread:z.2f}" for tau in (found.correlation(pair) for pair in PAIRS)]
    distance, largest = found.adversarial(), found.columns["largest"]
    searched = [f"{distance.mean:z.2f}", f"{distance.of_attainable:.0%}"] if distance.examples else ["–", "–"]
    moved, known = found.permutation(), largest[largest == largest]
    permuted = [f"{moved[0]:.3f}", f"{known.mean():z.2f}"] if moved[1] else ["–", "–"]
    return [*taus, *permuted, *searched]


def measure_each_head(
    model: Model, examples: Examples, search_limit: int | None = None, draws: int = 100, limit: int | None = None
) -> dict[str, JainWallaceRows]:
    """The rows of the mean of heads of every block, and of every head, by name; in the order of the blocks.

    search_limit: texts in the adversarial search; by default no search. draws: permutations per text; 0 for none.
    """
    tests = [test for test, is_wanted in zip(ATTENTION_TESTS, (1, draws, search_limit), strict=True) if is_wanted]
    blocks = AttentionReplay(model, model.encode([load_first(examples)])).blocks
    found = audit(
        model, examples, [*range(blocks), "each"], tests=tests, kinds=["permutation"], preset="released",
        samples=draws or 1, search_limit=search_limit or 1, limit=limit,
    )  # fmt: skip
    names = sorted(found.attention, key=lambda name: int(name.split(",")[0].split()[1]))
    return {name: collect_jain_wallace_rows(found, name) for name in names}
