"""Qiang et al., AttCAT: Explaining Transformers via Attentive Class Activation Tokens, NeurIPS 2022.

The table of AOPC, log-odds and class discrimination. The notebooks of the authors are stored without outputs and we had
no copy of the paper's tables, so there is no number of theirs to quote; those below are a third party's.
"""

from collections.abc import Iterator

from whyformer._judge.paper_tables import PAPER_TABLES, Source
from whyformer._judge.published import reproduce
from whyformer._reproduce.document import Document, Request, Section
from whyformer._reproduce.published_table import PublishedTable
from whyformer.errors import InputError

CONTRAST_CAT = PublishedTable(
    "AttCAT as measured by the authors of Contrast-CAT (README of their repository)",
    Source.RERUN,
    ("AOPC", "log-odds"),
    {"IMDB": (0.644, 0.198), "Yelp": (None, 0.346)},
    "Signed AOPC, predicted class, words deleted. Their log-odds are positive although their own plot shows negative "
    "log-ratios, so that the scale differs from ours.",
)


def rerun_attcat(request: Request) -> Iterator[Section]:
    table = PAPER_TABLES["attcat"]
    request.check_complete(table.model)
    if request.data is None:
        raise InputError(f"attcat needs DATA and -M. The paper used {table.data}.")
    made = reproduce(
        "attcat", request.data, request.model, out=request.folder("attcat"), batch=request.batch, limit=request.limit
    )
    yield Section("attcat", made)


ATTCAT = Document(
    name="attcat",
    title="Qiang et al.: AttCAT: Explaining Transformers via Attentive Class Activation Tokens (NeurIPS 2022)",
    runs="AOPC, log-odds and class discrimination of the eight methods of its figure 1, on your sentences and model.",
    run=rerun_attcat,
    published=(CONTRAST_CAT,),
    remark="No number of the paper itself was available, so none is quoted; the published ones are a third party's.",
)
