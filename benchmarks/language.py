"""AttnLRP of long prompts: time and memory of whyformer beside a plain forward, plain autograd and LXT's fused path.

    python benchmarks/language.py --device cuda                        dense and with experts, 2,048 to 32,768 tokens
    python benchmarks/language.py --device cuda --checkpoint           also with blocks computed again
    python benchmarks/language.py --device cuda --span                 also 8,192 tokens in, 2,048 out, as one span
    python benchmarks/language.py --device cuda --shapes 8B --offload 8  weights in main memory, 8 GiB of the GPU
    python benchmarks/language.py --device cuda --shapes 1B --limit 4  a GPU of 4 GiB: what would not fit is an error
    python benchmarks/language.py --device cuda --shapes gpt_oss --flex  the plain forward by flex attention
    python benchmarks/language.py --device cuda --shapes 1B --int8     weights in 8 bits (python -m pip install torchao)
    python benchmarks/language.py --device cuda --engines 512          planned runs against the full engine, two blocks
    python benchmarks/language.py --table docs/data/language.json --tokens 2048 8192 32768   docs/language-models.md
    python benchmarks/language.py --device cpu --shapes small --tokens 2048 4096
    python benchmarks/language.py --precision 100                      trained weights in bfloat16 against float32

Weights are random, in bfloat16 on a GPU and in float32 on a CPU, one sequence, one target logit. "autograd" is the
plain gradient of that logit by the embeddings, with weights that need none. Time is the median after warm-up (on a CPU:
processor time), memory the peak above the weights: allocated by torch on a GPU, on a CPU the largest resident set of a
process of its own. The first call of a model has its backward plan in it (docs/engine.md) and is measured apart, after
a tiny model of the same kind has been explained: the first call of a process also loads code and kernels. LXT is
optional (python -m pip install lxt). It replaces code of transformers for the whole process, so it runs last: as its
examples do, with the logits of all tokens, and with those of the last one.
"""

import argparse
import gc
import json
import os
import platform
import re
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
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import whyformer as why
from whyformer import targets
from whyformer._engine.run.model_memory import recall
from whyformer_papers.worlds import agreement

GIB = 2**30
MOST_TOKENS = 8192  # of a run that is repeated by a CUDA graph
WARM_UP = 3  # calls after the first; in the third call of a shape its graph is captured
LONG, FEWEST = 1.0, 3  # seconds; slow calls are warmed up once, and measured no longer than that, but three times
PROMPT, ANSWER = 8192, 2048  # tokens of the span
ENDS = dict(bos_token_id=0, eos_token_id=0, pad_token_id=0)
TINY = dict(hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, vocab_size=512)
TINY |= dict(num_key_value_heads=2, head_dim=16)
EXPERTS = dict(hidden_size=1024, num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=4, vocab_size=32000)
EXPERTS |= dict(head_dim=64)
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": dict(model_type="llama", **TINY),
    "1B": dict(model_type="llama", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16)
    | dict(num_attention_heads=32, num_key_value_heads=8, vocab_size=128256),
    "8B": dict(model_type="llama", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32)
    | dict(num_attention_heads=32, num_key_value_heads=8, vocab_size=128256),
    "mixtral": dict(model_type="mixtral", **EXPERTS, intermediate_size=3584)
    | dict(num_local_experts=8, num_experts_per_tok=2),
    "qwen3_moe": dict(model_type="qwen3_moe", **EXPERTS, moe_intermediate_size=384)
    | dict(num_experts=64, num_experts_per_tok=8, norm_topk_prob=True),
    "gpt_oss": dict(model_type="gpt_oss", **EXPERTS, intermediate_size=1024)
    | dict(num_local_experts=32, num_experts_per_tok=4, sliding_window=128),
}
TABLE = ["1B", "mixtral", "qwen3_moe", "gpt_oss", "8B"]
FEW = dict(moe_intermediate_size=32, num_local_experts=4, num_experts=4, num_experts_per_tok=2)
SMALL = dict(vocab_size=8000, n_embd=256, n_layer=6, n_head=4, bos_token_id=0, eos_token_id=0)


