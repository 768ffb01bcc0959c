"""A task: the items of one shard, as they are sent to a worker."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a worker process must start fast, also where it only computes something small
    from whyformer._bulk.items import Item


@dataclass(frozen=True)
class ShardTask:
    """The items of one shard."""

    number: int
    items: "Sequence[Item]"
