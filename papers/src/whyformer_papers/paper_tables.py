"""The published tables: which methods and metrics they have, how to measure each, and the numbers.

Every table says where its numbers come from: the paper, the authors' files, or a third party's rerun where the paper
has only a figure (ERASER movies). Where none were available (AttCAT), there are none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whyformer.demo.draws import refuse_unknown_name
from whyformer_papers.published_numbers import Source, read_numbers
from whyformer_papers.published_table import PublishedTable

NamedSettings = tuple[str, Mapping[str, Any]]  # the name of a method or metric, and its settings
BASELINE_RECIPE = {"recipe": "chefer_baseline"}


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
COMPARED_METHODS = {
    **CHEFER_METHODS,
    "raw attention, all layers": ("raw_attention", {"layer": "mean"}),
}  # ours: unpublished
POSITIVE_PERTURBATION: NamedSettings = ("positive_perturbation", {"preset": "released"})
NEGATIVE_PERTURBATION: NamedSettings = ("negative_perturbation", {"preset": "released"})
SEGMENTATION_COLUMNS = (
    PaperColumn("pixel accuracy", ("pixel_accuracy", {}), scale=100),
    PaperColumn("mAP", ("mean_average_precision", {}), scale=100),
    PaperColumn("mIoU", ("mean_iou", {}), scale=100),
    PaperColumn("mean F1", ("mean_f1", {}), scale=100),
    PaperColumn("mean F1, released", ("mean_f1", {"preset": "released"}), scale=100),
)
ABLATION_OUTLINES = SEGMENTATION_COLUMNS[:3]  # of Table 3; its other columns are perturbation
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
            COMPARED_METHODS,
            (
                PaperColumn("negative, predicted", NEGATIVE_PERTURBATION),
                PaperColumn("negative, target", NEGATIVE_PERTURBATION, "label"),
                PaperColumn("positive, predicted", POSITIVE_PERTURBATION),
                PaperColumn("positive, target", POSITIVE_PERTURBATION, "label"),
            ),
            read_numbers("chefer", "chefer-perturbation"),
            "Area under accuracy over 0 to 90 % of the pixels, times 100, not divided by 0.9.",
        ),
        PaperTable(
            "chefer-segmentation",
            "Chefer, Gur & Wolf, CVPR 2021, Table 2: ImageNet-Segmentation",
            Source.PAPER,
            VIT,
            "ImageNet-Segmentation: 4,276 images in images/, masks of the same names in masks/",
            COMPARED_METHODS,
            SEGMENTATION_COLUMNS,
            read_numbers("chefer", "chefer-segmentation"),
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
                *ABLATION_OUTLINES,
                PaperColumn("positive", POSITIVE_PERTURBATION),
                PaperColumn("negative", NEGATIVE_PERTURBATION),
            ),
            read_numbers("chefer", "chefer-ablation"),
        ),
        PaperTable(
            "chefer-fragmentation",
            "Chefer, Gur & Wolf, CVPR 2021: how fragmented the maps are",
            None,
            VIT,
            "figures of single images",
            COMPARED_METHODS,
            (PaperColumn("parts", ("fragments", {})), PaperColumn("spread", ("fragment_spread", {}))),
            {},
            "The paper says that maps of other methods are fragmented and does not measure it; the measure is ours.",
            "ours",
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
            read_numbers("chefer", "eraser-movies"),
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
            claims=[
                (f"rule ({better})", f"rule ({worse})")
                for better, worse in (("ii", "i"), ("iii", "i"), ("iv", "i"), ("ii", "iii"), ("ii", "iv"))
            ],
        ),
    )
}  # fmt: skip


def find_paper_table(name: str) -> PaperTable:
    refuse_unknown_name("table", name, PAPER_TABLES)
    return PAPER_TABLES[name]


def publish_paper_table(table: PaperTable) -> PublishedTable:
    """The numbers of a table that can be measured, without columns that were not published."""
    if table.source is None:
        raise ValueError(f"{table.name} has no published numbers")
    kept = [i for i in range(len(table.columns)) if any(row[i] is not None for row in table.published.values())]
    rows = {name: tuple(row[i] for i in kept) for name, row in table.published.items()}
    return PublishedTable(table.title, table.source, [table.columns[i].name for i in kept], rows, table.remark)
