"""The attention of Jain & Wallace's models and of transformers in one table: each head, each block, on the same texts.

    table = measure_beside({"BiLSTM": bilstm, "demo/sentiment": sentiment}, examples)
    print(table)

The only attention of a BiLSTM is between its encoder and the answer. A head of a transformer is one of many ways from
the tokens to the answer, so replacing one changes less: the columns are the same, what they say of the model is not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text

from whyformer._audit import audit
from whyformer._audit.replay import AttentionReplay
from whyformer._judge.judgement import encode_utf8
from whyformer._judge.table import format_csv, format_markdown
from whyformer._model import Model
from whyformer._reproduce.jain_wallace_rows import ATTENTION_TESTS, PAIRS, JainWallaceRows, collect_jain_wallace_rows
from whyformer._reproduce.published_table import make_grid
from whyformer.data import Data
from whyformer.results.result import Result, to_plain_text
from whyformer.show import report, terminal
from whyformer.show.report import make_element
from whyformer.show.terminal import Screen

COLUMNS = (
    "model", "attention", "attention ~ gradient", "attention ~ leave-one-out", "gradient ~ leave-one-out",
    "permuted: median difference", "largest weight", "found: JSD", "of attainable",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class BesideTable(Result):
    """One line per attention of each model."""

    measured: Mapping[str, Mapping[str, JainWallaceRows]]  # by model, by attention

    formats: ClassVar[Mapping[str, Callable[[Any], bytes]]] = {
        ".csv": lambda table: encode_utf8(format_csv(table.text_rows())),
        ".md": lambda table: encode_utf8(format_markdown(table.text_rows())),
        ".txt": to_plain_text,
    }

    def text_rows(self) -> list[list[str]]:
        rows = [list(COLUMNS)]
        for model, attentions in self.measured.items():
            for place, (attention, found) in enumerate(attentions.items()):
                rows.append([model if place == 0 else "", attention, *format_rows(found)])
        return rows

    @property
    def title(self) -> str:
        counts = {len(rows) for attentions in self.measured.values() for rows in attentions.values()}
        return f"Attention per head and block, {' or '.join(f'{count:,}' for count in sorted(counts))} texts"

    def render(self, screen: Screen | None = None) -> str:
        parts: list[Any] = [Text(self.title, "bold"), make_grid(self.text_rows(), labels=2)]
        return terminal.render_parts(parts, screen or Screen.from_stdout())

    def to_html(self) -> str:
        header, *body = self.text_rows()
        return report.make_fragment(make_element("h3", self.title), report.make_table(header, body))


def format_rows(found: JainWallaceRows) -> list[str]:
    taus = [f"{tau.mean:z.2f}±{tau.spread:z.2f}" for tau in (found.correlation(pair) for pair in PAIRS)]
    distance, largest = found.adversarial(), found.columns["largest"]
    searched = [f"{distance.mean:z.2f}", f"{distance.of_attainable:.0%}"] if distance.examples else ["–", "–"]
    moved, known = found.permutation(), largest[largest == largest]
    permuted = [f"{moved[0]:.3f}", f"{known.mean():z.2f}"] if moved[1] else ["–", "–"]
    return [*taus, *permuted, *searched]


def measure_beside(
    models: Mapping[str, Model],
    examples: Sequence[tuple[Any, str]],
    *,
    search_limit: int | None = None,
    draws: int = 100,
) -> BesideTable:
    """Audit every head and block of each model.

    search_limit: texts in the adversarial search; by default no search. draws: permutations per text; 0 for none.
    """
    return BesideTable(
        {name: measure_each_head(model, examples, search_limit, draws) for name, model in models.items()}
    )


def measure_each_head(
    model: Model, examples: Any, search_limit: int | None = None, draws: int = 100, limit: int | None = None
) -> dict[str, JainWallaceRows]:
    """The rows of the mean of heads of every block, and of every head, by name; in the order of the blocks."""
    tests = [test for test, is_wanted in zip(ATTENTION_TESTS, (1, draws, search_limit), strict=True) if is_wanted]
    wanted = [*range(count_blocks(model, examples)), "each"]
    found = audit(
        model, examples, wanted, tests=tests, kinds=["permutation"], preset="released", samples=draws or 1,
        search_limit=search_limit or 1, limit=limit,
    )  # fmt: skip
    names = sorted(found.attention, key=lambda name: int(name.split(",")[0].split()[1]))
    return {name: collect_jain_wallace_rows(found, name) for name in names}


def count_blocks(model: Model, examples: Any) -> int:
    first = examples.examples[0].load() if isinstance(examples, Data) else examples[0][0]
    return AttentionReplay(model, model.encode([first])).blocks
