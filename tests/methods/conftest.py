"""Captures of random numbers: the inputs of a method, without a model."""

from collections.abc import Sequence

import pytest
import torch

from whyformer.methods._registry import METHODS, Scores


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def random_capture():
    return build_capture


@pytest.fixture(scope="session")
def padded():
    return pad_capture


@pytest.fixture(scope="session")
def run():
    """run("rollout", capture, start=1) calls the method with the sites it needs from the capture."""

    def call(name, capture, **settings):
        chosen = METHODS[name]
        returned = chosen.compute(
            *(capture[need] for need in chosen.needs_with(chosen.settings | settings)), **settings
        )
        return returned.values if isinstance(returned, Scores) else returned

    return call


@pytest.fixture(scope="session")
def cls():
    """The readout of one example that is read at its first token, and a mask without padding."""

    def build(tokens):
        readout = torch.zeros(1, tokens, dtype=torch.double)
        readout[0, 0] = 1
        return readout, torch.ones(1, tokens, dtype=torch.bool)

    return build


@pytest.fixture
def read_once():
    return ReadOnce


OTHER_GRADIENTS = ("direct_attention_grad", "layer_attention_grad", "mean_attention_grad")


def build_capture(layers=3, heads=2, tokens=4, batch=1, channels=5, seed=0):
    """One-hot readout at token 0, which is special; attention is a distribution, the rest is normal noise."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape):
        return torch.randn(*shape, dtype=torch.double, generator=generator)

    square, line = (layers, batch, heads, tokens, tokens), (layers + 1, batch, tokens, channels)
    attention = noise(*square).softmax(-1)
    first = torch.zeros(batch, tokens, dtype=torch.bool)
    first[:, 0] = True
    return {
        "attention": attention,
        "attention_grad": noise(*square),
        "attention_relevance": attention * noise(*square),
        "hidden": noise(*line),
        "hidden_grad": noise(*line),
        "hidden_relevance": noise(*line),
        "token_relevance": noise(batch, tokens),
        "position_relevance": noise(layers, 2, batch, tokens),
        "input": noise(*line[1:]),
        "input_grad": noise(*line[1:]),
        "input_relevance": noise(*line[1:]),
        "readout": first.double(),
        "mask": torch.ones(batch, tokens, dtype=torch.bool),
        "special": first,
        "streams": (),
        "fingerprint": [seed * 1000 + example for example in range(batch)],
        **{name: noise(layers, batch, heads, tokens, channels) for name in ("value", "projected")},
        **{name: noise(layers, *line[1:]) for name in ("residual", "middle", "update")},
        "norms": [()] * layers,
        "unattended": (False,) * layers,
        "answer_parts": noise(batch, tokens),
        "attention_scores": attention.log() + noise(*square[:-1], 1),
        **{name: noise(*square) for name in OTHER_GRADIENTS},
    }


def pad_capture(capture, left=0, right=0, seed=99):
    """The capture with padded tokens that behave as in a model: nothing attends to them, all else there is noise."""
    generator = torch.Generator().manual_seed(seed)
    tokens = capture["mask"].shape[-1]
    total, real = left + tokens + right, slice(left, left + tokens)

    def noise(*shape):
        return torch.randn(*shape, dtype=torch.double, generator=generator)

    def line(site):
        wide = noise(*site.shape[:-2], total, site.shape[-1])
        wide[..., real, :] = site
        return wide

    def square(site, *, at_padded_keys):
        wide = noise(*site.shape[:-2], total, total)
        if not at_padded_keys:
            wide[..., :left] = 0
            wide[..., left + tokens :] = 0
        wide[..., real, real] = site
        return wide

    def flags(site):
        wide = torch.zeros(site.shape[0], total, dtype=site.dtype)
        wide[:, real] = site
        return wide

    def row(site):
        wide = noise(*site.shape[:-1], total)
        wide[..., real] = site
        return wide

    lines = ("value", "projected", "residual", "middle", "update", "hidden", "hidden_grad", "hidden_relevance")
    return {
        "attention": square(capture["attention"], at_padded_keys=False),
        "attention_scores": square(capture["attention_scores"], at_padded_keys=True),
        **{name: square(capture[name], at_padded_keys=True) for name in ("attention_grad", *OTHER_GRADIENTS)},
        "attention_relevance": square(capture["attention_relevance"], at_padded_keys=False),
        **{name: line(capture[name]) for name in lines},
        **{name: row(capture[name]) for name in ("token_relevance", "position_relevance")},
        **{name: flags(capture[name]) for name in ("readout", "mask", "special")},
        "fingerprint": capture["fingerprint"],
        "unattended": capture["unattended"],
        "streams": capture["streams"],
        "norms": capture["norms"],
        "answer_parts": flags(capture["answer_parts"]),
    }


class ReadOnce(Sequence):
    """Layers that are recomputed on access, so each may be read only once."""

    def __init__(self, layers):
        self.layers = layers
        self.read = []

    def __len__(self):
        return len(self.layers)

    def __getitem__(self, layer):
        assert isinstance(layer, int), "a slice would rebuild several layers at once"
        layer = range(len(self.layers))[layer]
        assert layer not in self.read, f"layer {layer} is rebuilt twice"
        self.read.append(layer)
        return self.layers[layer]
