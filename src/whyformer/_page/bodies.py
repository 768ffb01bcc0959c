"""The bodies of requests: what fields there are and what values they take.

Fields are checked here for type and size alone; what a model can do with them is checked by the library.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from whyformer._page.limits import Limits

MOST_CLASSES, MOST_METHODS, MOST_VARIANTS, MOST_CASES = 10, 60, 64, 20
MASK_SIDE = 256  # cells of a painted mask, each way
MOST_MESSAGES = 200
DEEPEST = 32  # levels of a record of a log

Name = Annotated[str, Field(max_length=200)]
Count = Annotated[int, Field(ge=0, le=2**31)]
TargetWord = Annotated[int, Field(ge=-(2**31), le=2**31)] | Annotated[str, Field(max_length=1000)] | None
ImageId = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
SplitName = Literal["passage", "sentence", "paragraph", "document", "role"]


class Body(BaseModel):
    """Unknown fields, NaN and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Message(Body):
    """One turn of a chat."""

    role: Name
    content: str


class Input(Body):
    """What a model reads: an image, a text or two, a prompt or a chat with an answer or without, a record of a log."""

    image: ImageId | None = None
    text: str | None = None
    second: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(max_length=MOST_MESSAGES)] | None = None
    answer: str | Annotated[list[Count], Field(max_length=100_000)] | None = None
    log: dict[str, Any] | None = None

    @model_validator(mode="after")
    def hold_one_thing(self) -> "Input":
        kinds = ("image", "text", "prompt", "messages", "log")
        given = [name for name in kinds if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"an input has one of {', '.join(kinds)}, this one has {len(given)} of them")
        if self.log is not None and measure_depth(self.log) > DEEPEST:
            raise ValueError(f"`log` is nested more than {DEEPEST} levels deep")
        if self.second is not None and self.text is None:
            raise ValueError("`second` goes with `text`")
        if self.answer is not None and self.prompt is None and self.messages is None:
            raise ValueError("`answer` goes with `prompt` or `messages`")
        return self

    def count_characters(self) -> int:
        """Of all texts in it."""
        return sum(map(len, find_texts_in(self.model_dump(exclude={"image"}))))


def measure_depth(value: Any) -> int:
    """How deep lists and objects are nested; counted level by level, since some are too deep to recurse into."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return depth


def find_texts_in(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting += [*one, *one.values()]
        elif isinstance(one, list):
            waiting += one


class Mask(Body):
    """Cells over the model's view of an image, row by row; 1 where it is hidden."""

    rows: Annotated[int, Field(ge=1, le=MASK_SIDE)]
    columns: Annotated[int, Field(ge=1, le=MASK_SIDE)]
    cells: Annotated[str, Field(pattern="^[01]*$", max_length=MASK_SIDE**2)]

    @model_validator(mode="after")
    def fill_the_grid(self) -> "Mask":
        if len(self.cells) != self.rows * self.columns:
            raise ValueError(f"{self.rows} x {self.columns} cells are needed, got {len(self.cells)}")
        return self


class Hidden(Body):
    """What is taken away from an input: painted parts or patches of an image, tokens of a text."""

    fill: Name | None = None
    mask: Mask | None = None
    patches: Annotated[list[Count], Field(max_length=MASK_SIDE**2)] | None = None
    tokens: Annotated[list[Count], Field(max_length=100_000)] | None = None

    @model_validator(mode="after")
    def hide_one_kind(self) -> "Hidden":
        if sum(one is not None for one in (self.mask, self.patches, self.tokens)) != 1:
            raise ValueError("hide one of mask, patches, tokens")
        return self


class Span(Body):
    """Characters of an answer."""

    start: Count
    stop: Count


class ModelBody(Body):
    """A question to one model about one input."""

    model: Count
    input: Input

    def list_inputs(self) -> list[Input]:
        return [self.input]


class ExplainBody(ModelBody):
    """Several targets, each by several methods."""

    targets: Annotated[list[TargetWord], Field(min_length=1, max_length=MOST_CLASSES)] | None = None
    top: Annotated[int, Field(ge=1, le=MOST_CLASSES)] | None = None
    versus: TargetWord = None
    methods: (
        Annotated[list[Name], Field(min_length=1, max_length=MOST_METHODS)] | Literal["usual", "quick", "all"] | None
    ) = None
    span: Span | None = None
    health: bool = False


class Variant(Body):
    """The input with something hidden, or another input in its place."""

    hidden: Hidden | None = None
    input: Input | None = None

    @model_validator(mode="after")
    def be_one_of_two(self) -> "Variant":
        if (self.hidden is None) == (self.input is None):
            raise ValueError("a variant has `hidden` or `input`")
        return self


class PredictBody(ModelBody):
    """What the model answers, also to variants of the input."""

    variants: Annotated[list[Variant], Field(max_length=MOST_VARIANTS)] = []

    def list_inputs(self) -> list[Input]:
        return [self.input, *(one.input for one in self.variants if one.input is not None)]


class CurveBody(ModelBody):
    """What the model answers while the top of an explanation is hidden, or shown alone."""

    method: Name | None = None
    target: TargetWord = None
    versus: TargetWord = None
    span: Span | None = None
    fill: Name | None = None
    steps: Annotated[int, Field(ge=1, le=50)] = 10


class GenerateBody(ModelBody):
    """An answer of a language model, with passages left out or not."""

    max_new_tokens: Annotated[int, Field(ge=1, le=Limits.new_tokens)] = 40
    temperature: Annotated[float, Field(ge=0, le=100, strict=False)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1, strict=False)] = 1.0
    seed: Count = 0
    by: SplitName | None = None
    without: Annotated[list[Count], Field(max_length=10_000)] = []


class PassagesBody(ModelBody):
    """The passages of a prompt."""

    by: SplitName | None = None


class CiteBody(ModelBody):
    """The passages that an answer, or a part of it, comes from."""

    by: SplitName | None = None
    span: Span | None = None
    effort: Literal["fast", "checked", "thorough"] = "checked"


class ExplainCase(ExplainBody):
    """A view of an explanation that somebody keeps."""

    route: Literal["explain"]


class CiteCase(CiteBody):
    """A view of citations that somebody keeps."""

    route: Literal["cite"]


class Case(Body):
    """Something that somebody keeps, with what they say about it."""

    title: Annotated[str, Field(max_length=500)] = ""
    note: Annotated[str, Field(max_length=20_000)] = ""
    request: Annotated[ExplainCase | CiteCase, Field(discriminator="route")]


class ExportBody(Body):
    """Cases as a file."""

    format: Literal["html", "json", "notebook"]
    cases: Annotated[list[Case], Field(min_length=1, max_length=MOST_CASES)]


class RunBody(Body):
    """A page of the items of a bulk run."""

    run: Count
    order: Literal["stored", "wrong", "unsure", "failed"] = "stored"
    offset: Count = 0


class RunMapBody(Body):
    """The map that was stored with an item of a bulk run."""

    run: Count
    part: Count
    row: Count


class CancelBody(Body):
    """A job that nobody waits for any more."""

    job: Name
