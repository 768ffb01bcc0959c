"""Models: open them, and turn images, texts and tensors into their inputs. The door of this room."""

from whyformer._model.arrays import is_column, is_of_library, list_column, read_arrays
from whyformer._model.dictionary_input import takes_dictionary
from whyformer._model.embedding import (
    HELD,
    HELD_MASK,
    SIDES,
    Embedding,
    Role,
    SimilarityTo,
    as_held,
    has_two_towers,
    pool_tokens,
    split_by_tower,
)
from whyformer._model.encoded import EncodedBatch
from whyformer._model.image import DECODE_ERRORS, FORMATS, MAX_PIXELS, as_image, check_regular_file, read_image_bytes
from whyformer._model.input_like import AnswerPart, ImageOrWords, InputLike, OneInput, PromptLike
from whyformer._model.input_spec import holds_cut_patches
from whyformer._model.kept_image import UNNAMED_IMAGE, ImageView, KeptImage
from whyformer._model.model import InputKind, Model, ModelLike
from whyformer._model.offload import OffloadedWeight, change_weights, copy_hook, find_device, list_offloaded
from whyformer._model.pictures import (
    PIXELS,
    Pictures,
    TowerProduct,
    box_packed,
    box_tokens,
    is_picture_record,
    pick_pictures,
    place_plain_pixels,
)
from whyformer._model.prompted import refuse_learned_prompt
from whyformer._model.spans import decode_with_spans
from whyformer._model.text import (
    PAIR_FIELDS,
    TextPair,
    TextWindow,
    TokenizedText,
    check_windows,
    is_text_pair,
    is_text_record,
    names_image_file,
    tokenize_text,
)
from whyformer._model.token_masks import is_added, read_token_mask, write_token_mask
from whyformer._model.two_streams import PREFIX, TwoStreams, count_streams
from whyformer._model.unwrap import list_modules, unwrap, unwrap_parts
from whyformer._model.variants import (
    FILLS,
    IMAGE_FILLS,
    PICTURE_FILLS,
    SIGNAL_FILLS,
    TEXT_FILLS,
    as_pixels,
    can_cut_padding,
    cut_tokens,
    erase_frames,
    erase_pixels,
    find_fill_token,
    hide_image_tokens,
    pick_examples,
    replace_main,
    replace_tokens,
    send_to_device,
    takes_mask,
)
from whyformer._model.weight_files import count_writes, name_source
