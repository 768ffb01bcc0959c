r"""Do values converge towards the output, layer by layer?

Sawaki & Murata (JSAI 2025) explain a weakness of rules (iii) and (iv) by this: near the output, tokens that look alike
have values that are alike, so that the distance between them says little. They do not measure it. Here, by layer $l$
and head $h$, over the patches $j$ of an image with values $v_j$ and states $x_j^{(l)}$ behind the block:

    alike        mean cosine of v_j - mean(v) and v_k - mean(v) over pairs of patches that share a side
    apart        the same over pairs drawn at random
    to the end   mean cosine of v_j W_O^h, the value as the head writes it, and the final class token x_CLS^(L)
    states       mean cosine of x_j^(l) and x_CLS^(L), without heads

The mean over the tokens is taken away before neighbours are compared: rules (ii) to (iv) do not see it either.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine import record
from whyformer._model import Model, OneInput
from whyformer._plain.tokens import Grid
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError
from whyformer.show.charts import Curve, draw_curves, draw_matrix
from whyformer.show.drawing import Drawing
from whyformer_papers.figure import DocumentFigure
from whyformer_papers.table_result import TableOutline, TableResult

LINES = {
    "neighbouring values": "alike",
    "values at random": "apart",
    "values to the final class token": "to_end",
    "block outputs to the final class token": "states",
}


@dataclass(frozen=True, eq=False)
class ValueConvergence(TableResult):
    """Mean cosines by layer, and of values by head."""

    model: str
    images: int
    alike: Tensor  # [layer head]
    apart: Tensor
    to_end: Tensor
    states: Tensor  # [layer]

    def mean_over_heads(self, name: str) -> list[float]:
        found: Tensor = getattr(self, name)
        return [float(layer.mean()) for layer in found]

    def outline(self) -> TableOutline:
        columns = {line: self.mean_over_heads(name) for line, name in LINES.items()}
        body = [
            [f"layer {layer}", *(f"{values[layer - 1]:+z.2f}" for values in columns.values())]
            for layer in range(1, len(self.states) + 1)
        ]
        title = "Sawaki & Murata, JSAI 2025: do values converge towards the output?"
        about = f"Mean cosines over heads, {self.describe_images()}."
        first, last = columns["neighbouring values"][0], columns["neighbouring values"][-1]
        said = (
            f"Neighbouring values are {'more' if last > first else 'less'} alike in the last layer than in the first: "
        )
        said += f"{last:+.2f} and {first:+.2f}."
        return TableOutline(title, [["", *columns], *body], about, [said])

    def describe_images(self) -> str:
        return f"{self.model}, {self.images} image{'s' if self.images > 1 else ''}"

    def draw(self) -> Drawing:
        """All four over the layers."""
        layers = list(range(1, len(self.states) + 1))
        series: dict[str, Curve] = {
            line: (layers, self.mean_over_heads(name), None, None) for line, name in LINES.items()
        }
        note = f"{self.describe_images()}, mean over heads."
        return draw_curves(series, title="Do values converge?", xlabel="layer", ylabel="cosine", note=note)

    def draw_heads(self) -> Drawing:
        """The cosine of values to the final class token, a row for each layer and a column for each head."""
        layers, heads = self.to_end.shape
        return draw_matrix(
            [f"layer {layer}" for layer in range(1, layers + 1)],
            self.to_end.numpy(),
            columns=[f"head {head}" for head in range(1, heads + 1)],
            title="Values to the final class token",
        )

    def list_figures(self) -> dict[str, DocumentFigure]:
        return {
            "values-by-layer": DocumentFigure(self.draw, "Cosines of values and block outputs, by layer."),
            "values-by-head": DocumentFigure(self.draw_heads, "Values to the final class token, by layer and head."),
        }


@neutral_torch()
def measure_value_convergence(model: Model, images: Sequence[OneInput], seed: int = 0) -> ValueConvergence:
    """The cosines of every layer and head, averaged over images."""
    sums: list[Tensor] = []
    for image in images:
        encoded = model.encode(image)
        capture = record(model, encoded, keep={"value", "projected", "hidden", "special"})
        grid = capture.tokens[0]
        if not isinstance(grid, Grid):
            raise InputError("Values are compared between neighbouring patches, and this input has no grid of patches.")
        patches = (~capture["special"][0]).nonzero().flatten()
        end = capture["hidden"][-1][0, int(capture["special"][0].nonzero()[0])]
        near, far = pair_neighbours(grid.rows, grid.columns), pair_at_random(len(patches), seed)
        value = [layer[0][:, patches] for layer in capture["value"]]
        written = [layer[0][:, patches] for layer in capture["projected"]]
        alike, apart = (torch.stack([cosine_of_pairs(v, pairs) for v in value]) for pairs in (near, far))
        to_end = torch.stack([F.cosine_similarity(w, end, dim=-1).mean(-1) for w in written])
        states = torch.stack([F.cosine_similarity(x[0, patches], end, dim=-1).mean() for x in capture["hidden"][1:]])
        sums.append(torch.stack([alike, apart, to_end, states[:, None].expand_as(alike)]))
    mean = torch.stack(sums).double().mean(0).cpu()
    return ValueConvergence(model.name, len(images), mean[0], mean[1], mean[2], mean[3, :, 0])


def cosine_of_pairs(value: Tensor, pairs: Tensor) -> Tensor:
    """[head]: the mean cosine of two values less their mean, over pairs of patches. value: [head patch width]."""
    centred = value - value.mean(dim=1, keepdim=True)
    return F.cosine_similarity(centred[:, pairs[0]], centred[:, pairs[1]], dim=-1).mean(-1)


def pair_neighbours(height: int, width: int) -> Tensor:
    """[2 pair]: patches that share a side."""
    number = torch.arange(height * width).reshape(height, width)
    across, down = (number[:, :-1], number[:, 1:]), (number[:-1], number[1:])
    return torch.stack([torch.cat([a.flatten(), b.flatten()]) for a, b in zip(across, down, strict=True)])


def pair_at_random(patches: int, seed: int) -> Tensor:
    """[2 pair]: each patch beside another one, none beside itself."""
    shift = 1 + torch.randint(patches - 1, (patches,), generator=torch.Generator().manual_seed(seed))
    first = torch.arange(patches)
    return torch.stack([first, (first + shift) % patches])
