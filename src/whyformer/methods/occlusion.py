r"""Occlusion: what the answer loses when a window is covered.

$$ s_j = \frac{1}{|\{w : j \in w\}|} \sum_{w \ni j} \frac{y(x) - y(x \setminus w)}{|w|} $$

over all windows $w$ that cover patch $j$. Zeiler & Fergus, Visualizing and Understanding Convolutional Networks, ECCV
2014, section 4.2. arXiv:1311.2901

The paper slides a grey square over the image and plots the class probability at the position of the square. Here the
window moves by patches, because a transformer sees an image in patches, and the loss is divided among the patches it
covers; the last window of a row is aligned with the edge, so that every patch is covered. Texts are covered by windows
of neighbouring tokens. `size=1` is leave-one-out.
"""

from itertools import product

import torch
from torch import Tensor

from whyformer._engine import Probe
from whyformer._plain.setting_checks import allow_whole_number
from whyformer.errors import MethodError
from whyformer.methods._answers import read_clean_answers
from whyformer.methods._players import ask_coalitions, players_of, spread_values
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings


@method(paper="Zeiler & Fergus, ECCV 2014", class_specific=True, signed=True, cost="one forward per window")
@check_method_settings(size=allow_whole_number(1), stride=allow_whole_number(1))
def occlusion(
    probe: Probe, *, size: int | None = None, stride: int = 1, of: str = "score", fill: str | None = None, seed: int = 0
) -> Tensor:
    """How much the explained output falls when a window is covered, divided among its patches or tokens; signed.

    size: side of the window in patches (default 3) or its length in tokens (default 2).
    stride: how far it moves.
    of: "score" or "probability".
    fill: what the window is covered with.
    seed: for the fill "noise".
    """
    size = (3 if probe.is_image else 2) if size is None else size
    if stride > size:
        raise MethodError(
            f"stride must be <= size={size}, got {stride}: larger strides leave gaps between windows.", code="E_OPTION"
        )
    team = players_of(probe, None)
    covers = [make_windows(players.grid_shape, size, stride) for players in team]
    left = ask_coalitions(probe, team, [~cover for cover in covers], fill=fill, seed=seed, of=of)
    lost = [before - after for before, after in zip(read_clean_answers(probe, of), left, strict=True)]
    return spread_values(team, [share_losses(change, cover) for change, cover in zip(lost, covers, strict=True)])


def make_windows(grid_shape: tuple[int, int], size: int, stride: int) -> Tensor:
    """[window player]: True where the window covers."""
    rows, columns = grid_shape
    windows = []
    for top, left in product(find_window_starts(rows, size, stride), find_window_starts(columns, size, stride)):
        window = torch.zeros(rows, columns, dtype=torch.bool)
        window[top : top + size, left : left + size] = True
        windows.append(window.flatten())
    return torch.stack(windows)


def find_window_starts(length: int, size: int, stride: int) -> list[int]:
    """Start positions: every `stride`, and one at the far edge."""
    last = max(length - size, 0)
    return sorted({*range(0, last + 1, stride), last})


def share_losses(lost: Tensor, covers: Tensor) -> Tensor:
    """[player]: the mean over the windows that cover it of an equal share of each window's loss."""
    covers = covers.double()
    return covers.T @ (lost / covers.sum(1).clamp(min=1)) / covers.sum(0)
