"""Images between words: one explanation of both, for the vision-language models of transformers."""

import pytest
import torch
from tiny_pictures import (
    FAMILIES,
    IMAGE,
    make_image_processor,
    make_inputs,
    make_joint_processor,
    make_model,
    make_picture,
)

import whyformer as why
from whyformer._engine import locate_image_tokens
from whyformer._model.pictures import box_packed, box_tokens, place_by_processor
from whyformer._plain.tokens import Grid
from whyformer.errors import InputError, UnsupportedModel, WhyformerError

PLACED = [name for name in FAMILIES if name != "idefics2"]
LLAVA = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}


def read_logit(model, inputs, token):
    with torch.no_grad():
        return float(model(**inputs).logits[0, -1, token])


@pytest.fixture(scope="module")
def llava():
    model = make_model("llava", torch.float64)
    return model, make_inputs("llava", model, torch.float64)


# --- every family -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_of_image_and_words_sum_to_the_logit(name):
    model = make_model(name, torch.float64)
    e = why.explain(model, make_inputs(name, model, torch.float64), "cp_lrp")
    assert list(e.streams)[-1] == "words" and len(e.scores[0]) == e.streams["words"].stop
    missing = abs(float(e.scores.sum()) - e.targets[0].score)
    if name == "qwen3":  # DeepStack adds features to later states: the note says so
        assert missing > 1e-5 and any("DeepStack" in note for note in e.notes)
    else:
        assert missing < 1e-5 and not any("DeepStack" in note for note in e.notes)


@pytest.mark.parametrize("name", PLACED)
def test_the_pixels_of_a_token_are_those_that_it_depends_on(name):
    """Without attention in the tower, changing the pixels of one token changes that token alone."""
    model = make_model(name)
    opened = why.open(model)
    encoded = opened.encode(make_inputs(name, model))
    found = locate_image_tokens(opened, encoded).pictures
    is_placeholder = encoded.inputs["input_ids"][0] == IMAGE
    assert torch.equal(found.is_image, is_placeholder)
    owned = found.owners[found.owners >= 0].unique()
    assert bool(is_placeholder[owned].all())
    counts = torch.bincount(found.owners[found.owners >= 0])[owned]
    assert len(counts.unique()) == 1 or name in ("llava_next", "onevision")  # at the edge of a tile, rows are left out


@pytest.mark.parametrize("name", ["llava", "qwen2", "gemma3", "idefics3", "llava_next"])
def test_leave_one_out_is_what_hiding_by_hand_gives(name):
    model = make_model(name, torch.float64)
    inputs = make_inputs(name, model, torch.float64)
    opened = why.open(model)
    e = why.explain(opened, inputs, "leave_one_out")
    token = e.targets[0].index
    before = read_logit(model, inputs, token)
    found = locate_image_tokens(opened, opened.encode(inputs)).pictures
    first = int(found.owners[found.owners >= 0].min())
    image = {**inputs, "pixel_values": inputs["pixel_values"].masked_fill(found.owners == first, 0)}
    cell = e.stream(e.parts[0].name).scores[0]
    assert any(abs(before - read_logit(model, image, token) - float(score)) < 1e-9 for score in cell) or name in (
        "llava_next",  # whose first token is spread over several cells
    )
    ids, mask = inputs["input_ids"].clone(), inputs["attention_mask"].clone()
    ids[0, -3], mask[0, -3] = 0, 0
    word = {**inputs, "input_ids": ids, "attention_mask": mask}
    assert float(e.scores[0, -3]) == pytest.approx(before - read_logit(model, word, token), abs=1e-9)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_batch_gives_what_each_alone_gives(name):
    model = make_model(name)
    first, second = make_inputs(name, model), make_inputs(name, model)
    second["input_ids"] = second["input_ids"].masked_fill(second["input_ids"] == 8, 12)
    second["pixel_values"] = second["pixel_values"].flip(-1)
    both = why.explain(model, {key: torch.cat([first[key], second[key]]) for key in first}, "attnlrp")
    for example, alone in zip(both, (first, second), strict=True):
        assert torch.equal(example.scores, why.explain(model, alone, "attnlrp").scores)


