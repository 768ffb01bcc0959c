"""What the command line costs beside what nobody can avoid: CPU seconds of whole processes, side by side.

    python benchmarks/start_up.py [--repeats 5]

*Plain* scripts import torch and the model's class, and then also load the model and its tokenizer and run it once on
the same text. Each command is a process of its own; the least CPU time of the repeats counts, since other work on the
machine only adds to it. A first round compiles everything to bytecode in a temporary folder, as pip does when it
installs, so that the figures do not depend on who compiled what before.
"""

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import whyformer
from whyformer._plain.demo_models import find_demo_models

PACKAGE = Path(whyformer.__file__).parent
MODEL = find_demo_models() / "sentiment"
TEXT = "a gorgeous film"
IMPORTS = "import torch\nfrom transformers import BertForSequenceClassification, BertTokenizerFast\n"
LOADING = (
    f"model = BertForSequenceClassification.from_pretrained({str(MODEL)!r})\n"
    f"tokenizer = BertTokenizerFast.from_pretrained({str(MODEL)!r})\n"
    f"model(**tokenizer({TEXT!r}, return_tensors='pt'))\n"
)
WHYFORMER = ["-m", "whyformer"]
COMMANDS = {
    "import torch": ["-c", "import torch"],
    "plain: torch and the model's class": ["-c", IMPORTS],
    "plain: loaded, and run once": ["-c", IMPORTS + LOADING],
    "import whyformer": ["-c", "import whyformer"],
    "whyformer --help": [*WHYFORMER, "--help"],
    "whyformer methods": [*WHYFORMER, "methods"],
    f'whyformer explain -M demo/sentiment "{TEXT}"': [*WHYFORMER, "explain", "-M", "demo/sentiment", TEXT],
}
BASELINES = {
    "whyformer methods": "import torch",
    f'whyformer explain -M demo/sentiment "{TEXT}"': "plain: torch and the model's class",
}


def measure_processor_time(command: list[str], environment: dict[str, str]) -> float:
    """CPU seconds of a process, user and system, all threads."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bytecode-") as bytecode:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]),
            "PYTHONPYCACHEPREFIX": bytecode,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        found: dict[str, list[float]] = {label: [] for label in COMMANDS}
        for number in range(options.repeats + 1):
            for label, command in COMMANDS.items():
                seconds = measure_processor_time(command, environment)
                if number:  # the first round compiles
                    found[label].append(seconds)
    least = {label: min(seconds) for label, seconds in found.items()}
    print(f"{platform.machine()}, Python {platform.python_version()}, CPU seconds, least of {options.repeats}")
    for label, seconds in least.items():
        baseline = BASELINES.get(label)
        above = f"{seconds - least[baseline]:+.2f} to {baseline}" if baseline else ""
        print(f"{label:55} {seconds:6.2f}  {above}")


if __name__ == "__main__":
    main()
