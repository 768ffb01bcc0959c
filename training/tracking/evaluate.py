"""The numbers of the tracker's card: python training/tracking/evaluate.py

Accuracy: does the model write the whole chain and the answer, token by token? On held-out programs, by the number of
links. Where the answer comes from: with another value in the chain, or in the source, does the answer follow? Hops: of
programs with one link that are written right, the share of the source and of the link in the relevance of the answer,
hop by hop with each token sending what it received itself, with 95 % bootstrap intervals, beside chance (their share of
the tokens).
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
import whyformer as why
from whyformer._plain.statistics import bootstrap
from whyformer_papers.worlds import tracking

MODEL = Path(__file__).parents[2] / "demo" / "src" / "whyformer_demo" / "models" / "tracking"
SEED = 0
CALLS = (("attnlrp", {}), ("cp_lrp", {}), ("attnlrp", {"recipe": "libra"}), ("lrp_gamma", {}))


@torch.inference_mode()
def find_likeliest(model: why.Model, prompt: str, continuation: str) -> tuple[list[int], list[int]]:
    """The tokens after a prompt, the end included, and the likeliest token at each of these places."""
    encode = model.tokenizer.encode
    start = len(encode(prompt))
    ids = [*encode(prompt + continuation), model.tokenizer.eos_token_id]
    logits = model.module(input_ids=torch.tensor([ids])).logits[0]
    return ids[start:], logits[start - 1 : -1].argmax(-1).tolist()


def is_written(model: why.Model, program: tracking.Assignments) -> bool:
    """Whether greedy decoding writes the chain and the answer and ends."""
    wanted, likeliest = find_likeliest(model, program.prompt, program.continuation)
    return wanted == likeliest


def find_answer(model: why.Model, prompt: str, continuation: str) -> str:
    """The likeliest token where the answer is."""
    _, likeliest = find_likeliest(model, prompt, continuation)
    return model.tokenizer.decode([likeliest[-2]])


def print_accuracy(model: why.Model, count: int) -> None:
    for links in range(1, tracking.MOST_LINKS + 1):
        programs = tracking.generate(count, SEED, links=links)
        right = sum(is_written(model, program) for program in programs)
        print(f"{links} links: {right} of {count} programs written without a mistake, {100 * right / count:.2f} %")


def print_origin(model: why.Model, count: int) -> None:
    """Exchange the value in one place only, and see whether the answer follows."""
    programs = tracking.generate(count, SEED, links=1)
    in_chain = in_source = 0
    for program in programs:
        other = next(value for value in tracking.VALUES if value not in program.prompt)
        chain = program.continuation.replace(f"= {program.value}", f"= {other}")
        in_chain += find_answer(model, program.prompt, chain) == other
        in_source += find_answer(model, program.prompt.replace(program.value, other), program.continuation) == other
    print(f"another value in the chain: the answer follows in {in_chain} of {count}")
    print(f"another value in the source, the chain as before: the answer follows in {in_source} of {count}")


def print_hops(model: why.Model, count: int, method: str, settings: dict[str, str]) -> None:
    programs = [one for one in tracking.generate(count, SEED, links=1) if is_written(model, one)]
    traces = [
        why.trace_reasoning(
            model, one.prompt, method, answer=one.continuation, select=-1, by=one.spans, steps=False, **settings
        )
        for one in programs
    ]
    chances = [4 / (len(h.prompt) - 1) for h in traces]  # a statement has 4 tokens; the answer itself is explained
    named = "".join(f", {name}={value}" for name, value in settings.items())
    print(f"{method}{named}, {len(programs)} programs with one link; chance {sum(chances) / len(chances):.3f}")
    for what, step in (("source", -1), ("link", 0)):
        for hop in range(5):
            shares = [
                float(h.shares()[hop, one.path[step]]) for h, one in zip(traces, programs, strict=True) if hop < len(h)
            ]
            if shares:
                print(f"  {what}, hop {hop} ({len(shares)} programs): {format_interval(shares)}")
    gains = [
        float(h.shares()[1, one.source] - h.shares()[0, one.source]) for h, one in zip(traces, programs, strict=True)
    ]
    print(f"  source, hop 1 minus hop 0: {format_interval(gains)}")
    for hop in (0, 1):
        first = sum(int(h.matrix()[hop].argmax()) == one.source for h, one in zip(traces, programs, strict=True))
        print(f"  the source has the most relevance of all statements in hop {hop}: {first} of {len(programs)}")


def format_interval(values: list[float]) -> str:
    return "{:.3f} [{:.3f}, {:.3f}]".format(*bootstrap(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--count", type=int, default=1000, help="programs for the accuracy")
    parser.add_argument("--traced", type=int, default=200, help="programs for the hops")
    arguments = parser.parse_args()
    model = why.open(arguments.model)
    print_accuracy(model, arguments.count)
    print_origin(model, arguments.traced)
    for method, settings in CALLS:
        print_hops(model, arguments.traced, method, settings)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