def test_learned_queries_have_no_place_on_the_image():
    model = make_model("idefics2")
    e = why.explain(model, make_inputs("idefics2", model), "attnlrp")
    assert e.parts[0].grid is None and any("no place" in note for note in e.notes)
    with pytest.raises(UnsupportedModel, match="fill='drop'"):
        why.explain(model, make_inputs("idefics2", model), "leave_one_out", fill="zero")
    dropped = why.explain(model, make_inputs("idefics2", model), "leave_one_out", fill="drop").scores
    assert dropped.any()
    assert torch.equal(why.explain(model, make_inputs("idefics2", model), "leave_one_out").scores, dropped)


# --- LLaVA ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [name for name in why.METHODS if name != "vit_cx"])
def test_every_method_scores_image_and_words(llava, method):
    model, inputs = llava
    e = why.explain(model, inputs, method)
    assert e.streams == {"image": slice(0, 16), "words": slice(16, 22)}
    assert e.scores.isfinite().all() and e.stream("image").map().shape == (4, 4)


def test_a_method_for_pixels_says_why_not(llava):
    with pytest.raises(why.WhyformerError, match="masks the pixels of an image"):
        why.explain(*llava, "vit_cx")


def test_attention_is_that_of_the_language_model(llava):
    model, inputs = llava
    attention = make_model("llava", torch.float64)
    attention.set_attn_implementation("eager")
    last = attention(**inputs, output_attentions=True).attentions[-1][0, :, -1].mean(0)
    e = why.explain(model, inputs, "raw_attention")
    in_order = torch.cat([last[2:18], last[:2], last[18:]])  # image, then words
    assert torch.allclose(e.scores[0], in_order.double() / in_order.sum() * e.scores.sum(), atol=1e-9)


def test_the_gradient_is_that_of_the_sequence(llava):
    """By hand: the features of the image and the embeddings of the words enter the language model."""
    model, inputs = llava
    features = model.model.get_image_features(inputs["pixel_values"], return_dict=True).pooler_output[0].detach()
    embedded = model.get_input_embeddings()(inputs["input_ids"]).detach().clone()
    embedded[0, 2:18] = features
    embedded.requires_grad_()
    logits = model(inputs_embeds=embedded, attention_mask=inputs["attention_mask"]).logits[0, -1]
    (gradient,) = torch.autograd.grad(logits.max(), [embedded])
    by_hand = (gradient * embedded).sum(-1)[0].detach()
    e = why.explain(model, inputs, "gradient_x_input")
    assert torch.allclose(e.scores[0], torch.cat([by_hand[2:18], by_hand[:2], by_hand[18:]]), atol=1e-10)


def test_several_images_have_a_stream_each(llava):
    model, inputs = llava
    ids = torch.tensor([[1, *[IMAGE] * 16, 5, *[IMAGE] * 16, 6, 7]])
    both = {"input_ids": ids, "pixel_values": torch.cat([inputs["pixel_values"], inputs["pixel_values"].flip(-1)])}
    e = why.explain(model, both, "cp_lrp")
    assert list(e.streams) == ["image 1", "image 2", "words"]
    assert sum(e.share(name) for name in e.streams) == pytest.approx(1)
    assert float(e.scores.sum()) == pytest.approx(e.targets[0].score, abs=1e-6)


def test_a_list_of_examples_gives_what_each_alone_gives(llava):
    model, inputs = llava
    other = {**inputs, "input_ids": inputs["input_ids"][:, :-1], "attention_mask": inputs["attention_mask"][:, :-1]}
    both = why.explain(model, [inputs, other], "attnlrp")
    assert torch.equal(both[0].scores, why.explain(model, inputs, "attnlrp").scores)
    assert torch.equal(both[1].scores[:, :-1], why.explain(model, other, "attnlrp").scores)
    assert both.tokens[1].padding[-1] and not both[1].scores[0, -1]


def test_the_model_stays_as_it_was(llava):
    model, inputs = llava
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    hooks = [list(part._forward_hooks) + list(part._forward_pre_hooks) for part in model.modules()]
    why.explain(model, inputs, "attnlrp")
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert hooks == [list(part._forward_hooks) + list(part._forward_pre_hooks) for part in model.modules()]
    assert not any(weight.grad is not None for weight in model.parameters())


def test_saved_and_loaded(llava, tmp_path):
    e = why.explain(*llava, "attnlrp")
    e.save(tmp_path / "e.safetensors")
    loaded = why.load(tmp_path / "e.safetensors")
    assert loaded.parts == e.parts and torch.equal(loaded.scores, e.scores)


