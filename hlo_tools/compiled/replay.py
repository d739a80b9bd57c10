"""The seconds of a compiled program by its own schedule, with transfers beside kernels.

A compiled module has a schedule: the order in which a device issues the instructions of each
computation. There is one stream of kernels, and there are links; the clock t and the time f_l from
which link l is free go through the list                                 -> in: `_Timeline.run`

    kernel of k seconds          t <- t + k
    start of a transfer          begins at b = max(t, f_l of its links), ends at e = b + s;
                                 f_l <- e; t stays
    its done                     t <- max(t, e)
    a transfer without a done    t <- e: kernels wait for it
    kernels with one transfer    it begins with the first of them and is waited for by the last;
                                 in between they run beside it (a TPU's fused collectives)
    while                        its body once for each trip             -> in: `_Timeline.loop`
    conditional                  the branch that takes longest
    call, async-start of kernels what is called, in place

so a transfer hides behind exactly the kernels that stand between its start and its done, and
transfers that share no link run at the same time. What an instruction costs is the caller's to say
(`Price`): compilers write their own estimates in their own ways.

A body does the same in every trip once the links are as busy at its start as they were a trip
before; from then on a trip's seconds are multiplied by the trips left, so that the replay takes no
longer for a thousand trips than for three.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose

from hlo_tools.errors import HloError
from hlo_tools.graph import flatten
from hlo_tools.module import Computation, Instruction, Module


Link = Hashable
"""What one transfer at a time can hold."""

# A body whose links never settle is replayed this often, and its last trip stands for the rest.
_MOST_TRIPS_REPLAYED = 64
_SAME_SECONDS = 1e-12


@dataclass(frozen=True, slots=True)
class Transfer:
    """Seconds over links that it holds. One with a `name` goes on beside kernels, until one that
    `Cost.ends` it.
    """

    seconds: float
    links: frozenset[Link] = frozenset()
    name: Hashable = None


@dataclass(frozen=True, slots=True)
class Cost:
    """One run of an instruction: its kernel and its transfers.

    Named transfers begin with the kernel, others come after it, one after the other. The kernel is
    not done before the transfers whose names are in `ends`.
    """

    kernel_seconds: float = 0.0
    transfers: tuple[Transfer, ...] = ()
    ends: tuple[Hashable, ...] = ()


Price = Callable[[Instruction], Cost]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStep:
    """`kernel_seconds` and `transfer_seconds` are sums over what ran, loops by trips; `seconds` is
    the end of the last of it.
    """

    seconds: float
    kernel_seconds: float
    transfer_seconds: float

    @property
    def waited_seconds(self) -> float:
        """Seconds in which no kernel ran, as it had to wait for a transfer."""
        return self.seconds - self.kernel_seconds


def replay(module: Module, price: Price) -> ReplayedStep:
    """One step of a scheduled module on one device.

    Raises `HloError` for a done without its start, and as `hlo_tools.graph.flatten` does.
    """
    timeline = _Timeline(module, price, _runs(module))
    timeline.run(module.computations[module.entry_id])
    # What was started without a done still has to end within the step.
    end = max([timeline.now, *timeline.free.values()])
    return ReplayedStep(
        seconds=end,
        kernel_seconds=timeline.kernel_seconds,
        transfer_seconds=timeline.transfer_seconds,
    )


def in_order(module: Module, computation: Computation) -> Sequence[Instruction]:
    """The instructions of a computation as they run; as they are listed if it has no schedule.

    Raises `HloError` for a schedule of other instructions.
    """
    sequence = module.schedule.get(computation.id)
    if sequence is None:
        return computation.instructions
    by_id = {i.id: i for i in computation.instructions}
    if len(sequence) != len(by_id) or by_id.keys() != set(sequence):
        raise HloError(
            f"{computation.name}: its schedule has {len(sequence)} instructions, which are not its "
            f"{len(by_id)}"
        )
    return [by_id[i] for i in sequence]


def _runs(module: Module) -> Mapping[str, int]:
    """How often each instruction runs in a step, by name; one that takes no time may be missing."""
    return {op.instruction.name: op.trip_count for op in flatten(module, fusions="kept").ops}


@dataclass(frozen=True, slots=True)
class _State:
    """A timeline at one moment."""

    now: float
    kernel_seconds: float
    transfer_seconds: float
    free: Mapping[Link, float]


@dataclass
class _Timeline:
    """The clock, the links, and what has been started and not been waited for."""

    module: Module
    price: Price
    runs: Mapping[str, int]
    now: float = 0.0
    kernel_seconds: float = 0.0
    transfer_seconds: float = 0.0
    free: dict[Link, float] = field(default_factory=dict)
    ends: dict[Hashable, float] = field(default_factory=dict)
    awaited: dict[int, Computation] = field(default_factory=dict)

    def run(self, computation: Computation) -> None:
        """Issue all instructions of a computation, in the order of the schedule if it has one."""
        for instruction in in_order(self.module, computation):
            self._issue(instruction)

    def _issue(self, instruction: Instruction) -> None:
        opcode = instruction.opcode
        if opcode == "while":
            self.loop(instruction)
        elif opcode == "conditional":
            self._branch([self.module.computations[c] for c in instruction.called])
        elif opcode == "call":
            self.run(self.module.computations[instruction.called[0]])
        elif opcode == "async-start":
            self._start_called(instruction)
        elif opcode == "async-update":
            self._update(instruction)
        elif opcode.endswith("-done"):
            self.now = max(self.now, self._end_of_operand(instruction))
        else:
            end = self._issued(instruction)
            if opcode.endswith("-start"):
                self.ends[instruction.id] = end
            else:
                self.now = max(self.now, end)

    def _issued(self, instruction: Instruction) -> float:
        """Run a kernel, begin its transfers, and say when those without a name are done."""
        cost = self.price(instruction)
        for transfer in cost.transfers:
            if transfer.name is not None:
                self.ends[transfer.name] = self._begin(transfer, self.now)
        self.now += cost.kernel_seconds
        self.kernel_seconds += cost.kernel_seconds
        for name in cost.ends:
            self.now = max(self.now, self._end(instruction, name))
        end = self.now
        for transfer in cost.transfers:
            if transfer.name is None:
                end = self._begin(transfer, end)
        return end

    def _begin(self, transfer: Transfer, earliest: float) -> float:
        """When a transfer that may begin then is done."""
        begin = max([earliest, *(self.free.get(link, 0.0) for link in transfer.links)])
        end = begin + transfer.seconds
        self.free.update(dict.fromkeys(transfer.links, end))
        self.transfer_seconds += transfer.seconds
        return end

    def _start_called(self, instruction: Instruction) -> None:
        """What an `async-start` wraps: a transfer goes on beside, kernels have but one stream.

        Without operands it is given them by its update (gathers of SparseCores), and begins there.
        """
        called = self.module.computations[instruction.called[0]]
        takes_operands = any(i.opcode == "parameter" for i in called.instructions)
        if takes_operands and not instruction.operands:
            self.awaited[instruction.id] = called
            self.ends[instruction.id] = self.now
        else:
            self.ends[instruction.id] = self._called(called)

    def _update(self, instruction: Instruction) -> None:
        end = self._end_of_operand(instruction)
        called = self.awaited.pop(instruction.operands[0], None)
        self.ends[instruction.id] = end if called is None else self._called(called)

    def _called(self, called: Computation) -> float:
        """When what an asynchronous instruction calls is done."""
        return max(self._issued(inner) for inner in called.instructions)

    def _end_of_operand(self, instruction: Instruction) -> float:
        started = instruction.operands[0] if instruction.operands else None
        return self._end(instruction, started)

    def _end(self, instruction: Instruction, started: Hashable) -> float:
        if started not in self.ends:
            raise HloError(f"{instruction.name}: waits for what was not started before it")
        return self.ends[started]

    def _branch(self, branches: list[Computation]) -> None:
        """All branches from the same state; the slowest is taken."""
        before = self._state()
        slowest = before
        for branch in branches:
            self._set(before)
            self.run(branch)
            if self.now > slowest.now:
                slowest = self._state()
        self._set(slowest)

    def _state(self) -> "_State":
        return _State(self.now, self.kernel_seconds, self.transfer_seconds, dict(self.free))

    def _set(self, state: "_State") -> None:
        self.now, self.free = state.now, dict(state.free)
        self.kernel_seconds = state.kernel_seconds
        self.transfer_seconds = state.transfer_seconds

    def loop(self, instruction: Instruction) -> None:
        """A `while`; its condition takes no time."""
        body = self._body(instruction)
        trips = self._trips(instruction, body)
        busy_before: Mapping[Link, float] | None = None
        for trip in range(trips):
            start, busy = self._state(), self._busy()
            self.run(body)
            is_settled = busy_before is not None and _is_same(busy_before, busy)
            if is_settled or trip + 1 == _MOST_TRIPS_REPLAYED:
                self._repeat(start, trips - trip - 1)
                return
            busy_before = busy

    def _body(self, instruction: Instruction) -> Computation:
        called = [self.module.computations[c] for c in instruction.called]
        # A condition returns one truth value, a body what the loop carries.
        bodies = [c for c in called if _root(c).shape.dtype != "pred"]
        if len(bodies) != 1:
            raise HloError(f"{instruction.name}: a while calls one body, this {len(bodies)}")
        return bodies[0]

    def _trips(self, instruction: Instruction, body: Computation) -> int:
        outside = self.runs.get(instruction.name, 1)
        inside = [self.runs[i.name] for i in body.instructions if i.name in self.runs]
        return max(inside, default=outside) // outside

    def _busy(self) -> dict[Link, float]:
        """For how long each link is busy from now on."""
        return {link: end - self.now for link, end in self.free.items() if end > self.now}

    def _repeat(self, start: "_State", times: int) -> None:
        """What happened since `start`, so many times more."""
        more = times * (self.now - start.now)
        self.kernel_seconds += times * (self.kernel_seconds - start.kernel_seconds)
        self.transfer_seconds += times * (self.transfer_seconds - start.transfer_seconds)
        self.now += more
        self.free = {link: end + more for link, end in self.free.items()}


def _is_same(one: Mapping[Link, float], other: Mapping[Link, float]) -> bool:
    return one.keys() == other.keys() and all(
        isclose(one[link], other[link], rel_tol=_SAME_SECONDS, abs_tol=_SAME_SECONDS)
        for link in one
    )


def _root(computation: Computation) -> Instruction:
    return next(i for i in computation.instructions if i.id == computation.root_id)
