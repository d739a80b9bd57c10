"""The kernels of a program folded to distinct rows, as the roofline reads them
(`automap.cost.kernels.roofline`).

Two kernels are one row if under every plan they do the same: equal op row, FLOPs, accesses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from automap.backends import Backend
from automap.backends.effects import Effect, EffectTable, KernelUses, TracedKernels
from automap.cost.kernels.additions import Addition, Additions, addition
from automap.cost.kernels.beside_memory import is_launched, register_pass, shared_values
from automap.cost.kernels.beside_products import HeldWork, HostProduct, Hosts
from automap.cost.kernels.column_sums import (
    ColumnSum,
    ColumnSums,
    StridedTiles,
    block_sizes,
    sums_by_blocks,
)
from automap.cost.kernels.convolutions import Convolution, Convolutions, library_convolution
from automap.cost.kernels.factorizations import (
    BatchedFactorization,
    Factorizations,
    batched_factorization,
)
from automap.cost.kernels.loop_fills import is_fill
from automap.cost.kernels.matrix_tiles import (
    ConvolutionSides,
    FactorSizes,
    GroupTiles,
    Sides,
    TiledSides,
    tiled_sides,
)
from automap.cost.kernels.merged_products import larger_products
from automap.cost.kernels.on_core import CoreWork, OnCore, core_work
from automap.cost.kernels.ragged_products import executed_flops, executed_shape
from automap.cost.kernels.relaid_copies import DecidingDims, RelaidCopies, deciding_dims
from automap.cost.kernels.ring_operands import Operand, Operands
from automap.cost.kernels.unaligned_rows import ProductRows, RowFactors, row_factors
from automap.cost.on_chip import chip_rivals
from automap.cost.profile.shapes import KernelShape, Larger, kernel_shape
from automap.program.problem import Problem
from automap.program.work import rate_dtype
from automap.topology.model import OP_CLASSES, OpClass
from hlo_tools.analyses.accesses import Access, Kernel
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import CONTRACTIONS, COPY, LOOP_ENTER
from hlo_tools.rules import Rule


_NOTHING = (Operand(), Operand())
# Of most generations: only what is hidden beside products hangs on it.
_TILE = 128


@dataclass(frozen=True)
class KernelTable:
    """Distinct kernels, [kernels] unless said; `traffic_*` list their memory accesses, [accesses].

    `shape` is what a profile knows kernels by. `kernel_class` indexes `OP_CLASSES`. `product_edge`
    is the result edge of a contraction, -1 for other kernels. `side_sizes` [3, kernels, factors]:
    sizes of the factors that a dot sums over, and of those of the last dimension of its result with
    what lies beside them; of a convolution's features, or groups of single features, and examples;
    1 for all others. `taps` are those of `Sides`, 1 of other kernels than convolutions; `groups`
    are those of convolutions. `is_fill` is whether a kernel writes the zeros that a loop begins
    with (`automap.cost.kernels.loop_fills`), `is_launched` whether it takes a launch of its own
    (`automap.backends.Backend.launches`). `rival_bytes` [accesses]: what wants the memory on the
    chip while a value is there, of whole values; 0 if it has no place, or gains nothing there
    (`automap.cost.on_chip`). `efficiency` is the fraction of the peak
    that a user stated of a kernel; 0 is the device's own. `effects` are the tables of the backend's
    effects (`automap.backends.effects`), `column_sums` the sums over rows that kernels are part of,
    `on_core` what they do within the cores, `convolutions` those that a library computes,
    `product_rows` the rows of products, where those that are not aligned are slower, `additions`
    scatters that add atomically, `factorizations` those of matrices, `relaid` copies of operands to
    another order, `strided` tiles whose block may hold the same row of many matrices, `held` what
    products do besides.

    Of a ring of the product (`automap.cost.kernels.ring_operands`), [2, kernels], of its operands:
    `written_bytes` that it writes before it begins, `written_factors` the bit masks of the factors
    that split them, `transposed_bytes` that it moves to transpose them, and `cut_dims` the bit
    masks of the product's dimensions that are cut then.
    """

    op_row: np.ndarray
    shape: tuple[KernelShape, ...]
    product_edge: np.ndarray
    product_row: np.ndarray
    product_sizes: np.ndarray
    written_bytes: np.ndarray
    written_factors: np.ndarray
    transposed_bytes: np.ndarray
    cut_dims: np.ndarray
    kernel_class: np.ndarray
    is_fill: np.ndarray
    is_launched: np.ndarray
    side_sizes: np.ndarray
    taps: np.ndarray
    groups: GroupTiles
    flops: np.ndarray
    efficiency: np.ndarray
    dtype: tuple[str, ...]
    count: np.ndarray
    phase: np.ndarray
    traffic_kernel: np.ndarray
    traffic_row: np.ndarray
    traffic_bytes: np.ndarray
    rival_bytes: np.ndarray
    effects: tuple[EffectTable, ...]
    column_sums: ColumnSums
    on_core: OnCore
    convolutions: Convolutions
    product_rows: ProductRows
    additions: Additions
    factorizations: Factorizations
    relaid: RelaidCopies
    strided: StridedTiles
    held: HeldWork

    def moved_bytes(self, parts_of_value: np.ndarray) -> np.ndarray:
        """Bytes that each kernel reads and writes on a device, float [kernels]; parts by value
        row.
        """
        local = self.traffic_bytes / parts_of_value[self.traffic_row]
        return np.bincount(self.traffic_kernel, weights=local, minlength=len(self.flops))


@dataclass(frozen=True, slots=True)
class _Key:
    op_row: int
    shape: KernelShape
    product_edge: int
    product_row: int
    product_sizes: tuple[int, ...]
    operands: tuple[Operand, Operand]
    kernel_class: OpClass
    is_fill: bool
    is_launched: bool
    sides: TiledSides
    sizes: tuple[int, ...]
    flops: int
    efficiency: float
    phase: int
    access: tuple[tuple[int, int, int], ...]
    effects: tuple[tuple[tuple[int, ...], ...], ...]
    column_sum: ColumnSum | None
    core_work: CoreWork | None
    convolution: Convolution | None
    rows: RowFactors | None
    addition: Addition | None
    factorization: BatchedFactorization | None
    relaid: DecidingDims | None
    block_sizes: tuple[int, ...]
    host: HostProduct | None


def _effect_keys(
    effects: Sequence[Effect],
    uses: Sequence[KernelUses],
    accessed: Sequence[Access],
    passed: Sequence[Access],
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """What each effect has said of the arrays that a kernel accesses, by their positions, and of
    those that it takes through registers.
    """
    return tuple(
        tuple(
            (position, *own.row_by_value[access.value])
            for position, access in enumerate((*accessed, *passed) if effect.passes else accessed)
            if access.value in own.row_by_value
        )
        for effect, own in zip(effects, uses, strict=True)
    )


def kernel_table(
    problem: Problem,
    kernels: list[Kernel],
    row_of_value: np.ndarray,
    row_of_op: np.ndarray,
    edge_of_op: np.ndarray,
    n_bytes: Sequence[int],
    backend: Backend,
) -> tuple[KernelTable, list[int]]:
    """Fold `kernels`, and the row of each.

    `edge_of_op` is the result edge of each op, `n_bytes` are those of each value where it is in
    memory.
    """
    numbers = backend.tile_numbers
    rows = row_of_value.tolist()
    ops, edges = row_of_op.tolist(), edge_of_op.tolist()
    index: dict[_Key, int] = {}
    counts, row_of_kernel = list[int](), list[int]()
    sides: dict[tuple[int, str], TiledSides] = {}
    operands = Operands(problem.graph, n_bytes, numbers)
    rivals = chip_rivals(problem, kernels, n_bytes, numbers.loop_claim)
    program = TracedKernels(problem, kernels, rows, numbers)
    by_blocks, strided = sums_by_blocks(problem, kernels, backend)
    larger = larger_products(problem.graph) if backend.merged_product_bytes else {}
    touched = [effect.uses(program) for effect in backend.effects]
    hosts, shared = Hosts.build(problem.graph, kernels), shared_values(kernels)
    # Kernels with equal keys are one row.
    for number, kernel in enumerate(kernels):
        uses = [by_kernel[number] for by_kernel in touched]
        accessed = _accessed(kernel, uses)
        op, rule = kernel.work(problem.graph), problem.linkage.rules[kernel.op]
        # Of products only, whose sums may be scattered.
        product = op.outputs[0] if op.opcode in CONTRACTIONS else None
        shape = _shape(problem.graph, op, rule, backend, larger.get(kernel.op))
        if (side := (id(rule), op.opcode)) not in sides:
            sides[side] = tiled_sides(op, rule, shape)
        kernel_class = _kernel_class(problem, op, kernel, backend)
        passed = register_pass(problem.graph, kernel, kernel_class, n_bytes, shared, backend)
        # Of what is there before, the memory on the chip helps products' kernels alone.
        is_apart = product is None and kernel.product < 0
        held = kernel.writes if is_apart else accessed
        key = _Key(
            ops[kernel.op],
            shape,
            -1 if product is None else edges[kernel.op],
            -1 if product is None else rows[product],
            () if product is None else problem.graph.values[product].dims,
            _NOTHING
            if product is None
            else operands.product_operands(op, rule, kernel, problem.phases[kernel.op]),
            kernel_class,
            is_fill(problem.graph, kernel),
            backend.launches == "of arrays" or is_launched(problem.graph, kernel),
            sides[side],
            # Sizes would tell kernels apart that no tile rounds: only where a side has factors.
            tuple(f.size for f in rule.factors) if any(sides[side]) else (),
            executed_flops(problem.graph, op, rule, backend),
            0.0 if rule.work is None else rule.work.efficiency,
            int(problem.phases[kernel.op]),
            tuple(
                (rows[a.value], a.n_bytes, rivals[a.value] if a in held else 0)
                for a in (*accessed, *passed)
            ),
            _effect_keys(backend.effects, uses, accessed, passed),
            by_blocks[number],
            *_special_work(problem.graph, op, rule, shape, backend),
            deciding_dims(problem.graph, kernel),
            block_sizes(op, rule, strided.get(kernel.op, ())),
            hosts.host(kernel.product),
        )
        # Python's dict keeps the order in which rows came up, which sums of seconds follow.
        row = index.setdefault(key, len(index))
        if row == len(counts):
            counts.append(0)
        counts[row] += op.trip_count
        row_of_kernel.append(row)
        hosts.row_by_op.setdefault(kernel.op, row)
    return _columns(list(index), counts, backend), row_of_kernel


def _accessed(kernel: Kernel, uses: Sequence[KernelUses]) -> list[Access]:
    """What a kernel moves, and what else decides what effects do to it."""
    accessed = [a for a in (*kernel.reads, *kernel.writes) if a.n_bytes]
    # A cell of a search has the rows of all that its kernels access: of what decides how arrays
    # lie, too.
    for use in uses:
        accessed.extend(Access(v, 0) for v in use.deciding - {a.value for a in accessed})
    return accessed


def _shape(
    graph: Graph, op: Op, rule: Rule, backend: Backend, larger: Larger | None
) -> KernelShape:
    """A whole kernel as it is executed, part of a `larger` product."""
    shape = kernel_shape(graph, op, rule, rate_dtype(graph, op, rule))
    shape = executed_shape(shape, op, rule, backend)
    return replace(shape, merged_in=larger) if shape.kind else shape


def _columns(keys: list[_Key], counts: list[int], backend: Backend) -> KernelTable:
    traffic = [(k, *access) for k, key in enumerate(keys) for access in key.access]
    accesses = np.array(traffic, np.int64).reshape(-1, 4)
    width = max((len(key.sizes) for key in keys), default=0)
    side_sizes = np.ones((3, len(keys), width), np.int64)
    for k, key in enumerate(keys):
        for side, factors in enumerate(key.sides):
            for factor in factors:
                side_sizes[side, k, factor] = key.sizes[factor]
    op_row = np.array([k.op_row for k in keys], np.int64)
    flops = np.array([k.flops for k in keys], float)
    taps = np.array([ConvolutionSides.build(k.shape).taps for k in keys], np.int64)
    groups = GroupTiles.build(
        [k.shape for k in keys],
        [k.flops for k in keys],
        backend.tile_numbers.group_gradient_share,
    )
    sides = Sides(*(FactorSizes.build(sizes, op_row) for sizes in side_sizes), taps=taps)
    padded = flops * sides.flops_per_flop(None, _TILE)
    padded *= groups.flops_per_flop(_TILE, backend.tile_numbers.group_tile_parts)
    rank = max((len(key.product_sizes) for key in keys), default=0)
    product_sizes = np.ones((len(keys), rank), np.int64)
    for k, key in enumerate(keys):
        product_sizes[k, : len(key.product_sizes)] = key.product_sizes
    return KernelTable(
        op_row=op_row,
        shape=tuple(k.shape for k in keys),
        product_edge=np.array([k.product_edge for k in keys], np.int64),
        product_row=np.array([k.product_row for k in keys], np.int64),
        product_sizes=product_sizes,
        written_bytes=_operand_field(keys, "moved_bytes").astype(float),
        written_factors=_operand_field(keys, "factors"),
        transposed_bytes=_operand_field(keys, "transposed_bytes").astype(float),
        cut_dims=_operand_field(keys, "cut_dims"),
        kernel_class=np.array([OP_CLASSES.index(k.kernel_class) for k in keys], np.int64),
        is_fill=np.array([k.is_fill for k in keys], bool),
        is_launched=np.array([k.is_launched for k in keys], bool),
        side_sizes=side_sizes,
        taps=taps,
        groups=groups,
        flops=flops,
        efficiency=np.array([k.efficiency for k in keys], float),
        dtype=tuple(k.shape.dtype for k in keys),
        count=np.array(counts, np.int64),
        phase=np.array([k.phase for k in keys], np.int64),
        traffic_kernel=accesses[:, 0],
        traffic_row=accesses[:, 1],
        traffic_bytes=accesses[:, 2],
        rival_bytes=accesses[:, 3],
        effects=_effect_tables(keys, backend.effects),
        column_sums=ColumnSums.build([k.column_sum for k in keys]),
        on_core=OnCore.build([k.core_work for k in keys]),
        convolutions=Convolutions.build([k.convolution for k in keys]),
        product_rows=ProductRows.build([k.shape for k in keys], [k.rows for k in keys]),
        additions=Additions.build([k.addition for k in keys]),
        factorizations=Factorizations.build([k.factorization for k in keys]),
        relaid=RelaidCopies.build([k.relaid for k in keys]),
        strided=StridedTiles.build([k.block_sizes for k in keys]),
        held=HeldWork.build([k.host for k in keys], padded, [k.shape.dtype for k in keys]),
    )


def _special_work(
    graph: Graph, op: Op, rule: Rule, shape: KernelShape, backend: Backend
) -> tuple[
    CoreWork | None,
    Convolution | None,
    RowFactors | None,
    Addition | None,
    BatchedFactorization | None,
]:
    """What no roofline says, of the backends that have it."""
    cores = backend.core_numbers
    has_library = backend.convolution_numbers is not None
    has_rows = backend.alignment_numbers is not None
    has_additions = backend.addition_numbers is not None
    has_columns = backend.factorization_numbers is not None
    return (
        None if cores is None else core_work(graph, op, rule, cores),
        library_convolution(graph, op, rule) if has_library else None,
        row_factors(graph, op, rule, shape) if has_rows else None,
        addition(graph, op, rule) if has_additions else None,
        batched_factorization(graph, op, rule) if has_columns else None,
    )


def _operand_field(keys: Sequence[_Key], name: str) -> np.ndarray:
    """A field of both operands of each kernel, [2, kernels]."""
    return np.array([[getattr(k.operands[i], name) for k in keys] for i in (0, 1)], np.int64)


def _kernel_class(problem: Problem, op: Op, kernel: Kernel, backend: Backend) -> OpClass:
    if op.opcode in CONTRACTIONS:
        return "product"
    if op.opcode == "convert" and [a.value for a in kernel.reads] == [*op.inputs]:
        # A product's kernel that casts its result too moves it as any other; else the cast is fused
        # with nothing.
        is_by_product = kernel.joins and backend.fuser.products == "fused"
        return "elementwise" if is_by_product else "copy"
    if op.opcode in ("reduce", "reduce-window"):
        return "reduce"
    return "copy" if op.opcode in (COPY, LOOP_ENTER, "scatter") else "elementwise"


def _effect_tables(keys: Sequence[_Key], effects: Sequence[Effect]) -> tuple[EffectTable, ...]:
    """The tables of effects; rows of keys begin with the position of an access in its kernel."""
    tables: list[EffectTable] = []
    for number, effect in enumerate(effects):
        # Keys count accesses from the first of their kernel; the table numbers all of them.
        rows, first = [], 0
        for key in keys:
            rows.extend((first + position, *rest) for position, *rest in key.effects[number])
            first += len(key.access)
        access, *columns = np.array(rows, np.int64).reshape(-1, effect.n_columns + 1).T
        tables.append(effect.table(access, np.array(columns)))
    return tuple(tables)
