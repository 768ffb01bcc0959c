"""Qiang et al., AttCAT: Explaining Transformers via Attentive Class Activation Tokens, NeurIPS 2022.

The table of AOPC, log-odds and class discrimination, the same for gradients of the input, consistency under noise, the
two metrics over the share of removed tokens, Kendall's tau of two classes, and heat maps of tokens by methods. With
rationales (the answers of SQuAD, marked words) also the answer tokens among the top 20. Without data it runs on
generated pairs of premise and hypothesis, which stand for MNLI and QNLI, with the bundled `demo/entailment`, and on
generated scenes with `demo/shapes`: a text about the paper mentions vision, but neither its code nor its figures have
any, so the scenes are an extension.

The notebooks of the authors are stored without outputs and we had no copy of the paper's tables, so there is no number
of theirs to quote; those below are a third party's. What can be compared is the order: the paper puts AttCAT first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from whyformer._explain.compare import compare
from whyformer._model import Model, TextPair, tokenize_text
from whyformer._plain.statistics import bootstrap
from whyformer._runs.choice import format_metric_label
from whyformer._runs.preparation import cut_to_fit, find_class_index
from whyformer.data import Data, Example
from whyformer.results.comparison import Comparison
from whyformer.show.charts import draw_curves, draw_violins
from whyformer.show.drawing import Drawing
from whyformer_papers.document import Document, Request, Section
from whyformer_papers.figure import DocumentFigure
from whyformer_papers.generated import make_entailment_examples, make_shape_examples
from whyformer_papers.paper_tables import PAPER_TABLES, NamedSettings, PaperColumn, PaperTable
from whyformer_papers.published_numbers import Source, read_spreads
from whyformer_papers.published_table import PublishedTable
from whyformer_papers.reproduction import Reproduction, find_curves, measure_table

NAME = "attcat"
PAIRS = 100  # generated examples, if no data is given
SCENES = 40
FEW = 12  # examples whose maps are computed again under noise
MNLI_RIVALS = (1, 0, 1)  # the class that the code compares each of three classes with
SHOWN = range(12, 33)  # tokens of the text in the heat map
STEPS = tuple(k / 9 for k in range(1, 10))
CONTRAST_CAT = PublishedTable(
    "AttCAT as measured by the authors of Contrast-CAT (README of their repository)",
    Source.RERUN,
    ("AOPC", "log-odds"),
    read_spreads("attcat", "contrast-cat"),
    "Signed AOPC, predicted class, words deleted. Their log-odds are positive although their own plot shows negative "
    "log-ratios, so that the scale differs from ours.",
)
EVIDENCE_COLUMNS = (
    PaperColumn("answer tokens in the top 20", ("answer_tokens", {"preset": "released"}), "label"),
    PaperColumn("share of them in the top 5", ("answer_tokens", {"k": 5}), "label"),
)
STABILITY = replace(
    PAPER_TABLES[NAME],
    name="attcat-stability",
    title="AttCAT: consistency and robustness to noise",
    columns=(
        PaperColumn("consistency", ("consistency", {}), "label"),
        PaperColumn("largest change", ("max_sensitivity", {}), "label"),
    ),
    remark="A text about the paper says that its maps are consistent and robust to noise; its code measures neither. "
    "Noise: two neighbouring words swapped, or noise added to the pixels. A map that ignores the input is perfectly "
    "stable.",
)

GRADIENTS = replace(
    PAPER_TABLES[NAME],
    name="attcat-gradients",
    title="AttCAT beside gradients of the input",
    methods={
        "gradient x input": ("gradient_x_input", {}),
        "integrated gradients": ("integrated_gradients", {}),
        "CAT": ("cat", {}),
        "AttCAT, A times CAT": ("attcat", {"attention_as": "matrix_vector"}),
        "AttCAT": ("attcat", {}),
    },
    columns=tuple(c for c in PAPER_TABLES[NAME].columns if c.name in ("AOPC, deleted", "AOPC, signed", "tau")),
    remark="A text about the paper names gradient x input and integrated gradients as rivals; the paper's code has "
    "neither. The text prints the product of attention and CAT, in which each token gets what it gathers; the released "
    "code weights CAT by the attention that the token receives.",
)


def explain_predicted(table: PaperTable) -> PaperTable:
    """The table with every column about what the model predicts: a span, the sum of its start and its end."""
    return replace(table, columns=tuple(replace(column, target="predicted") for column in table.columns))


SPANS = explain_predicted(
    replace(
        PAPER_TABLES[NAME],
        columns=EVIDENCE_COLUMNS,
        remark="Of SQuAD the paper counts answer tokens among the 20 highest. The answer that the model marks is "
        "explained: its start and its end, added, as the released code does.",
    )
)
VISION = replace(
    PAPER_TABLES[NAME],
    name="attcat-vision",
    title="AttCAT on a vision transformer (an extension: the paper has texts only)",
    model="none, the paper has texts only",
    data="none",
    columns=(
        PaperColumn("AOPC", ("aopc", {}), "label"),
        PaperColumn("log-odds", ("log_odds", {}), "label"),
        PaperColumn("tau", ("class_discrimination", {}), "label"),
        PaperColumn("mass in the object", ("mass_in_mask", {}), "label"),
    ),
    remark="The paper's methods on patches instead of words. The lines above say whether its order carries over.",
)


def rerun_attcat(request: Request) -> Iterator[Section]:
    """The table and the figures, on the data given; without any, on generated pairs of texts and on scenes."""
    request.check_complete(PAPER_TABLES[NAME].model)
    if request.data is not None and request.model is not None:
        yield from (rerun_on_images if request.model.kind == "image" else rerun_on_texts)(request)
        return
    yield from rerun_on_texts(request.take_bundled("demo/entailment", make_entailment_examples, PAIRS))
    yield from rerun_on_images(request.take_bundled("demo/shapes", make_shape_examples, SCENES))


def rerun_on_texts(request: Request) -> Iterator[Section]:
    assert request.data is not None and request.model is not None
    if has_answers_only(request.data):
        yield measure_table(request, SPANS)
        yield measure_table(few_of(request), explain_predicted(STABILITY))
        return
    section = measure_table(request, adapt_table(PAPER_TABLES[NAME], request.data, request.model))
    yield section
    yield measure_table(request, GRADIENTS)
    yield measure_table(few_of(request), STABILITY)
    if request.out is not None:
        assert isinstance(section.result, Reproduction)
        yield from draw_sections(section.result, request.data, request.model)


def draw_sections(made: Reproduction, data: Data, model: Model) -> Iterator[Section]:
    """The figures: both metrics over the share of removed tokens, tau of two classes, and the heat map of a text."""
    table = made.table
    for metric, column in (("AOPC", table.columns[0]), ("log-odds", table.columns[3])):
        caption = f"{metric} over the share of removed tokens, with 95 % intervals."
        yield Section(f"{NAME}-{metric.lower()}", DocumentFigure(partial(draw_steps, made, column), caption))
    tau = next(column for column in table.columns if column.name == "tau")
    caption = "Kendall's tau between the maps of the true class and of another; 1 for methods that ignore the class."
    yield Section(f"{NAME}-tau", DocumentFigure(partial(draw_two_class_tau, made, tau), caption))
    shown = choose_shown(data, model)
    if shown is not None:
        caption = "One text by every method: a row for each method, a column for each token."
        explain = partial(explain_by_paper_names, model, shown, table.methods)
        yield Section(f"{NAME}-heat-map", DocumentFigure(lambda: explain().draw_tokens(), caption))


def rerun_on_images(request: Request) -> Iterator[Section]:
    """The table on patches, and the maps of one image."""
    assert request.data is not None and request.model is not None
    has_masks = any(example.mask is not None for example in request.data.examples)
    table = VISION if has_masks else replace(VISION, columns=VISION.columns[:-1])
    yield measure_table(request, table)
    yield measure_table(few_of(request), replace(STABILITY, name="attcat-vision-stability"))
    shown = next((e for e in request.data.examples if find_class_index(request.model, e, {}) >= 0), None)
    if shown is not None and request.out is not None:
        yield Section(f"{table.name}-maps", explain_by_paper_names(request.model, shown, table.methods))


def has_answers_only(data: Data) -> bool:
    """SQuAD: the answer is marked in the text, and no example has a class."""
    return any(example.rationale for example in data.examples) and all(e.label is None for e in data.examples)


def few_of(request: Request) -> Request:
    """The same with few examples: stability explains each of them a dozen times more."""
    assert request.data is not None
    return replace(request, data=request.data.sample(min(FEW, request.limit or FEW)), limit=None)


def adapt_table(table: PaperTable, data: Data, model: Model) -> PaperTable:
    """The table for this data: MNLI's rivals for three classes, and the answer tokens where they are known."""
    columns = [
        replace(column, metric=(column.metric[0], {**column.metric[1], "other": MNLI_RIVALS}))
        if column.name == "tau, released" and len(model.labels or ()) == len(MNLI_RIVALS)
        else column
        for column in table.columns
    ]
    if any(example.rationale for example in data.examples):
        columns += EVIDENCE_COLUMNS
    return replace(table, columns=tuple(columns))


