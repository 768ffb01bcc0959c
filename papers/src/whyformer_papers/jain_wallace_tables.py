"""Published tables of Jain & Wallace with ours beside them: the stored full run, and what was measured just now."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.table import Table as Grid

from whyformer._judge.order import OrderVerdict
from whyformer_papers.jain_wallace_cells import EARLIER, OVERALL, CellGroup, ModelCell, group_cells
from whyformer_papers.jain_wallace_published import ADVERSARIAL, CORRELATIONS, PERMUTATION
from whyformer_papers.jain_wallace_rows import BIN_NAMES, PAIRS
from whyformer_papers.jain_wallace_tasks import DATA_SETS
from whyformer_papers.published_numbers import PublishedNumber, Spread
from whyformer_papers.published_order import MOST_NAMED, rank_pairs
from whyformer_papers.published_table import PublishedTable, format_published
from whyformer_papers.table_result import TableOutline, TableResult, TextRows, make_grid
from whyformer_papers.worlds.reading import READING_TASKS

BILSTM = ("bilstm", "additive")
GENERATED = {DATA_SETS[task] for task in READING_TASKS}
NOTHING = "–"
MODEL_NAMES = {
    ("bilstm", "additive"): "BiLSTM additive", ("bilstm", "dot"): "BiLSTM dot", ("cnn", "additive"): "CNN additive",
    ("cnn", "dot"): "CNN dot", ("average", "additive"): "average additive", ("average", "dot"): "average dot",
}  # fmt: skip
PAIR_NAMES = {
    "gradient": "attention ~ gradient",
    "leave_one_out": "attention ~ leave-one-out",
    "yardstick": "gradient ~ leave-one-out",
}
assert list(PAIR_NAMES) == list(PAIRS)

RowTexts = Mapping[str, Sequence[str]]
Groups = Mapping[tuple[str, tuple[str, str]], CellGroup]  # by data set, and by encoder and attention


@dataclass(frozen=True, eq=False)
class ComparedTable(TableResult):
    """A published table; below each of its rows ours, where there is one."""

    published: PublishedTable
    ours: Mapping[str, RowTexts]  # by source ("ours", "now"): the cells of a row, by its published name
    sentences: Sequence[str] = ()

    def text_rows(self) -> TextRows:
        """The table as text; the first row is the header. Rows that are not published follow at the end."""
        rows = [["", "", *self.published.columns]]
        for name, numbers in self.published.rows.items():
            rows.append([name, "published", *map(format_two_digits, numbers)])
            kind = ", generated" if name.split(",")[0] in GENERATED else ""
            rows += [["", f"{source}{kind}", *cells[name]] for source, cells in self.ours.items() if name in cells]
        for source, cells in self.ours.items():
            rows += [[name, source, *texts] for name, texts in cells.items() if name not in self.published.rows]
        return rows

    def outline(self) -> TableOutline:
        source, note = f"Published: {self.published.source}.", self.published.note
        return TableOutline(
            self.published.title, self.text_rows(), source, self.sentences, [note], lead=f"{source} {note}"
        )

    def make_grids(self) -> list[Grid]:
        return [make_grid(self.text_rows(), labels=2, style=lambda row: "" if row[1] == "published" else "bold")]

    def to_markdown(self) -> str:
        """The table, and which orders agree."""
        return "\n\n".join([super().to_markdown(), *self.sentences])


def format_two_digits(number: PublishedNumber) -> str:
    """As ours: a correlation with two digits, everything else as it was printed."""
    if not isinstance(number, Spread):
        return format_published(number)
    return f"{number.mean:z.2f}±{number.deviation:z.2f}" + ("" if number.share is None else f" ({number.share:z.2f})")


# --- ours as the cells of a published table ---------------------------------------------------------------------------


def format_spread(group: CellGroup, pair: str, key: str) -> str:
    means = group.read("tau", pair, key, 0)
    spread, share = group.mean("tau", pair, key, 1), group.mean("tau", pair, key, 2)
    if not means or spread is None:
        return NOTHING
    text = f"{sum(means) / len(means):z.2f}±{spread:z.2f} ({share or 0:z.2f})"
    return f"{text} [{min(means):z.2f}, {max(means):z.2f}]" if len(means) > 1 else text


def format_or_dash(value: float | None, digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def iterate_table_rows(groups: Groups, model: tuple[str, str] = BILSTM) -> Iterator[tuple[str, str, CellGroup]]:
    """The published name of each row that the groups of a model can fill, the key of its numbers, and the group."""
    for (dataset, of), group in groups.items():
        if of == model:
            classes = [key for key in group.cells[0].numbers["found"] if key != OVERALL]
            yield dataset, OVERALL, group
            yield from ((f"{dataset}, class {key}", key, group) for key in classes)


def list_correlations(groups: Groups, model: tuple[str, str]) -> RowTexts:
    rows = {}
    for name, key, group in iterate_table_rows(groups, model):
        quality = [group.mean(what) if key == OVERALL else None for what in ("f1", "accuracy", "auc")]
        taus = [format_spread(group, pair, key) for pair in PAIRS]
        if any(tau != NOTHING for tau in taus):
            rows[name] = [*taus, *(format_or_dash(value, 3) for value in quality)]
    return rows


def list_permutations(groups: Groups) -> RowTexts:
    rows = {}
    for name, key, group in iterate_table_rows(groups):
        texts = [format_median(group, key, index) for index in range(1, len(BIN_NAMES) + 1)]  # index 0 is all bins
        if any(text != NOTHING for text in texts) and (name in PERMUTATION.rows or key == OVERALL):
            rows[name] = texts
    return rows


def list_found_distances(groups: Groups) -> RowTexts:
    return {
        name: [format_or_dash(group.mean("found", key, index)) for index in range(3)]
        for name, key, group in iterate_table_rows(groups)
        if group.mean("found", OVERALL, 0) is not None and (name in ADVERSARIAL.rows or key == OVERALL)
    }


def format_median(group: CellGroup, key: str, index: int) -> str:
    """The mean over seeds, each weighted by how many texts it has in this bin, and that number over all seeds."""
    seeds = [cell.numbers["permuted"].get(key) for cell in group.cells]
    pairs = [bins[index] for bins in seeds if bins is not None]
    bins = [(median, count) for median, count in pairs if median is not None]
    if not bins:
        return NOTHING
    counts = [count or 1 for _, count in bins]  # printed numbers may come without their count
    mean = sum(median * count for (median, _), count in zip(bins, counts, strict=True)) / sum(counts)
    return f"{mean:z.2f} (n = {sum(counts)})" if all(count for _, count in bins) else f"{mean:z.2f}"


# --- which orders agree -----------------------------------------------------------------------------------------------


class SeedOrder(NamedTuple):
    """Two things that the authors' files rank, and whether every seed of ours ranks them in the same way."""

    higher: str
    lower: str
    verdict: OrderVerdict


