"""The published numbers of Jain & Wallace, Attention is not Explanation, NAACL 2019, from the files of the authors.

The correlations are in the tables (CSV and JSON) of the authors' repository, complete and for every data set; the
medians of the permutation test and the epsilon-max JSD were read from its plots (SVG). The files may come from a later
run than the printed paper. The repository calls the average encoder "average". Data sets marked * are clinical tasks
that are in the repository only. The classes of SNLI are 0 contradiction, 1 entailment, 2 neutral, by the alphabet.
"""

from collections.abc import Mapping, Sequence

from whyformer._reproduce.paper_tables import Source
from whyformer._reproduce.published_table import PublishedNumber, PublishedTable, Spread

CORRELATION_COLUMNS = (
    "attention ~ gradient",
    "attention ~ leave-one-out",
    "gradient ~ leave-one-out",
    "F1",
    "accuracy",
    "AUC",
)


def publish_correlations(title: str, rows: Mapping[str, Sequence[PublishedNumber]]) -> PublishedTable:
    return PublishedTable(
        f"Kendall's tau, {title}",
        Source.FILES,
        CORRELATION_COLUMNS,
        rows,
        "Mean ± standard deviation over test examples (share with p <= 0.05). –: not stored, or undefined because a "
        "vector was constant. AUC of Phenotyping: macro average.",
    )


# --- correlations: overall, and by predicted class where the files have it -------------------------------------------

