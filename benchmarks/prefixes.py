"""Leave-one-out of a prompt: whole variants against tails after a prefix that ran once.

    python benchmarks/prefixes.py                                       a GPT-2 of 4 blocks, 96 tokens, on this CPU
    python benchmarks/prefixes.py --device cuda --model gpt2 --tokens 512
    python benchmarks/prefixes.py --device cuda --model llama --tokens 1024 --dtype bfloat16

Every token of a prompt is masked in turn, by a language model with random weights. Three ways take turns in one
process: batches of 32 rows, batches of the size that the memory budget allows, and the same with prefixes reused
(`why.engine`). The fastest run of each counts; the scores are compared.
"""

import argparse
import time

import torch
import transformers

import whyformer as why

WAYS = {
    "whole variants, 32 at once": {"reuse_prefix": False, "ahead": False, "rows": 32},
    "whole variants, adaptive, ahead": {"reuse_prefix": False},
    "prefix reused": {},
}


def make_model(options: argparse.Namespace) -> torch.nn.Module:
    torch.manual_seed(0)
    if options.model == "llama":
        config = transformers.LlamaConfig(
            hidden_size=2048, intermediate_size=8192, num_hidden_layers=options.layers or 16, num_attention_heads=32,
            num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192, tie_word_embeddings=True,
        )  # fmt: skip
        module: torch.nn.Module = transformers.LlamaForCausalLM(config)
    else:
        shape = {} if options.model == "gpt2" else {"n_embd": 256, "n_head": 4, "vocab_size": 5000}
        module = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=options.layers or 12, **shape))
    return module.eval().to(options.device, getattr(torch, options.dtype))


def measure(module: torch.nn.Module, ids: torch.Tensor, options: argparse.Namespace) -> None:
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    found = {}
    clock = time.process_time if options.device == "cpu" else time.perf_counter
    for turn in range(options.repeats + 1):
        for way, settings in WAYS.items():
            with why.engine(**settings):
                started = clock()
                found[way] = why.explain(module, {"input_ids": ids}, "leave_one_out", target=7)
                if options.device != "cpu":
                    torch.cuda.synchronize()
                if turn:
                    times[way].append(clock() - started)
    plain, *_, reused = (found[way] for way in WAYS)
    difference = float((plain.scores - reused.scores).abs().max() / plain.scores.abs().max())
    for way, seconds in times.items():
        print(f"  {way:34s} {min(seconds):8.3f} s   {min(times[next(iter(WAYS))]) / min(seconds):5.2f} times as fast")
    print(f"  {reused.spent.get('tail', 0):.0f} of {reused.spent['forward']:.0f} forwards ran only a tail")
    print(f"  largest difference of two scores: {difference:.1e} of the largest")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["small", "gpt2", "llama"], default="small")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.model == "small" and options.layers is None:
        options.layers = 4
    ids = torch.randint(5, 1000, (1, options.tokens), generator=torch.Generator().manual_seed(1)).to(options.device)
    where = torch.cuda.get_device_name() if options.device != "cpu" else f"{options.threads} thread(s) of a CPU"
    print(f"{options.model}, {options.tokens} tokens, {options.dtype}, {where}, torch {torch.__version__}")
    measure(make_model(options), ids, options)


if __name__ == "__main__":
    main()
