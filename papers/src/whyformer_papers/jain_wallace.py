"""Jain & Wallace, Attention is not Explanation, NAACL 2019. arXiv:1902.10186

Every table of the authors' files (six models: correlations with gradients and leave-one-out, overall and by class; the
permutation test; adversarial attention), each row with ours below it. "ours" is what is stored with the package, and
"earlier run" the printed numbers of all six models on SST-2 with word dropout. SST-2 and IMDB reviews are real, bAbI,
SNLI and CNN are generated tasks of the same structure, so that only their orders can be compared. "now" is measured
while you wait:

    without data        the bundled readers (BiLSTM, additive attention) on generated texts with questions
    with DATA and -M    your model: a folder written by training/jain_wallace/train.py, or a transformer, of which every
                        head and block gets a line

With a folder for results, the figures of the paper are drawn from what was measured.
"""

from collections.abc import Iterator

from whyformer._audit.reruns import AttentionReplay
from whyformer._model import Model
from whyformer.data import Data
from whyformer_papers.document import FULL, Document, Request, Section
from whyformer_papers.figure import DocumentFigure
from whyformer_papers.jain_wallace_beside import BesideTable, measure_each_head
from whyformer_papers.jain_wallace_cells import (
    EARLIER_FILE,
    MEASURED_FILE,
    ModelCell,
    read_cells,
    summarise_cell,
)
from whyformer_papers.jain_wallace_figures import draw_jain_wallace
from whyformer_papers.jain_wallace_models import list_readers, open_reader
from whyformer_papers.jain_wallace_published import ADVERSARIAL, CORRELATIONS, PERMUTATION
from whyformer_papers.jain_wallace_rows import JainWallaceRows, measure_jain_wallace
from whyformer_papers.jain_wallace_tables import compare_tables
from whyformer_papers.jain_wallace_tasks import DATA_SETS, generate_task

TEXTS = 40  # of each generated task, if no limit is given
SEARCHED = 10  # of these in the adversarial search
ENCODER_NAMES = {"bilstm": "BiLSTM", "cnn": "CNN", "average": "no context"}
PAPER_MODEL = "a BiLSTM, a CNN or no context, with one attention (training/jain_wallace/train.py trains them)"


def rerun_jain_wallace(request: Request) -> Iterator[Section]:
    """The tables with ours beside them, and the figures of every model that was measured."""
    request.check_complete(PAPER_MODEL)
    if request.model is not None and request.data is not None and has_several_heads(request.model, request.data):
        rows = measure_each_head(request.model, request.data, SEARCHED, limit=request.limit)
        yield Section("heads", BesideTable({request.model.name: rows}))
        return
    measured = dict(measure_request(request))
    cells = [make_cell(name, rows) for name, rows in measured.items()]
    stored = [*read_cells(MEASURED_FILE), *read_cells(EARLIER_FILE)]
    for name, table in compare_tables(stored, cells).items():
        yield Section(name, table)
    if request.out is not None:
        for name, found in measured.items():
            for figure, drawing in draw_jain_wallace(found, write_title(make_cell(name, found))).items():
                yield Section(f"{name}-{figure}", DocumentFigure(drawing))


def has_several_heads(model: Model, data: Data) -> bool:
    """Whether the model is a transformer, and not one of the paper's models, which have one attention."""
    return sum(AttentionReplay(model, model.encode([data.examples[0].load()])).heads) > 1


def measure_request(request: Request) -> Iterator[tuple[str, JainWallaceRows]]:
    """The rows of the given model, or of each bundled reader, by name."""
    if request.model is not None and request.data is not None:
        yield request.model.name, measure_jain_wallace(request.model, request.data, limit=request.limit)
        return
    for task in list_readers():
        examples = generate_task(task)["test"][: request.choose_count(TEXTS)]
        searched = min(SEARCHED * (FULL if request.full else 1), len(examples))
        reader = open_reader(task, request.device)
        yield f"{task}-bilstm-additive-0", measure_jain_wallace(reader, examples, search_limit=searched)


def make_cell(name: str, rows: JainWallaceRows) -> ModelCell:
    """A cell named like the folders that training writes: task-encoder-attention-seed. Other models are tasks."""
    for task in DATA_SETS:
        parts = name.removeprefix(f"{task}-").split("-")
        if name.startswith(f"{task}-") and len(parts) >= 3 and (parts[0], parts[1]) in CORRELATIONS:
            seed = int(parts[2]) if parts[2].isdigit() else 0
            return ModelCell(task, parts[0], parts[1], seed, summarise_cell(rows))
    return ModelCell(name, "bilstm", "additive", 0, summarise_cell(rows))


def write_title(cell: ModelCell) -> str:
    """For figures: "bAbI 1, BiLSTM"; a model of yours by its name."""
    return f"{DATA_SETS[cell.task]}, {ENCODER_NAMES[cell.encoder]}" if cell.task in DATA_SETS else cell.task


JAIN_WALLACE = Document(
    name="jain-wallace",
    title="Jain & Wallace: Attention is not Explanation (NAACL 2019)",
    runs=f"Every table of the authors' files with ours beside it, on {TEXTS} texts of each generated task.",
    run=rerun_jain_wallace,
    published=(*CORRELATIONS.values(), PERMUTATION, ADVERSARIAL),
    remark="Published: the authors' files, which may come from a later run than the printed paper. Ours: "
    "SST-2 and IMDB reviews are real, bAbI, SNLI and CNN are generated with the same structure; the page on "
    "reproducing it has seeds and numbers of texts. Earlier run: trained with word dropout, printed numbers only.",
)
