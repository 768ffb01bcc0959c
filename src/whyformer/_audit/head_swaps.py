"""What happens to the answer when one head attends differently? For every head of every block, computed beforehand.

    swaps = whyformer.swap_heads("demo/sentiment", ["a gorgeous, witty, seductive film"])
    swaps.save("heads.html")                            a page on which heads are swapped by hand

The weights of one head of one block are replaced, of the queries that the output depends on, by

    uniform       the same weight for every token
    permuted      its own weights in a random order
    adversarial   weights far from its own with the same answer (adversarial.py: one candidate, 100 steps)
    head h        the weights of head h of the same block

and everything after them is computed anew. All swaps of a head of all examples go through the tail of the model at
once, and adversarial weights are searched for in all heads of a block at once, each head on its own. In a model with
more than `SEARCHED_HEADS` heads, they are searched for in the last block alone: in earlier ones each step reruns most
of the model. What is kept is bounded: `MAX_SWAPPED` examples, texts of `MOST_TOKENS` tokens, the blocks at the end with
`MOST_HEADS` heads together, the `MOST_CLASSES` most probable classes.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from whyformer._audit.adversarial import PRESETS, BlockWeights, Candidates, divide_examples
from whyformer._audit.audited_attention import AuditedAttention
from whyformer._audit.choice import AttentionChoice
from whyformer._audit.each_head import EachHead
from whyformer._audit.examples import AuditExamples
from whyformer._audit.found_attention import MOST_CLASSES, MOST_TOKENS, describe_tokens, round_values
from whyformer._audit.head_page import make_head_fragment, make_head_page
from whyformer._audit.importance import take_units
from whyformer._audit.replacement import ReplacementNoise, make_uniform, permute_weights
from whyformer._audit.replay import AttentionReplay
from whyformer._audit.settings import MAX_SWAPPED
from whyformer._explain.explain import ModelLike, as_model
from whyformer._model import Model
from whyformer._plain import archive
from whyformer._plain.tokens import Grid
from whyformer._plain.torch_state import neutral_torch
from whyformer._runs.arguments import MAX_SEED, check_run_number, read_run_data
from whyformer.data import Example
from whyformer.data.example import ClassNames
from whyformer.errors import InputError, UnsupportedModel
from whyformer.results.result import Result
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible

MOST_HEADS = 288  # of all blocks together
SEARCHED_HEADS = 24
MOST_STEPS = 10_000
PAGE_EXAMPLES = 8
SEARCH = replace(PRESETS["paper"], candidates=1, steps=100)

SwapExample = Mapping[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class HeadSwaps(Result):
    """The answers of a model when one head attends differently: for each example, block, head and replacement."""

    examples: tuple[SwapExample, ...]
    blocks: tuple[int, ...]
    model: str
    labels: tuple[str, ...] | None
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    notes: tuple[str, ...] = ()

    formats: ClassVar[Mapping[str, Callable[[Any], bytes]]] = {
        ".html": lambda swaps: make_head_page(swaps).encode("utf-8"),
        ".json": lambda swaps: swaps_to_json(swaps),
        ".txt": lambda swaps: (swaps.render() + "\n").encode("utf-8", "backslashreplace"),
    }

    def __len__(self) -> int:
        return len(self.examples)

    def __repr__(self) -> str:
        return f"<HeadSwaps of {make_visible(self.model)}: {len(self)} examples>"

    def render(self, screen: Screen | None = None) -> str:
        """For each replacement, the head whose swap moves the predicted probability most, over all examples."""
        lines = [f"Swapped heads of {make_visible(self.model)}, {len(self)} examples"]
        for kind, (moved, example, block, head) in sorted(self.find_largest().items()):
            lines.append(f"  {kind}: {moved:+z.3f} at most, example {example}, block {block}, head {head}")
        return "\n".join([*lines, *(f"note: {make_visible(note)}" for note in self.notes)])

    def find_largest(self) -> dict[str, tuple[float, int, int, int]]:
        """For each replacement the largest change of the predicted probability, and its example, block and head."""
        largest: dict[str, tuple[float, int, int, int]] = {}
        for i, example in enumerate(self.examples):
            for block, heads in zip(self.blocks, example["heads"], strict=True):
                for head, one in enumerate(heads):
                    for swap in one["swaps"]:
                        kind = "another head" if swap["head"] is not None else swap["kind"]
                        moved = swap["after"][0] - example["before"][0]
                        if kind not in largest or abs(moved) > abs(largest[kind][0]):
                            largest[kind] = moved, i, block, head
        return largest

    def to_html(self) -> str:
        return make_head_fragment(self)


def swaps_to_json(swaps: HeadSwaps) -> bytes:
    fields = {
        "model": swaps.model, "labels": swaps.labels, "blocks": swaps.blocks, "settings": swaps.settings,
        "versions": swaps.versions, "notes": swaps.notes, "examples": swaps.examples,
    }  # fmt: skip
    return json.dumps(json.loads(archive.to_json_text("head swaps", fields)), indent=1).encode("ascii")


@neutral_torch()
def swap_heads(
    model: ModelLike,
    data: Any,
    *,
    limit: int = PAGE_EXAMPLES,
    split: str | None = None,
    columns: Mapping[str, Any] | None = None,
    classes: ClassNames | None = None,
    steps: int = SEARCH.steps,
    seed: int = 0,
) -> HeadSwaps:
    """The answers of the model when each of its heads, one at a time, attends differently.

    data: anything that `whyformer.data.read` accepts, or its result. split, columns, classes: as for audit().
    limit: use at most this many examples, up to 32. steps: of the search for adversarial weights.
    """
    check_run_number("limit", limit, least=1, most=MAX_SWAPPED)
    check_run_number("steps", steps, least=1, most=MOST_STEPS)
    check_run_number("seed", seed, least=0, most=MAX_SEED)
    read = read_run_data(data, split, columns, classes, limit=limit, seed=seed)
    swaps = swap_examples(as_model(model), read.examples, steps=steps, seed=seed)
    return replace(swaps, notes=(*read.notes, *swaps.notes))


def swap_examples(
    model: Model,
    given: Sequence[Example],
    *,
    steps: int = SEARCH.steps,
    seed: int = 0,
    advance: Callable[[float], None] | None = None,
) -> HeadSwaps:
    """The same for examples that were read. advance: is called after each head, with the share that is done."""
    inputs = [example.load() for example in given]
    examples = AuditExamples(model, inputs, [None] * len(inputs), [1] * len(inputs))
    heads = examples.replay([0]).heads
    blocks = choose_blocks(heads)
    replay = examples.replay(range(len(inputs)), blocks)
    blocks = tuple(block for block in blocks if replay.covers_all_tokens(block))
    if not blocks:
        raise UnsupportedModel(
            f"No head of {model.name} attends over all tokens: windowed attention cannot be swapped head by head."
        )
    notes = [] if len(blocks) == len(heads) else [f"Of {len(heads)} blocks, {len(blocks)} are shown: {list(blocks)}."]
    count = sum(heads[block] for block in blocks)
    searched = blocks if count <= SEARCHED_HEADS else blocks[-1:]
    if searched != blocks:
        notes.append(f"Adversarial weights were searched for in block {blocks[-1]} alone: the model has many heads.")
    swapper = HeadSwapper(replay, searched, steps, seed)
    shown = [swapper.describe_example(i, given[i].name) for i in range(replay.batch)]
    if not any(shown):
        raise InputError(f"Every example has more than {MOST_TOKENS} tokens. Pass shorter ones.")
    if not all(shown):
        notes.append(f"Examples with more than {MOST_TOKENS} tokens are left out.")
    for block in blocks:
        found = swapper.search_block(block)
        for head in range(heads[block]):
            for made, one in zip(swapper.swap_head(block, head, found), shown, strict=True):
                if one is not None:
                    one["heads"].setdefault(block, []).append(made)
            if advance is not None:
                advance(1 / count)
    kept = [{**one, "heads": [one["heads"][block] for block in blocks]} for one in shown if one is not None]
    settings = {"steps": steps, "candidates": SEARCH.candidates, "tolerance": SEARCH.tolerance, "seed": seed}
    versions = model.describe_versions()
    return HeadSwaps(tuple(kept), blocks, model.name, model.labels, settings, versions, tuple(notes))


def choose_blocks(heads: Sequence[int]) -> tuple[int, ...]:
    """The last blocks that have at most `MOST_HEADS` heads together."""
    chosen: list[int] = []
    for block in reversed(range(len(heads))):
        if chosen and sum(heads[b] for b in chosen) + heads[block] > MOST_HEADS:
            break
        chosen.append(block)
    return tuple(chosen[::-1])


class HeadSwapper:
    """Swaps the heads of one batch."""

    def __init__(self, replay: AttentionReplay, searched: Sequence[int], steps: int, seed: int) -> None:
        self.replay, self.searched, self.steps, self.seed = replay, searched, steps, seed
        probabilities = replay.probabilities
        self.classes = probabilities.topk(min(MOST_CLASSES, probabilities.size(1))).indices  # [example class]

    def describe_example(self, i: int, name: str) -> dict[str, Any] | None:
        """What holds for all heads: tokens, classes, the answer; None if it has too many tokens."""
        tokens = describe_tokens(self.replay.layout.tokens[i])
        if tokens is None:
            return None
        before = round_values(self.replay.probabilities[i][self.classes[i]])
        return {"name": name, **tokens, "classes": self.classes[i].tolist(), "before": before, "heads": {}}

    def swap_head(self, block: int, head: int, adversarial: Mapping[tuple[int, int], Tensor]) -> list[dict[str, Any]]:
        """For each example: what the head attends to, and the answers with other weights.

        adversarial: what `search_block` found.
        """
        heads = self.replay.heads[block]
        choice = AttentionChoice((block,), None if heads == 1 else head, is_single=heads == 1)
        audited = AuditedAttention(self.replay, choice)
        found: list[dict[str, Any]] = [
            {"observed": self.list_weights(i, row), "swaps": []} for i, row in enumerate(audited.distribution)
        ]
        jobs = self.list_swaps(audited, block, head, adversarial)
        for start in range(0, len(jobs), max(1, audited.max_rows)):
            part = jobs[start : start + max(1, audited.max_rows)]
            of = torch.tensor([i for i, *_ in part])
            weights: BlockWeights = {block: torch.cat([given for *_, given in part])}
            with torch.no_grad():
                after = audited.predict(weights, of)
                rows = audited.read_distribution(audited.complete_weights(weights, of), of)
            for (i, kind, other, _), row, probabilities in zip(part, rows, after, strict=True):
                swap = {"kind": kind, "head": other, "after": round_values(probabilities[self.classes[i]])}
                if other is None:  # those of another head are observed there
                    swap["weights"] = self.list_weights(i, row)
                found[i]["swaps"].append(swap)
        return found

    def list_swaps(
        self, audited: AuditedAttention, block: int, head: int, adversarial: Mapping[tuple[int, int], Tensor]
    ) -> list[tuple[int, str, int | None, Tensor]]:
        """Example, replacement, the head it is taken from, and weights [1 1 query key]."""
        own, free = audited.own_weights(block), audited.free_keys(block)
        every = audited.take_queries(block, self.replay.attention[block])
        noise = ReplacementNoise(audited, 1, self.seed)
        places = [i for i in range(self.replay.batch) if audited.can_change(i)]
        swaps: list[tuple[int, str, int | None, Tensor]] = []
        for i in places:
            one, can = own[i : i + 1], free[i : i + 1]
            swaps.append((i, "uniform", None, make_uniform(one, can)))
            swaps.append((i, "permuted", None, permute_weights(one, can, noise.draw("permutation", block, i))))
            if (i, head) in adversarial:
                swaps.append((i, "adversarial", None, adversarial[i, head]))
            swaps += [
                (i, f"head {number}", number, every[i : i + 1, number : number + 1])
                for number in range(every.size(1))
                if number != head and every.size(1) > 1
            ]
        return swaps

    def search_block(self, block: int) -> dict[tuple[int, int], Tensor]:
        """By example and head, weights [1 1 query key] with the same answer, where the search finds any."""
        if block not in self.searched:
            return {}
        audited, search = EachHead(self.replay, block), replace(SEARCH, steps=self.steps)
        found: dict[tuple[int, int], Tensor] = {}
        for part in divide_examples(audited, search, range(self.replay.batch * audited.heads)):
            candidates = Candidates(audited, part, search, self.seed)
            list(candidates.search_all())
            for place in part:
                weights = candidates.take_found(place)
                if weights is not None:
                    found[divmod(place, audited.heads)] = weights[block]
        return found

    def list_weights(self, i: int, row: Tensor) -> list[float]:
        """The weights of the shown tokens of an example."""
        tokens = self.replay.layout.tokens[i]
        if isinstance(tokens, Grid):
            return round_values(take_units(self.replay, row[None])[0])
        return round_values(row[~torch.tensor(tokens.padding, device=row.device)])
