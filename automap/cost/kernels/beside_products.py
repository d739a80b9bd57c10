"""What a product's kernel moves beside its work, and what it computes of its result.

The matrix unit works while operands come and results leave, piece after piece: a kernel is cut in
n of them, and of the shorter one of both, work and moves, only one piece is seen. With C the
seconds of its FLOPs and M those of all that the kernel moves and takes through registers,

    kernel = max(C, M) + min(C, M) / n,    n = max(1, sqrt((C + M) / t))            -> in: `beside`

t is `TileNumbers.product_piece_seconds`: a kernel of a microsecond is one piece and takes C + M,
one of a millisecond is eighteen. What it waits for before the first piece and behind the last is
                                             -> in: `automap.backends.xla_tpu.product_registers`

M is of the product's own accesses and of those of each op that its kernel does besides. An op of
these is a row of its own, which takes what its M_i adds; with M_0 the product's own, and M all of
the kernel's,

    added_i = M_i seen,   seen = (kernel(C, M) - kernel(C, M_0)) / (M - M_0)
                                                                    -> in: `HeldSeconds.seen`

of what each device has of the whole, C and M cut alike, as a row of the table knows of its own
accesses only: a plan that cuts what a product sums over makes C shorter than that. What devices sum
first is in no kernel with what follows, as gradients of parameters, where the batch is split; most
plans split it                                                        -> in: `summed_over_batch`

What goes through registers is taken to be so on all devices here, and of stacks too, which only
`seen` hangs on. Read of single products of libtpu 0.0.51 for v5e (2026-12-01: 708 of 256 to 16,384
rows, operands and results in either memory, 2.6 % off in the root of the mean square and 8 % at
worst; the law fits 144 for v5p by 3 % with a t of 3.8 us where this is 3.2; by scripts that were
not kept); `python -m scripts.compare_tpu_kernels` holds it against the compiler.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from automap.cost.kernels.matrix_tiles import rows_of_copies
from automap.program.problem import Problem
from automap.topology.model import Device
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.analyses.phases import Phase
from hlo_tools.graph import Graph
from hlo_tools.opcodes import CONTRACTIONS
from hlo_tools.rules import FactorKind


_REGISTER_BYTES = 4
_NARROW_BYTES = 2


def summed_over_batch(problem: Problem) -> frozenset[int]:
    """Results of the backward pass's products that sum over the batch, outside of loops: within
    them what is summed is added up or stacked first.
    """
    batch, linkage = problem.batch_class, problem.linkage
    result = set[int]()
    for index, op in enumerate(problem.graph.ops):
        is_gradient = problem.phases[index] is Phase.BACKWARD and op.opcode in CONTRACTIONS
        if not is_gradient or op.trip_count != 1 or batch is None:
            continue
        groups = linkage.factor_groups[index].tolist()
        summed = {
            int(problem.class_of_group[group])
            for group, factor in zip(groups, linkage.rules[index].factors)
            if factor.kind is FactorKind.REDUCTION and group >= 0
        }
        if batch in summed:
            result.add(op.outputs[0])
    return frozenset(result)


@dataclass(frozen=True, slots=True)
class HostProduct:
    """Of what a product's kernel does besides: the number of the product's row in the table, bytes
    that it moves itself and that all of this moves, of the whole, and through registers.
    """

    kernel: int
    own_bytes: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Hosts:
    """`row_by_op` are the rows of the table that are made so far, by the ops of their kernels;
    `moved_by_op` are `own_bytes` and `held_bytes` of each product whose kernel does more than it.
    """

    moved_by_op: Mapping[int, tuple[int, int]]
    row_by_op: dict[int, int] = field(default_factory=dict)

    @classmethod
    def build(cls, graph: Graph, kernels: Sequence[Kernel]) -> "Hosts":
        """Those of a program, before the first row."""
        return cls(_moved_by_products(graph, kernels))

    def host(self, product: int) -> HostProduct | None:
        """That of a kernel that the product of this op does; None of others."""
        if product not in self.row_by_op:
            return None
        return HostProduct(self.row_by_op[product], *self.moved_by_op[product])


def _moved_by_products(graph: Graph, kernels: Sequence[Kernel]) -> Mapping[int, tuple[int, int]]:
    own, held = dict[int, int](), dict[int, int]()
    passed = set[int]()
    for kernel in kernels:
        is_product = graph.ops[kernel.op].opcode in CONTRACTIONS and kernel.copied is None
        if not is_product and kernel.product < 0:
            continue
        product = kernel.op if kernel.product < 0 else kernel.product
        n_bytes = sum(access.n_bytes for access in (*kernel.reads, *kernel.writes))
        narrow = _register_bytes(graph, kernel)
        # A kernel goes through registers once.
        if narrow and product not in passed:
            passed.add(product)
            n_bytes += narrow
        part = own if kernel.product < 0 else held
        part[product] = part.get(product, 0) + n_bytes
    return {product: (own.get(product, 0), n_bytes) for product, n_bytes in held.items()}


def _register_bytes(graph: Graph, kernel: Kernel) -> int:
    """What goes through registers of four bytes: numbers of two that are written."""
    numbers = ((prod(graph.values[a.value].dims), a.n_bytes) for a in kernel.writes)
    return max((_REGISTER_BYTES * n for n, size in numbers if size <= _NARROW_BYTES * n), default=0)


@dataclass(frozen=True, slots=True)
class HeldWork:
    """Kernels that products do besides, [those]: `kernels` are their numbers, ascending, `flops`
    and `dtype` of the product, with what pads its tiles; the others are those of `HostProduct`.
    """

    kernels: np.ndarray
    flops: np.ndarray
    own_bytes: np.ndarray
    held_bytes: np.ndarray
    dtype: tuple[str, ...]

    @classmethod
    def build(
        cls, hosts: Sequence[HostProduct | None], flops: np.ndarray, dtype: Sequence[str]
    ) -> "HeldWork":
        """Of all kernels, in their order, with the FLOPs and types of all."""
        chosen = [(k, host) for k, host in enumerate(hosts) if host is not None]
        return cls(
            kernels=np.array([k for k, _ in chosen], np.int64),
            flops=flops[[host.kernel for _, host in chosen]] if chosen else np.zeros(0),
            own_bytes=np.array([host.own_bytes for _, host in chosen], float),
            held_bytes=np.array([host.held_bytes for _, host in chosen], float),
            dtype=tuple(dtype[host.kernel] for _, host in chosen),
        )

    def select(self, which: np.ndarray, n_kernels: int) -> "HeldWork":
        """Those of copied kernels; `which` [copies] says of which of `n_kernels` each is."""
        copied, row = rows_of_copies(self.kernels, which, n_kernels)
        dtype = tuple(self.dtype[r] for r in row.tolist())
        return HeldWork(copied, self.flops[row], self.own_bytes[row], self.held_bytes[row], dtype)

    def seconds(self, device: Device, flops_per_s: Mapping[str, float]) -> "HeldSeconds":
        """What its products take on a device, by the FLOPs that it does of each type."""
        bytes_per_s = device.memory_bytes_per_s("product")
        return HeldSeconds(
            busy=self.flops / np.array([flops_per_s[d] for d in self.dtype]),
            own=self.own_bytes / bytes_per_s,
            # A kernel that moves nothing has nothing to hide.
            held=np.maximum(self.held_bytes, 1.0) / bytes_per_s,
        )


@dataclass(frozen=True, slots=True)
class HeldSeconds:
    """Of the product that does each of `HeldWork`, of the whole: C, M_0 and M - M_0 above."""

    busy: np.ndarray
    own: np.ndarray
    held: np.ndarray

    def seen(self, piece_seconds: float, parts: np.ndarray | float) -> np.ndarray:
        """The share of its own seconds that each adds, [those], where devices have one of so many
        `parts` of it; `piece_seconds` is t above.
        """
        busy, own, held = self.busy / parts, self.own / parts, self.held / parts
        added = beside(busy, own + held, piece_seconds) - beside(busy, own, piece_seconds)
        seen: np.ndarray = added / held
        return seen

    def least_seen(self, piece_seconds: float, devices: int) -> np.ndarray:
        """What `seen` is at least in up to so many parts, [those].

        It is made of lines in the root of the number of parts: one to where the product by itself
        is one piece, from there one that rises, and 1.
        """
        whole = (self.busy + self.own) / piece_seconds
        ends = (1.0, float(devices), np.clip(whole, 1.0, devices))
        return np.min([self.seen(piece_seconds, end) for end in ends], axis=0)


def beside(
    flops_seconds: np.ndarray, moved_seconds: np.ndarray, piece_seconds: float
) -> np.ndarray:
    """Seconds of kernels, [kernels]; those without FLOPs take what they move."""
    longer = np.maximum(flops_seconds, moved_seconds)
    pieces = np.sqrt((flops_seconds + moved_seconds) / piece_seconds)
    return longer + np.minimum(flops_seconds, moved_seconds) / np.maximum(pieces, 1.0)
