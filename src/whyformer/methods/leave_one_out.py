r"""Leave-one-out: what the answer loses without a token or patch.

$$ s_j = y(x) - y(x \setminus j) $$

Li, Monroe & Jurafsky, Understanding Neural Networks through Representation Erasure, 2016, eq. 1. arXiv:1612.08220
In the paper $y$ is the log-likelihood of the label, its change is divided by $y(x)$, and erasing sets a representation
to 0; here $y$ is the explained logit or its probability, the change is not divided, and erasing replaces or deletes the
token (`fill`).

`preset="jain_wallace"` is the form of Jain & Wallace, Attention is not Explanation, NAACL 2019, algorithm 1
(arXiv:1902.10186): the token is deleted and the score is the distance between the two predictions,
$|\hat y(x) - \hat y(x \setminus j)|$. For two classes this is the change of either probability; for more classes they
sum the changes of all, and we take that of the explained class.
"""

import torch
from torch import Tensor

from whyformer._engine import Probe
from whyformer._plain.setting_checks import allow_choice, allow_flag
from whyformer.methods._answers import read_clean_answers
from whyformer.methods._players import ask_coalitions, players_of, spread_values
from whyformer.methods._registry import Setting, method
from whyformer.methods._settings import apply_preset, check_method_settings

PRESETS: dict[str, dict[str, Setting]] = {
    "plain": {"of": "score", "absolute": False, "fill": None},
    "jain_wallace": {"of": "probability", "absolute": True, "fill": "delete"},
}


@method(paper="Li et al., 2016", class_specific=True, signed=True, cost="one forward per token or patch")
@check_method_settings(preset=allow_choice(tuple(PRESETS)), absolute=allow_flag)
def leave_one_out(
    probe: Probe,
    *,
    preset: str = "plain",
    of: str | None = None,
    absolute: bool | None = None,
    fill: str | None = None,
    units: str | None = None,
    seed: int = 0,
) -> Tensor:
    """How much the explained output falls when one token or patch is removed; signed.

    preset: "plain", or "jain_wallace" (probability, absolute, deleted); explicit settings override the preset.
    of: "score" or "probability".
    absolute: the magnitude of the change.
    fill: for texts "mask", "pad", "unknown" or "delete"; for images "zero", "black", "mean", "blur" or "noise"; "drop".
    units: "token" or "word" for texts, "patch" or "superpixel" for images.
    seed: for the fill "noise".
    """
    chosen = apply_preset(PRESETS, preset, of=of, absolute=absolute, fill=fill)
    team = players_of(probe, units)
    without_one = [~torch.eye(players.count, dtype=torch.bool) for players in team]
    left = ask_coalitions(probe, team, without_one, fill=chosen["fill"], seed=seed, of=chosen["of"])
    lost = [before - after for before, after in zip(read_clean_answers(probe, chosen["of"]), left, strict=True)]
    return spread_values(team, [change.abs() for change in lost] if chosen["absolute"] else lost)
