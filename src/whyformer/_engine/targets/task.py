"""The task: what a model answers, judged by what it returned and not by the name of its class.

    class               logits [batch, class], or one number per example (a regression)
    next token          logits [batch, token, vocabulary] of a causal model, or [batch, 1, vocabulary]
    masked token        logits [batch, token, vocabulary] of a model that sees both sides
    token class         logits [batch, token, class] (entities, parts of speech)
    answer span         start_logits and end_logits [batch, token]
    frame               logits [batch, frame, character] of a sound (CTC)
    query               logits [batch, query, class] and pred_boxes [batch, query, 4] of a model that finds objects
    representation      states [batch, channel] or [batch, token, channel] of a model without a head

Names and configs are hints where shapes leave two readings: a vocabulary of the same size as the hidden states, say.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Literal

from torch import Tensor, nn

from whyformer._engine.run.returned import Returned, find_output, get_field
from whyformer._model import EncodedBatch, Model, TwoStreams, unwrap
from whyformer.errors import UnsupportedModel

TaskKind = Literal[
    "class", "next token", "masked token", "token class", "answer span", "frame", "query", "representation"
]
HEAD_NAMES = ("head", "heads", "fc", "classifier")  # where libraries keep the head; nn.Identity means no head
SOUND_INPUTS = ("input_values", "input_features")
OTHER_ANSWERS = {
    "ForMaskedImageModeling": "an image",
    "ForUniversalSegmentation": "segments of an image",
    "ForSemanticSegmentation": "a class for every pixel",
    "ForInstanceSegmentation": "segments of an image",
    "ForImageSegmentation": "segments of an image",
    "ForObjectDetection": "boxes in an image",
    "ForDepthEstimation": "a depth for every pixel",
    "ForImageToImage": "an image",
}
HOW_TO_EXPLAIN = "Pass a function of what the model returns as target, such as target=lambda out: out.logits[:, 0, 3]"


@dataclass(frozen=True)
class Task:
    """What a model answers, and the tensor that it answers with."""

    kind: TaskKind
    output: Tensor
    note: str = ""


def find_task(model: Model, encoded: EncodedBatch, returned: Returned, is_causal: Callable[[], bool]) -> Task:
    """What the model answers to this batch.

    is_causal: whether no token attends to a later one; it is called only if the shapes leave it open.
    """
    start, end = get_field(returned, "start_logits"), get_field(returned, "end_logits")
    if start is not None and end is not None and start.dim() == 2:
        return Task("answer span", start)
    output = find_output(returned, model.module)
    if is_headless(model, returned, output, is_image=encoded.token_mask is None):
        return Task("representation", output)
    boxes, logits = get_field(returned, "pred_boxes"), get_field(returned, "logits")
    if boxes is not None and logits is not None and logits.dim() == 3 and boxes.shape[:2] == logits.shape[:2]:
        return Task("query", logits)
    refuse_other_answers(model.module)
    if output.dim() < 3:
        return Task("class", output)
    if encoded.token_mask is None or output.dim() > 3:
        raise UnsupportedModel(describe_many_answers(model, encoded, returned, output))
    return find_sequence_task(model, encoded, returned, output, is_causal)


def describe_many_answers(model: Model, encoded: EncodedBatch, returned: Returned, output: Tensor) -> str:
    """Why the answer to an image, or one with more than three axes, is not known; how to point at it."""
    name, what = type(unwrap(model.module)).__name__, "a text" if encoded.token_mask is not None else "an image"
    read = "out.logits" if get_field(returned, "logits") is not None else "out"
    if "input_ids" in encoded.inputs and what == "an image" and output.dim() == 3:
        return (
            f"{name} reads a text besides the image and returns {list(output.shape)}, [batch, token, word]; which word "
            "to explain by the image must be given. Pass a function of what the model returns as target, such as "
            f"target=lambda out: {read}[:, -1, 3] for word 3 after the last token."
        )
    index = ", ".join([":", *["0"] * (output.dim() - 2), "3"])
    return (
        f"{name} returns a tensor of shape {list(output.shape)} for {what}, so which number is the answer is not "
        f"known. Pass a function of what the model returns as target, such as target=lambda out: {read}[{index}]."
    )


def find_sequence_task(
    model: Model, encoded: EncodedBatch, returned: Returned, output: Tensor, is_causal: Callable[[], bool]
) -> Task:
    """The task of a model that returns [batch, something, class]."""
    inner, mask = unwrap(model.module), encoded.token_mask
    length, width = output.shape[1:]
    name, main = type(inner).__name__, encoded.inputs[encoded.main]
    if main.is_floating_point():
        return find_state_task(model, encoded, returned, output)
    if length == 1:
        return Task("next token", output)
    if mask is not None and length != mask.size(1):
        raise UnsupportedModel(
            f"The model returns a tensor of shape {list(output.shape)} for {main.size(-1)} tokens, so which token each "
            f"row belongs to is not known. {HOW_TO_EXPLAIN}."
        )
    if not is_vocabulary(model, width):
        has_logits = get_field(returned, "logits") is not None or width == len(model.labels or ())
        is_state = not has_logits and any(table.embedding_dim == width for table in list_tables(inner))
        return Task("representation" if is_state else "token class", output)
    if name.endswith(("ForMaskedLM", "ForPreTraining", "ForTokenClassification")):
        return Task("token class" if name.endswith("ForTokenClassification") else "masked token", output)
    writers = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
    if isinstance(inner, TwoStreams) or name.endswith(writers) or is_causal():
        return Task("next token", output)
    return Task("masked token", output)


def find_state_task(model: Model, encoded: EncodedBatch, returned: Returned, output: Tensor) -> Task:
    """The task of a model that gets numbers, not ids: sounds, embeddings, time series."""
    inner = unwrap(model.module)
    name, config = type(inner).__name__, getattr(inner, "config", None)
    width, main = output.size(-1), encoded.inputs[encoded.main]
    is_vocabulary_wide = width == getattr(config, "vocab_size", None)
    if name.endswith("ForCTC") or (encoded.main in SOUND_INPUTS and is_vocabulary_wide):
        return Task("frame", output)
    if encoded.main in SOUND_INPUTS:
        return Task("token class" if width == getattr(config, "num_labels", None) else "frame", output)
    if encoded.main == "inputs_embeds" and get_field(returned, "logits") is not None:
        if not is_vocabulary_wide or name.endswith("ForTokenClassification"):
            return Task("token class", output)
        return Task("masked token" if name.endswith(("ForMaskedLM", "ForPreTraining")) else "next token", output)
    if main.dim() == 3 and width == main.size(-1) and get_field(returned, "logits") is None:
        return Task("representation", output)
    length = main.size(1 - encoded.batch_axis) if main.dim() == 3 else None
    return Task("token class" if output.size(1) == length else "frame", output)


def is_vocabulary(model: Model, width: int) -> bool:
    """Whether there is an output for every token of the vocabulary; either may be padded, so about as many will do."""
    rows = model.vocabulary
    sizes = [rows] if rows is not None else [table.num_embeddings for table in list_tables(unwrap(model.module))]
    if not sizes or width in sizes:
        return True
    return width != len(model.labels or ()) and any(2 * width > size and width < 2 * size for size in sizes)


def list_tables(module: nn.Module) -> list[nn.Embedding]:
    return [one for one in module.modules() if isinstance(one, nn.Embedding)]


def is_headless(model: Model, returned: Returned, output: Tensor, *, is_image: bool) -> bool:
    """Whether the output is a representation, judged by its fields, the model's name, its head and the shape."""
    inner = unwrap(model.module)
    name = type(inner).__name__
    if get_field(returned, "logits") is not None:
        return False
    if any(output is get_field(returned, field) for field in ("last_hidden_state", "pooler_output")):
        return True
    if hasattr(inner, "main_input_name") and name.endswith("Model") and "Head" not in name:
        return True
    if getattr(inner, "num_classes", None) == 0 or (is_image and output.dim() == 3):
        return True
    return any(isinstance(getattr(inner, head, None), nn.Identity) for head in HEAD_NAMES)


