"""The published tables: which methods and metrics they have, how to measure each, and the numbers.

Every table says where its numbers come from: the paper, the authors' files, or a third party's rerun where the paper
has only a figure (ERASER movies). Where none were available (AttCAT), there are none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from whyformer.demo.ranges import refuse_unknown_name

NamedSettings = tuple[str, Mapping[str, Any]]  # the name of a method or metric, and its settings
BASELINE_RECIPE = {"recipe": "chefer_baseline"}


class Source(StrEnum):
    """Where published numbers come from."""

    PAPER = "paper"
    RERUN = "third-party rerun"
    FILES = "authors' files"


@dataclass(frozen=True)
class PaperColumn:
    """One column of a published table, and how to measure it."""

    name: str
    metric: NamedSettings
    target: str = "predicted"
    scale: float = 1.0
    step: int | None = None  # which step of the metric's curve, if the column is not the metric's mean


@dataclass(frozen=True)
class PaperTable:
    """A published table: its methods, its columns and its numbers."""

    name: str
    title: str
    source: Source | None  # where the published numbers come from; None if there are none
    model: str  # the paper's model
    data: str  # the paper's data
    methods: Mapping[str, NamedSettings]  # by the paper's name for the method
    columns: Sequence[PaperColumn]
    published: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # by the same names
    remark: str = ""
    first: str = ""  # without numbers: the method that the paper puts before all others
    claims: Sequence[tuple[str, str]] = ()  # orders that the paper states in words: better method, worse method


VIT = "ViT-B/16 at 224 pixels (google/vit-base-patch16-224)"
CHEFER_METHODS: dict[str, NamedSettings] = {
    "rollout": ("rollout", {"start": 1}),
    "raw attention": ("raw_attention", {}),
    "GradCAM": ("grad_cam", {}),
    "LRP": ("lrp", BASELINE_RECIPE),
    "partial LRP": ("partial_lrp", BASELINE_RECIPE),
    "ours": ("transformer_attribution", {"preset": "released_vit"}),
}
POSITIVE_PERTURBATION: NamedSettings = ("positive_perturbation", {"preset": "released"})
NEGATIVE_PERTURBATION: NamedSettings = ("negative_perturbation", {"preset": "released"})
SEGMENTATION_COLUMNS = (
    PaperColumn("pixel accuracy", ("pixel_accuracy", {}), scale=100),
    PaperColumn("mAP", ("mean_average_precision", {}), scale=100),
    PaperColumn("mIoU", ("mean_iou", {}), scale=100),
    PaperColumn("mean F1", ("mean_f1", {}), scale=100),
    PaperColumn("mean F1, released", ("mean_f1", {"preset": "released"}), scale=100),
)
RULE_CLAIMS = (
    ("rule (ii)", "rule (i)"), ("rule (iii)", "rule (i)"), ("rule (iv)", "rule (i)"),
    ("rule (ii)", "rule (iii)"), ("rule (ii)", "rule (iv)"),
)  # fmt: skip
WORD_COUNTS = tuple(range(5, 81, 5))

PAPER_TABLES = {
    table.name: table
    for table in (
        PaperTable(
            "chefer-perturbation",
            "Chefer, Gur & Wolf, CVPR 2021, Table 1: perturbation AUC",
            Source.PAPER,
            VIT,
            "the ImageNet validation set: 50,000 images in folders named by class",
            CHEFER_METHODS,
            (
                PaperColumn("negative, predicted", NEGATIVE_PERTURBATION),
                PaperColumn("negative, target", NEGATIVE_PERTURBATION, "label"),
                PaperColumn("positive, predicted", POSITIVE_PERTURBATION),
                PaperColumn("positive, target", POSITIVE_PERTURBATION, "label"),
            ),
            {
                "rollout": (53.1, None, 20.05, None),
                "raw attention": (45.55, None, 23.99, None),
                "GradCAM": (41.52, 42.02, 34.06, 33.56),
                "LRP": (43.49, 43.49, 41.94, 41.93),
                "partial LRP": (50.49, 50.49, 19.64, 19.64),
                "ours": (54.16, 55.04, 17.03, 16.04),
            },
            "Area under accuracy over 0 to 90 % of the pixels, times 100, not divided by 0.9.",
        ),
        PaperTable(
            "chefer-segmentation",
            "Chefer, Gur & Wolf, CVPR 2021, Table 2: ImageNet-Segmentation",
            Source.PAPER,
            VIT,
            "ImageNet-Segmentation: 4,276 images in images/, masks of the same names in masks/",
            CHEFER_METHODS,
            SEGMENTATION_COLUMNS,
            {
                "rollout": (73.54, 84.76, 55.42, None, None),
                "raw attention": (67.84, 80.24, 46.37, None, None),
                "GradCAM": (64.44, 71.60, 40.82, None, None),
                "LRP": (51.09, 55.68, 32.89, None, None),
                "partial LRP": (76.31, 84.67, 57.94, None, None),
                "ours": (79.70, 86.03, 61.95, None, None),
            },
            "Mean F1 is not in the paper; `released` is what the authors' evaluation prints under that name.",
        ),
        PaperTable(
            "chefer-ablation",
            "Chefer, Gur & Wolf, CVPR 2021, Table 3: ablation of their method",
            Source.PAPER,
            VIT,
            "ImageNet-Segmentation for the first three columns, the ImageNet validation set for the others",
            {
                "without the gradient": ("transformer_attribution", {"ablation": "no_gradient", "start": 1}),
                "last block only": ("transformer_attribution", {"ablation": "last_block"}),
                "block 1 only": ("transformer_attribution", {"ablation": "block_1"}),
                "ours": ("transformer_attribution", {"preset": "released_vit"}),
            },
            (
                *SEGMENTATION_COLUMNS[:3],
                PaperColumn("positive", POSITIVE_PERTURBATION),
                PaperColumn("negative", NEGATIVE_PERTURBATION),
            ),
            {
                "without the gradient": (77.66, 85.66, 59.88, 18.23, 52.88),
                "last block only": (78.32, 85.25, 59.93, 18.01, 52.43),
                "block 1 only": (60.30, 73.63, 39.06, 27.33, 37.42),
                "ours": (79.70, 86.03, 61.95, 17.03, 54.16),
            },
        ),
        PaperTable(
            "eraser-movies",
            "Chefer, Gur & Wolf, CVPR 2021, figure: token-F1 of the k highest words, ERASER movie reviews",
            Source.RERUN,
            "BERT-base fine-tuned on the movie reviews (the authors' checkpoint)",
            "ERASER movies: docs/ and test.jsonl",
            {
                "rollout": ("rollout", {"preset": "released_bert"}),
                "raw attention": ("raw_attention", {"own": "zero"}),
                "GradCAM": ("grad_cam", {"form": "bert"}),
                "LRP": ("lrp", {**BASELINE_RECIPE, "own": "zero"}),
                "partial LRP": ("partial_lrp", {**BASELINE_RECIPE, "own": "zero"}),
                "ours": ("transformer_attribution", {"preset": "released_bert"}),
            },
            tuple(PaperColumn(f"k = {k}", ("token_f1", {}), "label", step=i) for i, k in enumerate(WORD_COUNTS)),
            {
                "ours": (.0358, .0646, .0904, .1123, .1309, .1484, .1631, .1759, .1887, .1988, .2089, .2180, .2276,
                         .2352, .2426, .2501),
                "partial LRP": (.0339, .0614, .0843, .1043, .1221, .1393, .1549, .1694, .1805, .1910, .2011, .2113,
                                .2207, .2284, .2360, .2425),
                "raw attention": (.0309, .0549, .0739, .0897, .1025, .1157, .1277, .1401, .1513, .1597, .1700, .1803,
                                  .1885, .1969, .2042, .2129),
                "GradCAM": (.0178, .0326, .0458, .0592, .0716, .0824, .0928, .1022, .1116, .1196, .1261, .1326, .1392,
                            .1436, .1488, .1536),
                "LRP": (.0122, .0242, .0332, .0439, .0520, .0600, .0670, .0750, .0819, .0884, .0947, .1003, .1056,
                        .1105, .1154, .1216),
                "rollout": (.0033, .0087, .0150, .0230, .0300, .0384, .0473, .0557, .0628, .0697, .0767, .0826, .0890,
                            .0960, .1026, .1088),
            },
            "The paper has only a figure; the numbers are a third party's rerun of the authors' code. "
            "The labelled class is explained. The authors set negative scores to 0 before they rank words; here they "
            "are kept, which changes only LRP.",
        ),
        PaperTable(
            "attcat",
            "Qiang et al., NeurIPS 2022: AOPC, log-odds and class discrimination",
            None,
            "BERT-base fine-tuned on each data set, DistilBERT and RoBERTa",
            "SST-2, QQP, MNLI, Amazon, Yelp, IMDB and SQuAD: all texts, or 2,000 of them",
            {
                "raw attention": ("raw_attention", {}),
                "rollout": ("rollout", {}),
                "Grads": ("grads", {}),
                "AttGrads": ("attgrads", {}),
                "partial LRP": ("partial_lrp", {}),
                "TransAtt": ("transformer_attribution", {}),
                "CAT": ("cat", {}),
                "AttCAT": ("attcat", {}),
            },
            (
                PaperColumn("AOPC, deleted", ("aopc", {"preset": "released"}), "label"),
                PaperColumn("AOPC, padded", ("aopc", {"preset": "released", "fill": "pad_token"}), "label"),
                PaperColumn("log-odds, deleted", ("log_odds", {"preset": "released", "fill": "delete"}), "label"),
                PaperColumn("log-odds, padded", ("log_odds", {"preset": "released"}), "label"),
                PaperColumn("tau, released", ("class_discrimination", {"preset": "released"}), "label"),
                PaperColumn("AOPC, signed", ("aopc", {}), "label"),
                PaperColumn("log-odds, masked", ("log_odds", {}), "label"),
                PaperColumn("tau", ("class_discrimination", {}), "label"),
            ),
            {},
            "The paper's numbers were not available, so none are shown; it puts AttCAT first, and the lines above say "
            "where that holds here. The first five columns are what its released code computes (words deleted, or "
            "replaced by padding that the model attends to), the last three the same ideas without its faults: signed "
            "changes, steps of a tenth, mask tokens, tau of the scores. tau is Kendall's, between the maps of the true "
            "class and of another one. The methods are those of the paper's figure 1; its code scales the rows of "
            "TransAtt to sum to 1 and has Grad-CAM of the last block in place of AttGrads.",
            "AttCAT",
        ),
        PaperTable(
            "sawaki-murata-rules",
            "Sawaki & Murata, JSAI 2025: the rules (i) to (iv), judged",
            None,
            "DINO's ViT-S/16 (facebook/dino-vits16)",
            "one photograph of a cat",
            {
                **{f"rule ({rule})": ("redistribution", {"rule": rule}) for rule in ("i", "ii", "iii", "iv")},
                "rollout": ("rollout", {}),
                "raw attention": ("raw_attention", {}),
            },
            (
                *SEGMENTATION_COLUMNS[:4],
                PaperColumn("positive", POSITIVE_PERTURBATION),
                PaperColumn("negative", NEGATIVE_PERTURBATION),
            ),
            {},
            "The paper has one figure and no numbers; the table is ours. Heads are followed through all layers and "
            "averaged.",
            claims=RULE_CLAIMS,
        ),
    )
}  # fmt: skip


def find_paper_table(name: str) -> PaperTable:
    refuse_unknown_name("table", name, PAPER_TABLES)
    return PAPER_TABLES[name]
