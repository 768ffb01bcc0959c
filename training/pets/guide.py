"""The teacher as it is used here: features standardised per channel, and a head of our own."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import views
from photos import Photos
from student import BREEDS
from torch import Tensor, nn

WIDTH = 320  # of the teacher's pooled features


class Guide(nn.Module):
    """Standardised features at 14 x 14, at 7 x 7 and pooled, and the logits of a head fitted on the training fold."""

    def __init__(self, see: Callable[[Tensor], tuple[Tensor, ...]], device: str):
        super().__init__()
        self.see = see
        self.head = nn.Linear(WIDTH, BREEDS).to(device)
        self.mean: list[Tensor] = []
        self.spread: list[Tensor] = []

    @torch.no_grad()
    def forward(self, large: Tensor) -> list[Tensor]:
        features = [(f.float() - m) / s for f, m, s in zip(self.see(large), self.mean, self.spread, strict=True)]
        return [*features, self.head(features[2])]

    @torch.no_grad()
    def fit(
        self, photos: Photos, shoot: Callable[..., Any], batch: int, views_each: float, probe: dict[str, Any]
    ) -> None:
        """Mean and spread of every feature channel over views of training photos, then the head on the pooled ones."""
        pooled, label, moments = [], [], []
        stream = photos.batches(batch)
        for _ in range(math.ceil(views_each * len(photos.train) / batch)):
            chosen = next(stream)
            _, large = shoot(photos.train[chosen], views.draw(batch, photos.side, photos.device, mixup=False))
            features = [f.float() for f in self.see(large)]
            pooled.append(features[2])
            label.append(photos.train_label[chosen])
            moments.append([_moments(f.flatten(0, -2)) for f in features])
        average = [torch.stack(same).mean(0) for same in zip(*moments, strict=True)]
        self.mean = [m[0] for m in average]
        self.spread = [(m[1] - m[0] ** 2).clamp(min=1e-6).sqrt() for m in average]
        self._fit_head((torch.cat(pooled) - self.mean[2]) / self.spread[2], torch.cat(label), probe)

    @torch.enable_grad()
    def _fit_head(self, features: Tensor, label: Tensor, probe: dict[str, Any]) -> None:
        optimiser = torch.optim.AdamW(self.head.parameters(), probe["rate"], weight_decay=probe["weight_decay"])
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, probe["steps"])
        for _ in range(probe["steps"]):
            optimiser.zero_grad()
            F.cross_entropy(self.head(features), label).backward()
            optimiser.step()
            schedule.step()

    def state(self) -> dict[str, Any]:
        return {"mean": self.mean, "spread": self.spread, "head": self.head.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        self.mean, self.spread = state["mean"], state["spread"]
        self.head.load_state_dict(state["head"])


def _moments(features: Tensor) -> Tensor:
    return torch.stack([features.mean(0), features.square().mean(0)])
