"""AttnLRP of long prompts: time and memory of whyformer beside LXT's fused path and a plain forward pass.

    python benchmarks/language.py --device cuda                        Llama of 1B and 8B shape, 512 to 8,192 tokens
    python benchmarks/language.py --device cuda --checkpoint           also with blocks computed again
    python benchmarks/language.py --device cuda --span                 also 8,192 tokens in, 2,048 out, as one span
    python benchmarks/language.py --device cpu --shapes small --tokens 2048 4096
    python benchmarks/language.py --precision 100                      trained weights in bfloat16 against float32

Weights are random, in bfloat16 on a GPU and in float32 on a CPU, one sequence, one target logit. Time is the median
after warm-up (on a CPU: processor time), memory the peak above the weights: allocated by torch on a GPU, on a CPU the
largest resident set of a process of its own. The first call has the lesson in it (docs/engine.md) and is measured
apart. LXT is optional (python -m pip install lxt). It replaces code of transformers for the whole process, so it runs
last: as its examples do, with the logits of all tokens, and with those of the last one.
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
from scipy.stats import spearmanr
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import whyformer as why
from whyformer import targets
from whyformer.demo import agreement

GIB = 2**30
PROMPT, ANSWER = 8192, 2048  # tokens of the span
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


def run_ours(model: Any, ids: Tensor, recompute: bool = False, target: Any = None) -> Any:
    with why.engine(lean=True, recompute=recompute):
        return why.explain(model, {"input_ids": ids}, method="attnlrp", target=target).scores


def run_lxt(module: nn.Module, ids: Tensor, logits_to_keep: int) -> Tensor:
    """As LXT's own examples do it; logits_to_keep=0: of all tokens."""
    words = module.get_input_embeddings()(ids).detach().requires_grad_()
    logits = module(inputs_embeds=words, use_cache=False, logits_to_keep=logits_to_keep).logits
    logits[0, -1].max().backward()
    assert words.grad is not None
    return (words * words.grad).float().sum(-1).cpu()


# --- measuring --------------------------------------------------------------------------------------------------------


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def take_time(call: Callable[[], Any], device: str) -> float:
    read_clock = time.perf_counter if device == "cuda" else time.process_time  # other processes do not count
    synchronise(device)
    start = read_clock()
    call()
    synchronise(device)
    return read_clock() - start


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
    words = f"{row['shape']:>6} {row['tokens']:>7,} {row['who']:<24}"
    if "failed" in row:
        print(words, row["failed"], flush=True)
        return
    memory = f"{row['memory']:8.2f} GiB" if "memory" in row else " " * 12
    print(f"{words} {row['median']:9.1f} ms {memory}   first call {row['first']:,.0f} ms", flush=True)


