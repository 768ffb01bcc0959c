"""A Rerun without a model: the test itself computes the scores of the variants."""

import torch
from fake_probe import TARGET, explanation

from whyformer._model.encoded import EncodedBatch


class FakeRerun:
    """make(inputs [n ...], of [n], target, model, settings) gives the scores [n unit] of the variants."""

    def __init__(self, first, inputs, make, model=None):
        name = "pixel_values" if inputs.is_floating_point() else "input_ids"
        self.encoded = EncodedBatch({name: inputs}, name, len(inputs), ("",) * len(inputs))
        self.first, self.make, self.model, self.asked = first, make, model, []

    @property
    def inputs(self):
        return self.encoded.inputs[self.encoded.main]

    def __call__(self, inputs=None, *, target=None, model=None, of=None, **settings):
        of = torch.arange(len(self.first)) if of is None else torch.as_tensor(of)
        inputs = self.inputs[of] if inputs is None else inputs
        self.asked.append(dict(target=target, model=model, of=of.tolist(), **settings))
        scores = self.make(inputs=inputs, of=of, target=target, model=model, **settings)
        return explanation(scores, tuple(self.first.tokens[i] for i in of), targets=(TARGET,) * len(of))
