"""Panel: one example explained by one method, with all that drawing needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from whyformer._engine import Target
from whyformer._model import KeptImage
from whyformer._plain.tokens import Grid, Pieces, ScoredTokens, name_pair
from whyformer.show.chips import ScoredText, make_scored_text


@dataclass(frozen=True, eq=False)
class Panel:
    """One example explained by one method; text or image."""

    label: str  # name of the method in this figure
    name: str  # of the example
    tokens: ScoredTokens
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
    caution: str = ""  # one short line below the title, if the scores should not be taken at face value
    check: tuple[str, ...] = ()  # what the model says with parts of the input hidden, and what that speaks against
    hidden_answers: tuple[float, float] | None = None  # highest units hidden, everything hidden
    streams: tuple["Panel", ...] = ()  # of an example with images and words: each of them; the label says which

    @property
    def is_image(self) -> bool:
        return isinstance(self.tokens, Grid)

    @property
    def grid(self) -> Tensor:
        """The patch scores of an image, [rows columns]."""
        assert isinstance(self.tokens, Grid)
        return self.scores.reshape(self.tokens.rows, self.tokens.columns)

    @property
    def finest(self) -> Tensor:
        """The most detailed map: pixel scores if there are any, else patch scores."""
        return self.grid if self.pixels is None else self.pixels

    @property
    def pieces(self) -> Pieces:
        assert isinstance(self.tokens, Pieces)
        return self.tokens

    @property
    def drawn(self) -> tuple["Panel", ...]:
        """What is drawn below the heading: each stream, or the panel itself."""
        return self.streams or (self,)

    @property
    def scored_text(self) -> ScoredText:
        """The text and its scores, ready to draw."""
        return make_scored_text(self.pieces, self.scores, signed=self.signed)

    @property
    def title(self) -> str:
        """The name of an image, or the text itself; of a pair, both texts."""
        if self.is_image or self.pieces.text is None:
            return self.name
        second = self.pieces.second
        text = self.pieces.text if second is None else name_pair(self.pieces.text, second)
        return " ".join(text.split())
