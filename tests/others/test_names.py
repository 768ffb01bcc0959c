"""Names of timm, torchvision and open_clip in open(), with local weights: the library's own model and preprocessing."""

import json

import numpy as np
import open_clip
import open_clip.transform
import pytest
import timm
import torch
import torchvision
from PIL import Image
from safetensors.torch import load_file, save_file

import whyformer as why
from whyformer.data.masks import align_mask
from whyformer.errors import IncompleteModel, ModelNotFound, UnsafeModel

IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (300, 260, 3), dtype=np.uint8))
TINY = "test_vit"  # timm's own model for tests


@pytest.fixture(scope="module")
def timm_model():
    torch.manual_seed(0)
    return timm.create_model(TINY, num_classes=5).eval()


@pytest.fixture
def timm_weights(timm_model, tmp_path):
    save_file(timm_model.state_dict(), tmp_path / "mine.safetensors")
    return tmp_path / "mine.safetensors"


def answer(model: why.Model) -> torch.Tensor:
    with torch.no_grad():
        return model.module(**model.encode(IMAGE).inputs)


def answer_by_timm(module, settings=None) -> torch.Tensor:
    data = timm.data.resolve_data_config({}, pretrained_cfg=settings, model=module)
    with torch.no_grad():
        return module(timm.data.create_transform(**data, is_training=False)(IMAGE)[None])


def test_a_name_of_timm_with_local_weights(timm_model, timm_weights):
    model = why.open(f"timm:{TINY}", weights=timm_weights)
    assert model.kind == "image"
    assert torch.equal(answer(model), answer_by_timm(timm_model))
    explanation = why.explain(model, IMAGE, "attnlrp", target=4)
    assert explanation.scores.isfinite().all() and explanation.targets[0].index == 4


def test_a_folder_that_timm_has_written(timm_model, tmp_path):
    timm.models.save_for_hf(timm_model, tmp_path, safe_serialization=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["pretrained_cfg"]["mean"] = [0.1, 0.2, 0.3]
    config["label_names"] = list("abcde")
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = why.open(tmp_path)
    assert model.labels == tuple("abcde")
    assert model.processor.image_mean == pytest.approx([0.1, 0.2, 0.3])
    assert torch.equal(answer(model), answer_by_timm(timm_model, config["pretrained_cfg"]))


def test_imagenet_classes_have_names(tmp_path):
    module = timm.create_model(TINY)
    save_file(module.state_dict(), tmp_path / "all.safetensors")
    labels = why.open(f"timm:{TINY}", weights=tmp_path / "all.safetensors").labels
    assert len(labels) == 1000 and "tench" in labels[0]


def test_weights_that_do_not_fit(timm_weights, tmp_path):
    found = load_file(timm_weights)
    name = next(iter(found))
    save_file({key: value for key, value in found.items() if key != name}, tmp_path / "less.safetensors")
    with pytest.raises(IncompleteModel, match=f"{name} is missing from less.safetensors"):
        why.open(f"timm:{TINY}", weights=tmp_path / "less.safetensors")
    save_file(found | {"more": torch.ones(1)}, tmp_path / "more.safetensors")
    with pytest.raises(IncompleteModel, match=r"weights that the model does not have: more"):
        why.open(f"timm:{TINY}", weights=tmp_path / "more.safetensors")
    save_file(found | {name: torch.full_like(found[name], torch.nan)}, tmp_path / "nan.safetensors")
    with pytest.raises(IncompleteModel, match=r"contains NaN"):
        why.open(f"timm:{TINY}", weights=tmp_path / "nan.safetensors")


def test_pickle_is_never_loaded(timm_model, tmp_path):
    torch.save(timm_model.state_dict(), tmp_path / "mine.pth")
    with pytest.raises(UnsafeModel, match=r"mine\.pth is not a safetensors file"):
        why.open(f"timm:{TINY}", weights=tmp_path / "mine.pth")
    torch.save(timm_model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": TINY, "num_classes": 5}))
    with pytest.raises(UnsafeModel, match=r"only pickle weights"):
        why.open(tmp_path)


def test_names_that_do_not_exist():
    with pytest.raises(ModelNotFound, match=r"timm has no model 'test_vitt'. Did you mean 'test_vit"):
        why.open("timm:test_vitt")
    with pytest.raises(ModelNotFound, match=r"torchvision has no classifier 'vit_b_17'. Did you mean"):
        why.open("torchvision:vit_b_17")
    with pytest.raises(ModelNotFound, match=r"open_clip has no model 'ViT-B-33'. Did you mean"):
        why.open("open_clip:ViT-B-33")
    with pytest.raises(ModelNotFound, match=r"Name the weights of ViT-B-32: .* laion2b_s34b_b79k"):
        why.open("open_clip:ViT-B-32")


def test_weights_that_are_only_on_the_hub():
    with pytest.raises(ModelNotFound, match=r"timm/vit_tiny.* downloading is disabled"):
        why.open("timm:vit_tiny_patch16_224")
    with pytest.raises(ModelNotFound, match=r"laion/.* downloading is disabled"):
        why.open("open_clip:ViT-B-32/laion2b_s34b_b79k")


def test_torchvision_has_only_pickles_and_both_ways_out_work(tmp_path):
    with pytest.raises(
        UnsafeModel, match=r"pass weights=, or load the module yourself .* processor=weights.transforms"
    ):
        why.open("torchvision:vit_b_32")
    torch.manual_seed(0)
    module = torchvision.models.vit_b_32(num_classes=3).eval()
    transform = torchvision.models.ViT_B_32_Weights.DEFAULT.transforms()
    save_file(module.state_dict(), tmp_path / "vit.safetensors")
    named, given = (
        why.open("torchvision:vit_b_32", weights=tmp_path / "vit.safetensors"),
        why.open(module, processor=transform),
    )
    with torch.no_grad():
        own = module(transform(IMAGE)[None])
    assert torch.equal(answer(named), own) and torch.equal(answer(given), own)
    assert named.processor.image_mean == pytest.approx([0.485, 0.456, 0.406])


def test_a_folder_of_open_clip(tmp_path):
    config = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 8},
        "text_cfg": {"context_length": 9, "vocab_size": 60, "width": 32, "heads": 4, "layers": 1},
    }
    torch.manual_seed(0)
    whole = open_clip.model.CLIP(**config).eval()
    save_file(whole.state_dict(), tmp_path / "open_clip_model.safetensors")
    preprocessing = {"mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bicubic", "resize_mode": "squash"}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": preprocessing}))
    model = why.open(tmp_path)
    settings = open_clip.transform.PreprocessCfg(size=32, mean=(0.5,) * 3, std=(0.25,) * 3, resize_mode="squash")
    with torch.no_grad():
        own = whole.encode_image(open_clip.transform.image_transform_v2(settings, is_train=False)(IMAGE)[None])
    assert torch.equal(answer(model), own)
    assert "Only the image encoder" in model.notes[0]
    assert why.explain(model, IMAGE, "rollout").scores.shape == (1, 16)


def test_a_mask_is_moved_as_the_transform_moves_the_image(timm_weights):
    """The transform resizes and crops the centre: the middle of a mask stays in the middle, its border is cut off."""
    model = why.open(f"timm:{TINY}", weights=timm_weights)
    mask = np.zeros((300, 300), dtype=np.int8)
    mask[:150, :150] = 1
    aligned = align_mask(mask, (300, 300), model)
    side = aligned.shape[0]
    assert aligned.shape == (side, side)
    assert (aligned[: side // 2, : side // 2] == 1).all() and (aligned[side // 2 :, :] == 0).all()
