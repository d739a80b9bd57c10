"""A module from outside: all that the analyses rely on, checked once, before they see it.

    instructions    operands, attributes and result        -> `hlo_tools.read.operand_checks`
    calls           what is passed is what is taken        -> in: `_check_calls`
    size            how deep calls nest, and what inlining makes of the module
                                                           -> in: `_check_size`

    references      computations are there, and do not call each other in a circle
                                                           -> in: `check_references`

The last is checked of every module, while it is decoded (`hlo_tools.read.proto`). The rest XLA has
verified of what JAX lowers in this process; it is not checked again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
import math
from typing import Final

from hlo_tools.errors import HloError
from hlo_tools.graph import DTYPE_BITS
from hlo_tools.module import Computation, Instruction, Module, Shape
from hlo_tools.read.operand_checks import same_structure, why_wrong


MOST_NESTED_CALLS: Final = 64
"""Flattening takes some Python frames for each."""
MOST_INLINED: Final = 500_000
"""Results of instructions, tuples taken apart, once calls are inlined; T5-11B has 24,000."""
MOST_BYTES: Final = 1 << 56
"""Of all these results together, so that no sum of bytes overflows."""


def check_module(module: Module) -> None:
    """Raise `HloError` that names the first instruction which is not as it must be."""
    # Of all computations first: a call may be listed before what it calls.
    shapes: dict[int, dict[int, Shape]] = {}
    parameters: dict[int, list[Shape]] = {}
    for computation in module.computations.values():
        shapes[computation.id] = {i.id: i.shape for i in computation.instructions}
        parameters[computation.id] = _parameters(computation)
    for computation in module.computations.values():
        by_id = shapes[computation.id]
        for instruction in computation.instructions:
            operands = [by_id[i] for i in instruction.operands]
            wrong = why_wrong(instruction, operands)
            if wrong is None and instruction.opcode in _PASSES:
                wrong = _check_calls(instruction, operands, parameters, module.computations, shapes)
            if wrong is not None:
                raise _refused(instruction, wrong)
    _check_aliases(module, len(parameters[module.entry_id]), shapes)
    _check_size(module)


def _refused(instruction: Instruction, wrong: str) -> HloError:
    name = f"{instruction.name[:80]} ({instruction.opcode[:40]})"
    return HloError(f"{name}: {wrong}; dump the module again, or pass the StableHLO it came from")


def _parameters(computation: Computation) -> list[Shape]:
    """Shapes of the parameters by number."""
    by_number = {i.parameter_number: i for i in computation.instructions if i.opcode == "parameter"}
    count = sum(i.opcode == "parameter" for i in computation.instructions)
    # A number that is missing, or there twice, would shift all arguments after it.
    if sorted(by_number) != list(range(count)):
        raise HloError(
            f"computation {computation.name[:80]!r}: its {count} parameters have the numbers "
            f"{sorted(by_number)[:8]}; allowed: each from 0 once; dump the module again"
        )
    return [by_number[number].shape for number in range(count)]


def _check_calls(
    instruction: Instruction,
    operands: Sequence[Shape],
    parameters: Mapping[int, list[Shape]],
    computations: Mapping[int, Computation],
    shapes: Mapping[int, Mapping[int, Shape]],
) -> str | None:
    """What is wrong with what an inlined call passes and returns."""
    passed = _PASSES[instruction.opcode](instruction, operands)
    if isinstance(passed, str):
        return passed
    for called, given in zip(instruction.called, passed, strict=True):
        name = computations[called].name[:80]
        taken = parameters[called]
        if len(given) != len(taken) or not all(map(same_structure, given, taken)):
            return f"passes {_text(given)} to {name!r}, which takes {_text(taken)}"
    return _wrong_result(instruction, computations, shapes)


def _wrong_result(
    instruction: Instruction,
    computations: Mapping[int, Computation],
    shapes: Mapping[int, Mapping[int, Shape]],
) -> str | None:
    results = [shapes[c][computations[c].root_id] for c in instruction.called]
    if instruction.opcode == "while":
        # As flattening takes them: the second is the condition unless only the first can be.
        body, condition = results if results[1].dtype == "pred" else reversed(results)
        if condition.dtype != "pred" or condition.dims:
            return "neither computation returns a condition"
        results = [body]
    for result in results:
        if not same_structure(result, instruction.shape):
            shape = _text([instruction.shape])
            return f"has the shape {shape}, what it calls returns {_text([result])}"
    return None


def _passes_all(instruction: Instruction, operands: Sequence[Shape]) -> list[Sequence[Shape]] | str:
    if len(instruction.called) != 1:
        return f"calls {len(instruction.called)} computations, allowed: one"
    return [operands]


def _passes_carry(
    instruction: Instruction, operands: Sequence[Shape]
) -> list[Sequence[Shape]] | str:
    if len(instruction.called) != 2 or len(operands) != 1:
        return (
            f"{len(operands)} operands and {len(instruction.called)} computations; allowed: 1 and 2"
        )
    if not same_structure(operands[0], instruction.shape):
        return "what it carries is not what it returns"
    return [operands, operands]


def _passes_each(
    instruction: Instruction, operands: Sequence[Shape]
) -> list[Sequence[Shape]] | str:
    if len(operands) != len(instruction.called) + 1:
        return f"{len(operands)} operands for {len(instruction.called)} branches; allowed: one more"
    return [[operand] for operand in operands[1:]]


_PASSES: Final[
    Mapping[str, Callable[[Instruction, Sequence[Shape]], list[Sequence[Shape]] | str]]
] = {
    "call": _passes_all,
    "fusion": _passes_all,
    "while": _passes_carry,
    "conditional": _passes_each,
}
# What flattening inlines.
_INLINED: Final = frozenset({*_PASSES, "async-start"})


def _check_aliases(
    module: Module, n_parameters: int, shapes: Mapping[int, Mapping[int, Shape]]
) -> None:
    entry = module.computations[module.entry_id]
    root = shapes[entry.id][entry.root_id]
    n_results = len(root.elements) if root.dtype == "tuple" else 1
    # Checked below 0 too: Python would take such a number as an index from the end.
    for output, parameter in module.aliases:
        if not (0 <= output < n_results and 0 <= parameter < n_parameters):
            raise HloError(
                f"module {module.name[:80]!r}: result {output} of {n_results} is said to be in the "
                f"place of parameter {parameter} of {n_parameters}; dump the module again"
            )
    if any(not 0 <= parameter < n_parameters for parameter in module.donated):
        raise HloError(f"module {module.name[:80]!r}: a donated parameter is not there")


def _check_size(module: Module) -> None:
    """Refuse calls nested too deeply, and small computations that stand for a huge program."""
    sizes: dict[int, _Size] = {}
    size_by_shape: dict[int, _Size] = {}
    # Callees first, so that the size of what is called is known at the call.
    for computation in _callees_first(module):
        size = _Size(0, 0, 0)
        for instruction in computation.instructions:
            size = size.beside(_result_size(instruction.shape, size_by_shape))
            if instruction.opcode in _INLINED:
                for called in instruction.called:
                    size = size.around(sizes[called])
            if wrong := size.why_too_large():
                raise _refused(instruction, wrong)
        sizes[computation.id] = size


@dataclass(frozen=True, slots=True)
class _Size:
    """Of a computation with its calls inlined: arrays made, their bytes, how deep its calls
    nest.
    """

    count: int
    n_bytes: int
    depth: int

    def beside(self, other: "_Size") -> "_Size":
        """With what stands beside it."""
        depth = max(self.depth, other.depth)
        return _Size(self.count + other.count, self.n_bytes + other.n_bytes, depth)

    def around(self, called: "_Size") -> "_Size":
        """With what it calls."""
        return self.beside(_Size(called.count, called.n_bytes, called.depth + 1))

    def why_too_large(self) -> str | None:
        """Which limit it is over."""
        if self.count > MOST_INLINED:
            return f"with its calls inlined, the program has over {MOST_INLINED} results"
        if self.n_bytes > MOST_BYTES:
            return f"the results so far have over {MOST_BYTES} bytes"
        if self.depth > MOST_NESTED_CALLS:
            return f"calls are nested over {MOST_NESTED_CALLS} deep"
        return None


def _result_size(shape: Shape, known: dict[int, _Size]) -> _Size:
    """The size of what has this shape; equal shapes are mostly one object."""
    # By identity, which costs less than comparing; the module holds the shapes meanwhile.
    size = known.get(id(shape))
    if size is None:
        size = _Size(1, math.prod(shape.dims) * DTYPE_BITS.get(shape.dtype, 0) // 8, 0)
        for element in shape.elements:
            size = size.beside(_result_size(element, known))
        known[id(shape)] = size
    return size


def _callees_first(module: Module) -> Iterator[Computation]:
    """Computations that the entry calls, directly or not, after those that they call."""
    seen: set[int] = set()
    stack = [(module.entry_id, False)]
    while stack:
        current, is_done = stack.pop()
        if is_done:
            yield module.computations[current]
        elif current not in seen:
            seen.add(current)
            # Left on the stack below its callees, to be given out after them. No recursion: the
            # depth of calls is not checked yet.
            stack.append((current, True))
            called = (c for i in module.computations[current].instructions for c in i.called)
            stack.extend((c, False) for c in called)


def _text(shapes: Sequence[Shape]) -> str:
    shown = [
        "a tuple" if s.dtype == "tuple" else f"{s.dtype}{list(s.dims[:8])}" for s in shapes[:4]
    ]
    return ", ".join(shown) + (f" and {len(shapes) - 4} more" if len(shapes) > 4 else "")


def check_references(module: Module) -> None:
    """Raise `HloError` unless all computations are there, and call each other in no circle."""
    if module.entry_id not in module.computations:
        raise HloError(f"module {module.name!r} has no entry computation; dump it again")
    for computation in module.computations.values():
        for instruction in computation.instructions:
            for called in instruction.called:
                if called not in module.computations:
                    raise HloError(
                        f"{instruction.name}: calls computation {called}, which is missing"
                    )
        if all(i.id != computation.root_id for i in reversed(computation.instructions)):
            raise HloError(f"computation {computation.name!r}: its root is missing")
    _check_acyclic(module)


def _check_acyclic(module: Module) -> None:
    state: dict[int, bool] = {}  # False while open, True when done
    stack = [(module.entry_id, False)]
    while stack:
        current, leaving = stack.pop()
        if leaving:
            state[current] = True
            continue
        if current in state:
            continue
        state[current] = False
        stack.append((current, True))
        for instruction in module.computations[current].instructions:
            for called in instruction.called:
                if state.get(called) is False:
                    raise HloError(f"{instruction.name}: computations call each other in a circle")
                if called not in state:
                    stack.append((called, False))
