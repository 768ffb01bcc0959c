"""Signals: the frames that a model cuts from a waveform, a spectrogram or a time series, and the entries of each."""

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from conftest import QUICK
from test_odd_models import Block as AttentionBlock
from torch import Tensor, nn

import whyformer as why
from whyformer._engine.tracing.frames import Axis
from whyformer.errors import MethodError, UnsupportedModel
from whyformer.methods._registry import METHODS


def test_one_window_by_hand():
    """Kernel 3, stride 2, no padding: token j reads 2j, 2j + 1, 2j + 2. Entries 2 and 4 lie between two centres."""
    axis = Axis(8).cut(3, kernel=3, stride=2, padding=0, dilation=1)
    assert (axis.a, axis.b, axis.r) == (2, 1, 1)
    assert axis.find_owners(8).tolist() == [0, 0, 0, 1, 1, 2, 2, -1]


def test_two_windows_written_slowly():
    """The field of a token is where the output changes if one entry of the input does."""
    first, second = nn.Conv1d(1, 1, 5, stride=2, padding=1), nn.Conv1d(1, 1, 3, stride=2, dilation=2)
    x = torch.zeros(1, 1, 40)
    y = second(first(x))
    axis = Axis(40).cut(first(x).size(-1), 5, 2, 1, 1).cut(y.size(-1), 3, 2, 0, 2)
    read = torch.autograd.functional.jacobian(lambda t: second(first(t)).flatten(), x).flatten(1) != 0
    for j, reads in enumerate(read):
        places = reads.nonzero().flatten()
        low, high = axis.a * j + axis.b - axis.r, axis.a * j + axis.b + axis.r
        assert places.min() == max(low, 0) and places.max() <= high
    owners = axis.find_owners(40)
    for entry, owner in enumerate(owners.tolist()):
        centres = axis.a * torch.arange(axis.size) + axis.b
        away = (centres - entry).abs()
        assert owner == (int(away.argmin()) if away.min() <= axis.r else -1)


class Block(AttentionBlock):
    """A whole block: attention, then an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.other_norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x + self.down(F.gelu(self.up(self.other_norm(x))))


class Listener(nn.Module):
    """Two blocks over frames of a waveform [batch time], after a class token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Conv1d(1, 8, 4, stride=3), nn.Conv1d(8, 16, 2, stride=2)
        self.token, self.blocks = nn.Parameter(torch.randn(1, 1, 16)), nn.Sequential(Block(), Block())
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        frames = self.second(self.first(x[:, None]).relu()).mT
        return self.head(self.blocks(torch.cat([self.token.expand(len(x), -1, -1), frames], 1))[:, 0])


class Reader(nn.Module):
    """One block over patches of a spectrogram [batch time channel], read as an image of channels x time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.cut, self.block, self.head = nn.Conv2d(1, 16, (3, 4), stride=(3, 4)), Block(), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.cut(x.mT[:, None]).flatten(2).mT).mean(1))


class Series(nn.Module):
    """Each channel of a series on its own, in overlapping patches; channels are folded into the batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.block, self.head = nn.Linear(4, 16), Block(), nn.Linear(16, 3)

    def forward(self, past: Tensor) -> Tensor:
        patches = self.embed(past.unfold(1, 4, 2))  # [batch patch channel width]
        states = self.block(patches.transpose(1, 2).flatten(0, 1))
        return self.head(states.mean(1).unflatten(0, (len(past), -1)).mean(1))


def make_signal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def double(module: nn.Module) -> nn.Module:
    return module.double().eval()


@pytest.mark.slow
@pytest.mark.parametrize("module", [Listener, Reader], ids=lambda kind: kind.__name__)
def test_every_method_works_or_refuses_in_our_words(module):
    model, x = why.open(double(module())), make_signal(2, 44) if module is Listener else make_signal(2, 8, 6)
    frames = {Listener: 7, Reader: 4}[module]
    for name in METHODS:
        if name in ("vit_cx", "pa_lrp"):
            with pytest.raises((MethodError, UnsupportedModel), match=r"the input is no image|frames of a signal"):
                why.explain(model, x, name, target=1)
            continue
        scores = why.explain(model, x, name, target=1, **QUICK.get(name, {})).scores
        alone = why.explain(model, x[:1], name, target=1, **QUICK.get(name, {})).scores
        assert scores.shape == (2, frames)
        torch.testing.assert_close(scores[:1], alone, msg=name)


def test_a_frame_is_the_sum_of_its_samples():
    module, x = double(Listener()), make_signal(2, 44).requires_grad_()
    module(x)[:, 1].sum().backward()
    entries = (x * x.grad).detach()
    owners = Axis(44).cut(14, 4, 3, 0, 1).cut(7, 2, 2, 0, 1).find_owners(44)
    wanted = torch.stack([entries[:, owners == frame].sum(1) for frame in range(7)], 1)
    found = why.explain(module, x.detach(), "gradient_x_input", target=1).scores
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(found.sum(1), entries.sum(1))  # nothing that the model reads is left out


def test_leave_one_out_hides_the_samples_of_a_frame():
    module, x = double(Listener()), make_signal(2, 44)
    found = why.explain(module, x, "leave_one_out", target=1, fill="zero").scores
    owners = Axis(44).cut(14, 4, 3, 0, 1).cut(7, 2, 2, 0, 1).find_owners(44)
    with torch.no_grad():
        for frame in range(7):
            hidden = torch.where(owners == frame, 0, x)
            torch.testing.assert_close(found[:, frame], (module(x) - module(hidden))[:, 1])


