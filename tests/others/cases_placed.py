"""Where models live: pipelines, half precision, weights placed by accelerate, compiled and parallel models."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from others.cases_peft import build_bert, build_gpt2, build_vit
from others.subject import Subject, describe_transformers_model, make_ids, make_images, read_logits
from torch import Tensor, nn

BASES = {"BERT": build_bert, "GPT-2": build_gpt2, "ViT": build_vit}


def make_inputs(base: str) -> dict[str, Tensor]:
    return {"pixel_values": make_images()} if base == "ViT" else make_ids()


def describe_placed(module: nn.Module, base: str) -> Subject:
    """A placed model; attention comes from the same model before it was placed."""
    fresh = describe_transformers_model(BASES[base]().eval(), make_inputs(base))

    def run(given: Mapping[str, Tensor]) -> Tensor:
        with torch.no_grad():
            return read_logits(module(**given))

    return Subject(module, fresh.inputs, run=run, attend=fresh.attend, differentiate=fresh.differentiate)


def build_dispatched(base: str) -> Subject:
    import accelerate

    module = BASES[base]().eval()
    places = {name: "cpu" for name, _ in module.named_children()}
    return describe_placed(accelerate.dispatch_model(module, places, main_device="cpu", force_hooks=True), base)


def build_offloaded(base: str) -> Subject:
    import accelerate

    return describe_placed(accelerate.cpu_offload(BASES[base]().eval(), torch.device("cpu")), base)


def build_on_disk(base: str) -> Subject:
    import accelerate

    folder = tempfile.mkdtemp()
    return describe_placed(accelerate.disk_offload(BASES[base]().eval(), folder, torch.device("cpu")), base)


def build_half(base: str, dtype: torch.dtype) -> Subject:
    inputs = make_inputs(base)
    cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}
    subject = describe_transformers_model(BASES[base]().eval().to(dtype), cast)
    subject.tolerance = 5e-2
    return subject


def build_compiled() -> Subject:
    module = build_bert().eval()
    subject = describe_transformers_model(module, make_ids())
    subject.source = torch.compile(module)
    return subject


def build_data_parallel() -> Subject:
    module = build_bert().eval()
    subject = describe_transformers_model(module, make_ids())
    subject.source = nn.DataParallel(module)
    return subject


def build_pipeline(task: str, head: str) -> Subject:
    import transformers
    from tiny_text import wordpiece

    module = build_bert(head).eval()
    pipe = transformers.pipeline(task, model=module, tokenizer=wordpiece(), device="cpu")
    inputs = make_ids()
    if task == "fill-mask":
        inputs["input_ids"][:, 2] = 4  # [MASK]
    subject = describe_transformers_model(module, inputs)
    subject.source = pipe
    return subject


def build_image_pipeline() -> Subject:
    import transformers

    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    module = build_vit().eval()
    pipe = transformers.pipeline("image-classification", model=module, image_processor=processor, device="cpu")
    subject = describe_transformers_model(module, {"pixel_values": make_images()})
    subject.source = pipe
    return subject


def iterate_cases() -> Iterator[tuple[str, str, Callable[[], Subject]]]:
    builders: dict[str, Callable[[Any], Subject]] = {
        "device_map": build_dispatched, "offloaded to memory": build_offloaded, "offloaded to disk": build_on_disk
    }  # fmt: skip
    for what, build in builders.items():
        for base in BASES:
            yield "accelerate", f"{base}, {what}", partial(build, base)
    for base in BASES:
        for dtype in (torch.bfloat16, torch.float16):
            yield "transformers", f"{base} in {str(dtype).removeprefix('torch.')}", partial(build_half, base, dtype)
    yield "torch", "BERT, torch.compile", build_compiled
    yield "torch", "BERT, DataParallel", build_data_parallel
    for task, head in (
        ("text-classification", "BertForSequenceClassification"),
        ("token-classification", "BertForTokenClassification"),
        ("fill-mask", "BertForMaskedLM"),
        ("feature-extraction", "BertModel"),
        ("zero-shot-classification", "BertForSequenceClassification"),
    ):
        yield "pipeline", task, partial(build_pipeline, task, head)
    yield "pipeline", "image-classification", build_image_pipeline
