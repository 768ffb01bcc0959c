"""What bfloat16 costs on a trained language model: relevance in bfloat16 against float32, as rank correlation.

    python benchmarks/reader_precision.py [--methods attnlrp libragrad cp_lrp] [--items 50] [--device cuda]

The bundled reader, held-out questions that it answers right in both precisions, the whole answer explained. Printed for
each method: the rank correlation over the tokens of the prompt (mean, and the lowest of any prompt), over the sums of
the passages, and how often both precisions put the same passage first.
"""

import argparse
import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from reader_passages import Answered, choose_right
from torch import Tensor

import whyformer as why
from whyformer.results.comparison import rank_correlation

METHODS = ("attnlrp", "libragrad", "cp_lrp", "gradient_x_input")


def score_passages(scores: Tensor, one: Answered) -> Tensor:
    return torch.stack([scores[list(tokens)].sum() for tokens in one.list_passages()])


def compare_precisions(models: Sequence[why.Model], method: str, answered: Sequence[Answered]) -> str:
    tokens, passages, same = [], [], 0
    for one in answered:
        length = one.prompt.prompt_length
        maps = [why.explain(model, one.prompt, method).scores[0].double().cpu()[:length] for model in models]
        sums = [score_passages(scores, one) for scores in maps]
        tokens.append(float(rank_correlation(torch.stack(maps))[0, 1]))
        passages.append(float(rank_correlation(torch.stack(sums))[0, 1]))
        same += int(sums[0].argmax() == sums[1].argmax())
    count = len(answered)
    return (
        f"{method}: tokens {sum(tokens) / count:.4f} (lowest {min(tokens):.4f}), passages {sum(passages) / count:.4f} "
        f"(lowest {min(passages):.4f}), same passage first {same} of {count}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--items", type=int, default=50)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    single = why.open("demo/reader", device=arguments.device)
    half = replace(single, module=copy.deepcopy(single.module).to(torch.bfloat16))
    answered = list(choose_right(single, arguments.items))
    asked = {one.asked.text for one in choose_right(half, 2 * arguments.items)}
    answered = [one for one in answered if one.asked.text in asked]
    print(f"{len(answered)} questions that both answer right", flush=True)
    for method in arguments.methods:
        print(compare_precisions((single, half), method, answered), flush=True)


if __name__ == "__main__":
    main()
