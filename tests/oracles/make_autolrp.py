"""autoLRP's results: LRP-epsilon and LRP-gamma of a stack without biases, and AttnLRP of a tiny Llama.

    python tests/oracles/make_autolrp.py            writes autolrp.json
    python tests/oracles/make_autolrp.py --check    computes again and compares

Needs an environment with tests/oracles/autolrp.txt; `make test-oracles` does all of it. autoLRP sends 1 at the target
and reads the operations that autograd has recorded. It gives biases a share, and divides a product of two signals in
proportion to their magnitudes; AttnLRP ignores biases, and halves.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import autolrp
import tiny_models
import torch
from autolrp import BASE, LRPConfig

STORED = Path(__file__).with_name("autolrp.json")
PRODUCTS = ("ConvolutionBackward", "AddmmBackward")
RULES = {
    "epsilon 1e-11": LRPConfig(eps=1e-11),
    **{
        f"gamma {gamma}": LRPConfig(rule={**BASE, **dict.fromkeys(PRODUCTS, ("gamma", {"gamma": gamma}))}, eps=1e-11)
        for gamma in (0.25, 1.0)
    },
}


def explain_stack(rules: LRPConfig) -> list[object]:
    """Down to the pixels of three images, each for its own output."""
    found = []
    for target, image in enumerate(tiny_models.picture()):
        pixels = autolrp.tensor(image[None])
        tiny_models.stack_without_biases()(pixels)[0, target].lrp(config=rules)
        found.append(torch.as_tensor(pixels.relevance)[0].tolist())
    return found


def explain_words() -> dict[str, object]:
    """At the embedding, for the largest logit after the last word."""
    model = tiny_models.llama()
    words = autolrp.tensor(model.get_input_embeddings()(torch.tensor(tiny_models.IDS)).detach())
    logits = model(inputs_embeds=words, use_cache=False).logits[0, -1]
    target = int(logits.argmax())
    logits[target].lrp(config=LRPConfig.attnlrp())
    return {"target": target, "word_relevance": torch.as_tensor(words.relevance)[0].sum(-1).tolist()}


def main() -> None:
    found: dict[str, object] = {name: explain_stack(rules) for name, rules in RULES.items()}
    found["llama"] = explain_words()
    versions = {name: version(name) for name in ("autolrp", "transformers", "torch")}
    if "--check" not in sys.argv[1:]:
        STORED.write_text(json.dumps({"versions": versions, "said": found}, indent=0) + "\n")
        return
    for name, before in json.loads(STORED.read_text())["said"].items():
        tiny_models.assert_as_stored(found[name], before)
        print(f"autoLRP {versions['autolrp']}: {name}: as stored")


if __name__ == "__main__":
    main()
