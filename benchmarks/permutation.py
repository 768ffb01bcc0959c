"""The permutation test against one model call per permutation, in one run.

    python benchmarks/permutation.py [--device cuda] [--sentences 500] [--permutations 100] [--data DATA/sst2]

A BERT of 6 blocks, 384 wide, 12 heads (random weights; --model opens another) on sentences of SST-2 (random ids of
similar lengths without --data); the attention of block 3 is permuted among the tokens. *One by one* is the plain way: a
copy of the model whose block 3 takes its weights from outside, called once per permutation, in inference mode, on the
same device. As that would take minutes, it runs on some of the sentences (--plain) and its time is scaled up to all of
them; with --plain 0 it runs on all. Both use the same permutations, and their outputs are compared first.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import whyformer as why
from whyformer._audit.checks import AuditedAttention, choose_attention, replace_attention
from whyformer._audit.checks.replacement import ReplacementNoise, permute_weights
from whyformer._audit.reruns import AttentionReplay

BLOCK = 3
LENGTHS = (6, 9, 12, 14, 16, 18, 20, 22, 24, 27, 30, 36)  # words, about as in SST-2


def read_sentences(data: Path | None, count: int) -> list[str | int]:
    if data is None:
        return [LENGTHS[i % len(LENGTHS)] for i in range(count)]
    lines = (data / "dev.tsv").read_text("utf-8").splitlines()
    return [line.rsplit("\t", 1)[0] for line in lines[:count]]


def encode_rows(model: why.Model, texts: list[Any]) -> list[Tensor]:
    """Token ids of each sentence."""
    if isinstance(texts[0], str) and model.tokenizer is not None:
        return [torch.tensor(model.tokenizer(text)["input_ids"]) for text in texts]
    words = [text if isinstance(text, int) else len(text.split()) for text in texts]
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(1000, 29000, (count + 2,), generator=generator) for count in words]


def make_batches(rows: list[Tensor], tokens: int) -> list[list[Tensor]]:
    """Batches of sentences of similar length, as the audit makes them."""
    batches: list[list[Tensor]] = []
    for row in sorted(rows, key=len):
        if batches and (len(batches[-1]) + 1) * len(row) <= tokens and len(batches[-1]) < 64:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


class PlainModel:
    """One call per permutation: block 3 of a copy of the model reads its weights from here."""

    def __init__(self, module: Any, device: str) -> None:
        self.weights: Tensor | None = None
        self.seen: Tensor | None = None
        ALL_ATTENTION_FUNCTIONS.register("benchmark_plain", self.attend)
        self.module = BertForSequenceClassification._from_config(module.config, attn_implementation="benchmark_plain")
        self.module.load_state_dict(module.state_dict())
        self.module.eval().to(device)
        self.block = self.module.bert.encoder.layer[BLOCK].attention.self

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **_: Any
    ) -> tuple[Tensor, None]:
        if module is self.block and self.weights is not None:
            weights = self.weights
        elif module is self.block:
            weights = self.seen = (query @ key.mT * query.size(-1) ** -0.5).softmax(-1)
        else:
            output = torch.nn.functional.scaled_dot_product_attention(query, key, value)
            return output.transpose(1, 2).contiguous(), None
        return (weights @ value).transpose(1, 2).contiguous(), None

    @torch.inference_mode()
    def run(self, ids: Tensor, noise: Tensor) -> Tensor:
        """Probabilities [permutation class] of one sentence."""
        self.weights = None
        self.module(input_ids=ids[None])
        own = self.seen
        assert own is not None
        free = torch.ones_like(noise[:1], dtype=torch.bool)
        found = []
        for one in permute_weights(own, free, noise):
            self.weights = one[None]
            found.append(self.module(input_ids=ids[None]).logits)
        return torch.cat(found).softmax(-1)


def run_audit(model: why.Model, groups: list[list[Tensor]], permutations: int) -> list[float]:
    """Median TVD of each sentence, in the order of the batches."""
    found: list[float] = []
    for group in groups:
        replay = AttentionReplay(model, model.encode(group), [BLOCK])
        audited = AuditedAttention(replay, choose_attention(BLOCK, replay.heads)[0])
        for one in replace_attention(audited, kinds=["permutation"], draws=permutations):
            found.append(float("nan") if one is None else one["permutation"]["tvd"])
    return found


def draw_noise(model: why.Model, row: Tensor, permutations: int) -> Tensor:
    """The random numbers that the audit draws for a sentence."""
    replay = AttentionReplay(model, model.encode([row]), [BLOCK])
    audited = AuditedAttention(replay, choose_attention(BLOCK, replay.heads)[0])
    return ReplacementNoise(audited, permutations, seed=0).draw("permutation", BLOCK, 0)


def check_outputs(model: why.Model, plain: PlainModel, rows: list[Tensor], permutations: int) -> None:
    """Both ways give the same output."""
    worst = 0.0
    for row in rows:
        after = plain.run(row.to(model.device), draw_noise(model, row, permutations))
        before = torch.softmax(model.module(input_ids=row[None].to(model.device)).logits.detach(), -1)
        slow = ((after - before).abs().sum(-1) / 2).double().quantile(0.5).item()
        (quick,) = run_audit(model, [[row]], permutations)
        worst = max(worst, abs(slow - quick))
    print(f"largest difference of the median TVD of {len(rows)} sentences: {worst:.1e}")
    assert worst < 1e-4


def measure_time(work: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--permutations", type=int, default=100)
    parser.add_argument("--plain", type=int, default=25, help="sentences for the plain way; 0 for all")
    parser.add_argument("--data", type=Path, help="the folder sst2")
    parser.add_argument("--model", help="a folder with a BERT of 6 blocks, such as minilm-l6-sst2")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.model:
        model = why.open(options.model, dtype=torch.float32)
        model.module.to(options.device)
    else:
        config = BertConfig(
            num_hidden_layers=6, hidden_size=384, num_attention_heads=12, intermediate_size=1536, num_labels=2
        )
        module = BertForSequenceClassification(config).eval().to(options.device)
        with torch.no_grad():  # random weights large enough for attention that is not uniform
            for parameter in module.parameters():
                parameter.mul_(3 if parameter.dim() > 1 else 1)
        model = why.open(module)
    rows = encode_rows(model, read_sentences(options.data, options.sentences))
    plain = PlainModel(model.module, options.device)
    tokens = 1_024 if options.device == "cpu" else 16_384
    groups = make_batches(rows, tokens)
    print(f"torch {torch.__version__}, {options.threads} threads, {options.device}, {platform.machine()}")
    average = sum(map(len, rows)) / len(rows)
    print(f"{len(rows)} sentences, {average:.1f} tokens on average, {options.permutations} permutations each")
    check_outputs(model, plain, rows[:5], 10)
    some = rows if options.plain == 0 else rows[:: max(1, len(rows) // options.plain)][: options.plain]
    drawn = [(row.to(options.device), draw_noise(model, row, options.permutations)) for row in some]
    share = sum(len(row) for row in some) / sum(len(row) for row in rows)
    run_audit(model, groups[:1], 4)
    plain.run(*drawn[0])
    times: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(options.repeats):
        times["ours"].append(measure_time(lambda: run_audit(model, groups, options.permutations), options.device))
        times["plain"].append(
            measure_time(lambda: [plain.run(*one) for one in drawn], options.device) * len(rows) / len(some)
        )
    quick, slow = (statistics.median(times[name]) for name in ("ours", "plain"))
    print(f"ours        {quick:9.1f} s")
    print(
        f"one by one  {slow:9.1f} s"
        + ("" if len(some) == len(rows) else f"   (from {len(some)} sentences, {share:.1%} of the tokens)")
    )
    print(f"            {slow / quick:9.1f} times")


if __name__ == "__main__":
    main()
