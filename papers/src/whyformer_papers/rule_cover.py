r"""How much of the object each rule and head covers: "the rules with values cover the whole animal", counted.

$$ \text{covered} = \frac{|M \cap O|}{|O|}, \qquad \text{precise} = \frac{|M \cap O|}{|M|}, \qquad
   M = \{p : m_p > \operatorname{mean}(m)\} $$

with $O$ the outlined object and $M$ the pixels above the mean of the map, as Chefer et al. cut maps. A map that marks
everything covers everything, so both are shown. The same is measured on the model with random weights: what an
untrained model covers as well is no merit of what was learnt.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from whyformer._explain.compare import compare_redistribution
from whyformer._model import Model, as_image
from whyformer._plain.statistics import bootstrap
from whyformer._runs.preparation import content_size_of
from whyformer.data import Data
from whyformer.data.masks import align_mask, read_mask
from whyformer.methods.redistribution import RULES
from whyformer.metrics._maps import resize_map
from whyformer.results.explanation import Explanation
from whyformer_papers.table_result import TableOutline, TableResult

UNTRAINED = "untrained"


@dataclass(frozen=True, eq=False)
class RuleCover(TableResult):
    """By model, rule and column (a head, or the mean of heads): covered and precise of every image."""

    model: str
    data: str
    values: dict[tuple[str, str], np.ndarray]  # (trained or untrained, rule) -> [image column 2]
    columns: Sequence[str]

    def outline(self) -> TableOutline:
        rows = [["", *self.columns]]
        for (which, rule), found in self.values.items():
            shares = np.nanmean(found, axis=0) * 100
            rows.append([f"{which}, rule ({rule})", *(f"{covered:.0f} / {precise:.0f}" for covered, precise in shares)])
        images = len(next(iter(self.values.values())))
        about = (
            f"Percent of the object that is marked / of the marked pixels that are on it; {self.model}, {images} images"
        )
        title = "Sawaki & Murata, JSAI 2025: how much of the object each rule and head covers"
        return TableOutline(title, rows, f"{about} of {self.data}.", list(self.describe_orders()))

    def describe_orders(self) -> list[str]:
        """Whether rules with values cover more than rule (i), by the mean of heads, with 95 % intervals."""
        first = self.values["trained", "i"][:, -1, 0]
        said = []
        for rule in RULES[1:]:
            mean, low, high = (100 * value for value in bootstrap(self.values["trained", rule][:, -1, 0] - first))
            verdict = "more" if low > 0 else "less" if high < 0 else "neither more nor less for certain"
            said.append(
                f"Rule ({rule}) covers {verdict} than rule (i): {mean:+z.1f} points [{low:+z.1f}, {high:+z.1f}]."
            )
        return said


def measure_rule_cover(model: Model, data: Data) -> RuleCover:
    """Every example with a mask, by the model as it is and by the same with random weights."""
    chosen = [example for example in data.examples if example.mask is not None]
    models = {"trained": model, UNTRAINED: forget_training(model)}
    found: dict[tuple[str, str], list[np.ndarray]] = {(which, rule): [] for which in models for rule in RULES}
    columns: Sequence[str] = ()
    for example in chosen:
        image = as_image(example.load())
        mask = align_mask(read_mask(example.load_mask(), data.mask_values), content_size_of(image), model)
        for which, one in models.items():
            grid = compare_redistribution(one, image)
            columns = grid.columns
            for rule in RULES:
                maps = [*grid.heads[rule], grid.means[rule]]
                found[which, rule].append(np.array([measure_cover(explained, mask) for explained in maps]))
    return RuleCover(model.name, data.name, {key: np.stack(values) for key, values in found.items()}, columns)


def measure_cover(explained: Explanation, mask: np.ndarray) -> tuple[float, float]:
    """Covered and precise, over the pixels that the mask does not ignore."""
    values = resize_map(explained, 0, mask.shape).numpy()
    marked, real = (values > values.mean()) & (mask >= 0), mask == 1
    both = float((marked & real).sum())
    return both / max(1, real.sum()), both / max(1, marked.sum())


def forget_training(model: Model, seed: int = 0) -> Model:
    """The model with weights as its layers draw them before training."""
    module = copy.deepcopy(model.module)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for part in module.modules():
            draw = getattr(part, "reset_parameters", None)
            if draw is not None and not isinstance(part, nn.LayerNorm):
                draw()
    return replace(model, module=module, name=f"{model.name}, untrained")
