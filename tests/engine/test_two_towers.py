"""CLIP and its kind: one tower is explained while the embedding of the other is held constant."""

import pytest
import torch
from tiny_towers import make_captioned, make_two_towers

import whyformer as why
from whyformer.errors import InputError, TargetError, UnsupportedModel

torch.set_num_threads(1)
METHODS = ["attnlrp", "gradient_x_input", "leave_one_out", "chance", "rollout", "transformer_attribution"]


@pytest.fixture(scope="module")
def clip():
    return make_two_towers("clip")


@pytest.fixture(scope="module")
def both():
    image, text = make_captioned()
    return image | text


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", ["logits_per_image", "logits_per_text"])
def test_scores_the_explained_side_alone_as_in_a_batch(clip, both, method, target):
    e = why.explain(clip, both, method, target=target)
    assert e.scores.shape[1] == (9 if target == "logits_per_image" else 6)
    own = clip(**both).logits_per_image.diagonal()
    torch.testing.assert_close(torch.tensor([t.score for t in e.targets], dtype=torch.double), own.detach())
    alone = why.explain(clip, {name: tensor[1:] for name, tensor in both.items()}, method, target=target)
    torch.testing.assert_close(e.scores[1], alone.scores[0])


def test_the_image_is_explained_unless_the_text_is_asked_for(clip, both):
    torch.testing.assert_close(
        why.explain(clip, both, "attnlrp").scores, why.explain(clip, both, "attnlrp", target="logits_per_image").scores
    )


def test_the_gradient_is_that_of_the_models_own_logit(clip, both):
    e = why.explain(clip, both, "gradient_x_input")
    pixels = both["pixel_values"].clone().requires_grad_()
    clip(**both | {"pixel_values": pixels}).logits_per_image.diagonal().sum().backward()
    by_hand = (pixels * pixels.grad).sum(1).detach()
    torch.testing.assert_close(e.pixels, by_hand)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_several_texts_are_the_classes_of_one_image(name, both):
    model = make_two_towers(name)
    one = both | {"pixel_values": both["pixel_values"][:1]}
    own = model(**one).logits_per_image[0].detach()
    e = why.explain(model, one, "chance")
    assert e.targets[0].index == int(own.argmax())
    assert e.targets[0].label == f"text {int(own.argmax())}"
    probabilities = own.softmax(-1) if name == "clip" else own.sigmoid()
    assert e.targets[0].probability == pytest.approx(float(probabilities.max()), rel=1e-5)
    assert why.explain(model, one, "chance", target=0).targets[0].score == pytest.approx(float(own[0]))
    with pytest.raises(TargetError, match="There is no class 2"):
        why.explain(model, one, "chance", target=2)


def test_chance_scores_the_patches_of_the_image(clip, both):
    """Before, the layout was that of the tower that ran last."""
    e = why.explain(clip, both, "chance")
    assert e.map().shape == (3, 3)
    assert bool((e.scores[0] != e.scores[1]).any())


@pytest.mark.parametrize("target", ["logits_per_image", "logits_per_text"])
def test_relevance_of_either_side_is_conserved(clip, both, target):
    assert why.explain(clip, both, "attnlrp", target=target, health=True).health.is_conserved


def test_refuses_one_side_alone_and_the_way_out_works(clip, both):
    image = {"pixel_values": both["pixel_values"]}
    with pytest.raises(InputError, match=r"there is no text. Pass both: .* explain_similarity"):
        why.explain(clip, image, "chance")
    assert len(why.explain(clip, both, "chance")) == 2


def test_refuses_logits_that_are_no_cosine(both):
    model = make_two_towers("clip")
    own = type(model).forward

    class Squared(type(model)):
        def forward(self, input_ids=None, pixel_values=None, attention_mask=None):
            answer = own(self, input_ids=input_ids, pixel_values=pixel_values, attention_mask=attention_mask)
            answer["logits_per_image"] = answer["logits_per_image"] ** 2
            return answer

    model.__class__ = Squared
    with pytest.raises(UnsupportedModel, match="are not a scaled cosine"):
        why.explain(model, both, "chance")
    image, text = make_captioned()
    s = why.explain_similarity(model, image, text, "chance", score="cosine", matrix=None)
    assert abs(float(s.scores[0])) <= 1


def test_refuses_a_function_of_the_output(clip, both):
    with pytest.raises(UnsupportedModel, match="explain_similarity"):
        why.explain(clip, both, "attnlrp", target=lambda output: output.logits_per_image[:, 0])


def test_the_model_is_unchanged(clip, both):
    before = {name: tensor.clone() for name, tensor in clip.state_dict().items()}
    why.explain(clip, both, "attnlrp")
    assert all(torch.equal(before[name], tensor) for name, tensor in clip.state_dict().items())
    assert all(weight.requires_grad for weight in clip.parameters())


def test_the_default_works_where_attention_pools_the_image(both):
    """SigLIP pools by attention, which the default for images does not take; its stand-in does."""
    e = why.explain(make_two_towers("siglip"), both)
    assert bool(e.scores.any(1).all())
    assert e.method == "gamma_attribution" or any("does not work here" in note for note in e.notes)
