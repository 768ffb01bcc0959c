"""The whole attack with one seed, its groups one after another in this process; prints a table of what was found.

    PYTHONPATH=tests python -m attack --seed 7
    PYTHONPATH=tests python -m attack --seed 7 --calls 90 --lines 90 --processes 4 --archives 90 --kills 5 --requests 0

A size of 0 leaves a group out. A hang takes more than 60 seconds of the processor, or does nothing for 15 minutes; a
request that is refused after more than 60 seconds is one too. The exit code is 1 if anything was raised raw, lost,
doubled or did not end, or if the memory of this process or of the server grew by more than 100 MB while a group ran;
the faults go to stderr.
"""

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch
from attack.found import Found
from attack.kills import attack_runs
from attack.test_api import attack_calls
from attack.test_archives import attack_archives, save_originals
from attack.test_commands import attack_commands, attack_processes, fill_folder
from attack.test_requests import GROWTH, attack_requests

STEPS, WARM = 20, 5  # between two of them memory is measured, after those which load every model and library
HEAD = ("group", "size", "with a result", "raw", "lost", "doubled", "hangs", "longest, s", "grown, MB")
Attack = Callable[[Random, int, Found], object]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default="1")
    sizes = {"kills": 60, "calls": 5000, "lines": 2000, "processes": 40, "archives": 2000, "requests": 5000}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # runs that are killed are forks of this process
    bad = False
    print(write_row(HEAD), write_row(["---"] * len(HEAD)), sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in sizes:
            if count := getattr(given, name):
                found = run_group(name, Random(f"{given.seed} {name}"), count)
                print(write_row(describe(name, found)), flush=True)
                print(*(f"{name}: {fault}" for fault in found.faults[:40]), sep="\n", file=sys.stderr, flush=True)
                bad = bad or bool(found.faults) or found.grown > GROWTH
        os.chdir("/")
    print(f"\nseed {given.seed}, {time.process_time():.0f} s of the processor in this process")
    return int(bad)


def run_group(name: str, random: Random, count: int) -> Found:
    """What came of one group, in a folder of its own."""
    place, found = Path.cwd() / name, Found()
    place.mkdir()
    os.chdir(place)
    if name == "kills":
        attack_runs(place, random, count, found)
    elif name == "requests":
        attack_requests(random, count, found)
    else:
        run_in_steps(make_attack(name, place), random, count, found)
    return found


def make_attack(name: str, place: Path) -> Attack:
    if name == "calls":
        return attack_calls
    if name == "archives":
        torch.manual_seed(0)
        originals = save_originals(place)
        (place / "mutated").mkdir()
        return lambda random, count, found: attack_archives(originals, place / "mutated", random, count, found)
    fill_folder()
    return attack_commands if name == "lines" else attack_processes


def run_in_steps(attack: Attack, random: Random, count: int, found: Found) -> None:
    for number in range(STEPS):
        attack(random, count * (number + 1) // STEPS - count * number // STEPS, found)
        if number + 1 >= WARM:
            found.measure()


def describe(name: str, found: Found) -> list[str]:
    counts = [found.tried, found.answered, len(found.raw), found.lost, found.doubled, len(found.hangs)]
    return [name, *map("{:,}".format, counts), f"{found.longest:.0f}", f"{found.grown / 1e6:.0f}"]


def write_row(cells) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
