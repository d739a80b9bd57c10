"""Effects: what a compiler adds to the time of kernels and of collectives by how arrays lie in
memory, one file each.

An effect on kernels looks at a whole program once and says which accesses it touches, with a row of
integers for each (`Effect.uses`). Two kernels are folded to one only if these rows are equal too.
Of the distinct kernels' rows it makes a table (`Effect.table`), which can be copied for cells of
the exact search by itself (`EffectTable.select`), and which adds to the work of the kernels when
they are split (`EffectTable.add_to`). A new effect is its file and a place in a backend's
`effects`; they add in that order.

One on collectives needs no table: it reads what every collective of a plan moves
(`CollectiveEffect.seconds`), and has its place in `collective_effects`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from automap.backends.fitted import TileNumbers
from automap.program.problem import Problem
from automap.topology.model import Device
from hlo_tools.analyses.accesses import Kernel


@dataclass(frozen=True, slots=True)
class TracedKernels:
    """The kernels of a program, as an effect reads them; `row_of_value` are numbers of value
    rows.
    """

    problem: Problem
    kernels: Sequence[Kernel]
    row_of_value: Sequence[int]
    numbers: TileNumbers


@dataclass(frozen=True, slots=True)
class KernelUses:
    """The accesses of a kernel that an effect touches: of each value a row of integers.

    `deciding` are values that decide what the effect does and that the kernel need not access.
    """

    row_by_value: Mapping[int, tuple[int, ...]]
    deciding: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class CopiedAccesses:
    """Copies of accesses: which one each is of, [copies].

    `value_row` gives the copies of value rows, from numbers of copies and the rows themselves.
    """

    access: np.ndarray
    value_row: Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class KernelWork:
    """What kernels do on a device under one plan; effects change the last four, in place.

    `dim_of_axis` [value rows, axes] and `factor_of_axis` [op rows, axes] are the split dimensions
    and factors, -1 for none; `op_row` [kernels], `access_kernel` and `access_row` [accesses] are
    the kernels' op rows and the accesses' kernels and value rows. `off_chip` [accesses] is the
    share of what is accessed that is not in the memory on the chip. `local_bytes` [accesses] are
    what is moved, `extra_seconds` [kernels] what is added to the time that it takes. Of products'
    kernels, [kernels], `waits` is how often they wait for what comes before their work or leaves
    behind it, and `ahead_bytes` is what is fetched to the chip before they begin.
    """

    device: Device
    numbers: TileNumbers
    sizes: tuple[int, ...]
    dim_of_axis: np.ndarray
    factor_of_axis: np.ndarray
    op_row: np.ndarray
    access_kernel: np.ndarray
    access_row: np.ndarray
    off_chip: np.ndarray
    local_bytes: np.ndarray
    extra_seconds: np.ndarray
    waits: np.ndarray
    ahead_bytes: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveWork:
    """The collectives of a step on a device under one plan, [entries] unless said.

    `n_bytes` are the full buffer on one device; `is_gather` and `is_exchange` say which are
    all-gathers and all-to-alls, `takes_part` [entries, axes] which axes each is over. `on_operand`
    is whether its tensor is read or made. Of all-gathers and all-to-alls: `last_size` are the
    elements along their tensor's last dimension, `splits_stored` and `splits_computed` [entries,
    axes] whether an axis splits that dimension as the tensor is stored, and as the operation reads
    or makes it; 0 and False for the other kinds.
    """

    device: Device
    sizes: tuple[int, ...]
    n_bytes: np.ndarray
    is_gather: np.ndarray
    is_exchange: np.ndarray
    takes_part: np.ndarray
    on_operand: np.ndarray
    last_size: np.ndarray
    splits_stored: np.ndarray
    splits_computed: np.ndarray


class CollectiveEffect(Protocol):
    """What an effect adds to collectives."""

    def seconds(self, work: CollectiveWork) -> np.ndarray:
        """Seconds beside each collective, [entries]."""
        ...


class EffectTable(Protocol):
    """The rows of an effect, of the distinct kernels of a program."""

    def select(self, copied: CopiedAccesses) -> "EffectTable":
        """The table of copied accesses."""
        ...

    def add_to(self, work: KernelWork) -> None:
        """Add what the effect costs."""
        ...


class Effect(Protocol):
    """What one effect touches; `n_columns` is how many integers a row has, `passes` whether it
    touches what kernels take through registers, too, `pads` whether it is what fills tiles that
    costs.
    """

    n_columns: ClassVar[int]
    passes: ClassVar[bool]
    pads: ClassVar[bool]

    def uses(self, program: TracedKernels) -> Sequence[KernelUses]:
        """Of each kernel."""
        ...

    def table(self, access: np.ndarray, columns: np.ndarray) -> EffectTable:
        """The table of rows: the accesses' numbers [uses], and their integers [columns, uses]."""
        ...


_Table = TypeVar("_Table", bound=Any)


def select_rows(table: _Table, copied: CopiedAccesses) -> _Table:
    """A table, a dataclass of arrays [uses] with `access` among them, of copied accesses; value
    rows are left as they are.
    """
    # Accesses ascend in a table, so that a copy finds the row of its original by bisection.
    here = np.flatnonzero(np.isin(copied.access, table.access))
    use = np.searchsorted(table.access, copied.access[here])
    taken = {f.name: getattr(table, f.name)[use] for f in fields(table)}
    return replace(table, **{**taken, "access": here})
