r"""Abnar & Zuidema, Quantifying Attention Flow in Transformers, ACL 2020. arXiv:2005.00928

The source of rollout and flow, which all other documents compare with. Spearman's correlation of attention with the
gradient of the input, layer by layer:

$$ \rho\left( \max_i W^{(l)}_{ij},\; \Big\lVert\frac{\partial y}{\partial e_j}\Big\rVert_2 \right), \qquad
   W^{(l)} = \mathbb{E}_h[A_l] \;\text{(raw)} \quad\text{or}\quad \hat A_l \cdots \hat A_1 \;\text{(rollout)} $$

with $\hat A = (\mathbb{E}_h[A] + I) / 2$; as in their script for SST-2, a token counts by the largest weight it gets
from any query. y is the logit of the predicted class. The published numbers are those of a log in their repository, of
101 sentences; other logs there differ. Where we differ from the script:

* It takes $|\sum_k \partial y / \partial e_{jk}|$, the sum of the gradient over the features of an embedding that a
  LayerNorm follows. A LayerNorm does not change when the same number is added to all features, so that sum is 0 but for
  rounding, and the published correlations are with rounding errors. We take the length of the gradient.
* It explains the last class throughout, since the test sentences of SST-2 have the label -1. We explain the prediction.
* Its correlation ranks ties densely and uses the formula without ties; ours gives ties their mean rank.
* It counts special tokens; we leave them out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch
from rich.table import Table as Grid
from torch import Tensor

from whyformer._engine import record
from whyformer._judge.order import PairOrder, compare_pairs
from whyformer._judge.table import format_mean
from whyformer._model import Model, OneInput
from whyformer._plain.statistics import bootstrap, spearman
from whyformer.data import Data
from whyformer.errors import InputError
from whyformer.show import charts
from whyformer.show.drawing import Drawing
from whyformer_papers.document import Document, Request, Section
from whyformer_papers.figure import DocumentFigure
from whyformer_papers.generated import make_entailment_examples
from whyformer_papers.published_numbers import Source, read_spreads
from whyformer_papers.published_table import PublishedTable
from whyformer_papers.reproduction import format_pair
from whyformer_papers.table_result import TableOutline, TableResult, make_grid

TEXTS = 100  # generated pairs, if no data is given
PAPER_MODEL = "DistilBERT fine-tuned on SST-2"
MIN_TOKENS = 3  # to correlate
RAW, ROLLOUT = "raw attention", "rollout"

LOGGED = PublishedTable(
    "Spearman's correlation with input gradients, DistilBERT, SST-2",
    Source.FILES,
    ("layer 1", "layer 3", "layer 5", "layer 6"),
    read_spreads("abnar_zuidema", "logged"),
    "The log `correlations` of their repository. As the script computes them, these are correlations with rounding "
    "errors: it sums a gradient whose sum is 0.",
)
OTHER_LOG = PublishedTable(
    "The same for attention flow, of another run",
    Source.FILES,
    ("layer 1", "layer 3", "layer 5", "layer 6"),
    read_spreads("abnar_zuidema", "other-log"),
    "Logs of different runs in their repository give other values; this one cannot be compared with the table above.",
)


@dataclass(frozen=True, eq=False)
class LayerCorrelations(TableResult):
    """The correlation of attention with input gradients in each layer, raw and rolled out."""

    model: str
    data: str
    values: Mapping[str, np.ndarray] = field(repr=False)  # by form: [example layer], NaN if undefined

    @property
    def layers(self) -> int:
        return self.values[RAW].shape[1]

    def summary(self, form: str) -> list[tuple[float, float, float]]:
        """For each layer the mean over examples and its 95 % interval."""
        return [bootstrap(self.values[form][:, layer]) for layer in range(self.layers)]

    def orders(self) -> list[PairOrder]:
        """For each layer, rollout against raw attention on the same examples."""
        layers = ({form: self.values[form][:, layer] for form in (ROLLOUT, RAW)} for layer in range(self.layers))
        return [pair for values in layers for pair in compare_pairs([(ROLLOUT, RAW)], values, "higher")]

    def outline(self) -> TableOutline:
        count = len(self.values[RAW])
        title = f"Spearman's correlation with input gradients, {self.model}, {count} examples of {self.data}."
        rows = [["", *(f"layer {layer + 1}" for layer in range(self.layers))]]
        for form in (RAW, ROLLOUT):
            deviations = np.nanstd(self.values[form], axis=0)
            cells = (
                f"{format_mean(mean)} [{format_mean(low)}, {format_mean(high)}] ± {deviation:.3f}"
                for (mean, low, high), deviation in zip(self.summary(form), deviations, strict=True)
            )
            rows.append([form, *cells])
        return TableOutline(title, rows, sentences=self.sentences, heading="p")

    def make_grids(self) -> list[Grid]:
        rows = self.outline().rows
        return [make_grid(rows, labels=len(rows[0]), tight_from=len(rows[0]) + 1)]

    @property
    def sentences(self) -> list[str]:
        orders = "; ".join(f"layer {layer} {format_pair(pair, 1)}" for layer, pair in enumerate(self.orders(), 1))
        return [f"Published: rollout over raw attention from layer 3 on. Here: {orders}."]

    def draw(self) -> Drawing:
        layers = np.arange(1, self.layers + 1)
        curves = {form: (layers, *np.array(self.summary(form)).T) for form in (RAW, ROLLOUT)}
        return charts.draw_curves(
            curves, title="Attention and input gradients", xlabel="layer", ylabel="Spearman's correlation"
        )


def measure_layers(model: Model, data: Data, limit: int | None = None) -> LayerCorrelations:
    """Every example by itself, as texts differ in length."""
    found = [correlate_layers(model, example.load()) for example in data.sample(limit).examples]
    return LayerCorrelations(model.name, data.name, {form: np.stack([one[form] for one in found]) for form in found[0]})


def correlate_layers(model: Model, content: OneInput) -> dict[str, np.ndarray]:
    """[layer] for each form; NaN where too few tokens are there or all are alike."""
    capture = record(model, model.encode([content]), keep={"attention", "input_grad", "mask", "special"})
    words = (capture.get("mask") & ~capture.get("special"))[0].cpu()
    gradient = capture.get("input_grad")[0].norm(dim=-1).cpu().double()[words].numpy()
    averaged = [layer[0].mean(0).cpu().double() for layer in capture.get("attention")]
    return {
        RAW: correlate_matrices(averaged, words, gradient),
        ROLLOUT: correlate_matrices(roll_out(averaged), words, gradient),
    }


def roll_out(averaged: Sequence[Tensor]) -> list[Tensor]:
    """The product of (A + I) / 2 up to each layer."""
    mixed = (matrix + torch.eye(len(matrix), dtype=matrix.dtype) for matrix in averaged)
    scaled = (matrix / matrix.sum(-1, keepdim=True) for matrix in mixed)
    return list(accumulate(scaled, lambda product, matrix: matrix @ product))


def correlate_matrices(matrices: Sequence[Tensor], words: Tensor, gradient: np.ndarray) -> np.ndarray:
    """Spearman's correlation of the largest weight that each word gets with its gradient, by layer."""
    if len(gradient) < MIN_TOKENS:
        return np.full(len(matrices), np.nan)
    return np.array([spearman(matrix.amax(0)[words].numpy(), gradient) for matrix in matrices])


def rerun_abnar_zuidema(request: Request) -> Iterator[Section]:
    request.check_complete(PAPER_MODEL)
    if request.data is None:
        request = request.take_bundled("demo/entailment", make_entailment_examples, TEXTS)
    assert request.data is not None and request.model is not None
    if request.model.kind == "image":
        raise InputError(f"abnar-zuidema needs a model for texts; {request.model.name} takes images.", code="E_OPTION")
    made = measure_layers(request.model, request.data, request.limit)
    yield Section("layers", made)
    caption = "Spearman's correlation of attention with input gradients by layer, with 95 % intervals."
    yield Section("layers-figure", DocumentFigure(made.draw, caption))


ABNAR_ZUIDEMA = Document(
    name="abnar-zuidema",
    title="Abnar & Zuidema: Quantifying Attention Flow in Transformers (ACL 2020)",
    runs=f"Raw attention and rollout against input gradients, on {TEXTS} generated pairs with demo/entailment.",
    run=rerun_abnar_zuidema,
    published=(LOGGED, OTHER_LOG),
    remark="The source of rollout and flow, with which the other papers compare.",
)