# --- through the vision tower -----------------------------------------------------------------------------------------


def test_gradients_through_the_tower_are_those_of_the_pixels(llava):
    model, inputs = llava
    e = why.explain(model, inputs, "gradient_x_input", through_tower=True)
    pixels = inputs["pixel_values"].clone().requires_grad_()
    logit = model(**{**inputs, "pixel_values": pixels}).logits[0, -1, e.targets[0].index]
    (gradient,) = torch.autograd.grad(logit, [pixels])
    assert torch.allclose(e.stream("image").pixels[0], (gradient * pixels).sum(1)[0].detach(), atol=1e-12)
    plain = why.explain(model, inputs, "gradient_x_input")
    assert torch.equal(e.stream("words").scores, plain.stream("words").scores)


@pytest.mark.parametrize("name", ["llava", "gemma3", "paligemma", "internvl"])
def test_relevance_is_traced_to_the_patches_of_the_tower(name):
    model = make_model(name, torch.float64)
    traced = why.explain(model, make_inputs(name, model, torch.float64), "attnlrp", through_tower=True)
    assert traced.parts[0].grid == Grid(4, 4) and traced.stream("image").pixels.shape == (1, 32, 32)
    assert any("vision tower" in note for note in traced.notes)


def test_relevance_through_the_tower_is_that_of_the_image_tokens_where_nothing_absorbs_it():
    """CP-LRP loses relevance to biases, positions, the class token and to the curvature of activations."""
    model = make_model("llava", torch.float64)
    model.model.multi_modal_projector.act = torch.nn.ReLU()
    for part in model.model.vision_tower.modules():
        if hasattr(part, "activation_fn"):
            part.activation_fn = torch.nn.ReLU()
    for key, weight in model.model.named_parameters():
        if "language_model" not in key and any(word in key for word in ("bias", "position_embed", "class_embed")):
            torch.nn.init.zeros_(weight)
    inputs = make_inputs("llava", model, torch.float64)
    plain, traced = (why.explain(model, inputs, "cp_lrp", through_tower=on) for on in (False, True))
    wanted = float(plain.stream("image").scores.sum())
    assert float(traced.stream("image").scores.sum()) == pytest.approx(wanted, rel=1e-6)
    assert float(traced.scores.sum()) == pytest.approx(traced.targets[0].score, abs=1e-5)


def test_what_cannot_be_traced_says_why(llava):
    with pytest.raises(WhyformerError, match="rollout cannot be traced"):
        why.explain(*llava, "rollout", through_tower=True)
    with pytest.raises(WhyformerError, match="images between words"):
        why.explain("demo/decoder", "a text", "attnlrp", through_tower=True)
    model = make_model("qwen2")
    with pytest.raises(UnsupportedModel, match="not tiles or packed patches"):
        why.explain(model, make_inputs("qwen2", model), "attnlrp", through_tower=True)


# --- controls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["libragrad", "leave_one_out", "attnlrp", "gradient_x_input"])
def test_one_embedding_scaled_by_ten_ranks_first(method):
    """Image token 5 of 16: what enters the language model for it is ten times as large.

    The norms hardly divide by the size of a token here; otherwise ten times as large would not be more.
    """
    model = make_model("llava", torch.float64)
    inputs = make_inputs("llava", model, torch.float64)
    scale = torch.ones(16, 1, dtype=torch.float64)
    scale[5] = 10
    for part in model.model.language_model.modules():
        if hasattr(part, "variance_epsilon"):
            part.variance_epsilon = 100.0
    shared = torch.randn(48, generator=torch.Generator().manual_seed(0), dtype=torch.float64)  # by all tokens alike
    model.model.multi_modal_projector.register_forward_hook(lambda _, __, made: (made + shared / 10) * scale)
    e = why.explain(model, inputs, method)
    assert int(e.stream("image").scores[0].abs().argmax()) == 5


def test_an_image_the_model_cannot_see_has_no_share():
    """The projector returns 0 for every image: nothing of the answer comes from it."""
    model = make_model("llava", torch.float64)
    for weight in model.model.multi_modal_projector.linear_2.parameters():
        torch.nn.init.constant_(weight, 1e-30)  # not 0, so that the tokens still depend on the pixels
    e = why.explain(model, make_inputs("llava", model, torch.float64), "attnlrp")
    assert e.share("image") < 1e-9 and e.share("words") == pytest.approx(1)


