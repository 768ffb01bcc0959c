"""Case: one example as one method explains it; all that drawing needs, and nothing of how it came about."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from whyformer._engine.target import Target
from whyformer._model.kept_image import KeptImage
from whyformer._plain.tokens import Grid, Pieces, Tokens


@dataclass(frozen=True, eq=False)
class Panel:
    label: str  # the method, as it is called beside others
    name: str  # of the example
    tokens: Tokens
    scores: Tensor  # [token]
    target: Target
    signed: bool
    class_specific: bool
    pixels: Tensor | None = None  # [height width]
    image: KeptImage | None = None
    model: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def is_image(self) -> bool:
        return isinstance(self.tokens, Grid)

    @property
    def grid(self) -> Tensor:
        """The scores of a picture, [rows columns]."""
        assert isinstance(self.tokens, Grid)
        return self.scores.reshape(self.tokens.rows, self.tokens.columns)

    @property
    def finest(self) -> Tensor:
        """The map with the most detail: pixels where there are some, else patches."""
        return self.grid if self.pixels is None else self.pixels

    @property
    def pieces(self) -> Pieces:
        assert isinstance(self.tokens, Pieces)
        return self.tokens

    @property
    def title(self) -> str:
        """What to call the example: the name of a file, the beginning of a text."""
        return self.name if self.is_image or self.pieces.text is None else self.pieces.text
