"""The operators of a person's graph: which nodes of a step belong together, layer by layer and
unrolled step by unrolled step, forward with backward and update.

Operators are numbered in the order of the forward pass. o(n) is the operator of node n.

    product     a node with a contraction in it, or one that looks rows up in a parameter, begins an
                operator
    follower    another node of the forward pass: o(n) = max of o over what it reads
    early       a node that reads no operator's result (casts of weights, slices of the batch): the
                least operator that reads it                         -> in: `_forward_operators`
    terms       two products of which one is only added to the other's are one operator, as the two
                of an LSTM's cell                                          -> in: `_join_terms`
    backward    c = min of o over the gradients that n reads, the last operator without any;
                o(n) = min of c and, over what it reads of the forward pass, the last operator that
                makes or reads that and is not after c                     -> in: `_backward`
    gradient    a product whose result is, or is summed to, the gradient of a parameter: the last
                operator that reads the parameter and is not after c  -> in: `_gradients`
    update      what makes the new version of a parameter: the first operator that reads it;
                another node of the update: the operator of the largest array that it reads

So within the forward pass arrays go to the same or a later operator, within the backward pass to
the same or an earlier one. What depends on no input belongs to none: it is made where it is read.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from automap.jaxpr.names import readable
from automap.placement.dataflow import NOBODY, Dataflow
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.roles import Role
from hlo_tools.opcodes import CONTRACTIONS, GATHER


@dataclass(frozen=True)
class Operators:
    """Who does what: the operator [nodes] (`NOBODY` for what depends on no input), the phase
    [nodes], and a name for each operator.
    """

    dataflow: Dataflow
    operator: Sequence[int]
    phase: Sequence[Phase]
    names: tuple[str, ...]


def step_operators(flow: Dataflow) -> Operators:
    """The operators of a step."""
    search = _Assignment(flow, _phases(flow))
    search.forward()
    search.join_terms()
    search.number()
    search.backward()
    return Operators(flow, search.owner, search.phase, tuple(_names(flow, search)))


def _phases(flow: Dataflow) -> list[Phase]:
    """That of a node's operations; of a node without any the earliest of its readers."""
    phases: list[Phase | None] = [flow.problem.phases[ops[0]] if ops else None for ops in flow.ops]
    result: list[Phase] = []
    for node in range(len(phases) - 1, -1, -1):
        phase = phases[node]
        if phase is None:
            readers = [r for array in flow.writes[node] for r in flow.readers[array]]
            known = [phases[r] for r in readers]
            phase = phases[node] = min((p for p in known if p is not None), default=Phase.UPDATE)
        result.append(phase)
    return result[::-1]