# --- where the pixels lie ---------------------------------------------------------------------------------------------


def test_packed_patches_are_found_on_the_image():
    """The places by test images are those that the grid of patches says."""
    model = make_model("qwen2")
    opened = why.open(model)
    inputs = make_inputs("qwen2", model)
    processor = make_image_processor("qwen2")
    places = place_by_processor(
        lambda images: processor(images=images, return_tensors="pt")["pixel_values"], [(64, 48)]
    )
    found = locate_image_tokens(opened, opened.encode(inputs)).pictures
    length = inputs["input_ids"].size(1)
    measured = box_tokens(places, found.owners, length)
    by_grid = box_packed(inputs["image_grid_thw"], found.owners, length)
    is_placed = ~by_grid[:, 0].isnan()
    assert int(is_placed.sum()) == 48
    assert torch.allclose(measured[is_placed], by_grid[is_placed], atol=0.01)


@pytest.mark.parametrize("size", [(64, 48), (32, 64), (100, 40)])
def test_tiles_lie_on_the_image(size):
    model = make_model("llava_next")
    processor = make_joint_processor("llava_next", "LlavaNextProcessor", {"image_token": "<image>"}, model, **LLAVA)
    opened = why.open(model, processor=processor)
    record = {"image": make_picture(*size), "text": "what is this ?"}
    e = why.explain(opened, record, "cp_lrp")
    grid, boxes = e.parts[0].grid, locate_image_tokens(opened, opened.encode(record)).pictures.boxes
    assert list(e.streams) == ["image", "words"]
    assert grid.columns > grid.rows if size[0] > size[1] else grid.rows > grid.columns
    real = boxes[~boxes[:, 0].isnan()]
    assert float(real[:, 1:].min()) > -0.02 and float(real[:, 1:].max()) < 1.02
    assert float(e.scores.sum()) == pytest.approx(e.targets[0].score, abs=1e-5)
    assert e.stream("image").overlay().size == size


def test_a_mark_on_the_image_is_found_where_it_is():
    """A token is hidden by hand; the map of leave_one_out changes where the mark was painted, tiles and all."""
    model = make_model("idefics3", torch.float64)
    special = {"image_token": "<image>", "fake": "<fake_token_around_image>", "whole": "<global-img>"}
    special["end_of_utterance_token"] = "<end_of_utterance>"
    processor = make_joint_processor("idefics3", "Idefics3Processor", special, model, image_seq_len=4)
    opened = why.open(model, processor=processor)
    image = make_picture(64, 64)
    plain = why.explain(opened, {"image": image, "text": "what ?"}, "gradient_x_input")
    image.paste((255, 255, 255), (48, 0, 64, 16))  # the cell at the top right of 4 x 4
    marked = why.explain(opened, {"image": image, "text": "what ?"}, "gradient_x_input", target=plain.targets[0].index)
    change = (marked.stream("image").map() - plain.stream("image").map()).abs()
    assert change.shape == (4, 4) and divmod(int(change.argmax()), 4) == (0, 3)


def test_an_image_with_a_text(llava):
    model = make_model("llava")
    processor = make_joint_processor("llava", "LlavaProcessor", {"image_token": "<image>"}, model, **LLAVA)
    opened = why.open(model, processor=processor)
    e = why.explain(opened, {"image": make_picture(), "text": "what is this ?"})
    assert list(e.streams) == ["image", "words"] and e.stream("words").tokens[0].text == "what is this ?"
    assert e.stream("image").overlay().size == (64, 48)
    two = why.explain(opened, {"images": [make_picture(), make_picture(40, 80)], "text": "<image> what is <image> ?"})
    assert [two.stream(f"image {n}").overlay().size for n in (1, 2)] == [(64, 48), (40, 80)]
    with pytest.raises(InputError, match="2 places for images"):
        opened.encode({"image": make_picture(), "text": "<image> and <image>"})
    with pytest.raises(InputError, match="not empty"):
        opened.encode({"image": make_picture(), "text": " "})
    with pytest.raises(InputError, match="without a processor for images with texts"):
        why.explain(model, {"image": make_picture(), "text": "what ?"})