# --- figures ----------------------------------------------------------------------------------------------------------


def draw_steps(made: Reproduction, column: PaperColumn) -> Drawing:
    """A metric after each ninth of the tokens is removed, one line per method."""
    series = {}
    for row, label in made.labels.items():
        curves = find_curves(made.judgements[column.target], label, column)
        curves = np.full((1, len(STEPS)), np.nan) if curves is None else curves
        means, lows, highs = zip(*(bootstrap(curves[:, step]) for step in range(len(STEPS))), strict=True)
        series[row] = (STEPS, means, lows, highs) if row == made.table.first else (STEPS, means, None, None)
    note = f"{made.model}, {made.examples} examples of {made.data}. Band: 95 % interval of {made.table.first}."
    return draw_curves(
        series, title=column.name, xlabel="tokens removed", ylabel=column.metric[0], note=note, percent=True
    )


def draw_two_class_tau(made: Reproduction, column: PaperColumn) -> Drawing:
    """The distribution of tau over examples, one violin per method."""
    rows = made.judgements[column.target].rows
    k = rows.metrics.index(format_metric_label(*column.metric))
    groups = {row: [one.value for one in rows.of(rows.methods.index(label), k)] for row, label in made.labels.items()}
    note = f"{made.model}, {made.examples} examples of {made.data}. Lower is more class-discriminative."
    return draw_violins(groups, title="Kendall's tau of two classes", ylabel="tau", reference=0.0, note=note)


