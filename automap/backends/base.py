"""What one compiler does with a program beyond partitioning it, as far as plans depend on it.

A backend is data: `cost`, `space` and `search` ask the backend of a topology's platform
(`automap.backends.backend_for`) and never the name of a compiler or of a device.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from automap.backends.arrays import Arrays, Relaid, Scratch, no_scratch
from automap.backends.believed import BelievedSeconds
from automap.backends.effects import CollectiveEffect, Effect
from automap.backends.fitted import (
    AdditionNumbers,
    AlignmentNumbers,
    ColumnNumbers,
    ConvolutionNumbers,
    CoreNumbers,
    FactorizationNumbers,
    FittedFile,
    ScheduleNumbers,
    SharedNumbers,
    TileNumbers,
    addition_numbers,
    alignment_numbers,
    column_numbers,
    convolution_numbers,
    core_numbers,
    factorization_numbers,
    schedule_numbers,
    shared_numbers,
    tile_numbers,
)
from automap.backends.protocols import Protocol
from automap.jaxpr.again import HostStacks
from automap.jaxpr.hosted import HostState
from automap.topology.model import Device, Platform
from hlo_tools.analyses.fuser import Fuser
from hlo_tools.graph import Graph


ScatteredSums = Literal["in pieces", "whole", "beside products"]
LoopMessages = Literal["vectors", "sums", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCollectives:
    """How collectives stand in a compiled program, beside those that the partitioner makes.

    `runs_as` maps a kind to the kind that it becomes. `merges` is "into buffers" where tensors are
    concatenated before they are sent, so that their number is lost and only bytes can be compared.
    `note` says in words what the compiler does unasked, that no prediction foresees; it may be "".
    """

    runs_as: Mapping[str, str] = field(default_factory=dict)
    merges: Literal["into tuples", "into buffers"] = "into tuples"
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One compiler, with the library that moves data for it.

    fuser               which ops become one kernel
    protocols           the ways to send a message; each collective takes the fastest for its size
    compiled            how its collectives are read
    sums                partial sums that are added are reduced once: terms of a sum first, or sums
                        of a loop's trips first, or each is reduced where it is made
                        (`automap.cost.edges.sums`); where they are merged, indices are seen through
                        too
    float32_products    whether operands of a product are rounded, stored and moved as bfloat16
                        (`hlo_tools.analyses.widths`)
    collectives         whether they run beside kernels (`automap.cost.schedule.overlap`); updates
                        are late then (`hlo_tools.analyses.liveness`)
    combines            what small collectives become one message: sums of gradients, and gathers of
                        parameters too
    column_sums         whether all of a device sums over rows, or a block of threads for each few
                        columns (`automap.cost.kernels.column_sums`)
    launches            whether every array that a fused kernel makes takes the time of a launch, as
                        kernels of their own do, or only the first of each kernel; scalars take none
                        then, as a core of their own computes them
    registers           whether numbers that kernels sum, or write as two bytes, go through
                        registers in a pass that takes as long as the memory does for four bytes
                        (`automap.cost.kernels.beside_memory`), or take no time beside it
    orders              whether sorts, top-k and sums over windows take what they read and write, or
                        go through the memory of the cores (`automap.cost.kernels.on_core`)
    convolutions        whether the matrix unit computes them as it does products, or a library does
                        (`automap.cost.kernels.convolutions`)
    unaligned_products  whether products whose rows are no multiple of 16 bytes take longer
                        (`automap.cost.kernels.unaligned_rows`)
    additions           whether what scatters add takes what it moves, or waits for additions to the
                        same memory (`automap.cost.kernels.additions`)
    factorizations      whether factorizations of matrices take what they move, or wait for column
                        after column (`automap.cost.kernels.factorizations`)
    loop_messages       what of one trip of a loop goes as one message, up to `combine_bytes`: sums
                        of vectors only; these, and those of all other arrays, apart, as they are
                        scattered; or all that `combines` says
    loop_gathers        where what a loop does not change is gathered: before the loop, or in every
                        trip
    hidden_gathers      whether gathers for products in loops run beside kernels, though other
                        collectives are in line (`automap.cost.kernels.gathers`)
    loop_zeros          which zeros that loops begin with are written, byte by byte but where it
                        says number: all, or not the stacks that a loop fills whole; of these "by
                        number" writes those that several loops share
                        (`automap.cost.kernels.loop_fills`)
    host_copies         whether copies to and from the host's memory go beside kernels, or in line
                        with them (`automap.cost.host_copies`)
    host_stacks         whether the compiler is told the order of dimensions of what loops keep in
                        the host's memory (`automap.jaxpr.remat_loops`)
    host_state          whether the update brings in whole leaves of state that waits in the host's
                        memory, or parts of them (`automap.jaxpr.hosted`, `automap.cost.hosted`)
    ragged_products     whether rows are multiplied by the matrix of their group, or by those of all
                        groups, with zeros in the place of other groups' rows
                        (`automap.cost.kernels.ragged_products`)
    merged_product_bytes  products of one operand are one if one of them reads and writes no more
                        on a device; 0 where they are apart
                        (`automap.cost.kernels.merged_products`)
    scattered_products  whether a product and the reduce-scatter of its result are one loop
                        (`automap.cost.kernels.rings`)
    collective_dims     along which dimension a collective cuts or joins an array: any, or the first
                        in memory, for which products turn operands and results
                        (`automap.cost.traffic.turned`)
    scattered_sums      whether sums are made in pieces where they are scattered, or are there whole
                        until then, or until the next product beside it is made
                        (`automap.cost.traffic.turned`)
    sliced_sums         whether an all-reduce over all devices, of which each keeps a slice, stays
                        whole, or is taken apart into a reduce-scatter and what is left
                        (`automap.cost.edges.AtOnce`)
    vector_products     whether products of matrices and vectors are products as others, or are
                        summed as reductions are (`hlo_tools.analyses.matrix_vector`)
    nested_sums         whether an all-reduce of an all-reduce over other axes, as partitioners make
                        of sums over two dimensions of a product, stays apart, or becomes one over
                        the axes of both
    gathered_state      whether new state that a step gathers is written over what it was given, or
                        both are copied (`automap.cost.traffic.turned`)
    slice_scatters      what is made of a reduce-scatter over all devices of a slice
                        (`automap.cost.collectives.costs`)
    layout              whether arrays and the matrix unit's operands are padded to tiles
    arrays              how arrays lie in memory; None where they lie without gaps
    scratch             what operations need besides (`automap.backends.arrays`)
    relaid              what is copied to another order of dimensions
    unpriced            operations that are known to take longer than is predicted, with what
                        to say of each: (op, sentence)
    believed            what its scheduler takes collectives to be, where that is not what they take
                        (`automap.backends.believed`)
    views               opcodes whose results are what they read, in another order of dimensions
    in_place            opcodes that write over what they read, beside elementwise ones
    beside_sums         whether what reads an array and sums of it writes over the array, or anew
    fitted              the data file of its numbers
    effects             what is added to kernels by how arrays lie in memory, one file each; as for
                        `tiles`
    collective_effects  the same of collectives; only where arrays are padded
    tiles               the data file of the numbers of tiles. Kernels are told apart by them under
                        every backend, so that sums of seconds have one order; they cost only where
                        arrays are padded, and where products are rings
    """

    name: str
    platform: Platform
    fuser: Fuser
    protocols: tuple[Protocol, ...]
    compiled: CompiledCollectives
    sums: Literal["apart", "terms first", "loops first"]
    float32_products: Literal["float32", "bfloat16"]
    collectives: Literal["in line", "beside kernels"]
    combines: Literal["sums", "sums and gathers"]
    column_sums: Literal["by all", "by blocks"]
    launches: Literal["of arrays", "of kernels"]
    registers: Literal["one pass", "no time"]
    orders: Literal["by memory", "on cores"]
    convolutions: Literal["as products", "by a library"]
    unaligned_products: Literal["as others", "slower"]
    additions: Literal["by memory", "atomic"]
    factorizations: Literal["by memory", "by columns"]
    loop_messages: LoopMessages
    loop_gathers: Literal["before", "in every trip"]
    hidden_gathers: Literal["none", "beside kernels"]
    loop_zeros: Literal["by byte", "by number", "all"]
    host_copies: Literal["in line", "beside kernels"]
    host_stacks: HostStacks
    host_state: HostState
    ragged_products: Literal["own group", "all groups"]
    merged_product_bytes: int
    scattered_products: Literal["apart", "rings"]
    collective_dims: Literal["any", "first"]
    scattered_sums: ScatteredSums
    sliced_sums: Literal["whole", "apart"]
    nested_sums: Literal["apart", "folded"]
    vector_products: Literal["as others", "summed"]
    gathered_state: Literal["in place", "copied"]
    slice_scatters: Literal["scatters", "all-reduces"]
    layout: Literal["rows", "tiles"]
    fitted: FittedFile
    tiles: FittedFile
    effects: tuple[Effect, ...]
    collective_effects: tuple[CollectiveEffect, ...] = ()
    arrays: Arrays | None = None
    scratch: Callable[[Graph], Sequence[Scratch]] = no_scratch
    relaid: Callable[[Graph], Iterable[Relaid]] = lambda graph: ()
    unpriced: Callable[[Graph], Iterable[tuple[int, str]]] = lambda graph: ()
    believed: Callable[[Device], BelievedSeconds | None] = lambda device: None
    views: frozenset[str] = frozenset()
    in_place: frozenset[str] = frozenset()
    beside_sums: Literal["in place", "anew"] = "in place"

    @property
    def combine_bytes(self) -> int:
        """The size that small collectives are merged up to."""
        return shared_numbers(self.fitted).combine_bytes

    @property
    def scatter_combine_bytes(self) -> int:
        """The size that small sums which are scattered are merged up to."""
        return shared_numbers(self.fitted).scatter_combine_bytes

    @property
    def launch_gap_seconds(self) -> float:
        """Seconds between the end of a kernel and the beginning of the next."""
        return shared_numbers(self.fitted).launch_gap_seconds

    @property
    def stored_multiple(self) -> int:
        """ZeRO prefers dimensions whose parts are a multiple of so many numbers."""
        return shared_numbers(self.fitted).stored_multiple

    @property
    def column_numbers(self) -> ColumnNumbers | None:
        """Numbers of sums over rows; None where all of a device does them."""
        return column_numbers(self.fitted) if self.column_sums == "by blocks" else None

    @property
    def core_numbers(self) -> CoreNumbers | None:
        """The numbers of work within cores, of a backend that has them."""
        return core_numbers(self.fitted) if self.orders == "on cores" else None

    @property
    def schedule_numbers(self) -> ScheduleNumbers | None:
        """The numbers of schedules, of a backend whose collectives run beside kernels."""
        return schedule_numbers(self.fitted) if self.collectives == "beside kernels" else None

    @property
    def convolution_numbers(self) -> ConvolutionNumbers | None:
        """The numbers of convolutions, of a backend that has them."""
        return convolution_numbers(self.fitted) if self.convolutions == "by a library" else None

    @property
    def alignment_numbers(self) -> AlignmentNumbers | None:
        """The numbers of products of rows that are not aligned, where they are slower."""
        return alignment_numbers(self.fitted) if self.unaligned_products == "slower" else None

    @property
    def addition_numbers(self) -> AdditionNumbers | None:
        """The numbers of scatters that add atomically."""
        return addition_numbers(self.fitted) if self.additions == "atomic" else None

    @property
    def factorization_numbers(self) -> FactorizationNumbers | None:
        """The numbers of factorizations that wait for column after column."""
        return factorization_numbers(self.fitted) if self.factorizations == "by columns" else None

    @property
    def memory_margin(self) -> float:
        """Of predicted bytes, by which the compiler may need more."""
        return shared_numbers(self.fitted).memory_margin

    @property
    def default_memory_share(self) -> float:
        """Of a device's memory, what a process takes unless it is told otherwise."""
        return shared_numbers(self.fitted).default_memory_share

    @property
    def shared_numbers(self) -> SharedNumbers:
        """All numbers that every backend has."""
        return shared_numbers(self.fitted)

    @property
    def tile_numbers(self) -> TileNumbers:
        """Numbers of tiles, rings, tables and the memory on the chip."""
        return tile_numbers(self.tiles)

    def stack_byte_seconds(self, device: Device, item_bytes: int, *, is_at_hand: bool) -> float:
        """Seconds for each byte of numbers of so many bytes that a loop stacks: read and written,
        or only written where the kernel that makes them has them at hand.
        """
        bytes_per_s = device.hbm_bytes_per_s * device.memory_efficiency
        if is_at_hand:
            return 1 / bytes_per_s
        number = self.tile_numbers.register_seconds(item_bytes) if self.pads(device) else 0.0
        return 2 / bytes_per_s + number / item_bytes / device.cores

    def pads(self, device: Device) -> bool:
        """Whether arrays are padded to the tiles of a device; one whose unit has a side of 1 has
        none.
        """
        # A user's machine file may say that a unit has no tiles, whatever compiles for it.
        return self.layout == "tiles" and device.matmul_tile > 1
