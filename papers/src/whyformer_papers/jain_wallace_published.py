"""The published numbers of Jain & Wallace, Attention is not Explanation, NAACL 2019, from the files of the authors.

The correlations are in the tables (CSV and JSON) of the authors' repository, complete and for every data set; the
medians of the permutation test and the epsilon-max JSD were read from its plots (SVG). The files may come from a later
run than the printed paper. The repository calls the average encoder "average". Data sets marked * are clinical tasks
that are in the repository only. The classes of SNLI are 0 contradiction, 1 entailment, 2 neutral, by the alphabet.
"""

from whyformer_papers.published_numbers import Source, read_spreads
from whyformer_papers.published_table import PublishedTable

CORRELATION_COLUMNS = (
    "attention ~ gradient", "attention ~ leave-one-out", "gradient ~ leave-one-out", "F1", "accuracy", "AUC",
)  # fmt: skip
ENCODERS = {"bilstm": "BiLSTM", "cnn": "CNN (1, 3, 5, 7)", "average": "Average (no context)"}
ATTENTIONS = {"additive": "additive attention", "dot": "scaled dot-product attention"}
CORRELATIONS = {
    (encoder, attention): PublishedTable(
        f"Kendall's tau, {encoder_name}, {attention_name}",
        Source.FILES,
        CORRELATION_COLUMNS,
        read_spreads("jain_wallace", f"{encoder}-{attention}"),
        "Mean ± standard deviation over test examples (share with p <= 0.05). –: not stored, or undefined because a "
        "vector was constant. AUC of Phenotyping: macro average.",
    )
    for encoder, encoder_name in ENCODERS.items()
    for attention, attention_name in ATTENTIONS.items()
}
PERMUTATION = PublishedTable(
    "Permutation: median over examples of the median output difference, by the largest attention weight "
    "(BiLSTM, additive attention)",
    Source.FILES,
    ("[0, 0.25)", "[0.25, 0.5)", "[0.5, 0.75)", "[0.75, 1)"),
    read_spreads("jain_wallace", "permutation"),
    "100 permutations per example. Two classes: change of the probability; else total variation distance. IMDB, class "
    "0, [0.5, 0.75) and Anemia, class 1, [0.75, 1) are one example each.",
)
ADVERSARIAL = PublishedTable(
    "Adversarial attention: epsilon-max JSD (BiLSTM, additive attention)",
    Source.FILES,
    ("mean", "median", "share >= 0.525"),
    read_spreads("jain_wallace", "adversarial"),
    "Candidates that change the output by more than 0.05 are discarded. JSD is at most log 2 = 0.693.",
)
