"""What other libraries have, by their own source: the table of peers in README.

Each cell is the first definition (class or function) in the files of the installed package whose name matches; nothing
is imported. A missing definition is a "-": the package may still reach it in another way.

    pip install --target peers --no-deps captum shap inseq lxt autolrp grad-cam quantus context-cite
    python benchmarks/peers.py peers
"""

import argparse
import re
from importlib.metadata import distributions
from pathlib import Path

PACKAGES = {
    "captum": "captum", "shap": "shap", "inseq": "inseq", "LXT": "lxt", "autoLRP": "autolrp",
    "grad-cam": "pytorch_grad_cam", "Quantus": "quantus", "ContextCite": "context_cite",
}  # fmt: skip
DISTRIBUTIONS = {"grad-cam": "grad-cam", "ContextCite": "context-cite"}
FEATURES = {
    "attention rollout": r"\w*rollout\w*",
    "Chefer's attribution": r"\w*(chefer|transformer_?attribution|generic_?attention)\w*",
    "AttnLRP": r"monkey_patch|\w*attn_?lrp\w*",
    "integrated gradients": r"IntegratedGradients\w*",
    "Shapley values": r"KernelShap|ShapleyValueSampling|KernelExplainer|PermutationExplainer",
    "metrics of faithfulness": r"infidelity|aopc|PixelFlipping|ROADMostRelevantFirst|FaithfulnessCorrelation",
    "a random control": r"\w*(random_?(attribution|cam|explainer))\w*",
    "sources of an answer": r"ContextCiter|cite\w*",
    "audit of attention": r"\w*audit\w*",
    "trees and tables": r"TreeExplainer|\w*Tabular\w*",
    "convolutional networks": r"GradCAM|GuidedGradCam|DeepExplainer",
}


def find_definition(folder: Path, pattern: str) -> str | None:
    """The first class or function with such a name, as file:name."""
    definition = re.compile(rf"^\s*(?:class|def)\s+({pattern})\b", re.IGNORECASE | re.MULTILINE)
    for file in sorted(folder.rglob("*.py")):
        if found := definition.search(file.read_text(encoding="utf-8", errors="ignore")):
            return f"{file.relative_to(folder.parent)}:{found[1]}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the packages are installed")
    folder = parser.parse_args().folder
    versions = {one.metadata["Name"].lower(): one.version for one in distributions(path=[str(folder)])}
    names = [name for name, package in PACKAGES.items() if (folder / package).is_dir()]
    print("versions:", ", ".join(f"{n} {versions.get(DISTRIBUTIONS.get(n, n).lower(), '?')}" for n in names))
    for feature, pattern in FEATURES.items():
        print(f"\n{feature}")
        for name in names:
            print(f"  {name:12} {find_definition(folder / PACKAGES[name], pattern) or '-'}")


if __name__ == "__main__":
    main()
