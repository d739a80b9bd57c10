"""The seconds of a step as its compiler scheduled it, without the devices.

The compiled program is replayed as it stands (`hlo_tools.compiled.replay`): a collective runs
beside the kernels between its start and its done, loops by their trips. What an instruction costs:

    kernel          what its compiler says of it (`automap.verify.kernel_seconds`)
    permute         the messages of the busiest link on their ways (`automap.topology.link_loads`)
    collective      the cost model's, measured where there are measurements (`automap.cost`)
    copy, host      of the host's memory: its bytes by the host's link, each direction by itself;
                    where the backend says that copies go in line, kernels wait for it
    copy, chip      what a TPU fetches ahead to its chip, puts back, or copies within its device's
                    memory: its bytes there, by its bandwidth            -> in: `_chip_copies`

Links of a slice are held one by one, in each direction on its own: a permute holds those on its
ways, where the order of the plan's devices has them, so that the two directions of a ring of
neighbours run at once; any other collective holds all links of the levels it is on. GPUs run one
collective after the other, as XLA gives them one stream.

Copies of a chip go one after the other, beside kernels until what waits for them. A product whose
operand is fetched ahead has few cycles itself: two rows and 8,192 x 4,096 numbers in bfloat16 take
14.6 us by them on v5e, and 82 to fetch the matrix.

A TPU's fused collectives stand in several fusions, one for each step, with one channel: the
transfer begins with the first of them and is waited for by the last.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from automap.backends import backend_for
from automap.cost.collectives import CollectiveKind, collective_cost
from automap.topology.link_loads import Permutation, links_on, permutation
from automap.topology.mesh import Mesh
from automap.topology.model import Topology
from automap.topology.spans import spans
from automap.verify.gpu_calls import shape_bytes
from automap.verify.groups import OTHER_DEVICES, joined_axes
from automap.verify.kernel_seconds import kernel_prices, opcodes, with_operands
from hlo_tools.compiled.collectives import CompiledCollective, compiled_collectives
from hlo_tools.compiled.replay import (
    Cost,
    Link,
    Price,
    ReplayedStep,
    Transfer,
    in_order,
    replay,
)
from hlo_tools.errors import HloError
from hlo_tools.graph import flatten
from hlo_tools.module import (
    CHIP_SPACE,
    DEVICE_SPACE,
    HOST_SPACE,
    Computation,
    Groups,
    Instruction,
    Module,
    Shape,
)
from hlo_tools.opcodes import (
    DYNAMIC_SLICE,
    DYNAMIC_UPDATE_SLICE,
    JOINS_DEVICES,
    SLICES,
)
from hlo_tools.read.proto import decode_module


_PRICED: Final = frozenset(kind.value for kind in CollectiveKind)
_COPIES: Final = frozenset({"fusion", "copy", "copy-start", DYNAMIC_SLICE, DYNAMIC_UPDATE_SLICE})
_CHIP: Final = frozenset({"memory of the device"})
_GPU_COLLECTIVES: Final = "stream of collectives"


def replayed_step(
    data: bytes, topology: Topology, mesh: Mesh, devices: Sequence[int] | None = None
) -> ReplayedStep:
    """The step of a serialized compiled program; `mesh` lies row-major on its partitions, whose
    `devices` are the topology's numbers, None for 0, 1, 2, ...

    Raises `HloError` for a malformed program or a collective without a price, `CompilerError` for a
    device whose compiler's estimates are not known to be seconds.
    """
    module = decode_module(data)
    return replay(module, _price_list(data, module, _LaidMesh(topology, mesh, devices)))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRuns:
    """All runs of one instruction in a step: `opcodes` are its own and those fused into it."""

    name: str
    opcodes: frozenset[str]
    seconds: float


def kernel_runs(data: bytes, topology: Topology, mesh: Mesh) -> Iterator[KernelRuns]:
    """What `replayed_step` takes each kernel to be, loops by their trips.

    Raises as it does.
    """
    module = decode_module(data)
    # What a kernel takes has nothing to do with where its devices lie.
    price = _price_list(data, module, _LaidMesh(topology, mesh, None))
    for op in flatten(module, fusions="kept").ops:
        seconds = price(op.instruction).kernel_seconds * op.trip_count
        if seconds > 0:
            inside = frozenset(opcodes(op.instruction, module))
            yield KernelRuns(name=op.instruction.name, opcodes=inside, seconds=seconds)


def _price_list(data: bytes, module: Module, laid: "_LaidMesh") -> Price:
    kernel = kernel_prices(data, module, laid.topology)
    transfers = _transfers(module, laid)
    copies = {**_chip_copies(module, laid.topology), **_host_copies(module, laid.topology)}

    def price(instruction: Instruction) -> Cost:
        if instruction.name in copies:
            return copies[instruction.name]
        moved = transfers.get(instruction.name, Cost())
        # A collective by itself is no kernel, whatever the compiler's estimate of it.
        is_kernel = instruction.opcode == "fusion" or not moved.transfers
        return replace(moved, kernel_seconds=kernel(instruction) if is_kernel else 0.0)

    return price


def _chip_copies(module: Module, topology: Topology) -> Mapping[str, Cost]:
    """Copies that have a start and a done, and slices that are started and waited for so."""
    if topology.platform != "tpu":
        return {}
    costs = dict[str, Cost]()
    starts = (i for i, _ in with_operands(module) if i.opcode == "async-start")
    called = {computation for start in starts for computation in start.called}
    started = {inner.name for c in called for inner in module.computations[c].instructions}
    for instruction, operands in with_operands(module):
        copied = _copied(instruction, operands, is_started=instruction.name in started)
        if copied and {s.memory_space for s in copied} <= {DEVICE_SPACE, CHIP_SPACE}:
            moved = (s for s in copied if s.memory_space == DEVICE_SPACE)
            seconds = sum(map(shape_bytes, moved)) / topology.device.hbm_bytes_per_s
            costs[instruction.name] = Cost(transfers=(Transfer(seconds, _CHIP),))
    return costs


def _copied(
    instruction: Instruction, operands: Sequence[Shape], *, is_started: bool
) -> tuple[Shape, ...]:
    """What a copy writes and what it reads, where these are; nothing of what is no such copy."""
    opcode = instruction.opcode
    if opcode == "copy-start":
        # It makes (what it writes, what it reads, its state).
        return instruction.shape.elements[:2]
    if is_started and opcode in SLICES:
        part = instruction.shape
        return part, replace(part, memory_space=operands[0].memory_space)
    if is_started and opcode == DYNAMIC_UPDATE_SLICE:
        part = operands[1]
        return replace(part, memory_space=instruction.shape.memory_space), part
    return ()


def _host_copies(module: Module, topology: Topology) -> Mapping[str, Cost]:
    """What each instruction copies to or from the host's memory, by its name: of a stack there the
    part that it writes or reads. Nothing where the host has no link.
    """
    costs, host_bytes_per_s = {}, topology.device.host_bytes_per_s
    in_line = backend_for(topology.platform).host_copies == "in line"
    for instruction, operands in with_operands(module) if host_bytes_per_s else ():
        made, *rest = instruction.shape.elements or (instruction.shape,)
        if instruction.opcode not in _COPIES:
            continue
        # The start of a copy makes (what it writes, what it reads, its state).
        is_start = instruction.opcode == "copy-start"
        given, is_stored = rest[:1] if is_start else operands, made.memory_space == HOST_SPACE
        moved = [s for s in given if (s.memory_space == HOST_SPACE) != is_stored]
        if moved:
            # A kernel may read several leaves; of a stack it reads no more than it makes of it.
            most = max(map(shape_bytes, (made, *rest)))
            n_bytes = sum(min(shape_bytes(each), most) for each in moved)
            n_bytes = max(map(shape_bytes, moved)) if is_stored else n_bytes
            link = "to the host" if is_stored else "from the host"
            ends = (instruction.name,) if in_line else ()
            transfer = Transfer(n_bytes / host_bytes_per_s, frozenset({link}), *ends)
            costs[instruction.name] = Cost(transfers=(transfer,), ends=ends)
    return costs


@dataclass(frozen=True, slots=True)
class _LaidMesh:
    """A mesh whose partitions are on `devices` of the topology, None for 0, 1, 2, ..."""

    topology: Topology
    mesh: Mesh
    devices: Sequence[int] | None

    def permutation(self, pairs: Groups) -> Permutation:
        """What messages between pairs of partitions cost; raises `HloError` for one that is not
        there.
        """
        order = range(self.topology.device_count) if self.devices is None else self.devices
        for pair in pairs:
            if not all(0 <= partition < len(order) for partition in pair):
                raise HloError(f"a permute from {pair[0]} to {pair[1]}, of {len(order)} partitions")
        return permutation(self.topology, [[order[partition] for partition in p] for p in pairs])


def _transfers(module: Module, laid: _LaidMesh) -> Mapping[str, Cost]:
    """What each instruction moves, by its name; a fusion moves what is in it."""
    by_name: dict[str, list[CompiledCollective]] = defaultdict(list)
    for collective in compiled_collectives(module):
        by_name[collective.instruction].append(collective)
    prices = {name: _price(tensors, laid) for name, tensors in by_name.items()}
    fused = set(_fused(module))
    scattered = {name for name, (first, *_) in by_name.items() if first.kind == "reduce-scatter"}
    costs = {name: Cost(transfers=(transfer,)) for name, transfer in prices.items()}
    for computation in module.computations.values():
        if computation.id not in fused:
            costs |= _fused_costs(computation, module, prices, scattered)
    return costs


def _fused(module: Module) -> Iterator[int]:
    for computation in module.computations.values():
        for instruction in computation.instructions:
            if instruction.opcode == "fusion":
                yield from instruction.called


def _fused_costs(
    computation: Computation,
    module: Module,
    prices: Mapping[str, Transfer],
    scattered: AbstractSet[str],
) -> Mapping[str, Cost]:
    """What the fusions of a computation move: a collective of several steps begins in the first
    fusion that has one of its channel and ends in the last. Reduce-scatters, `scattered`, have
    one step each, whatever their channel.
    """
    steps: dict[_Channel, list[str]] = defaultdict(list)
    first: dict[_Channel, Transfer] = {}
    for instruction in in_order(module, computation):
        if instruction.opcode == "fusion":
            for inner in _collectives_in(instruction, module):
                number = 0 if inner.name in scattered else inner.attributes.channel_id
                channel = _Channel(inner.opcode, number or -inner.id)
                steps[channel].append(instruction.name)
                if inner.name in prices:
                    first.setdefault(channel, replace(prices[inner.name], name=channel))
    costs: dict[str, Cost] = defaultdict(Cost)
    for channel, transfer in first.items():
        start, *_, end = steps[channel] * 2
        begun = costs[start]
        costs[start] = replace(begun, transfers=(*begun.transfers, transfer))
        costs[end] = replace(costs[end], ends=(*costs[end].ends, channel))
    return costs


@dataclass(frozen=True, slots=True)
class _Channel:
    """The steps of one collective have one; those without a number are by themselves."""

    opcode: str
    number: int


def _collectives_in(instruction: Instruction, module: Module) -> Iterator[Instruction]:
    for called in instruction.called:
        for inner in module.computations[called].instructions:
            if inner.opcode in JOINS_DEVICES:
                yield inner
            yield from _collectives_in(inner, module)


def _price(tensors: Sequence[CompiledCollective], laid: _LaidMesh) -> Transfer:
    """One message of tensors that go together."""
    topology, mesh, first = laid.topology, laid.mesh, tensors[0]
    if first.kind not in _PRICED:
        raise HloError(f"{first.instruction}: nothing is known of the seconds of a {first.kind}")
    kind = CollectiveKind(first.kind)
    n_bytes = float(sum(tensor.n_bytes for tensor in tensors))
    is_permute = kind == CollectiveKind.PERMUTE
    if is_permute and topology.platform == "tpu" and first.groups is not None:
        moved = laid.permutation(first.groups)
        return Transfer(moved.seconds(n_bytes), moved.links)
    axes = joined_axes(first.groups, mesh.axes, is_pairs=is_permute)
    axes = mesh.names if axes == OTHER_DEVICES else axes
    numbers = [mesh.names.index(axis) for axis in axes]
    cost = collective_cost(kind, topology, mesh.sizes, numbers)
    links = _links(topology, mesh, numbers)
    return Transfer(float(cost.seconds(n_bytes)), links)


def _links(topology: Topology, mesh: Mesh, axes: Sequence[int]) -> frozenset[Link]:
    if topology.platform == "cuda":
        return frozenset((_GPU_COLLECTIVES,))
    levels = {span.level.name for span in spans(topology, mesh.sizes, axes)}
    return links_on(topology, levels)
