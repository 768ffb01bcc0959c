"""The report of a judgement: one HTML page with the verdict, rankings, curves, and the examples methods disagree on."""

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from whyformer._judge.bench import Bench, ExampleGroup, is_chance
from whyformer._judge.judgement import Judgement
from whyformer._judge.preparation import PreparedExample, prepare_example
from whyformer._judge.rows import Row
from whyformer._judge.table import Line, format_line
from whyformer._plain.tokens import Grid, Pieces
from whyformer.results.explanation import Explanation
from whyformer.show import charts, report
from whyformer.show.colours import find_limits, paint
from whyformer.show.report import Html, make_element
from whyformer.show.terminal import characters_of_piece

MOST_EXAMPLES = 6
MOST_CURVES = 7  # in one chart: beyond that nobody can follow a line
MOST_WORDS = 120  # of a long text, those around its highest scores
IMAGE_SIDE = 160  # of a picture on the page, in pixels


def make_judgement_page(judgement: Judgement, bench: Bench) -> str:
    sections, contents = [], {}
    for number, metric in enumerate(judgement.table.metrics):
        anchor = f"metric-{number}"
        contents[anchor] = metric
        sections.append(make_metric_section(judgement, metric, anchor))
    disagreeing = find_disagreements(judgement)
    if disagreeing:
        contents["disagreement"] = "Where methods disagree"
        remark = "The examples on which the methods rank patches or words least alike, chance left out."
        blocks = [block for row in disagreeing for block in make_example_blocks(bench, row)]
        sections.append(report.make_section("Where methods disagree", *blocks, remark=remark, anchor="disagreement"))
    wrong = tabulate_problems(judgement)
    if wrong:
        contents["failed"] = "What could not be measured"
        sections.append(report.make_section("What could not be measured", wrong, anchor="failed"))
    head = report.make_section("In short", make_element("p", judgement.verdict), report.make_notes(judgement.cautions))
    fields = judgement.plan.fields
    about = {
        "model": fields["model"]["name"],
        "weights": fields["model"]["weights"][:16],
        "data": f"{fields['data']['name']}, {fields['data']['examples']} examples",
        "explained class": fields["target"],
        "whyformer": fields["whyformer"],
    }
    return report.make_page(
        f"Which explanation to trust: {fields['model']['name']}", [head, *sections], about=about, contents=contents
    )


def make_metric_section(judgement: Judgement, metric: str, anchor: str) -> Html:
    table, lines = judgement.table, judgement.table.of(metric)
    head = ["method", "mean", "95 %", "n", "against the best", "against chance", "passes"]
    blocks = [
        report.embed_drawing(
            charts.draw_ranking(
                [(line.method, line.mean, line.low, line.high) for line in lines],
                title=f"Mean and 95 % interval over {format_example_counts(lines)} examples",
                better=table.better[metric],
            )
        ),
        *([report.embed_drawing(draw_mean_curves(judgement, metric))] if metric in table.curves else []),
        report.make_table(head, [[line.method, *format_line(line)] for line in lines]),
    ]
    said = next(text for text in judgement.sentences if text.startswith(f"{metric}:")).removeprefix(f"{metric}: ")
    return report.make_section(metric, *blocks, remark=said[0].upper() + said[1:], anchor=anchor)


def format_example_counts(lines: Sequence[Line]) -> str:
    """How many examples have a number, which may differ between methods."""
    counts = [line.count for line in lines]
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def draw_mean_curves(judgement: Judgement, metric: str) -> charts.Drawing:
    """The mean curves of the best methods and of chance."""
    table = judgement.table
    order = [line.method for line in table.of(metric) if line.method in table.curves[metric]]
    best = [method for method in order if not is_chance(method)][:MOST_CURVES]
    order = [method for method in order if method in best or is_chance(method)]
    series = {}
    for method in order:
        held = table.curves[metric][method]
        at = table.at.get(metric) or list(range(len(held)))
        series[method] = (at if len(at) == len(held) else list(range(len(held))), held, None, None)
    left_out = len(table.curves[metric]) - len(series)
    title = f"Mean curves of the best {MOST_CURVES} and chance" if left_out else "Mean curves"
    return charts.draw_curves(series, title=title, xlabel="step", ylabel="mean")


