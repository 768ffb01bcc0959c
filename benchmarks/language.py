"""AttnLRP of long prompts: time and memory of whyformer beside LXT's fused path and a plain forward pass.

    python benchmarks/language.py --device cuda                       Llama of 1B and 8B shape, 512 to 8,192 tokens
    python benchmarks/language.py --device cuda --shapes 8B --span    8,192 tokens in, 2,048 out, explained as one span
    python benchmarks/language.py --device cuda --checkpoint          blocks computed again in the backward pass
    python benchmarks/language.py --device cpu --shapes small --tokens 2048 4096

Weights are random, in bfloat16 on a GPU and in float32 on a CPU, one sequence, one target logit. Time is the median after
warm-up, memory the peak above the weights: allocated by torch on a GPU, the largest resident set of a process of its own
on a CPU. The first call has the lesson in it (docs/engine.md) and is measured apart. LXT is optional (python -m pip
install lxt). It replaces code of transformers for the whole process, so it runs last.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from multiples import Absent, patch_for_lxt
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import whyformer as why

GIB = 2**30
SHAPES: dict[str, dict[str, int]] = {
    "tiny": dict(hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, vocab_size=512)
    | dict(num_key_value_heads=2),
    "1B": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32)
    | dict(num_key_value_heads=8, vocab_size=128256),
    "8B": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32)
    | dict(num_key_value_heads=8, vocab_size=128256),
}
SMALL = dict(vocab_size=8000, n_embd=256, n_layer=6, n_head=4, bos_token_id=0, eos_token_id=0)


def make_model(shape: str, longest: int, device: str) -> nn.Module:
    """A model of this shape with random weights, made on the device."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device), torch.no_grad():
        if shape == "small":
            module = GPT2LMHeadModel._from_config(GPT2Config(n_positions=longest, **SMALL), attn_implementation="sdpa")
        else:
            config = LlamaConfig(max_position_embeddings=longest, bos_token_id=0, eos_token_id=0, **SHAPES[shape])
            with transformers.initialization.no_init_weights():
                module = LlamaForCausalLM._from_config(config, attn_implementation="sdpa", dtype=dtype)
            for weight in module.parameters():
                weight.normal_(0, 0.02) if weight.dim() > 1 else weight.fill_(1)
    return module.to(dtype).requires_grad_(False).eval()


def make_ids(tokens: int, module: nn.Module, device: str) -> Tensor:
    words = module.config.vocab_size
    return torch.randint(1, words, (1, tokens), generator=torch.Generator().manual_seed(1)).to(device)


# --- what is measured -------------------------------------------------------------------------------------------------


def run_forward(module: nn.Module, ids: Tensor) -> Any:
    with torch.no_grad():
        return module(input_ids=ids, use_cache=False, logits_to_keep=1).logits


def run_ours(model: Any, ids: Tensor) -> Any:
    return why.explain(model, {"input_ids": ids}, method="attnlrp").scores


def run_lxt(module: nn.Module, ids: Tensor) -> Tensor:
    """As LXT's own examples do it."""
    words = module.get_input_embeddings()(ids).detach().requires_grad_()
    logits = module(inputs_embeds=words, use_cache=False).logits
    logits[0, -1].max().backward()
    assert words.grad is not None
    return (words * words.grad).float().sum(-1).cpu()


# --- measuring --------------------------------------------------------------------------------------------------------


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def take_time(call: Callable[[], Any], device: str) -> float:
    synchronise(device)
    start = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - start


def measure(call: Callable[[], Any], device: str, repeats: int) -> dict[str, float]:
    """Milliseconds of the first call and of later ones, and GiB above what was held before."""
    held = torch.cuda.memory_allocated() if device == "cuda" else 0
    first = take_time(call, device)
    take_time(call, device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = [take_time(call, device) for _ in range(repeats)]
    found = {"first": first * 1e3, "median": statistics.median(times) * 1e3, "least": min(times) * 1e3}
    if device == "cuda":
        found["memory"] = (torch.cuda.max_memory_allocated() - held) / GIB
    return found


def try_to_measure(call: Callable[[], Any], options: argparse.Namespace) -> dict[str, Any]:
    try:
        return measure(call, options.device, options.repeats)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return {"failed": "out of memory"}


def measure_cpu_memory(shape: str, tokens: int) -> float:
    """GiB above what a process held before its second explanation."""
    asked = [sys.executable, __file__, "--device", "cpu", "--shapes", shape, "--tokens", str(tokens), "--memory"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    return float(done.stdout.strip().splitlines()[-1])


def print_own_memory(options: argparse.Namespace) -> None:
    """In a process of its own: the lesson is learnt from a short input first."""
    torch.set_num_threads(options.threads)
    module = make_model(options.shapes[0], max(options.tokens), "cpu")
    model = why.open(module)
    run_ours(model, make_ids(128, module, "cpu"))
    held = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    run_ours(model, make_ids(options.tokens[0], module, "cpu"))
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - held) / GIB)


def show(row: dict[str, Any]) -> None:
    words = f"{row['shape']:>6} {row['tokens']:>7,} {row['who']:<22}"
    if "failed" in row:
        print(words, row["failed"], flush=True)
        return
    memory = f"{row['memory']:8.2f} GiB" if "memory" in row else " " * 12
    print(f"{words} {row['median']:9.1f} ms {memory}   first call {row['first']:,.0f} ms", flush=True)


def run_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def add(shape: str, tokens: int, who: str, call: Callable[[], Any]) -> None:
        row = {"shape": shape, "tokens": tokens, "who": who, **try_to_measure(call, options)}
        if options.device == "cpu" and who == "whyformer":
            row["memory"] = measure_cpu_memory(shape, tokens)
        rows.append(row)
        show(row)

    longest = max(options.tokens) + 4096
    for shape in options.shapes:
        module = make_model(shape, longest, options.device)
        model = why.open(module)
        for tokens in options.tokens:
            ids = make_ids(tokens, module, options.device)
            add(shape, tokens, "forward", lambda ids=ids: run_forward(module, ids))
            add(shape, tokens, "whyformer", lambda ids=ids: run_ours(model, ids))
        if options.profile:
            profile(model, make_ids(options.profile, module, options.device), options)
        del module, model
    if not options.no_lxt:
        run_lxt_shapes(options, add, longest)
    return rows


def run_lxt_shapes(options: argparse.Namespace, add: Callable[..., None], longest: int) -> None:
    try:
        patch_for_lxt("llama")
    except Absent as error:
        print(error)
        return
    for shape in options.shapes:
        if shape not in SHAPES:
            continue
        module = make_model(shape, longest, options.device)
        for tokens in options.tokens:
            ids = make_ids(tokens, module, options.device)
            add(shape, tokens, "LXT", lambda ids=ids: run_lxt(module, ids))
        del module


def profile(model: Any, ids: Tensor, options: argparse.Namespace) -> None:
    """Where the time goes, by function."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watch

    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (options.device == "cuda")
    with watch(activities=kinds) as seen:
        run_ours(model, ids)
        synchronise(options.device)
    print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=30))
    if options.device == "cuda":
        print(seen.key_averages().table(sort_by="self_cuda_time_total", row_limit=30))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--shapes", nargs="+", default=["1B", "8B"], choices=(*SHAPES, "small"))
    parser.add_argument("--tokens", nargs="+", type=int, default=[512, 2048, 8192])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-lxt", action="store_true")
    parser.add_argument("--profile", type=int, default=0, metavar="TOKENS")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print_own_memory(options)
        return
    if options.device == "cpu":
        torch.set_num_threads(options.threads)
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {where}")
    rows = run_all(options)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
