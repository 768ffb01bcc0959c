"""What is used of the tokenizers and image processors of transformers, and of those that are called like them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from PIL import Image
from torch import Tensor

from whyformer._plain.json_value import JsonValue

MessageLike: TypeAlias = Mapping[str, JsonValue]  # a message, a document or a log, as users write them
ChatMessage: TypeAlias = Mapping[str, Any]  # "role", "content", "tool_calls", ... as JSON

ToolLike: TypeAlias = MessageLike | Callable[..., JsonValue]  # a JSON schema, or a function with a docstring


class Tokenizer(Protocol):
    """From texts to token ids, and back."""

    is_fast: bool
    padding_side: str
    pad_token: str | None
    mask_token_id: int | None
    unk_token_id: int | None
    all_special_ids: list[int]
    all_special_tokens: list[str]
    special_tokens_map: dict[str, str]
    model_input_names: list[str]

    def __call__(self, *texts: str, **settings: bool) -> Any:
        """{"input_ids": [...], "attention_mask": [...], ...}."""

    def decode(self, ids: list[int], **settings: bool) -> str: ...

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]: ...

    def get_chat_template(self, name: str | None, tools: Sequence[ChatMessage] | None) -> str: ...

    def apply_chat_template(self, messages: Sequence[ChatMessage], **settings: Any) -> str: ...


class ImageProcessor(Protocol):
    """From images to pixel values."""

    def __call__(self, images: list[Image.Image], *, return_tensors: str) -> Mapping[str, Tensor]: ...
