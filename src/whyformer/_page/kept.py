"""What is kept in memory by name, within a limit of bytes: the oldest that nobody asked for goes first."""

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """Something that takes memory."""

    def __len__(self) -> int: ...


Value = TypeVar("Value", bound=Sized)


class Kept(Generic[Value]):
    """Values by name; `len(value)` is what each takes."""

    def __init__(self, limit: int) -> None:
        self.limit, self.total = limit, 0
        self._values: OrderedDict[str, Value] = OrderedDict()

    def get(self, name: str) -> Value | None:
        if name in self._values:
            self._values.move_to_end(name)
        return self._values.get(name)

    def put(self, name: str, value: Value) -> None:
        if (before := self._values.pop(name, None)) is not None:
            self.total -= len(before)
        self._values[name] = value
        self.total += len(value)
        while self.total > self.limit and len(self._values) > 1:
            self.total -= len(self._values.popitem(last=False)[1])

    def __len__(self) -> int:
        return len(self._values)
