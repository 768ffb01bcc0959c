"""Which attention is questioned. It is always named: an audit of "the attention" of a transformer would mean nothing.

    3           block 3, the mean of its heads (blocks count from the input, from 0; -1 is the last)
    (3, 2)      block 3, head 2; as a word: "3:2"
    "3:each"    each head of block 3 in turn
    "each"      each head of every block in turn
    "last"      the last block, the mean of its heads
    "rollout"   the rollout over all blocks; replacing it replaces the attention of every block

A block is here an attention of the forward pass, in the order they are reached.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from whyformer.errors import MethodError

AttentionLike: TypeAlias = Any  # int | str | tuple[int, int] | Choice, or a list of these

ATTENTION_FORMS = 'an int, (block, head), "last", "3:2", "3:each", "each" or "rollout"'


@dataclass(frozen=True)
class AttentionChoice:
    """One attention: some heads of some blocks."""

    blocks: tuple[int, ...]
    head: int | None = None  # None: all heads, described by their mean
    is_rollout: bool = False
    is_single: bool = False  # the block has one head

    @property
    def name(self) -> str:
        if self.is_rollout:
            return "rollout"
        if self.is_single:
            return f"block {self.blocks[0]}"
        return f"block {self.blocks[0]}" + (", mean of heads" if self.head is None else f", head {self.head}")

    @property
    def said(self) -> str:
        """What is replaced, in a sentence."""
        if self.is_rollout:
            return "Replacing the rollout means replacing the weights of all heads of every block at once."
        if self.head is None:
            heads = "" if self.is_single else "all heads of "
            return f"Replaced are the weights of {heads}block {self.blocks[0]}; all that comes after is computed anew."
        return (
            f"Replaced are the weights of head {self.head} of block {self.blocks[0]} alone; all that comes after is "
            "computed anew."
        )


def choose_attention(wanted: AttentionLike, heads: Sequence[int]) -> list[AttentionChoice]:
    """What is meant, for a model whose blocks have so many heads."""
    if isinstance(wanted, list):
        if not wanted:
            raise MethodError(f"No attention was chosen. Give {ATTENTION_FORMS}, or a list of these.")
        found = [choice for one in wanted for choice in choose_attention(one, heads)]
        return list(dict.fromkeys(found))
    if isinstance(wanted, AttentionChoice):
        wanted = "rollout" if wanted.is_rollout else (wanted.blocks[0], wanted.head)
    if wanted == "rollout":
        return [AttentionChoice(tuple(range(len(heads))), is_rollout=True)]
    if wanted == "each":
        return [choice for block in range(len(heads)) for choice in choose_attention(f"{block}:each", heads)]
    block, head = parse_attention(wanted)
    block = check_index(block, len(heads), "block", "the model")
    if head == "each":
        return [choice for one in range(heads[block]) for choice in choose_attention((block, one), heads)]
    wanted_head = None if head is None else check_index(head, heads[block], "head", f"block {block}")
    is_single = heads[block] == 1
    return [AttentionChoice((block,), None if is_single else wanted_head, is_single=is_single)]


def parse_attention(wanted: Any) -> tuple[int, int | str | None]:
    """Block and head as they were written."""
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        return wanted, None
    if (
        isinstance(wanted, tuple)
        and len(wanted) == 2
        and type(wanted[0]) is int
        and type(wanted[1]) in (int, type(None))
    ):
        return wanted
    found = re.fullmatch(r"(last|-?\d{1,6})(?::(each|-?\d{1,6}))?", wanted.strip()) if isinstance(wanted, str) else None
    if found is None:
        raise MethodError(f"attention={wanted!r} names no attention. Give {ATTENTION_FORMS}.")
    block, head = found.groups()
    return -1 if block == "last" else int(block), head if head in (None, "each") else int(head)


def check_index(wanted: int | str, count: int, what: str, where: str) -> int:
    if not isinstance(wanted, int) or not -count <= wanted < count:
        raise MethodError(f"There is no {what} {wanted}: {where} has {count}, 0 to {count - 1}.")
    return wanted % count