BILSTM_ADDITIVE = publish_correlations(
    "BiLSTM, additive attention",
    {
        "SST, class 0": (Spread(0.34, 0.21, 0.48), Spread(0.27, 0.19, 0.33), None, None, None, None),
        "SST, class 1": (Spread(0.36, 0.21, 0.49), Spread(0.32, 0.19, 0.4), None, None, None, None),
        "SST": (Spread(0.35, 0.21, 0.49), Spread(0.29, 0.19, 0.36), Spread(0.66, 0.16, 0.91), 0.784, 0.808, 0.902),
        "IMDB, class 0": (Spread(0.44, 0.06, 1.0), Spread(0.34, 0.07, 1.0), None, None, None, None),
        "IMDB, class 1": (Spread(0.43, 0.06, 1.0), Spread(0.34, 0.07, 0.99), None, None, None, None),
        "IMDB": (Spread(0.44, 0.06, 1.0), Spread(0.34, 0.07, 0.99), Spread(0.52, 0.1, 1.0), 0.896, 0.898, 0.96),
        "ADR tweets, class 0": (Spread(0.47, 0.18, 0.76), Spread(0.29, 0.2, 0.44), None, None, None, None),
        "ADR tweets, class 1": (Spread(0.49, 0.15, 0.85), Spread(0.44, 0.16, 0.74), None, None, None, None),
        "ADR tweets": (Spread(0.47, 0.17, 0.78), Spread(0.32, 0.2, 0.5), Spread(0.48, 0.2, 0.75), 0.569, 0.862, 0.899),
        "20News, class 0": (Spread(0.07, 0.17, 0.37), Spread(0.06, 0.15, 0.29), None, None, None, None),
        "20News, class 1": (Spread(0.21, 0.22, 0.61), Spread(0.2, 0.2, 0.62), None, None, None, None),
        "20News": (Spread(0.13, 0.21, 0.48), Spread(0.12, 0.19, 0.44), Spread(0.53, 0.16, 0.99), 0.917, 0.922, 0.978),
        "AG News, class 0": (Spread(0.36, 0.13, 0.82), Spread(0.3, 0.13, 0.69), None, None, None, None),
        "AG News, class 1": (Spread(0.42, 0.13, 0.9), Spread(0.43, 0.14, 0.91), None, None, None, None),
        "AG News": (Spread(0.39, 0.13, 0.86), Spread(0.37, 0.15, 0.8), Spread(0.61, 0.12, 0.99), 0.958, 0.958, 0.99),
        "Diabetes, class 0": (Spread(0.42, 0.05, 1.0), Spread(0.41, 0.05, 1.0), None, None, None, None),
        "Diabetes, class 1": (Spread(0.4, 0.05, 1.0), Spread(0.45, 0.05, 1.0), None, None, None, None),
        "Diabetes": (Spread(0.42, 0.05, 1.0), Spread(0.42, 0.05, 1.0), Spread(0.51, 0.07, 1.0), 0.754, 0.88, 0.938),
        "Anemia, class 0": (Spread(0.47, 0.05, 1.0), Spread(0.46, 0.05, 1.0), None, None, None, None),
        "Anemia, class 1": (Spread(0.46, 0.06, 1.0), Spread(0.47, 0.06, 1.0), None, None, None, None),
        "Anemia": (Spread(0.46, 0.06, 1.0), Spread(0.47, 0.06, 1.0), Spread(0.68, 0.05, 1.0), 0.923, 0.906, 0.974),
        "CNN QA": (Spread(0.24, 0.07, 0.99), Spread(0.2, 0.07, 0.98), Spread(0.54, 0.05, 1.0), None, 0.644, None),
        "bAbI 1": (Spread(0.25, 0.16, 0.55), Spread(0.16, 0.14, 0.28), Spread(0.5, 0.16, 0.84), None, 1.0, None),
        "bAbI 2": (Spread(-0.02, 0.14, 0.27), Spread(-0.01, 0.13, 0.27), Spread(0.44, 0.19, 0.91), None, 0.653, None),
        "bAbI 3": (Spread(0.24, 0.11, 0.87), Spread(0.26, 0.1, 0.89), Spread(0.5, 0.17, 0.97), None, 0.643, None),
        "SNLI, class 0": (Spread(0.31, 0.23, 0.36), Spread(0.16, 0.26, 0.2), None, None, None, None),
        "SNLI, class 1": (Spread(0.33, 0.21, 0.38), Spread(0.36, 0.19, 0.44), None, None, None, None),
        "SNLI, class 2": (Spread(0.31, 0.21, 0.36), Spread(0.34, 0.2, 0.4), None, None, None, None),
        "SNLI": (Spread(0.31, 0.22, 0.37), Spread(0.29, 0.24, 0.35), Spread(0.24, 0.22, 0.25), None, 0.779, None),
        "Readmission*, class 0": (Spread(0.35, 0.05, 1.0), None, None, None, None, None),
        "Readmission*, class 1": (Spread(0.38, 0.05, 1.0), None, None, None, None, None),
        "Readmission*": (Spread(0.36, 0.05, 1.0), None, None, 0.367, 0.693, 0.727),
        "Mortality*, class 0": (Spread(0.32, 0.05, 1.0), None, None, None, None, None),
        "Mortality*, class 1": (Spread(0.33, 0.06, 1.0), None, None, None, None, None),
        "Mortality*": (Spread(0.32, 0.05, 1.0), None, None, 0.47, 0.775, 0.834),
        "Knee surgery*, class 0": (Spread(0.25, 0.07, 1.0), Spread(0.06, 0.14, 0.74), None, None, None, None),
        "Knee surgery*, class 1": (Spread(0.4, 0.1, 1.0), Spread(0.57, 0.06, 1.0), None, None, None, None),
        "Knee surgery*": (
            Spread(0.28, 0.1, 1.0),
            Spread(0.16, 0.24, 0.79),
            Spread(0.32, 0.11, 1.0),
            None,
            0.822,
            0.824,
        ),
        "Hip surgery*, class 0": (Spread(0.56, 0.04, 1.0), Spread(0.49, 0.07, 1.0), None, None, None, None),
        "Hip surgery*, class 1": (Spread(0.56, 0.04, 1.0), Spread(0.52, 0.05, 1.0), None, None, None, None),
        "Hip surgery*": (Spread(0.56, 0.04, 1.0), Spread(0.49, 0.06, 1.0), Spread(0.7, 0.08, 1.0), None, 0.814, 0.774),
        "Phenotyping*": (Spread(0.24, 0.06, 1.0), None, None, None, None, 0.853),
    },
)

