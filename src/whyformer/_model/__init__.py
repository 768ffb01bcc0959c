"""Models: open them, and turn images, texts and tensors into their inputs. The door of this room."""

from whyformer._model.arrays import read_arrays
from whyformer._model.embedding import (
    HELD,
    HELD_MASK,
    SIDES,
    Embedding,
    Role,
    SimilarityTo,
    as_held,
    has_two_towers,
    pool_states,
    split_by_tower,
)
from whyformer._model.encoded import EncodedBatch
from whyformer._model.image import (
    DECODE_ERRORS,
    FORMATS,
    MAX_PIXELS,
    as_image,
    check_regular_file,
    read_image_bytes,
)
from whyformer._model.input_like import InputLike, OneInput
from whyformer._model.kept_image import UNNAMED_IMAGE, ImageView, KeptImage
from whyformer._model.model import InputKind, Model
from whyformer._model.offload import change_weights, copy_hook, find_device, has_hook, reload_weights
from whyformer._model.prompted import refuse_learned_prompt
from whyformer._model.tables_in_memory import is_column, is_of_library, list_column
from whyformer._model.text import (
    TextPair,
    TokenizedText,
    is_text_pair,
    is_text_record,
    names_image_file,
    tokenize_text,
)
from whyformer._model.unwrap import list_modules, unwrap, unwrap_parts
from whyformer._model.weight_files import count_writes, name_source
from whyformer._model.windows import TextWindow, check_windows

__all__ = [
    "DECODE_ERRORS",
    "FORMATS",
    "HELD",
    "HELD_MASK",
    "MAX_PIXELS",
    "SIDES",
    "UNNAMED_IMAGE",
    "Embedding",
    "EncodedBatch",
    "ImageView",
    "InputKind",
    "InputLike",
    "KeptImage",
    "Model",
    "OneInput",
    "Role",
    "SimilarityTo",
    "TextPair",
    "TextWindow",
    "TokenizedText",
    "as_held",
    "as_image",
    "change_weights",
    "check_regular_file",
    "check_windows",
    "copy_hook",
    "count_writes",
    "find_device",
    "has_hook",
    "has_two_towers",
    "is_column",
    "is_of_library",
    "is_text_pair",
    "is_text_record",
    "list_column",
    "list_modules",
    "name_source",
    "names_image_file",
    "pool_states",
    "read_arrays",
    "read_image_bytes",
    "refuse_learned_prompt",
    "reload_weights",
    "split_by_tower",
    "tokenize_text",
    "unwrap",
    "unwrap_parts",
]
