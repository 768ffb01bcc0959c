"""`make real`: fetches, converts and checks every model of this folder, and says what could not be had.

PYTHONPATH=evaluation python -m real.make [names] [--again]
"""

import argparse
import shutil
import time
import traceback
from importlib import import_module
from pathlib import Path

from real.fetch import Unavailable, fetch
from real.shelf import RealModel, find_cache, hash_weights

NAMES = (
    "smollm2", "gemma270m", "tinyllama", "titles", "whisper_tiny", "whisper_base", "whisper_small",
    "gte", "minilm", "mpnet", "nli", "tagger", "harms", "injections",
)  # fmt: skip
# Looked for by name in both registries and not found with weights inside.
ABSENT = (
    ("a ViT with an ImageNet head", "no package holds its weights"),
    ("CLIP", "no package holds its weights"),
    ("a decoder that sees images", "no package holds its weights"),
    ("a cross-encoder trained for retrieval", "packages fetch it from a hub; `nli` is a cross-encoder of pairs"),
)


def load(name: str) -> RealModel:
    return import_module(f"real.{name}").MODEL


def make(name: str, cache: Path, again: bool = False) -> str:
    """The folder of one model, checked; returns what was checked."""
    model = load(name)
    sources = [fetch(package, cache) for package in model.packages]
    folder = cache / name
    if again or not folder.exists():
        partial = cache / f"{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        model.convert(sources, partial)
        partial.rename(folder)
    checked = model.check(sources, folder)
    if (found := hash_weights(folder)) != model.weights:
        raise AssertionError(f"{checked}; the weights have the checksum {found}, not the recorded {model.weights}")
    return checked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--again", action="store_true", help="convert also what is there")
    options = parser.parse_args()
    cache = find_cache()
    failed = 0
    for name in options.names or NAMES:
        start = time.perf_counter()
        try:
            outcome = f"ready: {make(name, cache, options.again)}"
        except Unavailable as error:
            outcome = f"could not be had: {error}"
        except Exception as error:
            failed += 1
            traceback.print_exc(limit=-3)
            outcome = f"WRONG: {type(error).__name__}: {error}"
        print(f"{name:14}{time.perf_counter() - start:6.0f} s  {outcome}", flush=True)
    for what, why in ABSENT:
        print(f"not to be had: {what} ({why})")
    print(f"The folders are in {cache}")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