BILSTM_DOT = publish_correlations(
    "BiLSTM, scaled dot-product attention",
    {
        "SST": (Spread(0.07, 0.2, 0.09), Spread(0.06, 0.2, 0.07), Spread(0.71, 0.14, 0.94), 0.817, 0.823, 0.9),
        "IMDB": (Spread(0.12, 0.06, 0.62), Spread(0.09, 0.07, 0.45), Spread(0.6, 0.14, 1.0), 0.879, 0.885, 0.955),
        "ADR tweets": (
            Spread(-0.12, 0.27, 0.27),
            Spread(0.0, 0.22, 0.11),
            Spread(0.5, 0.19, 0.76),
            0.569,
            0.865,
            0.897,
        ),
        "20News": (Spread(0.13, 0.16, 0.48), Spread(0.07, 0.15, 0.38), Spread(0.5, 0.15, 0.99), 0.934, 0.936, 0.982),
        "AG News": (Spread(0.3, 0.15, 0.69), Spread(0.18, 0.13, 0.31), Spread(0.46, 0.14, 0.93), 0.962, 0.962, 0.989),
        "Diabetes": (Spread(0.22, 0.1, 1.0), Spread(0.09, 0.04, 0.94), Spread(0.25, 0.05, 1.0), 0.685, 0.859, 0.901),
        "Anemia": (Spread(0.48, 0.06, 1.0), Spread(0.29, 0.05, 1.0), Spread(0.29, 0.05, 1.0), 0.88, 0.859, 0.955),
        "CNN QA": (Spread(0.18, 0.11, 0.86), Spread(0.22, 0.12, 0.92), Spread(0.41, 0.07, 1.0), None, 0.466, None),
        "bAbI 1": (Spread(0.44, 0.16, 0.83), Spread(0.42, 0.13, 0.8), Spread(0.41, 0.16, 0.78), None, 0.998, None),
        "bAbI 2": (Spread(0.17, 0.15, 0.57), Spread(0.22, 0.14, 0.68), Spread(0.28, 0.11, 0.83), None, 0.427, None),
        "bAbI 3": (Spread(0.3, 0.15, 0.89), Spread(0.34, 0.15, 0.92), Spread(0.4, 0.12, 0.97), None, 0.515, None),
        "SNLI": (Spread(0.12, 0.23, 0.11), Spread(0.16, 0.24, 0.13), Spread(0.31, 0.21, 0.35), None, 0.766, None),
        "Readmission*": (Spread(0.17, 0.06, 0.94), None, None, 0.378, 0.703, 0.737),
        "Mortality*": (Spread(0.2, 0.06, 0.98), None, None, 0.488, 0.805, 0.843),
        "Knee surgery*": (
            Spread(0.15, 0.1, 0.88),
            Spread(-0.0, 0.09, 0.81),
            Spread(0.34, 0.06, 1.0),
            None,
            0.868,
            0.769,
        ),
        "Hip surgery*": (Spread(0.35, 0.1, 1.0), Spread(0.05, 0.09, 0.85), Spread(0.43, 0.08, 1.0), None, 0.763, 0.741),
        "Phenotyping*": (Spread(0.38, 0.09, 1.0), None, None, None, None, 0.851),
    },
)

