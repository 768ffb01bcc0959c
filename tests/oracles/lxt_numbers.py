"""Relevance of tiny models by LXT, stored for the tests: run in an environment of its own (README.md).

    python tests/oracles/lxt_numbers.py lxt.json

LXT patches classes for the whole process and cannot take it back, so each model and variant runs in a process of its
own. Its relevance is embedding times gradient of the largest logit after the last token.
"""

import json
import subprocess
import sys

import tiny_models


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


def main(path: str) -> None:
    from importlib.metadata import version

    found: dict[str, object] = {name: version(name) for name in ("lxt", "transformers", "torch")}
    for model_name in ("llama", "gpt2"):
        for variant in ("attnLRP", "cp_LRP"):
            asked = [sys.executable, __file__, model_name, variant]
            answer = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
            found[f"{model_name} {variant}"] = json.loads(answer.splitlines()[-1])
    with open(path, "w") as file:
        json.dump(found, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) == 2 else print(json.dumps(relevance(*sys.argv[1:])))