def find_disagreements(judgement: Judgement) -> list[Row]:
    """One row of each example with the lowest agreement between methods."""
    known = [row for row in judgement.rows.examples() if row.agreement == row.agreement]
    return sorted(known, key=lambda row: (row.agreement, row.example))[:MOST_EXAMPLES]


def tabulate_problems(judgement: Judgement) -> Html | None:
    """How often each method and metric has no number, and why."""
    counts: dict[tuple[str, str, str, str], int] = {}
    for row in judgement.rows.all.reshape(-1):
        if row.state != "measured":
            key = (row.state, row.method if row.state == "failed" else "all", row.metric, row.reason)
            counts[key] = counts.get(key, 0) + 1
    if not counts and not judgement.problems:
        return None
    commonest = sorted(counts.items(), key=lambda item: -item[1])
    rows = [[method, metric, state, count, reason] for (state, method, metric, reason), count in commonest]
    blocks = [report.make_table(["method", "metric", "state", "rows", "why"], rows[:100])] if rows else []
    if judgement.problems:
        blocks.append(
            report.make_table(["row of the data", "problem"], [[p.place, p.reason] for p in judgement.problems[:100]])
        )
    return Html("".join(blocks))


# --- examples ---------------------------------------------------------------------------------------------------------


def make_example_blocks(bench: Bench, row: Row) -> list[Html]:
    """One example under all methods."""
    one = prepare_example(bench.model, bench.data, row.example)
    group = bench.explain_group([one], bench.model.encode([one.content]))
    if isinstance(group, str):
        return []
    target = group.base.targets[0]
    head = make_element("h3", f"{one.name}: {target.label}")
    lead = make_element("p", f"Mean rank correlation between methods {row.agreement:+.2f}.", class_="dim")
    if isinstance(group.base.tokens[0], Grid):
        return [head, lead, report.arrange_figures(make_map_figures(one, group), small=True)]
    rows = [part for label, e in group.explanations.items() for part in make_text_row(label, e)]
    return [head, lead, make_element("div", *rows, class_="rows")]


def make_map_figures(one: PreparedExample, group: ExampleGroup) -> list[Html]:
    picture = render_model_input(group.encoded.inputs[group.encoded.main][0])
    figures = [report.embed_image(picture, "the picture as the model sees it", "the picture")]
    for label, e in group.explanations.items():
        figures.append(report.embed_image(blend_map(picture, e), f"map by {label}", make_element("code", label)))
    return figures


def render_model_input(pixels: Tensor) -> Image.Image:
    """What the model sees, stretched to the range of colours."""
    low, high = pixels.amin(), pixels.amax()
    numbers = ((pixels - low) / (high - low).clamp(min=1e-9) * 255).round().byte()
    return Image.fromarray(numbers[:3].permute(1, 2, 0).cpu().numpy()).resize((IMAGE_SIDE, IMAGE_SIDE))


def blend_map(picture: Image.Image, e: Explanation) -> Image.Image:
    scores = e.map(0) if e.pixels is None else e.pixels[0]
    between = find_limits(scores, signed=e.signed)
    large = torch.nn.functional.interpolate(scores[None, None].float(), size=(IMAGE_SIDE, IMAGE_SIDE), mode="bilinear")[
        0, 0
    ]
    colours = Image.fromarray(paint(large, between, signed=e.signed).numpy())
    return Image.blend(picture.convert("L").convert("RGB"), colours, 0.62)


def make_text_row(label: str, e: Explanation) -> list[Html]:
    """The name of the method, and the text with every piece tinted by its score."""
    pieces = e.tokens[0]
    assert isinstance(pieces, Pieces)
    scores = e.scores[0]
    ordinary = [i for i in range(len(pieces)) if not pieces.padding[i] and not pieces.special[i]]
    between = find_limits(scores[ordinary], signed=e.signed, floor=0.0)
    marks: list[Html] = []
    for i in ordinary[:MOST_WORDS]:
        level = report.choose_colour_level(float(scores[i]), between, signed=e.signed)
        marks += [
            make_element("mark", characters_of_piece(pieces, i), class_=level, title=f"{float(scores[i]):+.3g}"),
            Html(" "),
        ]
    rest = len(ordinary) - MOST_WORDS
    marks += [make_element("span", f"… {rest} more", class_="dim")] if rest > 0 else []
    return [make_element("div", make_element("code", label)), make_element("div", *marks, class_="text")]
