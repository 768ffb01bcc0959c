"""The report of a judgement: one HTML page with the verdict, rankings, curves, and the examples methods disagree on."""

from collections import Counter
from collections.abc import Mapping, Sequence

from PIL import Image
from torch.nn import functional

from whyformer._judge.bench import Bench, ExampleGroup
from whyformer._judge.controls import is_control
from whyformer._judge.judgement import Judgement
from whyformer._judge.rows import Row
from whyformer._judge.table import HEADINGS, Line, Table
from whyformer._judge.verdict import CONTROL_WORDING, list_verdict, write_metric_sentence
from whyformer._plain.tokens import Grid, Pieces
from whyformer._runs.preparation import prepare_example
from whyformer.results.explanation import Explanation
from whyformer.show import charts, report
from whyformer.show.chart_style import SeriesStyle, assign_styles
from whyformer.show.chips import get_piece_text
from whyformer.show.colours import find_limits, paint_scores
from whyformer.show.marked_text import mark_first_words
from whyformer.show.page import make_method_name
from whyformer.show.page_facts import format_settings, list_facts
from whyformer.show.panel_images import render_model_input
from whyformer.show.report import Html, join_html, make_element, make_series_symbol
from whyformer.show.wording import explain_colours

MOST_EXAMPLES = 6
MOST_CURVES = 7  # in one chart; more cannot be told apart
MOST_WORDS = 120  # of a text, from its beginning
IMAGE_SIDE = 160  # pixels, of an image on the page
Styles = Mapping[str, SeriesStyle]  # by the label of a method


def make_judgement_page(judgement: Judgement, bench: Bench) -> str:
    """The whole report as one HTML page."""
    styles = choose_method_styles(judgement.table)
    contents = {f"metric-{number}": metric for number, metric in enumerate(judgement.table.metrics)}
    sections = [make_metric_section(judgement, metric, anchor, styles) for anchor, metric in contents.items()]
    if disagreeing := find_disagreements(judgement):
        contents["disagreement"] = "Where methods disagree"
        remark = "The examples on which the methods, without controls, agree least about the order of patches or words."
        remark += f" {explain_colours(call.method.signed for call in bench.methods.values())}"
        blocks = [block for row in disagreeing for block in make_example_blocks(bench, row, styles)]
        sections.append(report.make_section("Where methods disagree", *blocks, remark=remark, anchor="disagreement"))
    if problems := tabulate_problems(judgement):
        contents["failed"] = "What could not be measured"
        sections.append(report.make_section("What could not be measured", problems, anchor="failed"))
    first, *others = list_verdict(judgement.table, judgement.finalist)
    verdict = join_html(
        [make_element("p", make_element("strong", first)), *(make_element("p", other) for other in others)]
    )
    notes = report.make_notes(judgement.cautions)
    summary = report.make_section("In short", verdict, notes, make_method_legend(styles))
    fields = judgement.plan.fields
    about = list_facts(
        fields["model"]["name"],
        fields["methods"],
        bench.model.describe_versions(),
        metrics=format_settings(fields["metrics"]),
        data=f"{fields['data']['name']}, {fields['data']['examples']} examples",
        **{"explained class": fields["target"], "weights in plan.json": fields["model"]["weights"]},
    )
    return report.make_page(
        f"Which explanation to trust: {fields['model']['name']}", [summary, *sections], about=about, contents=contents
    )


def choose_method_styles(table: Table) -> dict[str, SeriesStyle]:
    """One colour and marker for each method, in all charts and tables; the best eight have different colours."""
    ranks: Counter[str] = Counter()
    for line in table.lines:
        ranks[line.method] += line.rank
    methods = sorted((label for label in ranks if not is_control(label)), key=lambda label: (ranks[label], label))
    return assign_styles(methods, [label for label in ranks if is_control(label)])


def make_method_legend(styles: Styles) -> Html:
    """Which colour is which method, and what the controls are."""
    names = [make_element("span", name_with_symbol(label, styles), class_="name") for label in styles]
    controls = [
        f"{label} ({CONTROL_WORDING.get(label.split('(')[0], 'random scores')})"
        for label in styles
        if is_control(label)
    ]
    remark = (
        f"Controls, in grey, say nothing about the input: {', '.join(controls)}. A method that is not significantly "
        "better than each of them in a metric has shown nothing there."
    )
    return join_html(
        [make_element("p", join_html(names, " "), class_="names"), make_element("p", remark, class_="dim")]
    )


def name_with_symbol(label: str, styles: Styles) -> Html:
    return join_html([make_series_symbol(styles[label]), " ", label])