def order_by_seeds(higher: str, lower: str, above: Sequence[float], below: Sequence[float]) -> SeedOrder:
    """Holds if every seed of the first is above every seed of the second."""
    holds, is_reversed = min(above) > max(below), max(above) < min(below)
    return SeedOrder(higher, lower, "holds" if holds else "reversed" if is_reversed else "undecided")


def order_values(published: Mapping[str, float], ours: Mapping[str, Sequence[float]]) -> list[SeedOrder]:
    """Every pair that has a published order and is measured here."""
    measured = {name: number for name, number in published.items() if ours.get(name)}
    return [order_by_seeds(above, below, ours[above], ours[below]) for above, below in rank_pairs(measured)]


def describe_seed_orders(what: str, orders: Sequence[SeedOrder]) -> str:
    groups = {verdict: [o for o in orders if o.verdict == verdict] for verdict in ("holds", "reversed", "undecided")}
    text = f"{what}: {len(groups['holds'])} of {len(orders)} published orders are the same in every seed of ours"
    if groups["undecided"]:
        text += f", {len(groups['undecided'])} differ between seeds"
    if groups["reversed"]:
        named = "; ".join(f"{o.lower} is above {o.higher}" for o in groups["reversed"][:MOST_NAMED])
        more = f"; {left} more" if (left := len(groups["reversed"]) - MOST_NAMED) > 0 else ""
        text += f", {len(groups['reversed'])} are turned round in every seed ({named}{more})"
    return f"{text}. Seeds are counted; with so few of them nothing is tested."


def read_published_mean(model: tuple[str, str], dataset: str, index: int) -> float | None:
    number = CORRELATIONS[model].rows.get(dataset, (None,) * 6)[index]
    return number.mean if isinstance(number, Spread) else number