def choose_shown(data: Data, model: Model) -> Example | None:
    """The first example with a label whose text is neither too short nor too long for the heat map."""
    for example in data.examples[:200]:
        content = example.load()
        if model.kind != "text" or not isinstance(content, str | TextPair) or find_class_index(model, example, {}) < 0:
            continue
        if len(tokenize_text(model.tokenizer, content, "the text")) in SHOWN:  # may be longer than the model takes
            return example
    return None


def explain_by_paper_names(model: Model, example: Example, methods: Mapping[str, NamedSettings]) -> Comparison:
    target = find_class_index(model, example, {})
    content = example.load()
    content = cut_to_fit(model, content) if isinstance(content, str | TextPair) and model.kind == "text" else content
    compared = compare(model, [content], [name for name, _ in methods.values()], target=target)
    return Comparison(dict(zip(methods, compared, strict=True)))


ATTCAT = Document(
    name=NAME,
    title="Qiang et al.: AttCAT: Explaining Transformers via Attentive Class Activation Tokens (NeurIPS 2022)",
    runs=f"The eight methods of its figure 1 on {PAIRS} generated pairs with demo/entailment and on {SCENES} generated "
    "scenes with demo/shapes; with DATA and -M on your texts.",
    run=rerun_attcat,
    published=(CONTRAST_CAT,),
    remark="No number of the paper itself was available, so none is quoted; the published ones are a third party's.",
)