def make_metric_section(judgement: Judgement, metric: str, anchor: str, styles: Styles) -> Html:
    table, lines = judgement.table, judgement.table.of(metric)
    control = table.best_control(metric)
    blocks = [
        report.embed_drawing(
            charts.draw_ranking(
                [(line.method, line.mean, line.low, line.high) for line in lines],
                title=f"Mean and 95 % interval over {format_example_counts(lines)} examples",
                better=table.better[metric],
                reference=None if control is None else control.mean,
                note="" if control is None else f"Dashed line: the best control, {control.method}.",
                styles=styles,
            )
        ),
        *([report.embed_drawing(draw_mean_curves(judgement, metric, styles))] if metric in table.curves else []),
        report.make_table(
            HEADINGS, [[name_with_symbol(label, styles), *cells] for label, *cells in table.cells(metric)]
        ),
    ]
    sentence = write_metric_sentence(table, metric).removeprefix(f"{metric}: ")
    about = make_element("p", table.descriptions[metric], class_="dim")
    return report.make_section(metric, about, *blocks, remark=sentence[0].upper() + sentence[1:], anchor=anchor)


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
    series = {}
    for method in order:
        curve = table.curves[metric][method]
        steps = table.at.get(metric) or ()
        series[method] = (steps if len(steps) == len(curve) else range(len(curve)), curve, None, None)
    left_out = len(table.curves[metric]) - len(series)
    title = f"Mean curves of the best {MOST_CURVES} and the controls" if left_out else "Mean curves"
    return charts.draw_curves(series, title=title, xlabel="step", ylabel="mean", styles=styles)


def find_disagreements(judgement: Judgement) -> list[Row]:
    """One row of each example with the lowest agreement between methods."""
    known = [row for row in judgement.rows.examples() if row.agreement == row.agreement]
    return sorted(known, key=lambda row: (row.agreement, row.example))[:MOST_EXAMPLES]


def tabulate_problems(judgement: Judgement) -> Html | None:
    """How often each method and metric has no value, and why; and which rows of the data could not be used."""
    counts = Counter(
        (row.method if row.state == "failed" else "all", row.metric, row.state, row.reason)
        for row in judgement.rows.all.flat
        if row.state != "measured"
    )
    if not counts and not judgement.problems:
        return None
    rows = [[*key[:3], count, key[3]] for key, count in counts.most_common()]
    blocks = [report.make_table(["method", "metric", "state", "rows", "why"], rows[:100])] if rows else []
    if judgement.problems:
        blocks.append(
            report.make_table(["row of the data", "problem"], [[p.place, p.reason] for p in judgement.problems[:100]])
        )
    return Html("".join(blocks))


# --- examples ---------------------------------------------------------------------------------------------------------


def make_example_blocks(bench: Bench, row: Row, styles: Styles) -> list[Html]:
    """One example, explained by all methods."""
    example = prepare_example(bench.model, bench.data, row.example)
    group = bench.explain_group([example], bench.model.encode([example.content]))
    if isinstance(group, str):
        return []
    target = group.base.targets[0]
    heading = make_element("h3", f"{example.name}: {target.label}")
    remark = make_element("p", f"Mean rank correlation between methods {row.agreement:+z.2f}.", class_="dim")
    if isinstance(group.base.tokens[0], Grid):
        return [heading, remark, report.arrange_figures(make_map_figures(group, styles), small=True)]
    rows = [part for label, e in group.explanations.items() for part in make_text_row(label, e, styles)]
    return [heading, remark, make_element("div", *rows, class_="rows")]


def make_map_figures(group: ExampleGroup, styles: Styles) -> list[Html]:
    """The image of a group's first example, and its map by each method."""
    image = render_model_input(group.encoded.inputs[group.encoded.main][0], IMAGE_SIDE)
    figures = [report.embed_image(image, "the image as the model sees it", "the image")]
    for label, e in group.explanations.items():
        caption = (make_series_symbol(styles[label]), make_method_name(label))
        figures.append(report.embed_image(blend_map(image, e), f"map by {label}", *caption, is_map=True))
    return figures


def blend_map(image: Image.Image, e: Explanation) -> Image.Image:
    """The map in colour over the image in grey."""
    scores = e.map(0) if e.pixels is None else e.pixels[0]
    limits = find_limits(scores, signed=e.signed)
    large = functional.interpolate(scores[None, None].float(), size=(IMAGE_SIDE, IMAGE_SIDE), mode="bilinear")[0, 0]
    colours = Image.fromarray(paint_scores(large, limits, signed=e.signed).numpy())
    return Image.blend(image.convert("L").convert("RGB"), colours, 0.62)


def make_text_row(label: str, e: Explanation, styles: Styles) -> list[Html]:
    """The name of the method, and the text with every token coloured by its score."""
    pieces = e.tokens[0]
    assert isinstance(pieces, Pieces)
    scores = e.scores[0]
    ordinary = [i for i in range(len(pieces)) if not pieces.padding[i] and not pieces.special[i]]
    limits = find_limits(scores[ordinary], signed=e.signed, floor=0.0)
    words = [(get_piece_text(pieces, i), float(scores[i]), {"title": f"{float(scores[i]):+.3g}"}) for i in ordinary]
    marks = mark_first_words(words, limits, signed=e.signed, most=MOST_WORDS)
    name = make_element("div", make_series_symbol(styles[label]), make_element("code", label))
    return [name, make_element("div", *marks, class_="text")]
