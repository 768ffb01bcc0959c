"""The log-odds of an answer while some sources of its prompt are left out.

Left out means deleted: the tokens are not there, and those after them move up. All ablations go through the model in
one call of the probe, in batches. For many, tokens before the first deleted one are read once, from the cache of
keys and values; for few, making the cache costs more than it saves. An ablation is asked for once, however often it
is drawn.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer._engine import Probe, engine
from whyformer.methods._players import Players, ask_coalitions

FEW = 20  # ablations


class Ablations:
    """Asks a model for the log-odds of its answer to a prompt without some of its sources."""

    def __init__(self, probe: Probe, players: Players, full: float | None = None) -> None:
        """full: the log-odds with all sources, if they are known."""
        self.probe, self.players = probe, players
        self.full = float(probe.before.score.double()) if full is None else full
        self.known: dict[tuple[bool, ...], float] = {(True,) * players.count: self.full}
        self.forwards = 0.0  # that were asked for, each counted by the share of the tokens that it reads

    def ask(self, keep: Tensor) -> Tensor:
        """[n]: the log-odds with only these sources, keep [n source] bool."""
        rows = [tuple(row) for row in keep.bool().tolist()]
        new = [row for row in dict.fromkeys(rows) if row not in self.known]
        if new:
            with engine(reuse_prefix=False if len(new) <= FEW else None):
                (answers,) = ask_coalitions(self.probe, [self.players], [torch.tensor(new)], fill="delete", of="score")
            self.known |= dict(zip(new, answers.tolist(), strict=True))
            self.forwards += float(self.count_forwards(torch.tensor(new)).sum())
        return torch.tensor([self.known[row] for row in rows], dtype=torch.float64)

    def count_forwards(self, keep: Tensor) -> Tensor:
        """[n]: the share of the tokens that is left, keep [n source] bool: what an ablation costs beside a forward."""
        return self.players.keep(keep).double().mean(1)

    def take_affordable(self, keep: Tensor, forwards: float) -> Tensor:
        """As many of these ablations [n source], from the first one on, as cost no more than so many forwards."""
        return keep[: int((self.count_forwards(keep).cumsum(0) <= forwards).sum())]

    def leave_out(self, sets: Sequence[Sequence[int]]) -> Tensor:
        """[set source] bool: False for the sources of each set."""
        keep = torch.ones(len(sets), self.players.count, dtype=torch.bool)
        for row, left_out in zip(keep, sets, strict=True):
            row[list(left_out)] = False
        return keep

    def ask_without(self, sets: Sequence[Sequence[int]]) -> Tensor:
        """[n]: how much the log-odds fall without each of these sets of sources."""
        return self.full - self.ask(self.leave_out(sets))

    def learn(self, left_out: Sequence[int], log_odds: float) -> None:
        """The log-odds without these sources, which another run has found."""
        (row,) = self.leave_out([left_out]).tolist()
        self.known[tuple(row)] = log_odds