def make_model(shape: str, longest: int, device: str) -> nn.Module:
    """A model of this shape with random weights, made on the device; "tiny <shape>" is a small one of the same kind."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device), torch.no_grad():
        if shape.endswith("small"):
            module = GPT2LMHeadModel._from_config(GPT2Config(n_positions=longest, **SMALL), attn_implementation="sdpa")
        else:
            module = make_decoder(shape, longest, dtype)
    return module.to(dtype).requires_grad_(False).eval()


def make_decoder(shape: str, longest: int, dtype: torch.dtype) -> nn.Module:
    own = SHAPES[shape.removeprefix("tiny ")]
    few = TINY | {name: value for name, value in FEW.items() if name in own}
    sizes = own | few if shape.startswith("tiny ") else own
    config = AutoConfig.for_model(**ENDS | sizes, max_position_embeddings=longest)
    with transformers.initialization.no_init_weights():
        module = AutoModelForCausalLM.from_config(config, dtype=dtype)
    for name, weight in module.named_parameters():
        weight.fill_(1) if name.endswith("norm.weight") else weight.normal_(0, 0.02)
    return module


def quantise(module: nn.Module) -> None:
    """Linear layers in 8 bits, by torchao; they are restored one at a time."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(module, Int8WeightOnlyConfig())


def make_ids(tokens: int, module: nn.Module, device: str) -> Tensor:
    words = module.config.vocab_size
    return torch.randint(1, words, (1, tokens), generator=torch.Generator().manual_seed(1)).to(device)


# --- what is measured -------------------------------------------------------------------------------------------------


def run_forward(module: nn.Module, ids: Tensor) -> Any:
    with torch.no_grad():
        return module(input_ids=ids, use_cache=False, logits_to_keep=1).logits


def run_ours(
    model: Any, ids: Tensor, recompute: bool | None = None, target: Any = None, replay: bool | None = None
) -> Any:
    with why.engine(plan=True, recompute=recompute, replay=replay):
        return why.explain(model, {"input_ids": ids}, method="attnlrp", target=target).scores


def run_autograd(module: nn.Module, ids: Tensor, logits_to_keep: int = 1) -> Tensor:
    """Embeddings times the gradient of the highest logit; LXT's own examples do the same. logits_to_keep=0: of all."""
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
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM_UP):
        if take_time(call, device) > LONG:
            break
    times: list[float] = []
    while len(times) < min(repeats, FEWEST) or (len(times) < repeats and sum(times) < LONG):
        times.append(take_time(call, device))
    found = {"first": first * 1e3, "median": statistics.median(times) * 1e3, "least": min(times) * 1e3}
    found["most"] = max(times) * 1e3
    if device == "cuda":
        found["memory"] = (torch.cuda.max_memory_allocated() - held) / GIB
    return found


def try_to_measure(call: Callable[[], Any], options: argparse.Namespace) -> dict[str, Any]:
    try:
        return measure(call, options.device, options.repeats)
    except Exception as error:  # one row must not end the others
        code = getattr(error, "code", type(error).__name__)
        found = {"failed": f"{code}: {' '.join(str(error).split())[:600]}"}
    free_memory(options.device)
    return found


