"""LXT's results: AttnLRP and CP-LRP of a tiny Llama and a tiny GPT-2.

    python tests/oracles/make_lxt.py            writes lxt.json
    python tests/oracles/make_lxt.py --check    computes again and compares

Needs an environment with tests/oracles/lxt.txt; `make test-oracles` does all of it. LXT patches classes for the whole
process and cannot undo it, so each model and variant runs in its own process. Its relevance is the embedding of each
word times the gradient of the largest logit after the last word.
"""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import tiny_models

STORED = Path(__file__).with_name("lxt.json")


def relevance(model_name: str, variant: str) -> dict[str, object]:
    import stand_in

    stand_in.for_the_kernels_of_torchvision()
    import lxt.efficient.models.gpt2
    import lxt.efficient.models.llama
    import torch
    from lxt.efficient import monkey_patch

    of = {"llama": lxt.efficient.models.llama, "gpt2": lxt.efficient.models.gpt2}[model_name]
    module = sys.modules[f"transformers.models.{model_name}.modeling_{model_name}"]
    monkey_patch(module, getattr(of, variant))
    model = getattr(tiny_models, model_name)()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    words = model.get_input_embeddings()(torch.tensor(tiny_models.IDS)).detach().requires_grad_()
    logits = model(inputs_embeds=words, use_cache=False).logits[0, -1]
    target = int(logits.argmax())
    logits[target].backward()
    return {
        "target": target,
        "logit": logits[target].item(),
        "word_relevance": (words * words.grad)[0].tolist(),
    }


def measured() -> dict[str, object]:
    found: dict[str, object] = {}
    for model_name in ("llama", "gpt2"):
        for variant in ("attnLRP", "cp_LRP"):
            asked = [sys.executable, __file__, model_name, variant]
            answer = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
            found[f"{model_name} {variant}"] = json.loads(answer.splitlines()[-1])
    return found


def main() -> None:
    found, versions = measured(), {name: version(name) for name in ("lxt", "transformers", "torch")}
    if "--check" not in sys.argv[1:]:
        STORED.write_text(json.dumps({"versions": versions, "said": found}, indent=0) + "\n")
        return
    for name, before in json.loads(STORED.read_text())["said"].items():
        tiny_models.assert_as_stored(found[name], before)
        print(f"lxt {versions['lxt']}: {name}: as stored")


if __name__ == "__main__":
    is_one_of_several = len(sys.argv) == 3
    print(json.dumps(relevance(*sys.argv[1:]))) if is_one_of_several else main()