CNN_ADDITIVE = publish_correlations(
    "CNN (1, 3, 5, 7), additive attention",
    {
        "SST": (Spread(0.48, 0.17, 0.75), Spread(0.35, 0.17, 0.51), Spread(0.49, 0.18, 0.74), 0.825, 0.823, 0.908),
        "IMDB": (Spread(0.45, 0.05, 1.0), Spread(0.29, 0.06, 0.98), Spread(0.51, 0.07, 1.0), 0.898, 0.901, 0.962),
        "ADR tweets": (Spread(0.43, 0.18, 0.72), Spread(0.36, 0.19, 0.59), Spread(0.46, 0.2, 0.73), 0.515, 0.82, 0.899),
        "20News": (Spread(0.45, 0.13, 0.94), Spread(0.32, 0.13, 0.85), Spread(0.55, 0.12, 0.97), 0.909, 0.913, 0.967),
        "AG News": (Spread(0.49, 0.11, 0.98), Spread(0.36, 0.13, 0.83), Spread(0.46, 0.13, 0.94), 0.958, 0.958, 0.99),
        "Diabetes": (Spread(0.41, 0.04, 1.0), Spread(0.35, 0.08, 1.0), Spread(0.44, 0.11, 1.0), 0.707, 0.848, 0.935),
        "Anemia": (Spread(0.44, 0.05, 1.0), Spread(0.5, 0.06, 1.0), Spread(0.61, 0.07, 1.0), 0.929, 0.912, 0.972),
        "CNN QA": (Spread(0.2, 0.06, 0.99), Spread(0.18, 0.06, 0.98), Spread(0.57, 0.07, 1.0), None, 0.614, None),
        "bAbI 1": (Spread(0.24, 0.14, 0.51), Spread(0.16, 0.13, 0.23), Spread(0.3, 0.16, 0.65), None, 0.887, None),
        "bAbI 2": (Spread(0.18, 0.08, 0.66), Spread(0.19, 0.07, 0.71), Spread(0.37, 0.1, 0.98), None, 0.333, None),
        "bAbI 3": (Spread(0.18, 0.06, 0.91), Spread(0.18, 0.05, 0.91), Spread(0.47, 0.08, 1.0), None, 0.294, None),
        "SNLI": (Spread(0.23, 0.24, 0.25), Spread(0.26, 0.23, 0.29), Spread(0.34, 0.22, 0.43), None, 0.775, None),
        "Readmission*": (Spread(0.38, 0.04, 1.0), None, None, 0.375, 0.726, 0.733),
        "Mortality*": (Spread(0.27, 0.05, 1.0), Spread(0.28, 0.05, 1.0), Spread(0.6, 0.04, 1.0), 0.425, 0.701, 0.832),
        "Knee surgery*": (
            Spread(0.39, 0.06, 1.0),
            Spread(0.36, 0.08, 1.0),
            Spread(0.43, 0.08, 1.0),
            None,
            0.829,
            0.809,
        ),
        "Hip surgery*": (Spread(0.47, 0.03, 1.0), Spread(0.43, 0.04, 1.0), Spread(0.56, 0.04, 1.0), None, 0.797, 0.743),
        "Phenotyping*": (Spread(0.32, 0.04, 1.0), None, None, None, None, 0.852),
    },
)

CNN_DOT = publish_correlations(
    "CNN (1, 3, 5, 7), scaled dot-product attention",
    {
        "SST": (Spread(0.24, 0.2, 0.25), Spread(0.22, 0.19, 0.21), Spread(0.64, 0.21, 0.82), 0.805, 0.812, 0.895),
        "IMDB": (Spread(0.35, 0.07, 0.99), Spread(0.36, 0.07, 0.99), Spread(0.6, 0.1, 1.0), 0.895, 0.894, 0.959),
        "ADR tweets": (None, Spread(0.18, 0.21, 0.24), None, 0.542, 0.853, 0.898),
        "20News": (None, Spread(0.19, 0.12, 0.61), None, 0.938, 0.938, 0.974),
        "AG News": (Spread(0.39, 0.12, 0.88), Spread(0.37, 0.12, 0.86), Spread(0.42, 0.17, 0.85), 0.956, 0.956, 0.99),
        "Diabetes": (Spread(0.46, 0.04, 1.0), Spread(0.42, 0.05, 1.0), Spread(0.51, 0.06, 1.0), 0.753, 0.885, 0.931),
        "Anemia": (None, None, None, 0.938, 0.922, 0.969),
        "CNN QA": (Spread(0.22, 0.08, 0.99), Spread(0.22, 0.07, 0.99), Spread(0.54, 0.07, 1.0), None, 0.64, None),
        "bAbI 1": (Spread(0.17, 0.12, 0.27), Spread(0.11, 0.13, 0.13), Spread(0.55, 0.14, 0.93), None, 0.889, None),
        "bAbI 2": (Spread(0.15, 0.08, 0.53), Spread(0.24, 0.06, 0.88), Spread(0.41, 0.09, 0.99), None, 0.34, None),
        "bAbI 3": (Spread(0.01, 0.05, 0.12), Spread(0.08, 0.05, 0.44), Spread(0.52, 0.13, 1.0), None, 0.288, None),
        "SNLI": (Spread(0.27, 0.22, 0.3), Spread(0.29, 0.21, 0.32), Spread(0.29, 0.23, 0.35), None, 0.779, None),
        "Readmission*": (Spread(0.21, 0.06, 0.99), None, None, 0.37, 0.689, 0.736),
        "Mortality*": (
            Spread(0.24, 0.07, 0.98),
            Spread(0.27, 0.06, 0.99),
            Spread(0.51, 0.05, 1.0),
            0.492,
            0.818,
            0.844,
        ),
        "Knee surgery*": (
            Spread(0.2, 0.07, 0.99),
            Spread(0.21, 0.07, 0.99),
            Spread(0.46, 0.12, 0.99),
            None,
            0.802,
            0.788,
        ),
        "Hip surgery*": (Spread(0.18, 0.06, 1.0), Spread(0.27, 0.06, 0.99), Spread(0.49, 0.12, 1.0), None, 0.875, 0.77),
        "Phenotyping*": (Spread(0.42, 0.04, 1.0), None, None, None, None, 0.855),
    },
)

