"""What the parts of a run hold already, so that it is not computed again when the run resumes or grows.

An item keeps the index that it got first; new items fill the free indices in the order of the input. So a run that was
stopped goes on as planned, and a run that grows keeps its parts whatever the order of the new input. The order is that
of the rows, and of a list of items beside them; without it, files are hashed again.
An item is the same if its id, its label and its content are (see items.py). One that only has error records may change,
or vanish if another takes its index.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from whyformer._bulk.items import SHOWN_IDS, ItemList, mark_content, stamp_content
from whyformer._bulk.plan import BulkPlan, read_stored_methods
from whyformer._model import InputKind
from whyformer._plain import archive
from whyformer._runs.parts import PARTS_FOLDER, PartStore
from whyformer.errors import OutputError

if TYPE_CHECKING:
    from pyarrow import Table

ITEMS_FILE = "items.json"  # ids in the order of the run, each with size and time of change if it is a file
HELD_COLUMNS = frozenset({"id", "method", "error", "label", "content"})
Stamps = Mapping[str, str | None]


class HeldItem(NamedTuple):
    """The rows of one item in a part."""

    id: str
    label: str | None
    content: str | None  # a hash; None if it was never loaded
    done: frozenset[str]  # labels of methods with a result
    failed: frozenset[str]  # with an error


@dataclass
class HeldItems:
    """Which items of the input are in the parts, and what is missing of them."""

    parts: dict[int, int] = field(default_factory=dict)  # number -> items
    placed: dict[int, int] = field(default_factory=dict)  # index in the run -> index in the input
    missing: dict[int, frozenset[str]] = field(default_factory=dict)  # index in the run -> methods without a row
    failed: dict[int, frozenset[str]] = field(default_factory=dict)  # index in the run -> methods with an error
    gone: list[str] = field(default_factory=list)  # ids that are not in the input any more
    changed: list[str] = field(default_factory=list)  # ids whose label or content is another one now

    def list_wanted(self, index: int, *, retry_failed: bool) -> frozenset[str]:
        """The methods that an item of a held part is still to be explained by."""
        return self.missing.get(index, frozenset()) | (self.failed.get(index, frozenset()) if retry_failed else set())


def hold_parts(folder: Path, plan: BulkPlan, items: ItemList, kind: InputKind, *, grow: bool) -> HeldItems:
    """What the parts hold, with the items arranged in their order; refuses rows of items that the input has not."""
    if not (folder / PARTS_FOLDER).is_dir():
        return HeldItems()
    methods = tuple(plan.fields["methods"])
    held = read_held_items(PartStore(folder, plan), items, plan.settings.shard, methods, kind)
    lost = [label for label in read_stored_methods(folder) if label not in methods]
    for names, problem in (
        (held.changed, "have changed since"),
        (held.gone if grow else (), "are not in the data"),
        (lost if grow else (), "are not among the methods"),
    ):
        if names:
            raise make_loss_error(folder, names, problem)
    if not held.gone:
        items.arrange(held.placed)
    return held


def make_loss_error(folder: Path, names: Sequence[str], problem: str) -> OutputError:
    named = ", ".join(f"{name[:100]!r}" for name in names[:SHOWN_IDS])
    more = f" and {len(names) - SHOWN_IDS} more" if len(names) > SHOWN_IDS else ""
    return OutputError(
        f"{folder} has rows of {named}{more}, which {problem}. Pass everything that the run has, as it was, or use "
        "another folder.",
        code="E_OUT_MISMATCH",
    )


def read_held_items(
    store: PartStore, items: ItemList, shard: int, methods: Collection[str], kind: InputKind
) -> HeldItems:
    """Compare the parts that are there with the input list."""
    held, stamps = HeldItems(), read_listed_items(store.folder.parent)
    indices = {item.id: index for index, item in enumerate(items)}
    replaceable, wanted = list[str](), frozenset(methods)
    for number in store.numbers():
        table = store.read_table(number, HELD_COLUMNS)
        if table is None:
            continue
        held.parts[number] = 0
        for index, one in enumerate(iterate_held(table, methods), number * shard):
            held.parts[number] += 1
            place = indices.get(one.id)
            if place is None:
                (held.gone if one.done else replaceable).append(one.id)
                held.missing[index] = wanted
                continue
            if one.done and not is_same(one, items, place, kind, stamps):
                held.changed.append(one.id)
            held.placed[index] = place
            if missing := wanted - one.done - one.failed:
                held.missing[index] = missing
            if one.failed:
                held.failed[index] = one.failed
    used = set(held.placed.values())
    for index, id in enumerate(islice(stamps, len(items))):
        if index not in held.placed and (place := indices.get(id)) is not None and place not in used:
            held.placed[index] = place
            held.missing[index] = wanted
    if any(index >= len(items) for index in held.placed):  # nothing takes the place of what is gone
        held.gone += replaceable
    return held


def iterate_held(table: "Table", methods: Collection[str]) -> Iterator[HeldItem]:
    """The items of a part. The rows of an item are together; without a column `method`, a row is for all methods."""
    known = {name: table.column(name).to_pylist() for name in table.column_names}
    empty = [None] * len(table)
    cells = zip(*(known.get(name, empty) for name in ("id", "method", "error", "label", "content")), strict=True)
    every = frozenset(methods)
    for id, group in groupby(cells, key=itemgetter(0)):
        done, failed, first_label, first_content = frozenset[str](), frozenset[str](), None, None
        for _, method, error, label, content in group:
            labels = every if method is None else frozenset((method,))
            done, failed = (done | labels, failed) if error is None else (done, failed | labels)
            first_label, first_content = label, first_content or (content if error is None else None)
        yield HeldItem(id, first_label, first_content, done, failed)


def is_same(one: HeldItem, items: ItemList, place: int, kind: InputKind, stamps: Stamps) -> bool:
    """Whether the input has the item that the row was computed from. A file is read only if it was touched."""
    item = items[place]
    if one.label != (None if item.label is None else str(item.label)):
        return False
    stamp = stamp_content(item.content, kind)
    if one.content is None or (stamp is not None and stamps.get(one.id) == stamp):
        return True
    try:
        return mark_content(item.content, kind) == one.content
    except Exception:  # of a loader: what cannot be loaded any more
        return False


# --- the list of items ------------------------------------------------------------------------------------------------


def read_listed_items(folder: Path) -> Stamps:
    with suppress(OSError, ValueError, RecursionError):
        stored = json.loads((folder / ITEMS_FILE).read_bytes())
        return stored if isinstance(stored, dict) else {}
    return {}


def list_items(folder: Path, items: ItemList, kind: InputKind) -> None:
    """Before rows are computed, so that a file that changes while the run goes on is hashed again.

    Texts in the order of the input need no list.
    """
    listed = {item.id: stamp_content(item.content, kind) for item in items}
    if (items.is_arranged or any(listed.values())) and listed != read_listed_items(folder):
        archive.write_file(folder / ITEMS_FILE, json.dumps(listed).encode())