def free_memory(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


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
    words = f"{row['shape']:>9} {row['tokens']:>7,} {row['who']:<24}"
    if "failed" in row:
        print(words, row["failed"], flush=True)
        return
    memory = f"{row['memory']:8.2f} GiB" if "memory" in row else " " * 12
    times = f"{row['forwards']:6.1f} forwards" if "forwards" in row else " " * 15
    print(f"{words} {row['median']:9.1f} ms {times} {memory}   first call {row['first']:,.0f} ms", flush=True)


class Comparison:
    """All that is measured, row by row."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.rows = options, list[dict[str, Any]]()
        self.longest = max(*options.tokens, PROMPT + ANSWER)

    def add(self, shape: str, tokens: int, who: str, call: Callable[..., Any], *args: Any) -> None:
        row: dict[str, Any] = {"shape": shape, "tokens": tokens, "who": who}
        if self.options.device == "cuda":
            row["held"] = torch.cuda.memory_allocated() / GIB  # weights
        row |= try_to_measure(lambda: call(*args), self.options)
        same = (r for r in self.rows if (r["shape"], r["tokens"], r["who"]) == (shape, tokens, "forward"))
        forward = [r["median"] for r in same if "median" in r]
        if forward and "median" in row:
            row["forwards"] = row["median"] / forward[0]
        if self.options.device == "cpu" and who == "whyformer" and not self.options.int8:
            row["memory"] = measure_cpu_memory(shape, tokens)
        self.rows.append(row)
        show(row)
        if self.options.out is not None:
            self.options.out.write_text(json.dumps(self.rows, indent=1))

    def run(self) -> None:
        for shape in self.options.shapes:
            self.run_ours(shape)
            free_memory(self.options.device)
        if self.options.no_lxt:
            return
        try:
            patch_for_lxt("llama")
        except Absent as error:
            print(error)
            return
        for shape in self.options.shapes:
            if SHAPES.get(shape.removeprefix("tiny "), {}).get("model_type") == "llama":
                self.run_lxt(shape)
                free_memory(self.options.device)

    def run_ours(self, shape: str) -> None:
        device = self.options.device
        tiny = make_model(f"tiny {shape.removeprefix('tiny ')}", 512, device)  # loads code and kernels
        run_ours(why.open(tiny), make_ids(256, tiny, device))
        module = make_model(shape, self.longest, device)
        if self.options.flex:
            self.run_flex(shape, module)
            return
        if self.options.offload:
            self.run_offloaded(shape, module)
            return
        if self.options.int8:
            quantise(module)
            shape = f"{shape}, 8 bits"
        if self.options.limit:
            limit_memory(self.options.limit)
        model = why.open(module)
        for tokens in self.options.tokens:
            ids = make_ids(tokens, module, device)
            self.add(shape, tokens, "forward", run_forward, module, ids)
            self.add(shape, tokens, "autograd", run_autograd, module, ids)
            self.add(shape, tokens, "whyformer", run_ours, model, ids, self.options.recompute, None, False)
            if fitting := re.search(r"enough for about ([\d,]+) tokens", self.rows[-1].get("failed", "")):
                ids = make_ids(int(fitting[1].replace(",", "")), module, device)
                self.add(shape, ids.size(1), "whyformer, what would fit", run_ours, model, ids)
                continue
            if device == "cuda" and tokens <= MOST_TOKENS and not self.options.limit:
                self.add(shape, tokens, "whyformer, again", run_ours, model, ids)
                if is_repeated(module):
                    self.rows[-1]["who"] = "whyformer, repeated"
            if self.options.checkpoint:
                self.add(shape, tokens, "whyformer, blocks again", run_ours, model, ids, True)
            if self.options.profile:
                profile(lambda ids=ids: run_ours(model, ids), device)
        if self.options.span and shape == self.options.shapes[-1]:
            ids = make_ids(PROMPT + ANSWER, module, device)
            span = targets.Tokens(PROMPT, PROMPT + ANSWER - 1)
            self.add(shape, PROMPT + ANSWER, f"span of {ANSWER:,} tokens", run_ours, model, ids, None, span)

    def run_flex(self, shape: str, module: nn.Module) -> None:
        """The model's own forward without matrices of attention; it is compiled for each length."""
        module.set_attn_implementation("flex_attention")
        for tokens in self.options.tokens:
            ids = make_ids(tokens, module, self.options.device)
            self.add(shape, tokens, "forward, flex attention", run_forward, module, ids)

    def run_offloaded(self, shape: str, module: nn.Module) -> None:
        """All weights in main memory, loaded layer by layer; the GPU lends so many GiB, weights and all."""
        import accelerate

        module.to("cpu")
        torch.cuda.empty_cache()
        limit_memory(self.options.offload)
        model = why.open(accelerate.cpu_offload(module, torch.device(self.options.device)))
        for tokens in self.options.tokens:
            ids = make_ids(tokens, module, self.options.device)
            self.add(f"{shape}, offloaded", tokens, "forward", run_forward, module, ids)
            self.add(f"{shape}, offloaded", tokens, "whyformer", run_ours, model, ids)

    def run_lxt(self, shape: str) -> None:
        module = make_model(shape, self.longest, self.options.device)
        for tokens in self.options.tokens:
            ids = make_ids(tokens, module, self.options.device)
            self.add(shape, tokens, "LXT", run_autograd, module, ids, 0)
            self.add(shape, tokens, "LXT, one logit", run_autograd, module, ids, 1)
            if self.options.profile:
                profile(lambda ids=ids: run_autograd(module, ids), self.options.device)
        if self.options.checkpoint:
            module.train()
            module.gradient_checkpointing_enable({"use_reentrant": False})
            for tokens in self.options.tokens:
                ids = make_ids(tokens, module, self.options.device)
                self.add(shape, tokens, "LXT, blocks again", run_autograd, module, ids, 1)


def compare_engines(options: argparse.Namespace) -> None:
    """Scores of planned runs, ordinary and repeated ones, against those of the full engine; widths as they are."""
    for shape in options.shapes:
        SHAPES["two blocks"] = SHAPES[shape] | dict(num_hidden_layers=2)
        ids = None
        for dtype in (torch.float32, torch.bfloat16):
            torch.backends.cuda.matmul.allow_tf32 = False
            module = make_model("two blocks", options.engines, options.device).to(dtype)
            ids = make_ids(options.engines, module, options.device) if ids is None else ids
            model = why.open(module)
            ours, *_, again = (run_ours(model, ids, replay=True).double() for _ in range(4))
            with why.engine(plan=False):
                theirs = why.explain(model, {"input_ids": ids}, method="attnlrp").scores.double()
            largest = theirs.abs().max()
            rank = spearmanr(ours.flatten().cpu(), theirs.flatten().cpu()).statistic
            print(
                f"{shape:>9} {str(dtype).removeprefix('torch.'):<9} largest difference to the full engine "
                f"{float((ours - theirs).abs().max() / largest):.1e} of the largest score, rank correlation "
                f"{rank:.6f}; fourth run to the first {float((again - ours).abs().max() / largest):.1e}",
                flush=True,
            )


def is_repeated(module: nn.Module) -> bool:
    """Whether the last run of a model was that of a CUDA graph."""
    shadows = recall(module, "shadows", of_weights=True)
    known = shadows[None].repeats if shadows else None
    return known is not None and known.last.graph is not None


def limit_memory(gib: float) -> None:
    """Let this process have so many GiB of the GPU and no more."""
    torch.cuda.set_per_process_memory_fraction(gib * GIB / torch.cuda.get_device_properties(0).total_memory)


COLUMNS = ("forward", "autograd", "whyformer", "whyformer, repeated", "LXT, one logit")
OURS = ("whyformer", "whyformer, repeated")
NAMES = {"mixtral": "Mixtral-like", "qwen3_moe": "Qwen3-MoE-like", "gpt_oss": "gpt-oss-like"}


def print_table(files: list[Path], lengths: list[int]) -> None:
    """Time and memory above the weights, in Markdown; in brackets the multiple of a plain forward."""
    rows = {(r["shape"], r["tokens"], r["who"]): r for file in files for r in json.loads(file.read_text())}
    names = ("shape", "tokens", "plain forward", "plain autograd", "`attnlrp`", "repeated", "LXT")
    print(f"| {' | '.join(names)} |\n{'|---' * len(names)}|")
    for shape, tokens in dict.fromkeys((s, t) for s, t, who in rows if who == "whyformer" and t in lengths):
        cells = [rows.get((shape, tokens, who)) for who in COLUMNS]
        print(f"| {NAMES.get(shape, shape)} | {tokens:,} | {' | '.join(map(write_cell, cells))} |")


def write_cell(row: dict[str, Any] | None) -> str:
    if row is None or "failed" in row:
        return "-" if row is None else "out of memory" if "emory" in row["failed"] else "failed"
    times = f" ({row['forwards']:.1f})" if row["who"] in OURS else ""
    return f"{row['median']:,.0f} ms{times}, {row['memory']:.1f} GiB"


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
            with why.engine(plan=True):
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
    parser.add_argument(
        "--shapes", nargs="+", default=TABLE, choices=(*SHAPES, *(f"tiny {shape}" for shape in SHAPES), "small")
    )
    parser.add_argument("--tokens", nargs="+", type=int, default=[2048, 8192, 16384, 32768])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-lxt", action="store_true")
    parser.add_argument("--checkpoint", action="store_true", help="also compute blocks again in the backward pass")
    parser.add_argument("--recompute", action=argparse.BooleanOptionalAction, help="blocks again; default: by memory")
    parser.add_argument("--offload", type=float, metavar="GIB", help="weights in main memory, and so much of the GPU")
    parser.add_argument("--limit", type=float, metavar="GIB", help="let this process have so much of the GPU")
    parser.add_argument("--int8", action="store_true", help="weights in 8 bits by torchao")
    parser.add_argument("--flex", action="store_true", help="the plain forward by flex attention instead")
    parser.add_argument("--engines", type=int, metavar="TOKENS", help="compare planned and full runs instead")
    parser.add_argument("--span", action="store_true", help="also a span, of the last shape")
    parser.add_argument("--profile", action="store_true", help="also list the functions that take most time")
    parser.add_argument("--precision", type=int, metavar="PROMPTS", help="compare bfloat16 with float32 instead")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument(
        "--table", nargs="+", type=Path, metavar="JSON", help="print the table of these figures instead"
    )
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.table:
        print_table(options.table, options.tokens)
        return
    if options.precision:
        torch.set_num_threads(options.threads)
        compare_precisions(options.precision)
        return
    if options.engines:
        compare_engines(options)
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
    Comparison(options).run()


if __name__ == "__main__":
    main()
