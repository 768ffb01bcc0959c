"""Zennit's results: LRP-epsilon and LRP-gamma of a stack of linear layers and a convolution.

    python tests/oracles/make_zennit.py            writes zennit.json
    python tests/oracles/make_zennit.py --check    computes again and compares

Needs an environment with tests/oracles/zennit.txt; `make test-oracles` does all of it. Relevance is 1 at output 0 of
the first image, at output 1 of the second and at output 2 of the third.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import stand_in
import tiny_models
import torch
from torch import nn

STORED = Path(__file__).with_name("zennit.json")


def measured() -> dict[str, object]:
    stand_in.for_the_kernels_of_torchvision()
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
    model, x = tiny_models.stack(), tiny_models.picture()
    found: dict[str, object] = {"logits": model(x).tolist()}
    for name, rule in rules.items():
        composite = LayerMapComposite([((nn.Conv2d, nn.Linear), rule), (nn.ReLU, Pass())])
        with Gradient(model=model, composite=composite) as attributor:
            _, relevance = attributor(x, torch.eye(5, dtype=torch.float64)[:3])
        found[name] = relevance.tolist()
    return found


def main() -> None:
    found, versions = measured(), {name: version(name) for name in ("zennit", "torch")}
    if "--check" not in sys.argv[1:]:
        STORED.write_text(json.dumps({"versions": versions, "said": found}, indent=0) + "\n")
        return
    for name, before in json.loads(STORED.read_text())["said"].items():
        tiny_models.assert_as_stored(found[name], before)
        print(f"zennit {versions['zennit']}: {name}: as stored")


if __name__ == "__main__":
    main()
