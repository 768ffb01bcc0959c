"""Relevance Rollout: a summary of Chefer, Gur & Wolf (CVPR 2021) in Chinese, which gives their method this name.

It prints the paper's formulas and describes its tables; it has no numbers of its own. So its rerun is the ablation,
which is what it explains at length: without the gradient, with the last block alone, with an early block alone. It
calls these blocks the last and the first; the early one is block 1, the first that the released code rolls out.
"""

from whyformer_papers.chefer import CHEFER
from whyformer_papers.document import Document
from whyformer_papers.paper_tables import PAPER_TABLES, publish_paper_table

RELEVANCE_ROLLOUT = Document(
    name="relevance-rollout",
    title="Relevance Rollout (2023), on Chefer, Gur & Wolf (CVPR 2021)",
    runs="The ablation of Table 3, on generated scenes with demo/shapes.",
    run=CHEFER.tables["chefer-ablation"],
    published=(publish_paper_table(PAPER_TABLES["chefer-ablation"]),),
    remark="A summary without numbers of its own; the published ones are those of the paper it is about.",
)