def describe_model_orders(groups: Groups, dataset: str) -> list[str]:
    """For one data set: do encoders and kinds of attention rank as published?"""
    sentences = []
    for index, pair in enumerate(PAIRS):
        means = {name: read_published_mean(model, dataset, index) for model, name in MODEL_NAMES.items()}
        published = {name: mean for name, mean in means.items() if mean is not None}
        ours = {
            MODEL_NAMES[model]: group.read("tau", pair, OVERALL, 0)
            for (of, model), group in groups.items()
            if of == dataset
        }
        if orders := order_values(published, ours):
            sentences.append(describe_seed_orders(f"{dataset}, {PAIR_NAMES[pair]}, models", orders))
    return sentences


def describe_pair_orders(groups: Groups) -> list[str]:
    """BiLSTM, additive: does attention agree with the gradient less than leave-one-out does, where published?"""
    orders = []
    for dataset, group in ((dataset, group) for (dataset, model), group in groups.items() if model == BILSTM):
        means = {pair: read_published_mean(BILSTM, dataset, index) for index, pair in enumerate(PAIRS)}
        published = {f"{PAIR_NAMES[pair]} on {dataset}": mean for pair, mean in means.items() if mean is not None}
        ours = {f"{PAIR_NAMES[pair]} on {dataset}": group.read("tau", pair, OVERALL, 0) for pair in PAIRS}
        orders += order_values(published, ours)
    return [describe_seed_orders("The three correlations of each data set", orders)] if orders else []


def describe_effect_orders(
    table: PublishedTable, groups: Groups, what: str, read: Callable[[CellGroup, str], list[float]]
) -> list[str]:
    """Do data sets and classes rank as published? By the mean of a row's published numbers."""
    published, ours = {}, {}
    for name, key, group in iterate_table_rows(groups):
        if numbers := [number for number in table.rows.get(name, ()) if isinstance(number, float | int)]:
            published[name] = numbers[0] if table is ADVERSARIAL else sum(numbers) / len(numbers)
            ours[name] = read(group, key)
    orders = order_values(published, ours)
    return [describe_seed_orders(f"{what}, data sets and classes", orders)] if orders else []


def read_permuted(group: CellGroup, key: str) -> list[float]:
    """The mean over bins of each seed."""
    bins = (cell.numbers["permuted"][key][1:] for cell in group.cells)
    seeds = ([median for median, _ in pairs if median is not None] for pairs in bins)
    return [sum(medians) / len(medians) for medians in seeds if medians]


def read_found_distance(group: CellGroup, key: str) -> list[float]:
    return group.read("found", key, 0)


def describe_correlation_orders(sources: Mapping[str, Groups]) -> list[str]:
    """For every source: do correlations of one data set, and models on one data set, rank as published?"""
    sentences = []
    for source, groups in sources.items():
        found = describe_pair_orders(groups)
        for dataset in dict.fromkeys(dataset for dataset, _ in groups):
            found += describe_model_orders(groups, dataset)
        sentences += [f"{source}: {sentence}" for sentence in found]
    return sentences


def compare_tables(stored: Iterable[ModelCell], now: Iterable[ModelCell] = ()) -> dict[str, ComparedTable]:
    """Every published table with ours beside it, by name."""
    stored = list(stored)
    sources = {"ours": group_cells(stored), "earlier run": group_cells(stored, EARLIER), "now": group_cells(now)}
    sources = {source: groups for source, groups in sources.items() if groups}
    main = next(iter(sources.values()), {})
    tables = {}
    for model, published in CORRELATIONS.items():
        texts = {source: list_correlations(groups, model) for source, groups in sources.items()}
        sentences = describe_correlation_orders(sources) if model == BILSTM else []
        tables[f"{model[0]}-{model[1]}"] = ComparedTable(published, texts, sentences)
    effects = (
        ("permutation", PERMUTATION, list_permutations, "Permutation", read_permuted),
        ("adversarial", ADVERSARIAL, list_found_distances, "Adversarial attention", read_found_distance),
    )
    for name, published, list_rows, what, read in effects:
        texts = {source: list_rows(groups) for source, groups in sources.items()}
        tables[name] = ComparedTable(published, texts, describe_effect_orders(published, main, what, read))
    return tables
