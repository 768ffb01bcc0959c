"""What happens to the answer when one head attends differently? For every head of every block, computed beforehand.

    swaps = whyformer.swap_heads("demo/sentiment", ["a gorgeous, witty, seductive film"])
    swaps.save("heads.html")                            a page on which heads are swapped by hand

The weights of one head of one block are replaced, of the queries that the output depends on, by

    uniform       the same weight for every token
    permuted      its own weights in a random order
    adversarial   weights far from its own with the same answer (adversarial.py: one candidate, 100 steps)
    head h        the weights of head h of the same block

and everything after them is computed anew. All swaps of a head of all examples go through the remainder of the model at
once, and adversarial weights are searched for in all heads of a block at once, each head on its own. In a model with
more than `SEARCHED_HEADS` heads, they are searched for in the last block alone: in earlier ones each step reruns most
of the model. What is kept is bounded: `MAX_SWAPPED` examples, texts of `MOST_TOKENS` tokens, the blocks at the end with
`MOST_HEADS` heads together, the `MOST_CLASSES` most probable classes.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from whyformer._audit.checks import MOST_TOKENS, SEARCH, HeadSwapper, SwappedHead
from whyformer._audit.progress import Advance
from whyformer._audit.report import HeadSwaps
from whyformer._audit.settings import MAX_SWAPPED
from whyformer._engine import AttentionReplay
from whyformer._explain.explain import ModelLike, as_model
from whyformer._model import Model
from whyformer._plain.torch_state import neutral_torch
from whyformer._runs.arguments import MAX_SEED, check_run_number, read_run_data
from whyformer.data import Example
from whyformer.data.data_like import DataLike
from whyformer.data.example import ClassNames
from whyformer.errors import InputError, UnsupportedModel

MOST_HEADS = 288  # of all blocks together
SEARCHED_HEADS = 24
MOST_STEPS = 10_000
PAGE_EXAMPLES = 8


@neutral_torch()
def swap_heads(
    model: ModelLike,
    data: DataLike,
    *,
    limit: int = PAGE_EXAMPLES,
    split: str | None = None,
    columns: Mapping[str, Hashable] | None = None,
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
    advance: Advance = lambda _: None,
) -> HeadSwaps:
    """The same for examples that were read. advance: is called after each head, with the share that is done."""
    inputs = [example.load() for example in given]
    heads = AttentionReplay(model, model.encode(inputs[:1])).heads
    replay = AttentionReplay(model, model.encode(inputs), choose_blocks(heads))
    blocks = tuple(block for block in choose_blocks(heads) if replay.covers_all_tokens(block))
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
        swapped: list[list[SwappedHead]] = []
        for head in range(heads[block]):
            swapped.append(swapper.swap_head(block, head, found))
            advance(1 / count)
        for one, of_heads in zip(shown, zip(*swapped, strict=True), strict=True):
            if one is not None:
                one["heads"].append(list(of_heads))
    kept = tuple(one for one in shown if one is not None)
    settings = {"steps": steps, "candidates": SEARCH.candidates, "tolerance": SEARCH.tolerance, "seed": seed}
    return HeadSwaps(kept, blocks, model.name, model.labels, settings, model.describe_versions(), tuple(notes))


def choose_blocks(heads: Sequence[int]) -> tuple[int, ...]:
    """The last blocks that have at most `MOST_HEADS` heads together."""
    fitting = sum(total <= MOST_HEADS for total in accumulate(reversed(heads)))
    return tuple(range(len(heads) - max(1, fitting), len(heads)))
