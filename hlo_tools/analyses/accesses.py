"""What a kernel is to its analyses: an op that runs by itself, and the memory that it touches."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Access:
    """A stored value that a kernel reads or writes, and how many bytes of the whole (unsharded)
    value.
    """

    value: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """One op that runs by itself: stored values read and written.

    `joins` is whether it is one kernel with others before it, of which it has some of what it
    reads at hand.
    """

    op: int
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    joins: bool = False
