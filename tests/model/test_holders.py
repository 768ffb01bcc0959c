"""Objects that hold a model, and wrappers around one: pipelines, half precision, sharded models."""

import sys

import pytest
import torch
import torch.distributed as dist
from conftest import TEXT
from tiny_text import wordpiece
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers import BertConfig, BertForSequenceClassification, pipeline

import whyformer as why
from whyformer.errors import ModelError, ModelNotFound, UnsafeModel, UnsupportedModel


def build_bert() -> nn.Module:
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**TEXT)).eval()


def test_a_pipeline_gives_its_model_and_tokenizer():
    held = pipeline("text-classification", model=build_bert(), tokenizer=wordpiece(), device="cpu")
    model = why.open(held)
    assert model.module is held.model and model.kind == "text"
    given = why.explain(build_bert(), model.encode("the film is good"), "attnlrp", target=1)
    assert torch.equal(why.explain(held, "the film is good", "attnlrp", target=1).scores, given.scores)


def test_a_tokenizer_given_beside_a_pipeline_is_used():
    held = pipeline("text-classification", model=build_bert(), tokenizer=wordpiece(), device="cpu")
    assert why.open(held, tokenizer=wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])).tokenizer.vocab_size == 5


def test_a_pipeline_of_images_gives_its_processor(zoo):
    class Processor:
        def __call__(self, images, return_tensors="pt"):
            return {"pixel_values": torch.zeros(len(images), 3, 8, 8)}

    held = pipeline("text-classification", model=build_bert(), tokenizer=wordpiece(), device="cpu")
    held.model, held.image_processor = zoo("vit").module, Processor()
    model = why.open(held)
    assert model.kind == "image" and model.processor is held.image_processor and model.tokenizer is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_stated(dtype):
    name = str(dtype).removeprefix("torch.")
    notes = why.open(build_bert().to(dtype)).notes
    assert notes == (
        f"The model computes in {name}, and so do its attention and gradients; relevance is computed in float32.",
    )
    assert why.open(build_bert()).notes == () == why.open(build_bert().double()).notes


def test_weights_are_only_for_names(zoo, tmp_path):
    with pytest.raises(ModelError, match="weights can only be passed with the name of an architecture"):
        why.open(zoo("bert").module, weights="x.safetensors")
    with pytest.raises(ModelError, match="weights can only be passed with the name of an architecture"):
        why.open("demo/sentiment", weights="x.safetensors")


def test_a_library_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModelNotFound, match=r"timm is not installed, .* pip install timm"):
        why.open("timm:vit_tiny_patch16_224")


@pytest.mark.parametrize("suffix", ["bin", "pt", "pth", "ckpt"])
def test_a_pickle_file_is_refused(tmp_path, suffix):
    file = tmp_path / f"model.{suffix}"
    torch.save(build_bert().state_dict(), file)
    with pytest.raises(UnsafeModel, match="is a pickle file, which can run code"):
        why.open(file)


# --- sharded models ---------------------------------------------------------------------------------------------------


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def shard_all(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    for layer in model.bert.encoder.layer:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def test_a_sharded_model_is_refused_and_the_way_out_works(one_process):
    sharded = shard_all(build_bert())
    with pytest.raises(UnsupportedModel, match="sharded over processes") as caught:
        why.open(sharded)
    assert "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))" in str(caught.value)
    whole = BertForSequenceClassification(BertConfig(**TEXT)).eval()
    whole.load_state_dict(get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True)))
    ids = {"input_ids": torch.tensor([[5, 6, 7]])}
    ours, theirs = (why.explain(model, ids, "rollout").scores for model in (whole, build_bert()))
    assert torch.equal(ours, theirs)


def test_a_sharded_part_is_refused_when_it_is_opened(one_process):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = build_bert()
    fully_shard(model.bert.encoder.layer[0], mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(UnsupportedModel, match="sharded over processes"):
        why.open(model)