AVERAGE_ADDITIVE = publish_correlations(
    "Average (no context), additive attention",
    {
        "SST": (Spread(0.61, 0.2, 0.85), Spread(0.62, 0.15, 0.88), Spread(0.56, 0.25, 0.73), 0.8, 0.807, 0.895),
        "IMDB": (Spread(0.67, 0.05, 1.0), Spread(0.58, 0.1, 1.0), Spread(0.64, 0.19, 1.0), 0.882, 0.883, 0.945),
        "ADR tweets": (
            Spread(0.73, 0.13, 0.97),
            Spread(0.59, 0.2, 0.86),
            Spread(0.59, 0.29, 0.76),
            0.484,
            0.789,
            0.893,
        ),
        "20News": (Spread(0.77, 0.08, 1.0), Spread(0.72, 0.14, 0.99), Spread(0.62, 0.2, 0.96), 0.909, 0.913, 0.969),
        "AG News": (Spread(0.77, 0.07, 1.0), Spread(0.51, 0.13, 0.97), Spread(0.49, 0.17, 0.94), 0.955, 0.954, 0.988),
        "Diabetes": (Spread(0.75, 0.02, 1.0), Spread(0.71, 0.05, 1.0), Spread(0.62, 0.06, 1.0), 0.699, 0.847, 0.928),
        "Anemia": (Spread(0.77, 0.03, 1.0), Spread(0.74, 0.06, 1.0), Spread(0.7, 0.08, 1.0), 0.927, 0.906, 0.963),
        "CNN QA": (Spread(0.5, 0.1, 1.0), Spread(0.69, 0.1, 1.0), Spread(0.57, 0.11, 1.0), None, 0.367, None),
        "bAbI 1": (Spread(0.72, 0.12, 0.99), Spread(0.73, 0.1, 0.99), Spread(0.69, 0.14, 0.99), None, 0.436, None),
        "bAbI 2": (Spread(0.68, 0.06, 1.0), Spread(0.65, 0.06, 1.0), Spread(0.47, 0.06, 0.99), None, 0.167, None),
        "bAbI 3": (Spread(0.61, 0.13, 1.0), Spread(0.72, 0.09, 1.0), Spread(0.55, 0.12, 1.0), None, 0.32, None),
        "SNLI": (Spread(0.58, 0.19, 0.8), Spread(0.59, 0.19, 0.81), Spread(0.59, 0.22, 0.78), None, 0.75, None),
        "Readmission*": (Spread(0.62, 0.04, 1.0), None, None, 0.359, 0.818, 0.725),
        "Mortality*": (Spread(0.74, 0.03, 1.0), Spread(0.76, 0.04, 1.0), Spread(0.68, 0.06, 1.0), 0.471, 0.793, 0.832),
        "Knee surgery*": (
            Spread(0.58, 0.05, 1.0),
            Spread(0.68, 0.13, 1.0),
            Spread(0.45, 0.17, 1.0),
            None,
            0.811,
            0.796,
        ),
        "Hip surgery*": (Spread(0.61, 0.05, 1.0), Spread(0.59, 0.1, 1.0), Spread(0.51, 0.29, 0.98), None, 0.757, 0.732),
        "Phenotyping*": (Spread(0.88, 0.02, 1.0), None, None, None, None, 0.846),
    },
)

