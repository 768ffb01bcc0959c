"""Peak memory and time of explanations of long inputs, and how both grow with the number of tokens.

    python benchmarks/long_inputs.py                                         a BERT-base-shaped encoder, here
    python benchmarks/long_inputs.py --tokens 2048 4096 8192 --methods transformer_attribution
    python benchmarks/long_inputs.py --model gpt --methods attnlrp --tokens 2048 4096
    python benchmarks/long_inputs.py --device cuda --tokens 512 1024 2048 4096 8192

Weights are random, in float32, and there is one sequence. On the CPU each figure comes from a process of its own, and
memory is its largest resident set: in all, and above what it held before the explanation (the model, torch itself).
On a GPU it is the peak of what torch allocated, weights included. Time is in multiples of one plain forward pass of the
same model (`--device cpu`: of processor time).

At the end, scores in tiles are compared with those of whole matrices (`why.engine(tiles=False)`).
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import whyformer as why

METHODS = (
    "transformer_attribution",
    "generic_attention",
    "attcat",
    "rollout",
    "attnlrp",
    "gradient_x_input",
)
GIB = 2**30


def make_model(name: str, tokens: int, layers: int) -> nn.Module:
    torch.manual_seed(0)
    if name == "bert":
        config = BertConfig(max_position_embeddings=tokens, num_hidden_layers=layers)
        return BertForSequenceClassification._from_config(config, attn_implementation="sdpa").eval()
    small = GPT2Config(
        vocab_size=8000, n_positions=tokens, n_embd=256, n_layer=layers, n_head=4, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel._from_config(small, attn_implementation="sdpa").eval()


def make_inputs(tokens: int, device: str) -> dict[str, torch.Tensor]:
    ids = torch.randint(1000, 8000, (1, tokens), generator=torch.Generator().manual_seed(1)).to(device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def read_clock(device: str) -> float:
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def read_peak(device: str) -> float:
    """GiB: the most that was held so far."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    return torch.cuda.max_memory_allocated() / GIB


def read_held(device: str) -> float:
    """GiB: what is held now."""
    if device == "cpu":
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / GIB
    return torch.cuda.memory_allocated() / GIB


def measure(options: argparse.Namespace, method: str, tokens: int) -> dict[str, Any]:
    """Memory and time of one explanation."""
    device = options.device
    module = make_model(options.model, tokens, options.layers).to(device)
    inputs = make_inputs(tokens, device)
    plain = float("inf")
    for _ in range(1 if device == "cpu" else 3):  # the first pass on a GPU loads kernels
        start = read_clock(device)
        with torch.no_grad():
            module(**inputs)
        plain = min(plain, read_clock(device) - start)
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = read_held(device)
    took = float("inf")
    for _ in range(1 if device == "cpu" else 2):
        start = read_clock(device)
        explanation = why.explain(why.open(module), inputs, method, target=1)
        took = min(took, read_clock(device) - start)
    assert bool(explanation.scores.isfinite().all())
    return {"peak": read_peak(device), "before": before, "seconds": took, "forwards": took / plain}


def measure_apart(options: argparse.Namespace, method: str, tokens: int) -> dict[str, Any]:
    """The same in a process of its own: the largest resident set never shrinks."""
    if options.device != "cpu":
        return measure(options, method, tokens)
    given = ["--model", options.model, "--layers", str(options.layers), "--threads", str(options.threads)]
    command = [sys.executable, __file__, *given, "--one", method, "--tokens", str(tokens)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    return json.loads(done.stdout.splitlines()[-1])


def compare_with_whole(options: argparse.Namespace, tokens: int) -> None:
    """How far scores in tiles are from those of whole matrices."""
    module = make_model(options.model, tokens, options.layers).to(options.device)
    inputs = make_inputs(tokens, options.device)
    print(f"\nTiles of 64 queries against whole matrices, {tokens:,} tokens:")
    for method in options.methods:
        found = {}
        for rows in (64, False):
            with why.engine(tiles=rows):
                found[rows] = why.explain(why.open(module), inputs, method, target=1).scores[0].double()
        difference = float((found[64] - found[False]).abs().max() / found[False].abs().max())
        print(f"{method:24s}  largest difference {difference:.1e} of the largest score", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("bert", "gpt"), default="bert")
    parser.add_argument("--layers", type=int, default=0, help="default: 12 for bert, 4 for gpt")
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--check", type=int, default=256, help="tokens for the comparison with whole matrices; 0: none")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.layers = options.layers or {"bert": 12, "gpt": 4}[options.model]
    torch.set_num_threads(options.threads)
    if options.one:
        print(json.dumps(measure(options, options.one, options.tokens[0])))
        return
    where = (
        torch.cuda.get_device_name() if options.device != "cpu" else f"{platform.machine()}, {options.threads} threads"
    )
    print(f"{options.model}, {options.layers} layers, float32, one sequence; torch {torch.__version__}, {where}")
    print("method                    tokens  peak GiB  of it for this  growth  forwards   seconds")
    for method in options.methods:
        last = None
        for tokens in options.tokens:
            one = measure_apart(options, method, tokens)
            own = one["peak"] - one["before"]
            growth = f"{own / last:6.2f}" if last else "      "
            print(
                f"{method:24s}  {tokens:6,d}  {one['peak']:8.2f}  {own:14.2f}  {growth}  {one['forwards']:8.2f}  "
                f"{one['seconds']:8.1f}",
                flush=True,
            )
            last = own
    if options.check:
        compare_with_whole(options, options.check)


if __name__ == "__main__":
    main()
