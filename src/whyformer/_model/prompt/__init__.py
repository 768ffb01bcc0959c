"""Prompts: tokens with named regions, rendered by a chat template or read from a log. The door of this room."""

from whyformer._model.prompt.continuation import encode_continuation
from whyformer._model.prompt.documents import DocumentLike, write_document
from whyformer._model.prompt.prompt import WHOLE, Prompt, add_answer, append_tokens, check_ids, cut_prompt
from whyformer._model.prompt.regions import SPLITTERS, Region, SplitBy
from whyformer._model.prompt.tool_calls import CallPart, find_tool_calls