AVERAGE_DOT = publish_correlations(
    "Average (no context), scaled dot-product attention",
    {
        "SST": (Spread(0.35, 0.22, 0.5), Spread(0.31, 0.18, 0.42), Spread(0.66, 0.24, 0.82), 0.777, 0.799, 0.896),
        "IMDB": (None, Spread(0.2, 0.08, 0.87), None, 0.873, 0.866, 0.945),
        "ADR tweets": (
            Spread(-0.05, 0.24, 0.15),
            Spread(-0.05, 0.17, 0.03),
            Spread(0.51, 0.31, 0.7),
            0.551,
            0.85,
            0.903,
        ),
        "20News": (Spread(0.04, 0.17, 0.31), Spread(-0.18, 0.23, 0.71), Spread(0.35, 0.3, 0.77), 0.927, 0.927, 0.963),
        "AG News": (Spread(0.64, 0.11, 1.0), Spread(0.46, 0.2, 0.84), Spread(0.44, 0.19, 0.86), 0.956, 0.956, 0.987),
        "Diabetes": (Spread(0.52, 0.04, 1.0), Spread(0.51, 0.05, 1.0), Spread(0.43, 0.03, 1.0), 0.481, 0.718, 0.75),
        "Anemia": (Spread(0.6, 0.03, 1.0), Spread(0.56, 0.06, 1.0), Spread(0.46, 0.04, 1.0), 0.901, 0.88, 0.956),
        "CNN QA": (Spread(0.51, 0.08, 1.0), Spread(0.63, 0.09, 1.0), Spread(0.55, 0.08, 1.0), None, 0.372, None),
        "bAbI 1": (Spread(0.71, 0.14, 0.99), Spread(0.82, 0.13, 0.98), Spread(0.68, 0.15, 0.98), None, 0.43, None),
        "bAbI 2": (Spread(0.6, 0.18, 0.99), Spread(0.89, 0.07, 1.0), Spread(0.58, 0.16, 0.99), None, 0.314, None),
        "bAbI 3": (Spread(0.48, 0.14, 1.0), Spread(0.75, 0.07, 1.0), Spread(0.41, 0.15, 0.98), None, 0.316, None),
        "SNLI": (Spread(0.5, 0.18, 0.7), Spread(0.53, 0.18, 0.75), Spread(0.43, 0.22, 0.59), None, 0.753, None),
        "Readmission*": (Spread(0.36, 0.05, 1.0), None, None, 0.376, 0.77, 0.721),
        "Mortality*": (Spread(0.45, 0.04, 1.0), Spread(0.61, 0.05, 1.0), Spread(0.44, 0.05, 1.0), 0.459, 0.799, 0.822),
        "Knee surgery*": (
            Spread(0.17, 0.1, 0.95),
            Spread(-0.05, 0.02, 0.79),
            Spread(0.36, 0.14, 1.0),
            None,
            0.85,
            0.771,
        ),
        "Hip surgery*": (
            Spread(0.29, 0.05, 1.0),
            Spread(0.06, 0.08, 0.91),
            Spread(0.48, 0.06, 1.0),
            None,
            0.714,
            0.777,
        ),
        "Phenotyping*": (Spread(0.86, 0.01, 1.0), None, None, None, None, 0.844),
    },
)

# --- plots ----------------------------------------------------------------------------------------------------------

