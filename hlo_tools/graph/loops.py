"""A while loop as ops: its body once, between an op that enters it and one that leaves it, each op
of the body with the number of trips                                        -> in: `while_loop`

The number is what XLA has written beside the loop, or is read from its counter. A counter is an
element c of what the loop carries, with condition c < limit and c <- c + step in the body, so that

    trips = ceil((limit - start) / step)                                    -> in: `trip_count`

The step need not be one: a TPU runs two rounds of a ring in each trip. A loop whose number cannot
be read is counted once and named in `Graph.assumptions`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hlo_tools.errors import HloError
from hlo_tools.graph.flattener import Flattener, Tree, joined, leaves
from hlo_tools.module import Computation, Instruction, Module
from hlo_tools.opcodes import LOOP_ENTER, LOOP_EXIT, SAME_NUMBER


# A million steps of a thousand layers of a thousand trips each; sums over ops stay whole numbers of
# 64 bits.
_MOST_TRIPS = 1 << 40

# The first value of an element of what a loop carries, None if it is not known.
Initial = Callable[[int], int | None]


@dataclass(frozen=True, slots=True)
class Trips:
    """`count` is None if it cannot be read; `is_step_known` is false where the step was taken to be
    one.
    """

    count: int | None
    is_step_known: bool = True


@dataclass(frozen=True, slots=True)
class _Counter:
    """What the counter is at the start of a trip, and so much more."""

    added: int


_Known = int | _Counter | None
_ById = Mapping[int, Instruction]


def while_loop(flat: Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    """The handler of `while`. Raises `HloError` if its body runs too often in a step."""
    body, condition = _body_and_condition(flat.module, instruction)
    initial = tuple(leaves(operands[0]))
    trips = instruction.attributes.trip_count
    if trips is None:
        trips = _read_trips(flat, instruction, condition, body, operands[0])
    if trips == 1:  # XLA makes no loop of it, but partitions it as one
        root = flat.inline(instruction, body.id, operands)
        handed_on = list(zip(initial, leaves(root), strict=True))
        flat.ties.extend(handed_on)
        flat.changed_once.update(before for before, after in handed_on if before != after)
        return root
    # The carry inside is neither what the loop starts with nor what it ends with: values of its
    # own.
    carried = flat.fresh(instruction.shape, len(flat.ops))
    flat.emit_with(LOOP_ENTER, initial, carried, instruction)
    outer, flat.trip_count = flat.trip_count, flat.trip_count * (1 if trips is None else trips)
    if flat.trip_count > _MOST_TRIPS:
        raise HloError(
            f"{instruction.name}: this loop's body runs {flat.trip_count} times in a step, with "
            f"the loops around it; allowed: {_MOST_TRIPS}; plan fewer trips"
        )
    root = flat.inline(instruction, body.id, [carried])
    flat.trip_count = outer
    result = flat.fresh(instruction.shape, len(flat.ops))
    flat.emit_with(LOOP_EXIT, tuple(leaves(root)), result, instruction)
    # But one tensor at other times: before the loop, at the end of a trip, after the loop.
    for group in (initial, leaves(root), leaves(result)):
        flat.ties.extend(zip(group, leaves(carried), strict=True))
    return result


def _read_trips(
    flat: Flattener, loop: Instruction, condition: Computation, body: Computation, carried: Tree
) -> int | None:
    def initial(element: int) -> int | None:
        leaf = carried[element] if isinstance(carried, tuple) else None
        value = flat.constants.get(leaf) if isinstance(leaf, int) else None
        return value if isinstance(value, int) else None

    trips = trip_count(flat.module, condition, body, initial)
    where = joined(flat.prefix, loop.op_name) or loop.name
    if trips.count is None:
        flat.assumptions.append(f"loop {where}: trip count not known, counted once")
    elif not trips.is_step_known:
        flat.assumptions.append(f"loop {where}: its counter is taken to go by one")
    return trips.count


def _body_and_condition(
    module: Module, instruction: Instruction
) -> tuple[Computation, Computation]:
    # The proto lists both callees; the condition is the one that returns a single pred.
    callees = [module.computations[i] for i in instruction.called]
    if len(callees) != 2:
        raise HloError(f"{instruction.name}: a while calls two computations, this {len(callees)}")
    roots = [_root(c).shape.dtype for c in callees]
    return (callees[0], callees[1]) if roots[1] == "pred" else (callees[1], callees[0])


def _root(computation: Computation) -> Instruction:
    return next(i for i in computation.instructions if i.id == computation.root_id)


def trip_count(
    module: Module, condition: Computation, body: Computation, initial: Initial
) -> Trips:
    """The trips of `counter < limit`."""
    by_id = {i.id: i for i in condition.instructions}
    compare = by_id[condition.root_id]
    # What hands the comparison on is looked through.
    while compare.opcode in ("call", "copy") and len(compare.operands) == 1:
        compare = by_id[compare.operands[0]]
    if compare.opcode != "compare" or compare.attributes.comparison_direction != "LT":
        return Trips(None)
    counter, end = (by_id[i] for i in compare.operands)
    start, limit = _bound(counter, initial), _bound(end, initial)
    if start is None or limit is None or limit < start:
        return Trips(None)
    if counter.opcode != "get-tuple-element":
        return Trips(limit - start, is_step_known=False)
    # Rounded up below: the last trip may step over the limit.
    step = _step(module, body, counter.tuple_index, initial)
    return (
        Trips(limit - start, is_step_known=False)
        if step is None
        else Trips(-(-(limit - start) // step))
    )


def _bound(instruction: Instruction, initial: Initial) -> int | None:
    if instruction.opcode == "constant":
        return _whole(instruction.literal)
    if instruction.opcode == "get-tuple-element":
        return initial(instruction.tuple_index)
    return None


def _step(module: Module, body: Computation, index: int, initial: Initial) -> int | None:
    """What a trip adds to the counter, if it is positive and can be read."""
    by_id = {i.id: i for i in body.instructions}
    root = by_id[body.root_id]
    if root.opcode != "tuple":
        return None

    def carried(element: int) -> _Known:
        if element == index:
            return _Counter(0)
        # Only what a trip leaves as it is has the loop's first value in every trip.
        after = by_id[root.operands[element]]
        stays = after.opcode == "get-tuple-element" and after.tuple_index == element
        return initial(element) if stays else None

    def given(instruction: Instruction) -> _Known:
        is_element = instruction.opcode == "get-tuple-element"
        return carried(instruction.tuple_index) if is_element else None

    value = _Reader(module).value(by_id, root.operands[index], given)
    return value.added if isinstance(value, _Counter) and value.added > 0 else None


@dataclass
class _Reader:
    """Reads instructions as the counter and a constant, as long as that takes few of them."""

    module: Module
    # A counter takes a handful of instructions; a body may be any chain of calls.
    n_left: int = 1000

    def value(self, by_id: _ById, at: int, given: Callable[[Instruction], _Known]) -> _Known:
        """What an instruction is, None if neither; `given` are parameters and their elements."""
        instruction = by_id[at]
        self.n_left -= 1
        if self.n_left < 0:
            return None
        match instruction.opcode:
            case "parameter" | "get-tuple-element":
                return given(instruction)
            case "constant":
                return _whole(instruction.literal)
            case "add":
                return _sum([self.value(by_id, i, given) for i in instruction.operands])
            case "call" | "fusion":
                arguments = [self.value(by_id, i, given) for i in instruction.operands]
                return self._result(self.module.computations[instruction.called[0]], arguments)
            case opcode if opcode in SAME_NUMBER:
                return self.value(by_id, instruction.operands[0], given)
        return None

    def _result(self, called: Computation, arguments: Sequence[_Known]) -> _Known:
        def given(instruction: Instruction) -> _Known:
            is_argument = instruction.opcode == "parameter"
            return arguments[instruction.parameter_number] if is_argument else None

        return self.value({i.id: i for i in called.instructions}, called.root_id, given)


def _sum(terms: Sequence[_Known]) -> _Known:
    whole = sum(term.added if isinstance(term, _Counter) else term or 0 for term in terms)
    # Counter + counter doubles: such a step is not the same in every trip.
    counters = sum(isinstance(term, _Counter) for term in terms)
    if None in terms or counters > 1:
        return None
    return _Counter(whole) if counters else whole


def _whole(literal: object) -> int | None:
    return literal if isinstance(literal, int) and not isinstance(literal, bool) else None
