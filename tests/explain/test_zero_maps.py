"""Maps that are 0 everywhere come with a note that names the examples and the reason."""

import copy

import pytest
import tiny_text
import torch
import transformers
from conftest import IMAGE, animal

import whyformer as why
from whyformer._explain.zero_maps import list_names, note_flat_maps, note_saturated_maps, note_zero_maps
from whyformer._plain.tokens import Grid, Pieces
from whyformer.methods._registry import METHODS

CLIPS = "It drops negative values, and here no value is positive."


def test_names_the_examples_whose_map_is_zero():
    scores = torch.tensor([[0.0, 0.0], [0.0, 0.1], [0.0, -0.0]])
    (note,) = note_zero_maps(METHODS["grad_cam"], scores, [Grid(1, 2)] * 3, ["cat.jpg", "dog.jpg", "cow.jpg"])
    assert note.startswith(f"grad_cam gives 0 to every patch of 'cat.jpg', 'cow.jpg'. {CLIPS}")
    assert note_zero_maps(METHODS["grad_cam"], scores[1:2], [Grid(1, 2)], ["dog.jpg"]) == ()


def test_special_tokens_do_not_count():
    """Rollouts leave a 1 at the token the answer is read at."""
    tokens = Pieces(("[CLS]", "film", "[PAD]"), (True, False, False), (False, False, True), (None,) * 3)
    (note,) = note_zero_maps(METHODS["attcat"], torch.tensor([[1.0, 0.0, 0.0]]), [tokens], ["a film"])
    assert note.startswith("attcat gives 0 to every word of 'a film'. Nothing that it follows leads to the input.")
    assert note_zero_maps(METHODS["attcat"], torch.tensor([[0.0, -0.1, 0.0]]), [tokens], ["a film"]) == ()


def test_a_map_that_is_the_same_everywhere_is_noted():
    """TinyViT's 784 scores by a map with the weights of reading were between .00127551 and .00127554."""
    scores = torch.tensor([[0.00127551, 0.00127554], [0.1, 0.2], [0.0, 0.0], [-0.5, -0.5]])
    (note,) = note_flat_maps(METHODS["rollout"], scores, [Grid(1, 2)] * 4, ["cat.jpg", "dog.jpg", "cow.jpg", "pig.jpg"])
    assert note.startswith("rollout gives nearly the same score to all of 'cat.jpg', 'pig.jpg': ")
    one_word = Pieces(("[CLS]", "film", "[PAD]"), (True, False, False), (False, False, True), (None,) * 3)
    assert note_flat_maps(METHODS["rollout"], torch.tensor([[1.0, 0.3, 0.0]]), [one_word], ["film"]) == ()


def test_a_map_in_which_many_patches_share_the_highest_score_is_noted():
    """The flow of attention is limited by its narrowest layer, so many patches get all that fits."""
    rows = [[1.0] * 4 + [0.5] * 6, [1.0] + [0.5] * 9, [1.0] * 10, [0.0] * 10]
    names = ["cat.jpg", "dog.jpg", "cow.jpg", "pig.jpg"]
    (note,) = note_saturated_maps(METHODS["attention_flow"], torch.tensor(rows), [Grid(2, 5)] * 4, names)
    assert note.startswith("attention_flow is saturated: 40% of the patches of 'cat.jpg' have its highest score")
    few = torch.tensor([[1.0, 1.0, 0.5]])
    assert note_saturated_maps(METHODS["attention_flow"], few, [Grid(1, 3)], ["cat.jpg"]) == ()


def test_long_lists_of_long_names_are_shortened():
    assert list_names(["a", "b"]) == "'a', 'b'"
    assert list_names([*"abcde"]) == "'a', 'b', 'c' and 2 more"
    assert list_names(["x" * 41]) == repr("x" * 37 + "...")


def test_grad_cam_of_an_answer_that_no_patch_supports():
    """With one head the map is a positive row times a number, so it is 0 for a class or for its opposite."""
    torch.manual_seed(0)
    module = transformers.ViTForImageClassification(transformers.ViTConfig(**IMAGE | {"num_attention_heads": 1}))
    with torch.no_grad():
        module.classifier.weight[1] = -module.classifier.weight[0]
    model, pixels = why.open(module.double().eval()), animal("vit").alone(0)
    shown = [why.explain(model, pixels, "grad_cam", target=target) for target in range(2)]
    assert sorted(bool(e.scores.any()) for e in shown) == [False, True]
    for e in shown:
        assert any(CLIPS in note for note in e.notes) == (not bool(e.scores.any()))


@pytest.mark.parametrize("method", ["grad_cam", "transformer_attribution", "attcat", "saliency", "leave_one_out"])
def test_a_model_that_ignores_its_input(method):
    module = copy.deepcopy(animal("vit").module)
    with torch.no_grad():
        module.classifier.weight.zero_()
    (note,) = why.explain(module, animal("vit").alone(0), method).notes
    assert note.startswith(f"{method} gives 0 to every patch of 'example 0'.")
    assert (CLIPS in note) == (method in ("grad_cam", "transformer_attribution"))


def test_a_comparison_shows_the_notes_of_all_methods_once():
    module = copy.deepcopy(animal("vit").module)
    with torch.no_grad():
        module.classifier.weight.zero_()
    compared = why.compare(module, animal("vit").alone(0), ["rollout", "grad_cam", "attcat"])
    assert [note.split(":")[0] for note in compared.notes] == ["grad_cam", "attcat"]
    shown = " ".join(str(compared).split())
    assert shown.count("grad_cam gives 0 to every patch") == 1


def test_an_ordinary_explanation_has_no_such_note():
    model = why.open(tiny_text.bert(), tokenizer=tiny_text.wordpiece())
    for name, method in METHODS.items():
        if method.is_quick and name not in ("grad_cam", "decompx"):
            assert why.explain(model, "the film is not good", name).notes == (), name
