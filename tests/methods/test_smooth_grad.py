"""SmoothGrad."""

import pytest
import torch
from conftest import animal
from torch.testing import assert_close

import whyformer as why
from whyformer._plain.random_generator import make_generator
from whyformer.errors import MethodError
from whyformer.methods import smooth_grad


def model(name="bert"):
    return why.open(animal(name).module), animal(name).inputs


@pytest.mark.parametrize("name", ["bert", "vit"])
@pytest.mark.parametrize("reduce", ["max", "l1", "l2"])
def test_without_noise_it_is_saliency(name, reduce):
    opened, inputs = model(name)
    smooth = why.explain(opened, inputs, "smooth_grad", samples=2, noise=0.0, reduce=reduce)
    assert_close(smooth.scores, why.explain(opened, inputs, "saliency", reduce=reduce).scores)


def test_written_slowly_on_a_picture():
    """The same draws, one copy after the other, through the model's own backward."""
    it = animal("vit")
    e = why.explain(why.open(it.module), it.inputs, "smooth_grad", samples=3, noise=0.2, seed=5, target=1)
    marks = why.open(it.module).encode(it.inputs).fingerprints()
    for example, mark in enumerate(marks):
        picture = it.inputs["pixel_values"][example].permute(1, 2, 0)
        generator, total = make_generator(5, int(mark)), torch.zeros_like(picture)
        for _ in range(3):
            noise = torch.randn(16 * 16, 3, dtype=torch.double, generator=generator).view(16, 16, 3)
            noisy = (picture + 0.2 * (picture.max() - picture.min()) * noise).requires_grad_()
            score = it.module(noisy.permute(2, 0, 1)[None]).logits[0, 1]
            total += torch.autograd.grad(score, noisy)[0]
        assert_close(e.pixels[example], (total / 3).abs().amax(-1))


def test_averages_before_it_takes_the_size():
    """y = x^2 at 0: slopes of either sign cancel, so many copies leave less than one."""

    class Square:
        batch, fingerprints, leaf = 1, (7,), torch.tensor([[[0.0], [1.0]]], dtype=torch.double)

        class encoded:  # noqa: N801
            token_mask = None

        def run_at_leaf(self, leaf, of):
            return None, 2 * leaf * torch.tensor([[1.0], [0.0]])

    few, many = (smooth_grad(Square(), samples=n, noise=0.5) for n in (1, 1000))
    assert many[0, 0] < few[0, 0]
    assert many[0, 0] < 0.1
    assert many[0, 1] == 0


def test_another_seed_gives_other_noise():
    opened, inputs = model()
    a, b, again = (
        why.explain(opened, inputs, "smooth_grad", samples=2, seed=seed, target=0).scores for seed in (0, 1, 0)
    )
    assert torch.equal(a, again)
    assert not torch.allclose(a, b)


def test_what_is_spent_is_what_is_said():
    opened, inputs = model()
    e = why.explain(opened, inputs, "smooth_grad", samples=4)
    assert e.spent == {"forward": 1 + 1 + 4, "backward": 4}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 0}, r"samples must be a whole number >= 1, got 0"),
        ({"noise": -0.1}, r"noise must be a finite number >= 0 .*, got -0\.1"),
        ({"reduce": "mean"}, r"reduce must be one of 'max', 'l1', 'l2'; got 'mean'\."),
    ],
)
def test_refuses_settings_that_make_no_sense(settings, message):
    opened, inputs = model()
    with pytest.raises(MethodError, match=message):
        why.explain(opened, inputs, "smooth_grad", **settings)