class Comparison:
    """All that is measured, row by row."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.rows = options, list[dict[str, Any]]()
        self.longest = max(*options.tokens, PROMPT + ANSWER)

    def add(self, shape: str, tokens: int, who: str, call: Callable[..., Any], *args: Any) -> None:
        row = {"shape": shape, "tokens": tokens, "who": who, **try_to_measure(lambda: call(*args), self.options)}
        if self.options.device == "cpu" and who == "whyformer":
            row["memory"] = measure_cpu_memory(shape, tokens)
        self.rows.append(row)
        show(row)

    def run(self) -> None:
        for shape in self.options.shapes:
            self.run_ours(shape)
        if self.options.no_lxt:
            return
        try:
            patch_for_lxt("llama")
        except Absent as error:
            print(error)
            return
        for shape in self.options.shapes:
            if shape in SHAPES:
                self.run_lxt(shape)

    def run_ours(self, shape: str) -> None:
        module = make_model(shape, self.longest, self.options.device)
        model = why.open(module)
        for tokens in self.options.tokens:
            ids = make_ids(tokens, module, self.options.device)
            self.add(shape, tokens, "forward", run_forward, module, ids)
            self.add(shape, tokens, "whyformer", run_ours, model, ids)
            if self.options.checkpoint:
                self.add(shape, tokens, "whyformer, blocks again", run_ours, model, ids, True)
            if self.options.profile:
                profile(lambda ids=ids: run_ours(model, ids), self.options.device)
        if self.options.span and shape == self.options.shapes[-1]:
            ids = make_ids(PROMPT + ANSWER, module, self.options.device)
            span = targets.Tokens(PROMPT, PROMPT + ANSWER - 1)
            self.add(shape, PROMPT + ANSWER, f"span of {ANSWER:,} tokens", run_ours, model, ids, False, span)

    def run_lxt(self, shape: str) -> None:
        module = make_model(shape, self.longest, self.options.device)
        for tokens in self.options.tokens:
            ids = make_ids(tokens, module, self.options.device)
            self.add(shape, tokens, "LXT", run_lxt, module, ids, 0)
            self.add(shape, tokens, "LXT, one logit", run_lxt, module, ids, 1)
            if self.options.profile:
                profile(lambda ids=ids: run_lxt(module, ids, 1), self.options.device)
        if self.options.checkpoint:
            module.train()
            module.gradient_checkpointing_enable({"use_reentrant": False})
            for tokens in self.options.tokens:
                ids = make_ids(tokens, module, self.options.device)
                self.add(shape, tokens, "LXT, blocks again", run_lxt, module, ids, 1)


# --- 16 bits ----------------------------------------------------------------------------------------------------------


def write_prompts(count: int) -> list[str]:
    """Held-out sentences of subject-verb agreement, several in a row, the last one up to its verb."""
    sentences = agreement.generate(count * 6, seed=0)
    groups = [sentences[i * 6 : i * 6 + 6] for i in range(count)]
    return [" ".join([*(one.text for one in group[:-1]), group[-1].prefix]) for group in groups]


def compare_precisions(count: int) -> None:
    """Scores in bfloat16 against those in float32, of the token that float32 predicts."""
    exact, rounded = (why.open("demo/decoder", dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    prompts = write_prompts(count)
    for method in ("attnlrp", "cp_lrp", "libragrad"):
        ranks, moved, agreeing = [], [], 0
        for prompt in prompts:
            with why.engine(lean=True):
                theirs = why.explain(exact, prompt, method)
                ours = why.explain(rounded, prompt, method, target=theirs.targets[0].index)
            a, b = ours.scores[0].double(), theirs.scores[0].double()
            ranks.append(float(spearmanr(a, b).statistic))
            moved.append(float((a - b).abs().max() / b.abs().max()))
            agreeing += int(a.argmax() == b.argmax())
        print(
            f"{method:<12} rank correlation {statistics.median(ranks):.4f}, lowest {min(ranks):.4f}; largest "
            f"difference {statistics.median(moved):.1e}, worst {max(moved):.1e}; same highest token in {agreeing} of "
            f"{count}"
        )


def profile(call: Callable[[], Any], device: str) -> None:
    """Where the time goes, by function."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA][: 1 + (device == "cuda")]
    with torch.profiler.profile(activities=kinds) as seen:
        call()
        synchronise(device)
    order = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"
    print(seen.key_averages().table(sort_by=order, row_limit=25, max_name_column_width=60))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--shapes", nargs="+", default=["1B", "8B"], choices=(*SHAPES, "small"))
    parser.add_argument("--tokens", nargs="+", type=int, default=[512, 2048, 8192])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-lxt", action="store_true")
    parser.add_argument("--checkpoint", action="store_true", help="also compute blocks again in the backward pass")
    parser.add_argument("--span", action="store_true", help="also a span, of the last shape")
    parser.add_argument("--profile", action="store_true", help="also list the functions that take most time")
    parser.add_argument("--precision", type=int, metavar="PROMPTS", help="compare bfloat16 with float32 instead")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.precision:
        torch.set_num_threads(options.threads)
        compare_precisions(options.precision)
        return
    if options.memory:
        print_own_memory(options)
        return
    if options.device == "cpu":
        torch.set_num_threads(options.threads)
    where = (
        torch.cuda.get_device_name() if options.device == "cuda" else f"{platform.machine()}, {os.cpu_count()} cores"
    )
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {where}")
    comparison = Comparison(options)
    comparison.run()
    if options.out is not None:
        options.out.write_text(json.dumps(comparison.rows, indent=1))


if __name__ == "__main__":
    main()
