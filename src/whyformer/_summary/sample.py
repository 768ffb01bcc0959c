"""A sample of the items of each class that depends on the seed and the ids alone, not on the order of the rows.

Every item has a random number, made from its id; the items with the smallest numbers are kept (a bottom-k sketch, Cohen
& Kaplan 2007). If all classes together have more than MAX_SAMPLED items, every class keeps half as many, and so on.
"""

import hashlib
import heapq
from collections.abc import Mapping

from whyformer._runs.parts import BulkRow

MAX_SAMPLED = 10_000  # items in memory


class ClassSamples:
    """At most `per_class` items of each class."""

    def __init__(self, per_class: int, seed: int, most: int = MAX_SAMPLED) -> None:
        self.per_class, self.seed, self.most = per_class, seed, most
        self._heaps: dict[str, list[tuple[int, str, BulkRow]]] = {}
        self._held = 0

    def add(self, row: BulkRow) -> None:
        heap = self._heaps.setdefault(row.class_name, [])
        heapq.heappush(heap, (-draw_number(self.seed, row.id), row.id, row))
        self._held += 1
        self._trim(heap)
        while self._held > self.most and self.per_class > 1:
            self.per_class = self.per_class // 2
            for one in self._heaps.values():
                self._trim(one)

    def _trim(self, heap: list[tuple[int, str, BulkRow]]) -> None:
        while len(heap) > self.per_class:
            heapq.heappop(heap)  # the largest number
            self._held -= 1

    @property
    def rows(self) -> Mapping[str, list[BulkRow]]:
        """The sampled rows of each class, in the order of their random numbers; classes by name."""
        return {
            name: [row for _, _, row in sorted(self._heaps[name], key=lambda entry: (-entry[0], entry[1]))]
            for name in sorted(self._heaps)
        }


def draw_number(seed: int, name: str) -> int:
    """A random number of 64 bits for this name."""
    digest = hashlib.sha256(f"{seed} {name}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big")
