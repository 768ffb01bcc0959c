"""The numbers of the tracker's card: python training/tracking/evaluate.py

Does the model write the whole chain and the answer, token by token? On held-out programs, by the number of links.
"""

import argparse
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
from whyformer.demo import tracking

MODEL = Path(__file__).parents[2] / "src" / "whyformer" / "demo" / "models" / "tracking"
SEED, COUNT = 0, 1000


@torch.inference_mode()
def is_written(model: LlamaForCausalLM, tokenizer: AutoTokenizer, program: tracking.Program) -> bool:
    """Whether each token of the chain, of the answer and the end is the most likely one: greedy decoding writes them."""
    start = len(tokenizer.encode(program.prompt))
    ids = torch.tensor([tokenizer.encode(program.prompt + program.continuation) + [tokenizer.eos_token_id]])
    likeliest = model(input_ids=ids).logits[0, start - 1 : -1].argmax(-1)
    return bool((likeliest == ids[0, start:]).all())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--count", type=int, default=COUNT)
    arguments = parser.parse_args()
    model = LlamaForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    for links in range(1, tracking.MOST_LINKS + 1):
        programs = tracking.generate(arguments.count, SEED, links=links)
        right = sum(is_written(model, tokenizer, program) for program in programs)
        print(
            f"{links} links: {right} of {len(programs)} written without a mistake, {100 * right / len(programs):.2f} %"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
