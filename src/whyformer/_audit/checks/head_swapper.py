"""Swaps the heads of one batch: other weights for one head of one block, and the answers with them (head_swaps.py)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NotRequired, TypedDict

import torch
from torch import Tensor

from whyformer._audit.checks.adversarial import PRESETS, Candidates, divide_examples
from whyformer._audit.checks.attention_choice import AttentionChoice
from whyformer._audit.checks.audited_attention import AuditedAttention, BlockWeights, EachHead
from whyformer._audit.checks.found_attention import (
    SavedTokens,
    list_shown_weights,
    round_values,
    save_tokens,
    take_likeliest,
)
from whyformer._audit.checks.replacement import ReplacementNoise, make_uniform, permute_weights
from whyformer._engine import AttentionReplay

SEARCH = replace(PRESETS["paper"], candidates=1, steps=100)

FoundWeights = Mapping[tuple[int, int], Tensor]  # example, head -> [1 1 query key]
SwapJob = tuple[int, str, int | None, Tensor]  # example, replacement, the head it is taken from, [1 1 query key]


class HeadSwap(TypedDict):
    """Other weights of one head, and the probabilities with them."""

    kind: str
    head: int | None  # that the weights are taken from
    after: list[float]
    weights: NotRequired[list[float]]


class SwappedHead(TypedDict):
    """What a head attends to in one example, and the answers with other weights."""

    observed: list[float]
    swaps: list[HeadSwap]


class SwapExample(SavedTokens):
    """An example, its answer, and what each head of each block does to it."""

    name: str
    classes: list[int]
    before: list[float]
    heads: list[list[SwappedHead]]


class HeadSwapper:
    """Swaps the heads of one batch."""

    def __init__(self, replay: AttentionReplay, searched: Sequence[int], steps: int, seed: int) -> None:
        self.replay, self.searched, self.steps, self.seed = replay, searched, steps, seed
        self.classes = take_likeliest(replay.probabilities)  # [example class]

    def describe_example(self, i: int, name: str) -> SwapExample | None:
        """What holds for all heads: tokens, classes, the answer; None if it has too many tokens."""
        tokens = save_tokens(self.replay.layout.tokens[i])
        if tokens is None:
            return None
        before = round_values(self.replay.probabilities[i][self.classes[i]])
        return {"name": name, **tokens, "classes": self.classes[i].tolist(), "before": before, "heads": []}

    def swap_head(self, block: int, head: int, adversarial: FoundWeights) -> list[SwappedHead]:
        """For each example: what the head attends to, and the answers with other weights.

        adversarial: what `search_block` found.
        """
        heads = self.replay.heads[block]
        choice = AttentionChoice((block,), None if heads == 1 else head, is_single=heads == 1)
        audited = AuditedAttention(self.replay, choice)
        found: list[SwappedHead] = [
            {"observed": list_shown_weights(self.replay, i, row), "swaps": []}
            for i, row in enumerate(audited.distribution)
        ]
        jobs = self.list_swaps(audited, block, head, adversarial)
        for start in range(0, len(jobs), audited.max_rows):
            part = jobs[start : start + audited.max_rows]
            of = torch.tensor([i for i, *_ in part])
            weights: BlockWeights = {block: torch.cat([given for *_, given in part])}
            with torch.no_grad():
                after = audited.predict(weights, of)
                rows = audited.read_distribution(audited.complete_weights(weights, of), of)
            for (i, kind, other, _), row, probabilities in zip(part, rows, after, strict=True):
                answer = round_values(probabilities[self.classes[i]])
                swap: HeadSwap = {"kind": kind, "head": other, "after": answer}
                if other is None:  # those of another head are observed there
                    swap["weights"] = list_shown_weights(self.replay, i, row)
                found[i]["swaps"].append(swap)
        return found

    def list_swaps(self, audited: AuditedAttention, block: int, head: int, adversarial: FoundWeights) -> list[SwapJob]:
        own, free = audited.own_weights(block), audited.free_keys(block)
        every = audited.take_queries(block, self.replay.attention[block])
        noise = ReplacementNoise(audited, 1, self.seed)
        swaps: list[SwapJob] = []
        for i in range(self.replay.batch):
            if not audited.can_change(i):
                continue
            one, can = own[i : i + 1], free[i : i + 1]
            swaps.append((i, "uniform", None, make_uniform(one, can)))
            swaps.append((i, "permuted", None, permute_weights(one, can, noise.draw("permutation", block, i))))
            if (i, head) in adversarial:
                swaps.append((i, "adversarial", None, adversarial[i, head]))
            others = [other for other in range(every.size(1)) if other != head]
            swaps += [(i, f"head {other}", other, every[i : i + 1, other : other + 1]) for other in others]
        return swaps

    def search_block(self, block: int) -> FoundWeights:
        """The weights with the same answer, where the search finds any."""
        if block not in self.searched:
            return {}
        audited, search = EachHead(self.replay, block), replace(SEARCH, steps=self.steps)
        found: dict[tuple[int, int], Tensor] = {}
        for part in divide_examples(audited, search, range(self.replay.batch * audited.heads)):
            candidates = Candidates(audited, part, search, self.seed)
            list(candidates.search_all())
            for row in part:
                if (weights := candidates.take_found(row)) is not None:
                    found[divmod(row, audited.heads)] = weights[block]
        return found
