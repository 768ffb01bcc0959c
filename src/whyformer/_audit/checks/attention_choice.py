"""Which attention to audit. It is always named: "the attention" of a transformer is not one thing.

    3           block 3, the mean of its heads (blocks are numbered from the input, starting at 0; -1 is the last)
    (3, 2)      block 3, head 2; as a string: "3:2"
    "3:each"    each head of block 3 in turn
    "each"      each head of every block in turn
    "last"      the last block, the mean of its heads
    "rollout"   the rollout over all blocks; replacing it replaces the attention of every block

A block is one attention of the forward pass, in the order of execution.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from whyformer._plain.setting_checks import quote_value
from whyformer.errors import MethodError

ATTENTION_FORMS = 'an int, (block, head), "last", "3:2", "3:each", "each" or "rollout"'


@dataclass(frozen=True)
class AttentionChoice:
    """One attention to audit: some heads of some blocks."""

    blocks: tuple[int, ...]
    head: int | None = None  # None: all heads, represented by their mean
    is_rollout: bool = False
    is_single: bool = False  # the block has one head

    @property
    def name(self) -> str:
        part = "" if self.is_single else ", mean of heads" if self.head is None else f", head {self.head}"
        return "rollout" if self.is_rollout else f"block {self.blocks[0]}{part}"

    @property
    def description(self) -> str:
        """What is replaced, in a sentence."""
        if self.is_rollout:
            return "Replacing the rollout replaces the weights of all heads of every block at once."
        block = f"block {self.blocks[0]}"
        if self.head is not None:
            return f"Only the weights of head {self.head} of {block} are replaced; everything after it is recomputed."
        heads = "" if self.is_single else "all heads of "
        return f"The weights of {heads}{block} are replaced; everything after it is recomputed."


OneAttention: TypeAlias = int | str | tuple[int, int | None] | AttentionChoice
AttentionLike: TypeAlias = OneAttention | Sequence[OneAttention]


def choose_attention(wanted: AttentionLike, heads: Sequence[int]) -> list[AttentionChoice]:
    """The choices that `wanted` names, for a model whose blocks have these numbers of heads."""
    if isinstance(wanted, list):
        if not wanted:
            raise MethodError(f"No attention was chosen. Give {ATTENTION_FORMS}, or a list of these.", code="E_OPTION")
        return list(dict.fromkeys(choice for each in wanted for choice in choose_attention(each, heads)))
    if isinstance(wanted, AttentionChoice):
        wanted = "rollout" if wanted.is_rollout else (wanted.blocks[0], wanted.head)
    if isinstance(wanted, str) and wanted == "rollout":
        return [AttentionChoice(tuple(range(len(heads))), is_rollout=True)]
    if isinstance(wanted, str) and wanted == "each":
        return [choice for block in range(len(heads)) for choice in choose_attention(f"{block}:each", heads)]
    block, head = parse_attention(wanted)
    block = check_index(block, len(heads), "block", "the model")
    if head == "each":
        return [choice for number in range(heads[block]) for choice in choose_attention((block, number), heads)]
    wanted_head = None if head is None else check_index(head, heads[block], "head", f"block {block}")
    is_single = heads[block] == 1
    return [AttentionChoice((block,), None if is_single else wanted_head, is_single=is_single)]


def parse_attention(wanted: AttentionLike) -> tuple[int, int | str | None]:
    """Block and head as given, not yet checked against a model."""
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        return wanted, None
    if isinstance(wanted, tuple) and len(wanted) == 2:
        block, head = wanted
        if type(block) is int and (head is None or type(head) is int):
            return block, head
    match = re.fullmatch(r"(last|-?\d{1,6})(?::(each|-?\d{1,6}))?", wanted.strip()) if isinstance(wanted, str) else None
    if match is None:
        raise MethodError(f"attention={quote_value(wanted)} is not a choice. Give {ATTENTION_FORMS}.", code="E_OPTION")
    number, part = match.groups()
    return -1 if number == "last" else int(number), part if part in (None, "each") else int(part)


def check_index(wanted: int | str, count: int, what: str, where: str) -> int:
    if not isinstance(wanted, int) or not -count <= wanted < count:
        raise MethodError(f"There is no {what} {wanted}: {where} has {count}, 0 to {count - 1}.", code="E_OPTION")
    return wanted % count