def test_leave_one_out_hides_the_patch_of_a_spectrogram():
    module, x = double(Reader()), make_signal(2, 8, 6)
    found = why.explain(module, x, "leave_one_out", target=1).scores
    filling = x.mean(1, keepdim=True)
    with torch.no_grad():
        for patch in range(4):
            row, column = divmod(patch, 2)
            hidden = x.clone()
            time, channel = slice(4 * column, 4 * column + 4), slice(3 * row, 3 * row + 3)
            hidden[:, time, channel] = filling[:, :, channel]
            torch.testing.assert_close(found[:, patch], (module(x) - module(hidden))[:, 1])


def test_a_series_whose_channels_are_in_the_batch():
    module, x = double(Series()), make_signal(2, 12, 3)
    for method in ("gradient_x_input", "leave_one_out", "attnlrp", "kernel_shap"):
        assert why.explain(module, x, method, target=1, **QUICK.get(method, {})).scores.shape == (2, 5)
    for method in ("rollout", "atman", "value_zeroing"):
        with pytest.raises(UnsupportedModel, match="in a batch of"):
            why.explain(module, x, method, target=1)


def test_frames_that_are_padding_get_nothing():
    """A frame is padding if all of its samples are."""

    class Masked(Listener):
        def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
            return super().forward(x * attention_mask)

    x, mask = make_signal(2, 44), torch.ones(2, 44, dtype=torch.long)
    mask[1, 20:] = 0
    e = why.explain(double(Masked()), {"x": x, "attention_mask": mask}, "leave_one_out", target=1)
    assert e.tokens[0].padding == (False,) * 7
    assert e.tokens[1].padding == (False, False, False, False, True, True, True)
    assert not e.scores[1, 4:].any() and e.scores[1, :4].all()


def test_an_unknown_cut_is_refused_by_methods_on_the_input():
    class Folded(Listener):
        def forward(self, x: Tensor) -> Tensor:
            frames = F.pad(x, (0, 4)).reshape(len(x), 3, 16)
            return self.head(self.blocks(frames).mean(1))

    module, x = double(Folded()), make_signal(2, 44)
    for method in ("gradient_x_input", "leave_one_out", "attnlrp"):
        with pytest.raises(UnsupportedModel, match="44 steps, the attention covers 3 tokens"):
            why.explain(module, x, method, target=1)
    assert why.explain(module, x, "rollout", target=1).scores.shape == (2, 3)


# --- texts to which a model adds tokens -------------------------------------------------------------------------------


class Prompted(nn.Module):
    """Two learned tokens before those of the text, and padding to a multiple of eight behind them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.prompt = nn.Embedding(30, 16), nn.Parameter(torch.randn(1, 2, 16))
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(16, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        ids = F.pad(input_ids, (0, -(input_ids.size(1) + 2) % 8))
        x = torch.cat([self.prompt.expand(len(ids), -1, -1), self.embed(ids)], 1)
        return self.head(self.blocks(x).mean(1))


def test_tokens_that_the_model_adds_are_not_scored():
    module, ids = double(Prompted()), torch.randint(1, 30, (2, 4), generator=torch.Generator().manual_seed(0))
    model = why.open(module)
    for method in ("rollout", "gradient_x_input", "attnlrp", "leave_one_out", "integrated_gradients", "atman"):
        assert why.explain(model, {"input_ids": ids}, method, target=1, **QUICK.get(method, {})).scores.shape == (2, 4)
    found = why.explain(model, {"input_ids": ids}, "leave_one_out", target=1, fill="pad").scores
    with torch.no_grad():
        without = ids.clone()
        without[:, 2] = 0
        torch.testing.assert_close(found[:, 2], (module(ids) - module(without))[:, 1])


def make_video_model():
    torch.manual_seed(0)
    config = hf.VideoMAEConfig(
        image_size=16, patch_size=8, num_frames=4, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_labels=3, initializer_range=0.2,
    )  # fmt: skip
    return hf.VideoMAEForVideoClassification(config).eval(), torch.randn(1, 4, 3, 16, 16)


def test_tubelets_of_a_video_are_left_out_by_hand():
    """One by one: the pixels of tubelet (1, 0, 1), of 2 frames and 8 x 8 pixels, become their mean over time."""
    module, video = make_video_model()
    found = why.explain(module, video, "leave_one_out", target=1)
    changed = video.clone()
    changed[:, 2:4, :, :8, 8:] = video.mean(1, keepdim=True)[..., :8, 8:]
    with torch.no_grad():
        expected = (module(video).logits - module(changed).logits)[0, 1]
    assert found.scores.shape == (1, 8)
    torch.testing.assert_close(found.scores[0, 4 * 1 + 2 * 0 + 1].float(), expected, rtol=1e-4, atol=1e-6)


def test_the_relevance_of_a_video_is_that_of_its_pixels():
    module, video = make_video_model()
    given = video.clone().requires_grad_()
    module(given).logits[0, 1].backward()
    products = (video * given.grad)[0]
    wanted = products.view(2, 2, 3, 2, 8, 2, 8).sum((1, 2, 4, 6)).flatten()
    found = why.explain(module, video, "gradient_x_input", target=1).scores[0]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
