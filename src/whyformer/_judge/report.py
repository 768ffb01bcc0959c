"""The report of a judgement: one HTML page with the verdict, rankings, curves, and the examples methods disagree on."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from PIL import Image
from torch.nn import functional

from whyformer._judge.bench import Bench, ExampleGroup
from whyformer._judge.controls import is_control
from whyformer._judge.judgement import Judgement
from whyformer._judge.rows import Row
from whyformer._judge.table import HEADINGS, Line, Table
from whyformer._judge.verdict import CONTROL_WORDING, list_verdict, write_metric_sentence
from whyformer._plain.tokens import Grid, take_pieces
from whyformer._runs.preparation import prepare_example
from whyformer.results.explanation import Explanation
from whyformer.show import blocks, charts
from whyformer.show.blocks import Block, Charts, ImageRow, Methods, Notes, PageSection, Picture, Report, Series
from whyformer.show.chart_style import SeriesStyle, assign_styles
from whyformer.show.colours import find_limits, paint_scores
from whyformer.show.drawing import Drawing
from whyformer.show.page_facts import format_settings, list_facts
from whyformer.show.panel import Panel
from whyformer.show.panel_images import render_model_input
from whyformer.show.wording import explain_colours

MOST_EXAMPLES = 6
MOST_CURVES = 7  # in one chart; more cannot be told apart
MOST_TOKENS = 160  # of a text, from its beginning
IMAGE_SIDE = 160  # pixels, of an image on the page
Styles = Mapping[str, SeriesStyle]  # by the label of a method


def make_judgement_report(judgement: Judgement, bench: Bench) -> Report:
    """The whole report."""
    styles = choose_method_styles(judgement.table)
    first, *others = list_verdict(judgement.table, judgement.finalist)
    verdict: list[Block] = [blocks.Paragraph(first, "strong"), *others, Notes(judgement.cautions)]
    sections = [PageSection("In short", [*verdict, *list_method_legend(styles)])]
    sections += [make_metric_section(judgement, metric, styles) for metric in judgement.table.metrics]
    if disagreeing := find_disagreements(judgement):
        remark = "The examples on which the methods, without controls, agree least about the order of patches or words."
        remark += f" {explain_colours(call.method.signed for call in bench.methods.values())}"
        examples = [block for row in disagreeing for block in list_example_blocks(bench, row, styles)]
        sections.append(PageSection("Where methods disagree", examples, remark))
    if problems := tabulate_problems(judgement):
        sections.append(PageSection("What could not be measured", problems))
    fields = judgement.plan.fields
    facts = list_facts(
        fields["model"]["name"],
        fields["methods"],
        bench.model.describe_versions(),
        metrics=format_settings(fields["metrics"]),
        data=f"{fields['data']['name']}, {fields['data']['examples']} examples",
        **{"explained class": fields["target"], "weights in plan.json": fields["model"]["weights"]},
    )
    return Report(f"Which explanation to trust: {fields['model']['name']}", sections, facts=facts)


def choose_method_styles(table: Table) -> dict[str, SeriesStyle]:
    """One colour and marker for each method, in all charts and tables; the best eight have different colours."""
    ranks: Counter[str] = Counter()
    for line in table.lines:
        ranks[line.method] += line.rank
    methods = sorted((label for label in ranks if not is_control(label)), key=lambda label: (ranks[label], label))
    return assign_styles(methods, [label for label in ranks if is_control(label)])


def list_method_legend(styles: Styles) -> Iterator[Block]:
    """Which colour is which method, and what the controls are."""
    yield blocks.Paragraph([Series(label, style) for label, style in styles.items()])
    controls = [
        f"{label} ({CONTROL_WORDING.get(label.split('(')[0], 'random scores')})"
        for label in styles
        if is_control(label)
    ]
    yield blocks.Paragraph(
        f"Controls, in grey, say nothing about the input: {', '.join(controls)}. A method that is not significantly "
        "better than each of them in a metric has shown nothing there.",
        "dim",
    )


def make_metric_section(judgement: Judgement, metric: str, styles: Styles) -> PageSection:
    table = judgement.table
    sentence = write_metric_sentence(table, metric).removeprefix(f"{metric}: ")
    rows = [[Series(label, styles[label]), *cells] for label, *cells in table.cells(metric)]
    drawn = Charts(partial(draw_metric, judgement, metric, styles))
    about = blocks.Paragraph(table.descriptions[metric], "dim")
    return PageSection(metric, [about, drawn, blocks.DataTable(HEADINGS, rows)], sentence[0].upper() + sentence[1:])


def draw_metric(judgement: Judgement, metric: str, styles: Styles) -> Iterator[Drawing]:
    """The means with their intervals, and the mean curves if there are any."""
    table, lines = judgement.table, judgement.table.of(metric)
    control = table.best_control(metric)
    yield charts.draw_ranking(
        [(line.method, line.mean, line.low, line.high) for line in lines],
        title=f"Mean and 95 % interval over {format_example_counts(lines)} examples",
        xlabel=metric,
        better=table.better[metric],
        reference=None if control is None else control.mean,
        note="" if control is None else f"Dashed line: the best control, {control.method}.",
        styles=styles,
    )
    if metric in table.curves:
        yield draw_mean_curves(judgement, metric, styles)


def format_example_counts(lines: Sequence[Line]) -> str:
    """How many examples have a value: "12", or "10 to 12" if the methods differ."""
    counts = [line.count for line in lines]
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def draw_mean_curves(judgement: Judgement, metric: str, styles: Styles) -> charts.Drawing:
    """The mean curves of the best methods and of the controls."""
    table = judgement.table
    order = [line.method for line in table.of(metric) if line.method in table.curves[metric]]
    best = [method for method in order if not is_control(method)][:MOST_CURVES]
    order = [method for method in order if method in best or is_control(method)]
    series, steps, is_share = {}, table.at.get(metric) or (), False
    for method in order:
        curve = table.curves[metric][method]
        is_share = len(steps) == len(curve) and table.kinds[metric] == "faithfulness"
        series[method] = (steps if is_share else range(len(curve)), curve, None, None)
    left_out = len(table.curves[metric]) - len(series)
    title = f"Mean curves of the best {MOST_CURVES} and the controls" if left_out else "Mean curves"
    xlabel = "share of the words or patches that are changed" if is_share else "step"
    ylabel = f"{metric}, mean over examples"
    return charts.draw_curves(series, title=title, xlabel=xlabel, ylabel=ylabel, percent=is_share, styles=styles)


def find_disagreements(judgement: Judgement) -> list[Row]:
    """One row of each example with the lowest agreement between methods."""
    known = [row for row in judgement.rows.examples() if row.agreement == row.agreement]
    return sorted(known, key=lambda row: (row.agreement, row.example))[:MOST_EXAMPLES]


def tabulate_problems(judgement: Judgement) -> list[blocks.DataTable]:
    """How often each method and metric has no value, and why; and which rows of the data could not be used."""
    counts = Counter(
        (row.method if row.state == "failed" else "all", row.metric, row.state, row.reason)
        for row in judgement.rows.all.flat
        if row.state != "measured"
    )
    rows = [[*key[:3], count, key[3]] for key, count in counts.most_common(100)]
    problems = [[one.place, one.reason] for one in judgement.problems[:100]]
    head = ["method", "metric", "state", "rows", "why"]
    tables = (blocks.DataTable(head, rows), blocks.DataTable(["row of the data", "problem"], problems))
    return [table for table in tables if table.rows]


# --- examples ---------------------------------------------------------------------------------------------------------


def list_example_blocks(bench: Bench, row: Row, styles: Styles) -> Iterator[Block]:
    """One example, explained by all methods."""
    example = prepare_example(bench.model, bench.data, row.example)
    group = bench.explain_group([example], bench.model.encode([example.content]))
    if isinstance(group, str):
        return
    yield blocks.Paragraph(f"{example.name}: {group.base.targets[0].label}", "strong")
    yield blocks.Paragraph(f"Mean rank correlation between methods {row.agreement:+z.2f}.", "dim")
    if isinstance(group.base.tokens[0], Grid):
        yield ImageRow(partial(list_maps, group, styles))
    else:
        yield Methods({label: shorten_panel(e.panels(label)[0]) for label, e in group.explanations.items()})


def shorten_panel(panel: Panel) -> Panel:
    """The beginning of a long text."""
    if len(panel.scores) <= MOST_TOKENS:
        return panel
    last = panel.pieces.spans[MOST_TOKENS - 1]
    text = panel.pieces.text if last is None else (panel.pieces.text or "")[: last[1]]
    pieces = replace(take_pieces(panel.pieces, range(MOST_TOKENS)), text=text)
    return replace(panel, tokens=pieces, scores=panel.scores[:MOST_TOKENS])


def list_maps(group: ExampleGroup, styles: Styles) -> Iterator[Picture]:
    """The image of a group's first example, and its map by each method."""
    image = render_model_input(group.encoded.inputs[group.encoded.main][0], IMAGE_SIDE)
    yield Picture(image, "the image as the model sees it", "the image")
    for label, e in group.explanations.items():
        yield Picture(blend_map(image, e), f"map by {label}", Series(label, styles[label]), is_map=True)


def blend_map(image: Image.Image, e: Explanation) -> Image.Image:
    """The map in colour over the image in grey."""
    scores = e.map(0) if e.pixels is None else e.pixels[0]
    limits = find_limits(scores, signed=e.signed)
    large = functional.interpolate(scores[None, None].float(), size=(IMAGE_SIDE, IMAGE_SIDE), mode="bilinear")[0, 0]
    colours = Image.fromarray(paint_scores(large, limits, signed=e.signed).numpy())
    return Image.blend(image.convert("L").convert("RGB"), colours, 0.62)
