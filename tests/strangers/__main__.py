"""Draw strange models, ask for explanations, and print what came of it.

PYTHONPATH=tests python -m strangers --models 500 --seed 1
PYTHONPATH=tests python -m strangers --kind "ids clamped" --models 5 --verbose
"""

import argparse
import warnings
from collections import Counter

import torch
from strangers.grammar import FAMILIES, draw_question, draw_questions
from strangers.outcome import MET
from strangers.run import ask_all, write_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", help="only models of kinds or families whose names contain this")
    parser.add_argument("--alone", action="store_true", help="no second kind in a model")
    parser.add_argument("--verbose", action="store_true", help="every answer that is not right, with its reason")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if given.kind or given.alone:
        kinds = [n for n, family in FAMILIES.items() if (given.kind or "") in n or (given.kind or "") in family]
        numbers = range(given.models)
        questions = (draw_question(kinds[n % len(kinds)], given.seed * 10_000 + n, alone=given.alone) for n in numbers)
    else:
        questions = draw_questions(given.models, given.seed)
    answers = []
    for answer in ask_all(questions, given.seed):
        answers.append(answer)
        if given.verbose and answer.outcome.kind not in MET:
            outcome = answer.outcome
            print(" | ".join([outcome.kind, " + ".join(answer.kinds), outcome.method, outcome.reason]))
    print(write_table(answers))
    unmet = Counter(f"{a.outcome.kind}: {a.kinds[0]}" for a in answers if not a.is_met)
    for name, count in unmet.most_common():
        print(f"{count:5} {name}")


if __name__ == "__main__":
    main()
