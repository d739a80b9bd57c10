"""What was made for calls, looked up by their signature; of more than a limit the least recently
used is dropped.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar


MAX_ENTRIES: Final = 16
"""How many plans a step keeps, and how many programs a plan."""

Value = TypeVar("Value")


class LRUCache(Generic[Value]):
    """At most `limit` values; several signatures may have the same one."""

    def __init__(self, limit: int = MAX_ENTRIES) -> None:
        """Empty."""
        self._limit = limit
        self._values: dict[Hashable, Value] = {}
        # By identity, the most recently used last, with the signatures that have it.
        self._signatures: OrderedDict[int, list[Hashable]] = OrderedDict()

    def __len__(self) -> int:
        """How many values there are."""
        return len(self._signatures)

    def get(self, signature: Hashable) -> Value | None:
        """The value of a signature, which is the latest then; None if there is none."""
        value = self._values.get(signature)
        if value is not None:
            self._signatures.move_to_end(id(value))
        return value

    def add(self, signature: Hashable, value: Value) -> None:
        """Keep a value, a new one or one that other signatures have, as the latest."""
        self._values[signature] = value
        # Several signatures may share a value: it is dropped with all of them.
        self._signatures.setdefault(id(value), []).append(signature)
        self._signatures.move_to_end(id(value))
        if len(self._signatures) > self._limit:
            _, dropped = self._signatures.popitem(last=False)
            for old in dropped:
                del self._values[old]

    def latest_first(self) -> Iterator[Value]:
        """All values, the most recently used first."""
        for signatures in reversed(self._signatures.values()):
            yield self._values[signatures[0]]