def refuse_encoder_decoders(module: nn.Module) -> None:
    """Refuse models with an encoder and a decoder. Some have only the config of one; they are no such models."""
    inner = unwrap(module)
    has_two = getattr(getattr(inner, "config", None), "is_encoder_decoder", False)
    if not has_two or not hasattr(inner, "main_input_name") or isinstance(inner, TwoStreams):
        return
    if getattr(inner, "main_input_name", None) == "pixel_values" and "decoder_input_ids" not in forward_names(inner):
        return  # learned queries (DETR)
    decoders = [one for path, one in inner.named_modules() if path.rpartition(".")[2] == "decoder"]
    if any(not isinstance(decoder, nn.Linear) for decoder in decoders):
        raise UnsupportedModel(
            f"{type(inner).__name__} has an encoder and a decoder; such models are not supported yet. To explain what "
            "its encoder represents, open model.get_encoder()."
        )


def forward_names(module: nn.Module) -> frozenset[str]:
    return frozenset(signature(module.forward).parameters)


def refuse_other_answers(module: nn.Module) -> None:
    """Refuse Hugging Face models whose output has the shape of logits but means something else."""
    name = type(unwrap(module)).__name__
    for head, answer in OTHER_ANSWERS.items():
        if name.endswith(head) and hasattr(unwrap(module), "main_input_name"):
            raise UnsupportedModel(f"{name} predicts {answer}. {HOW_TO_EXPLAIN}.")