@dataclass
class _Assignment:
    """Operators as they come to be; `products` are the nodes that each begins with."""

    flow: Dataflow
    phase: list[Phase]
    owner: list[int] = field(init=False)
    products: list[list[int]] = field(default_factory=list)
    touched: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.owner = [NOBODY] * len(self.flow.names)

    def _owners(self, arrays: Sequence[int]) -> list[int]:
        makers = (self.flow.maker[array] for array in arrays)
        return [self.owner[m] for m in makers if m != NOBODY and self.owner[m] != NOBODY]

    def _is_forward(self, node: int) -> bool:
        return self.flow.varies[node] and self.phase[node] is Phase.FORWARD

    def forward(self) -> None:
        """Products, followers, and then what is early."""
        flow = self.flow
        for node in filter(self._is_forward, range(len(flow.names))):
            before = self._owners(flow.reads[node])
            if self._is_product(node):
                self.owner[node] = len(self.products)
                self.products.append([node])
            elif before:
                self.owner[node] = max(before)
        for node in filter(self._is_forward, range(len(flow.names) - 1, -1, -1)):
            if self.owner[node] == NOBODY:
                after = [
                    self.owner[r]
                    for array in flow.writes[node]
                    for r in flow.readers[array]
                    if self.owner[r] != NOBODY
                ]
                self.owner[node] = min(after, default=NOBODY)

    def _is_product(self, node: int) -> bool:
        graph = self.flow.problem.graph
        for index in self.flow.ops[node]:
            op = graph.ops[index]
            if op.opcode in CONTRACTIONS:
                return True
            if op.opcode == GATHER and self._is_parameter(op.inputs[0]):
                return True
        return False

    def _is_parameter(self, value: int) -> bool:
        """Whether a value of the graph is a parameter, or made of one alone, as its cast is."""
        graph = self.flow.problem.graph
        while (producer := graph.values[value].producer) >= 0:
            if len(graph.ops[producer].inputs) != 1:
                return False
            value = graph.ops[producer].inputs[0]
        return self.flow.problem.roles[graph.inputs.index(value)] is Role.PARAMETER

    def join_terms(self) -> None:
        """A product that only another operator's addition reads goes to that operator."""
        flow = self.flow
        members: dict[int, list[int]] = {}
        for node, owner in enumerate(self.owner):
            members.setdefault(owner, []).append(node)
        for number in range(len(self.products) - 1, -1, -1):
            (product,) = self.products[number]
            after = {
                self.owner[reader]
                for node in members.get(number, ())
                for array in flow.writes[node]
                for reader in flow.readers[array]
                if self._is_forward(reader) and self.owner[reader] != number
            }
            if len(after) == 1 and self._is_added(number, product, members):
                (other,) = after
                for node in members.pop(number):
                    self.owner[node] = other
                    members[other].append(node)
                self.products[other].append(product)
                self.products[number] = []

    def _is_added(self, number: int, product: int, members: Mapping[int, list[int]]) -> bool:
        """Whether what leaves an operator is of its product's size and read by additions."""
        flow = self.flow
        size = sum(flow.n_bytes[a] for a in flow.writes[product])
        for node in members[number]:
            for array in flow.writes[node]:
                outside = [
                    r
                    for r in flow.readers[array]
                    if self._is_forward(r) and self.owner[r] != number
                ]
                if outside and flow.n_bytes[array] != size:
                    return False
                if any(not self._adds(reader) for reader in outside):
                    return False
        return flow.problem.graph.ops[flow.ops[product][0]].opcode != GATHER

    def _adds(self, node: int) -> bool:
        graph = self.flow.problem.graph
        return {graph.ops[op].opcode for op in self.flow.ops[node]} == {"add"}

    def number(self) -> None:
        """Number the operators that are left, and note where forward arrays are made and read."""
        left = [n for n, products in enumerate(self.products) if products]
        # A step without products is one operator.
        number = {old: new for new, old in enumerate(left)} | {NOBODY: NOBODY}
        self.owner = [number[owner] for owner in self.owner]
        self.products = [self.products[old] for old in left] or [[]]
        flow, touched = self.flow, dict[int, set[int]]()
        # From the last node back, so that what reads an early node's result is known before it.
        for node in filter(self._is_forward, range(len(flow.names) - 1, -1, -1)):
            if self._owners(flow.reads[node]) or self._is_product(node):
                places = {self.owner[node]}
            else:
                places = set[int]().union(*(touched.get(a, ()) for a in flow.writes[node]))
                places.add(self.owner[node])
            for array in (*flow.writes[node], *flow.reads[node]):
                touched.setdefault(array, set()).update(places - {NOBODY})
        self.touched = {array: sorted(places) for array, places in touched.items()}

    def backward(self) -> None:
        """The nodes of the backward pass and of the update, in order."""
        flow, last = self.flow, len(self.products) - 1
        target = _gradients(flow, self.phase, self._is_product)
        for node, varies in enumerate(flow.varies):
            if not varies or self.owner[node] != NOBODY:
                continue
            parameter = target.get(node)
            if self.phase[node] is Phase.BACKWARD:
                self.owner[node] = self._place(node, last, parameter)
            elif parameter is not None and self.touched.get(parameter):
                self.owner[node] = self.touched[parameter][0]
            else:
                self.owner[node] = self._owner_of_largest(node)

    def _place(self, node: int, last: int, parameter: int | None) -> int:
        flow = self.flow
        gradients, activations = [], []
        for array in flow.reads[node]:
            maker = flow.maker[array]
            is_later = maker != NOBODY and self.phase[maker] is not Phase.FORWARD
            (gradients if is_later else activations).append(array)
        bound = min(self._owners(gradients), default=last)
        if parameter is not None and self._is_product(node):
            activations = [parameter]
        for array in activations:
            places = self.touched.get(array, [])
            before = bisect_right(places, bound)
            if before:
                bound = min(bound, places[before - 1])
        return bound

    def _owner_of_largest(self, node: int) -> int:
        flow = self.flow
        owned = [
            array
            for array in flow.reads[node]
            if flow.maker[array] != NOBODY and self.owner[flow.maker[array]] != NOBODY
        ]
        if not owned:
            return 0
        return self._owners([max(owned, key=lambda array: flow.n_bytes[array])])[0]


def _gradients(
    flow: Dataflow, phase: Sequence[Phase], is_product: Callable[[int], bool]
) -> dict[int, int]:
    """The parameter (its array) of each node that makes its new version or its gradient: from the
    new version back through arrays of its size, as far as products.
    """
    problem = flow.problem
    target: dict[int, int] = {}
    for output, position in problem.state_map.items():
        made = flow.outputs[output]
        if problem.roles[position] is not Role.PARAMETER or made is None:
            continue
        parameter = flow.inputs[position]
        todo = [made]
        while todo:
            array = todo.pop()
            node = flow.maker[array]
            if node == NOBODY or phase[node] is Phase.FORWARD or node in target:
                continue
            if flow.n_bytes[array] != flow.n_bytes[parameter]:
                continue
            target[node] = parameter
            if not is_product(node):
                todo += flow.reads[node]
    return target


def _names(flow: Dataflow, search: _Assignment) -> list[str]:
    """The largest parameter that the first product reads, else what JAX calls it; numbered where
    several are called so, as the steps of an unrolled loop are.
    """
    seen, names = dict[str, int](), []
    for products in search.products:
        label = _label(flow, products[0]) if products else "step"
        seen[label] = seen.get(label, 0) + 1
        names.append(label if seen[label] == 1 else f"{label} #{seen[label]}")
    return names


def _label(flow: Dataflow, product: int) -> str:
    problem = flow.problem
    position = {array: n for n, array in enumerate(flow.inputs)}
    read: list[int] = []
    for array in flow.reads[product]:
        # Through casts and other views of one array.
        while (maker := flow.maker[array]) != NOBODY and len(flow.reads[maker]) == 1:
            array = flow.reads[maker][0]
        if array in position and problem.roles[position[array]] is Role.PARAMETER:
            read.append(array)
    if read:
        return problem.paths[position[max(read, key=lambda array: flow.n_bytes[array])]]
    ops = [problem.graph.ops[index] for index in flow.ops[product]]
    op = next((op for op in ops if op.opcode in CONTRACTIONS), ops[0])
    return readable(op.op_name) or op.instruction.name
