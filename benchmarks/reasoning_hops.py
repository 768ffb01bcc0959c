"""Do hops find the statements that an answer depends on? Beside one pass, the whole answer at once, and chance.

    python benchmarks/reasoning_hops.py [--models demo/tracking] [--two] [--keep-links] [--programs 200] [--json FILE]
    python benchmarks/reasoning_hops.py --read FILE ...      the tables of saved runs

Held-out programs with two and three links that the model writes without a mistake. The truth is found by regeneration:
each statement of the prompt sets another value in turn (with --keep-links a link leads to another value, as a link),
the model writes again, and a statement counts if the explained answer is another one. A score of each statement is
right to the degree that its top k are the k that count (the precision at k). The explained answer is the printed value.
With --two the programs print two names, for models that know such (training/tracking/second.toml), and one of the two
values is explained: half of what they write does not lead to it, so that explaining all of it at once cannot do.

*One pass* is hop 0, the relevance of the answer; *tokens* and *steps* are the total over all hops, with each token
sending what it received itself, or what its step received. Means with 95 % bootstrap intervals over programs, and of
the difference to one pass of the same method and to the better one pass of the two.
"""

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import whyformer as why
from whyformer._plain.statistics import bootstrap
from whyformer_papers.worlds import tracking

METHODS = ("cp_lrp", "attnlrp")
Row = dict[str, float]  # of one program: the precision of every score
SCORES = ("one pass", "whole answer", "hops, tokens", "hops, steps")


@torch.inference_mode()
def write(model: why.Model, prompts: list[str], length: int) -> list[str]:
    """What the model writes after prompts of the same number of tokens."""
    ids = torch.tensor([model.tokenizer.encode(prompt) for prompt in prompts])
    written = model.module.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=False)
    return [model.tokenizer.decode(row, skip_special_tokens=True) for row in written[:, ids.size(1) :]]


def find_values(written: str) -> list[str]:
    """The values after the word answer."""
    return re.findall(r"\d+", written.partition("answer")[2])


def find_truth(
    model: why.Model, program: tracking.Assignments, number: int, length: int, keeps_links: bool
) -> list[bool]:
    """Whether each statement counts: with something else there, the answer of this number is another one."""
    rest = program.prompt[program.prompt.index("print") :]
    prompts = [program.prompt]
    for i, (name, _) in enumerate(program.statements):
        changed = f"{name} = {choose_other(program, i, keeps_links)} ;"
        prompts.append(" ".join((*program.lines[:i], changed, *program.lines[i + 1 :], rest)))
    answers = [find_values(written)[number : number + 1] for written in write(model, prompts, length)]
    return [answer != answers[0] for answer in answers[1:]]


def choose_other(program: tracking.Assignments, place: int, keeps_links: bool) -> str:
    """What a statement sets instead: a new value; or for a link another name with another value, if there is one."""
    values: dict[str, str] = {}
    for name, value in program.statements[: place + 1]:
        values[name] = values.get(value, value)
    name, value = program.statements[place]
    others = [one for one in values if values[one] != values[name]]
    if keeps_links and value in values and others:
        return others[0]
    return next(value for value in tracking.VALUES if value not in program.prompt)


def measure_precision(scores: torch.Tensor, truth: list[bool]) -> float:
    """The share of the k highest scores that are true, k of them being true."""
    top = scores.argsort(descending=True, stable=True)[: sum(truth)].tolist()
    return sum(truth[i] for i in top) / len(top)


def measure_program(model: why.Model, program: tracking.Assignments, number: int, keeps_links: bool) -> Row:
    """The precision of every score; nothing if the model does not write the program right."""
    answers = len(program.paths)
    length = len(program.continuation.split()) + 1
    if write(model, [program.prompt], length)[0].split() != program.continuation.split():
        return {}
    truth = find_truth(model, program, number, length, keeps_links)
    on_path = [i in program.paths[number] for i in range(len(truth))]
    found = {"chance": sum(truth) / len(truth), "on the path": float(truth == on_path)}
    for method in METHODS:
        call = {"answer": program.continuation, "by": program.spans}
        asked = {**call, "select": number - answers}
        steps = why.trace_reasoning(model, program.prompt, method, **asked)
        tokens = why.trace_reasoning(model, program.prompt, method, steps=False, **asked)
        whole = why.trace_reasoning(model, program.prompt, method, hops=0, **call)
        regions = (steps.matrix()[0], whole.matrix()[0], tokens.matrix().sum(0), steps.matrix().sum(0))
        for name, scores in zip(SCORES, regions, strict=True):
            found[f"{method}, {name}"] = measure_precision(scores, truth)
    return found


def measure_model(name: str, arguments: argparse.Namespace) -> Iterator[Row]:
    model = why.open(name)
    for i in range(arguments.programs):
        drawn = tracking.generate(1, arguments.seed + i, links=2 + i % 2, prints_two=arguments.two)[0]
        yield measure_program(model, drawn, i // 2 % len(drawn.paths), arguments.keep_links)


def print_model(name: str, every: list[Row]) -> None:
    rows = [row for row in every if row]
    if not rows:
        print(f"\n{name}: none of {len(every)} programs written right")
        return
    same = sum(row["on the path"] for row in rows)
    print(f"\n{name}: {len(rows)} of {len(every)} programs written right; chance {mean(rows, 'chance'):.3f}; the "
          f"statements that count are those of the path in {same:.0f}\n")  # fmt: skip
    print("| score | precision | minus its one pass | minus the better one pass |\n|---|---|---|---|")
    best = max((f"{method}, one pass" for method in METHODS), key=lambda label: mean(rows, label))
    for method in METHODS:
        for score in SCORES:
            label = f"{method}, {score}"
            own = [row[label] - row[f"{method}, one pass"] for row in rows]
            other = [row[label] - row[best] for row in rows]
            print(f"| {label} | {format_interval([row[label] for row in rows])} | {format_interval(own)} | "
                  f"{format_interval(other)} |", flush=True)  # fmt: skip


def mean(rows: list[Row], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


def format_interval(values: list[float]) -> str:
    return "{:.3f} [{:.3f}, {:.3f}]".format(*bootstrap(values))


def measure_all(arguments: argparse.Namespace) -> Iterator[tuple[str, list[Row]]]:
    """Model by model; what there is so far is saved after every program."""
    saved: dict[str, list[Row]] = {}
    for name in arguments.models:
        saved[name] = []
        for row in measure_model(name, arguments):
            saved[name].append(row)
            if arguments.json:
                arguments.json.write_text(json.dumps(saved))
        yield name, saved[name]


def read_all(files: Sequence[Path]) -> dict[str, list[Row]]:
    """What was saved, by model: runs of other seeds are joined."""
    joined: dict[str, list[Row]] = {}
    for file in files:
        for name, rows in json.loads(file.read_text()).items():
            joined.setdefault(name, []).extend(rows)
    return joined


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["demo/tracking"])
    parser.add_argument("--two", action="store_true", help="programs that print two names")
    parser.add_argument("--keep-links", action="store_true", help="a link is changed to another name, not to a value")
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=500)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--read", nargs="+", type=Path, help="files of earlier runs, instead of a run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, rows in read_all(arguments.read).items() if arguments.read else measure_all(arguments):
        print_model(name, rows)


if __name__ == "__main__":
    main()
