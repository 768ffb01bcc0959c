"""The classes of transformers that are tried, and a tiny random model with inputs of each.

A case is a model, a batch of two and what to explain. Of the tasks with many similar classes only the architectures in
COMMON are tried.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from families import inputs, shrinking
from torch import nn
from transformers.models.auto import modeling_auto

from whyformer import targets

NAMES_OF_TASK = {
    "image_cls": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "seq_cls": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "causal_lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "token_cls": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "qa": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "choice": "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
    "masked_lm": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "speech_seq2seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "audio_cls": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "ctc": "MODEL_FOR_CTC_MAPPING_NAMES",
    "video_cls": "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES",
    "zero_shot_image": "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "detection": "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "semantic_seg": "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
    "universal_seg": "MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES",
    "depth": "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES",
    "vlm": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "time_series_cls": "MODEL_FOR_TIME_SERIES_CLASSIFICATION_MAPPING_NAMES",
    "time_series": "MODEL_FOR_TIME_SERIES_PREDICTION_MAPPING_NAMES",
    "table_qa": "MODEL_FOR_TABLE_QUESTION_ANSWERING_MAPPING_NAMES",
    "vqa": "MODEL_FOR_VISUAL_QUESTION_ANSWERING_MAPPING_NAMES",
    "base": "MODEL_MAPPING_NAMES",
}
COMMON = {
    "token_cls": "bert roberta distilbert deberta-v2 electra xlm-roberta camembert modernbert albert layoutlm "
    "layoutlmv3 gpt2 llama mistral qwen3 mpnet",
    "qa": "bert roberta distilbert deberta-v2 electra albert modernbert bart gpt2 llama xlnet longformer",
    "choice": "bert roberta distilbert deberta-v2 electra xlnet",
    "masked_lm": "bert roberta distilbert deberta deberta-v2 electra albert modernbert xlm-roberta camembert mpnet esm "
    "xlnet longformer big_bird ernie convbert fnet nystromformer squeezebert eurobert roformer",
    "depth": "dpt depth_anything glpn zoedepth",
    "base": "bert roberta xlm-roberta mpnet distilbert modernbert vit dinov2 dinov3_vit clip_vision_model "
    "siglip_vision_model hubert wav2vec2 gpt2 llama qwen3 gemma3_text t5 bart clip_text_model esm nomic_bert eurobert "
    "ijepa vit_mae",
    "vlm": "llava paligemma gemma3 qwen2_vl qwen2_5_vl qwen3_vl qwen3_5 glm4v internvl vipllava aya_vision",
}
TEXT_ONLY = "idefics2 idefics3 llava_next mllama smolvlm mistral3 llama4 pixtral"  # image and text, given text


@dataclass(frozen=True, order=True)
class ModelClass:
    """One class of transformers: the task it is listed under, its architecture, its name."""

    task: str
    architecture: str
    name: str


@dataclass
class Case:
    """A model, a batch of two, and what to explain; `make_eager` builds it again with eager attention."""

    module: nn.Module
    inputs: dict[str, Any]
    target: Any
    make_eager: Callable[[], nn.Module]


def list_classes() -> list[ModelClass]:
    """Every class once, under the first task that lists it, and the architecture that its name begins with."""
    found: dict[str, ModelClass] = {}
    for task, names in NAMES_OF_TASK.items():
        for architecture, name in getattr(modeling_auto, names).items():
            name = name[0] if isinstance(name, list | tuple) else name
            chosen = ModelClass(choose_task(task, architecture), architecture, name)
            if chosen.task and is_better(chosen, found.get(name)):
                found[name] = chosen
    return sorted(found.values())


def choose_task(task: str, architecture: str) -> str:
    """The task; empty if the architecture is not tried for it."""
    if task not in COMMON or architecture in COMMON[task].split():
        return task
    return "vlm_text_only" if task == "vlm" and architecture in TEXT_ONLY.split() else ""


def is_better(new: ModelClass, old: ModelClass | None) -> bool:
    if old is None:
        return True
    strip = lambda text: re.sub(r"[^a-z0-9]", "", text.lower())  # noqa: E731
    fits = [strip(new.name).startswith(strip(one.architecture)) for one in (new, old)]
    return old.task == new.task and fits == [True, False]


def build_case(chosen: ModelClass) -> Case:
    module = build_model(chosen)
    made = inputs.make_inputs(module, chosen.task, chosen.architecture)
    with torch.no_grad():
        module(**made)
    return Case(module, made, TARGETS.get(chosen.task, 1), lambda: build_model(chosen, attn_implementation="eager"))


def read_last_number(returned: Any) -> torch.Tensor:
    """The last number of the logits, or of the first tensor that is returned: a target for boxes, pixels, depths."""
    logits = getattr(returned, "logits", None)
    tensor = logits if logits is not None else returned[0]
    return tensor.flatten(1)[:, -1]


TARGETS: dict[str, Any] = {  # a class or a token by its number, unless the task answers with something else
    "base": targets.Representation(),
    "choice": targets.Choice(1),
    "ctc": targets.Frame(2, 1),
    **dict.fromkeys(("depth", "detection", "semantic_seg", "universal_seg"), read_last_number),
    "masked_lm": targets.Token(7, at=3),
    "qa": targets.AnswerSpan(2, 4),
    "table_qa": None,
    "token_cls": targets.TokenClasses((3, 4), (1, 1)),
}


def build_model(chosen: ModelClass, **options: Any) -> nn.Module:
    """A model with random weights, larger than those it starts with, so that differences show."""
    kind = getattr(transformers, chosen.name)
    config = shrinking.make_config(chosen.architecture, labels=2 if chosen.task in ("qa", "table_qa") else 3)
    config = shrinking.fit_config(config, kind.config_class)
    if chosen.task == "causal_lm" and chosen.architecture in shrinking.DECODERS:
        config.is_decoder = True
    if getattr(config, "use_cache", None) is not None:
        config.use_cache = False
    with torch.device("meta"):
        count = sum(p.numel() for p in kind._from_config(shrinking.copy.deepcopy(config), **options).parameters())
    if count > shrinking.MOST_WEIGHTS:
        raise MemoryError(f"{count / 1e6:.0f} million weights after shrinking.")
    torch.manual_seed(0)
    model = kind._from_config(shrinking.copy.deepcopy(config), **options).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.is_floating_point() and weight.dim() >= 2 and weight.numel() and float(weight.std()) < 0.05:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model
