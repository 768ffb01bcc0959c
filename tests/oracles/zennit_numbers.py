"""Relevance of a stack of linear layers by zennit, stored for the tests: run in an environment of its own (README.md).

python tests/oracles/zennit_numbers.py zennit.json
"""

import json
import sys

import stand_in
import tiny_models


def main(path: str) -> None:
    stand_in.for_the_kernels_of_torchvision()
    from importlib.metadata import version

    import torch
    from torch import nn
    from zennit.attribution import Gradient
    from zennit.composites import LayerMapComposite
    from zennit.rules import Epsilon, Gamma, Pass

    rules = {
        "epsilon 1e-06": Epsilon(1e-6),
        "epsilon 0.25": Epsilon(0.25),
        "gamma 0.25": Gamma(0.25, stabilizer=1e-12),
        "gamma 1.0": Gamma(1.0, stabilizer=1e-12),
        "gamma 100.0": Gamma(100.0, stabilizer=1e-12),
    }
    found: dict[str, object] = {name: version(name) for name in ("zennit", "torch")}
    model, x = tiny_models.stack(), tiny_models.picture()
    logits = model(x).detach()
    found["logits"] = logits.tolist()
    for name, rule in rules.items():
        composite = LayerMapComposite([((nn.Conv2d, nn.Linear), rule), (nn.ReLU, Pass())])
        with Gradient(model=model, composite=composite) as attributor:
            seed = torch.nn.functional.one_hot(torch.tensor([0, 1, 2]), 5).double()
            _, relevance = attributor(x, seed)
        found[name] = relevance.tolist()
    with open(path, "w") as file:
        json.dump(found, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