PERMUTATION = PublishedTable(
    "Permutation: median over examples of the median output difference, by the largest attention weight "
    "(BiLSTM, additive attention)",
    Source.FILES,
    ("[0, 0.25)", "[0.25, 0.5)", "[0.5, 0.75)", "[0.75, 1)"),
    {
        "SST, class 0": (0.03, 0.05, 0.08, 0.11),
        "SST, class 1": (0.03, 0.04, 0.06, None),
        "IMDB, class 0": (0.08, 0.11, 0.22, None),
        "IMDB, class 1": (0.11, 0.23, 0.4, None),
        "ADR tweets, class 0": (0.04, 0.06, 0.07, 0.08),
        "ADR tweets, class 1": (0.13, 0.17, 0.28, 0.26),
        "20News, class 0": (0.0, 0.02, 0.07, 0.28),
        "20News, class 1": (0.11, 0.2, 0.49, 0.51),
        "AG News, class 0": (0.0, 0.01, 0.07, 0.62),
        "AG News, class 1": (0.0, 0.01, 0.01, 0.03),
        "Diabetes, class 0": (0.06, 0.06, 0.1, 0.08),
        "Diabetes, class 1": (0.77, 0.77, 0.77, 0.79),
        "Anemia, class 0": (0.15, 0.16, 0.2, None),
        "Anemia, class 1": (0.65, 0.64, 0.68, 0.51),
        "CNN QA": (0.71, 0.78, 0.85, 0.88),
        "bAbI 1": (None, 0.78, 0.95, 0.9),
        "bAbI 2": (0.47, 0.65, 0.85, 0.97),
        "bAbI 3": (0.78, 0.84, 0.96, 0.98),
        "SNLI, class 0": (0.02, 0.09, 0.33, 0.59),
        "SNLI, class 1": (0.34, 0.58, 0.8, 0.91),
        "SNLI, class 2": (0.15, 0.3, 0.48, 0.69),
    },
    "100 permutations per example. Two classes: change of the probability; else total variation distance. IMDB, class "
    "0, [0.5, 0.75) and Anemia, class 1, [0.75, 1) are one example each.",
)

ADVERSARIAL = PublishedTable(
    "Adversarial attention: epsilon-max JSD (BiLSTM, additive attention)",
    Source.FILES,
    ("mean", "median", "share >= 0.525"),
    {
        "SST, class 0": (0.48, 0.49, 0.36),
        "SST, class 1": (0.49, 0.5, 0.4),
        "IMDB, class 0": (0.58, 0.57, 0.82),
        "IMDB, class 1": (0.57, 0.56, 0.75),
        "ADR tweets, class 0": (0.5, 0.51, 0.45),
        "ADR tweets, class 1": (0.45, 0.47, 0.28),
        "20News, class 0": (0.61, 0.65, 0.84),
        "20News, class 1": (0.38, 0.42, 0.18),
        "AG News, class 0": (0.62, 0.66, 0.89),
        "AG News, class 1": (0.64, 0.67, 0.94),
        "Diabetes, class 0": (0.65, 0.65, 1),
        "Diabetes, class 1": (0.47, 0.47, 0.37),
        "Anemia, class 0": (0.66, 0.66, 1),
        "Anemia, class 1": (0.6, 0.61, 0.95),
        "CNN QA": (0.5, 0.53, 0.51),
        "bAbI 1": (0.47, 0.54, 0.51),
        "bAbI 2": (0.63, 0.65, 0.94),
        "bAbI 3": (0.66, 0.67, 0.98),
        "SNLI, class 0": (0.49, 0.51, 0.45),
        "SNLI, class 1": (0.38, 0.39, 0.16),
        "SNLI, class 2": (0.43, 0.44, 0.26),
    },
    "Candidates that change the output by more than 0.05 are discarded. JSD is at most log 2 = 0.693.",
)

CORRELATIONS = {
    ("bilstm", "additive"): BILSTM_ADDITIVE,
    ("bilstm", "dot"): BILSTM_DOT,
    ("cnn", "additive"): CNN_ADDITIVE,
    ("cnn", "dot"): CNN_DOT,
    ("average", "additive"): AVERAGE_ADDITIVE,
    ("average", "dot"): AVERAGE_DOT,
}
