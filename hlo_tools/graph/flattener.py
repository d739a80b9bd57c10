"""A module on its way to a graph: instructions in order, one after the other, in the environment of
their computation.

`Flattener.run(computation, arguments)` walks a computation; an environment maps instruction ids to
a value id, or to a nested tuple of them. What is no op of its own (calls, loops, tuples) has a
handler, which calls the flattener back.
"""

from collections.abc import Callable, Mapping
import re

from hlo_tools.errors import HloError
from hlo_tools.graph.graph import Graph, Op, Value
from hlo_tools.module import Computation, Instruction, Module, Shape
from hlo_tools.rules.notation import Notation


Tree = int | tuple["Tree", ...]


def joined(prefix: str, name: str) -> str:
    """The name of an op inside a call: the caller's before its own."""
    # Names inside a callee are relative in some JAX versions and whole in others.
    if not prefix or name.startswith(prefix):
        return name or prefix
    return f"{prefix}/{name}" if name else prefix


def flat_leaves(trees: list[Tree]) -> tuple[int, ...]:
    """The value ids of all trees, in order."""
    # By far the most frequent case: no operand is a tuple.
    if tuple not in map(type, trees):
        return tuple(trees)  # pyright: ignore[reportReturnType]
    return tuple(leaf for tree in trees for leaf in leaves(tree))


def leaves(tree: Tree) -> list[int]:
    """The value ids of one tree, in order."""
    if isinstance(tree, int):
        return [tree]
    return [leaf for part in tree for leaf in leaves(part)]


# T5-11B, unrolled, has 24,000. Calls of calls can make any number of ops out of a short program.
_MAX_FLAT_OPS = 2_000_000
# What XLA appends to a function's name to tell its computations apart.
_NUMBER = re.compile(r"(_\d+)?(\.\d+)*")


class Flattener:
    """One module on its way to a graph; handlers (`hlo_tools.graph.flattening`) call it back."""

    def __init__(
        self, module: Module, user_rules: Mapping[str, Notation], handlers: "Mapping[str, Handler]"
    ):
        self.module = module
        self.user_rules = user_rules
        self.handlers = handlers
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.ties: list[tuple[int, int]] = []
        # Known scalars by value id, for the counters of loops.
        self.constants: dict[int, int | float | bool] = {}
        self.assumptions: list[str] = []
        # As `Graph.changed_once`.
        self.changed_once: set[int] = set()
        # As `Graph.held`.
        self.held: set[int] = set()
        # Of what is emitted now: the product of the trips of all loops around it.
        self.trip_count = 1
        # What asynchronous calls that have no operands yet will run, by instruction.
        self.awaited: dict[int, int] = {}
        # The names of the calls around, which a callee's ops do not have in some JAX versions.
        self.prefix = ""

    def graph(self) -> Graph:
        """The entry computation, flattened."""
        entry = self.module.computations[self.module.entry_id]
        parameters = sorted(
            (i for i in entry.instructions if i.opcode == "parameter"),
            key=lambda i: i.parameter_number,
        )
        # Inputs are the first values, in the order of parameter numbers; -1 means that no op makes
        # them.
        arguments = [self.fresh(p.shape, -1) for p in parameters]
        root = self.run(entry, arguments)
        inputs = tuple(leaf for tree in arguments for leaf in leaves(tree))
        names = tuple(
            p.op_name or p.name for p, tree in zip(parameters, arguments) for _ in leaves(tree)
        )
        return Graph(
            name=self.module.name,
            values=self.values,
            ops=self.ops,
            inputs=inputs,
            input_names=names,
            outputs=tuple(leaves(root)),
            ties=self.ties,
            donated=self.module.donated,
            aliases=self.module.aliases,
            assumptions=tuple(dict.fromkeys(self.assumptions)),
            changed_once=frozenset(self.changed_once),
            held=frozenset(self.held),
        )

    def fresh(self, shape: Shape, producer: int) -> Tree:
        """New value ids for the leaves of `shape`, in its nesting."""
        if shape.dtype == "tuple":
            return tuple(self.fresh(element, producer) for element in shape.elements)
        self.values.append(Value(shape.dtype, shape.dims, producer))
        return len(self.values) - 1

    def emit(self, opcode: str, inputs: tuple[int, ...], instruction: Instruction) -> Tree:
        """Append an op with the instruction's result shape; returns its result values."""
        result = self.fresh(instruction.shape, len(self.ops))
        return self.emit_with(opcode, inputs, result, instruction)

    def emit_with(
        self, opcode: str, inputs: tuple[int, ...], result: Tree, instruction: Instruction
    ) -> Tree:
        """Append an op with given result values, and return them."""
        if len(self.ops) >= _MAX_FLAT_OPS:
            raise HloError(f"module {self.module.name!r} inlines to over {_MAX_FLAT_OPS} ops")
        name = joined(self.prefix, instruction.op_name) if self.prefix else instruction.op_name
        outputs = (result,) if isinstance(result, int) else tuple(leaves(result))
        self.ops.append(Op(opcode, inputs, outputs, instruction, name, self.trip_count))
        return result

    def run(self, computation: Computation, arguments: list[Tree]) -> Tree:
        """Flatten one computation called with `arguments`; returns its root."""
        environment: dict[int, Tree] = {}
        for instruction in computation.instructions:
            operands = [environment[i] for i in instruction.operands]
            handler = self.handlers.get(instruction.opcode)
            if instruction.opcode == "parameter":
                result = arguments[instruction.parameter_number]
            elif handler is not None:
                result = handler(self, instruction, operands)
            else:
                result = self.emit(instruction.opcode, flat_leaves(operands), instruction)
            environment[instruction.id] = result
        return environment[computation.root_id]

    def ruled_name(self, instruction: Instruction, operands: list[Tree]) -> str | None:
        """The called function's name, if the user has a rule that fits what it is called with."""
        called = self.module.computations[instruction.called[0]].name
        for name, notation in self.user_rules.items():
            if called.startswith(name) and _NUMBER.fullmatch(called, len(name)):
                inputs = [self.values[leaf].dims for tree in operands for leaf in leaves(tree)]
                shape = instruction.shape
                results = [e.dims for e in shape.elements] if shape.elements else [shape.dims]
                if notation.fits(inputs, results):
                    return name
                self.assumptions.append(
                    f"rule {notation.text!r} does not fit the function {called}, {len(inputs)} "
                    "arrays to "
                    f"{len(results)} (differentiation adds some): its ops are planned one by one"
                )
        return None

    def inline(self, instruction: Instruction, computation_id: int, arguments: list[Tree]) -> Tree:
        """Flatten a computation that an instruction calls, its ops named after the call."""
        outer, self.prefix = self.prefix, joined(self.prefix, instruction.op_name)
        result = self.run(self.module.computations[computation_id], arguments)
        self.prefix = outer
        return result


Handler = Callable[[Flattener, Instruction, list[Tree]], Tree]
"""What flattening makes of an instruction with the results of its operands."""
