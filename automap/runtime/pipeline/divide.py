"""Which stage computes which equation of a loop over the microbatches.

    forward     the stage of its site, by the plan's cuts
    backward    at(o) = min of c and, over what o reads of the forward pass, r(v); c is the least
                at() of the gradients it reads, the last stage without any; r(v) the last stage not
                after c that makes or reads v: the gradient of a weight belongs to where the weight
                is used                                                         -> in: `_backward`
    sink        what only ends in sums, the gradient of a parameter, is computed where the parameter
                is read, if the gradients come there anyway and the forward values are there
                                                                                   -> in: `_sinks`
    weights     where the schedule has them apart: of a stage's backward equations those that no
                other stage's pass needs anything of; all of them in the first stage
                                                                                 -> in: `_weights`
    copied      what does not depend on the samples is computed by whoever reads it
                                                                  -> in: `programs.sweep_programs`

The equations that stand for one of the step's (an index that is made local, a lookup with it) stay
together, so that what is between them is never sent                               -> in: `_units`

So values flow to later stages forwards and to earlier ones backwards, and a tensor that several
stages use has a sum of gradients in each. The rules for `backward` are those of
`automap.pipeline.profile.backward`, by which the plan was priced: what runs where is what the plan
says.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from automap.runtime.pipeline.cuts import Cuts
from automap.runtime.pipeline.numbered import Node, Numbered, Sweep


Kind = Literal["forward", "backward", "weights"]
KINDS: Final[tuple[Kind, ...]] = ("forward", "backward", "weights")
"""In the order in which a stage has them of one microbatch."""
Backward = Literal["whole", "weights apart"]
"""Whether a stage's backward pass of a microbatch is one program or two."""
# In JAX's name stack of every transposed equation; what is made of its results is backward too.
_BACKWARD = "transpose("


@dataclass(frozen=True, slots=True, order=True)
class StagePass:
    """A stage's forward, backward or weight pass."""

    kind: Kind
    stage: int


@dataclass(frozen=True)
class Division:
    """`stage_passes` is by equation of the loop, None for those that are copied; `maker` has the
    pass that makes a value, of values that are not copied.
    """

    stage_passes: tuple[StagePass | None, ...]
    maker: Mapping[int, StagePass]


@dataclass(frozen=True, slots=True)
class _Unit:
    """Equations that stay together, as one: `numbers` are theirs in the loop."""

    node: Node
    numbers: tuple[int, ...]
    kind: Kind | Literal["copied"]


def divide(numbers: Numbered, sweep: Sweep, cuts: Cuts, backward: Backward = "whole") -> Division:
    """The stages and passes of a loop's equations."""
    units = _units(numbers, sweep)
    stage = {n: cuts.stage(u.node.site) for n, u in enumerate(units) if u.kind == "forward"}
    touched = _touched(numbers, units, stage)
    stage |= _backward(units, touched, cuts.stages)
    stage |= _sinks(units, stage, touched, _wanted_at(numbers, sweep, touched))
    weights = _weights(units, stage) if backward == "weights apart" else frozenset[int]()
    stage_passes: list[StagePass | None] = [None] * len(sweep.loop)
    for number, unit in enumerate(units):
        if unit.kind != "copied":
            for equation in unit.numbers:
                kind = "weights" if number in weights else unit.kind
                stage_passes[equation] = StagePass(kind, stage[number])
    maker = {
        v: stage_pass
        for node, stage_pass in zip(sweep.loop, stage_passes)
        if stage_pass
        for v in node.outputs
    }
    return Division(tuple(stage_passes), maker)


def _units(numbers: Numbered, sweep: Sweep) -> list[_Unit]:
    """The equations in order, those of one site together; each that is copied is on its own."""
    # What depends on the samples, and on a gradient.
    depends, backward = set(numbers.slices), set[int]()
    units: list[_Unit] = []
    for number, node in enumerate(sweep.loop):
        if depends.isdisjoint(node.inputs):
            units.append(_Unit(node, (number,), "copied"))
            continue
        depends.update(node.outputs)
        kind: Kind = "forward"
        if _BACKWARD in node.names or not backward.isdisjoint(node.inputs):
            kind = "backward"
            backward.update(node.outputs)
        # The last unit but for copied equations of the same site.
        place = len(units) - 1
        while place >= 0 and units[place].kind == "copied" and units[place].node.site == node.site:
            place -= 1
        before = units[place] if place >= 0 else None
        if before is None or before.node.site != node.site:
            units.append(_Unit(node, (number,), kind))
            continue
        # What is copied between them is of the same site, so the rest of the unit may come after
        # it.
        del units[place]
        inner = before.node
        read = (*inner.inputs, *(v for v in node.inputs if v not in inner.outputs))
        merged = Node(inner.primitive, read, inner.outputs + node.outputs, inner.names, inner.site)
        units.append(_Unit(merged, (*before.numbers, number), kind))
    return units


def _touched(
    numbers: Numbered, units: Sequence[_Unit], stage: Mapping[int, int]
) -> Mapping[int, frozenset[int]]:
    """The stages whose forward pass makes or reads a value; none for what is made of constants
    alone.
    """
    touched: dict[int, frozenset[int]] = defaultdict(frozenset)

    def stages_touching(values: Sequence[int]) -> frozenset[int]:
        return frozenset[int]().union(*(touched[v] for v in values))

    # From the last equation back: what is copied is wherever its readers are.
    copied = [unit.node for unit in units if unit.kind == "copied"]
    for number in reversed(range(len(units))):
        node = units[number].node
        if number in stage:
            here = frozenset((stage[number],))
            for value in (*node.inputs, *node.outputs):
                touched[value] |= here
        elif units[number].kind == "copied":
            here = stages_touching(node.outputs)
            for value in node.inputs:
                touched[value] |= here
    for node in reversed(numbers.before):
        here = stages_touching(node.outputs)
        for value in node.inputs:
            touched[value] |= here
    constant = {numbers.index, *numbers.constants}
    for node in (*numbers.before, *copied):
        if set(node.inputs) <= constant:
            constant.update(node.outputs)
        for value in node.outputs:
            # What the backward pass alone reads is where its sources are.
            touched[value] = touched[value] or stages_touching(node.inputs)
    return {value: stages for value, stages in touched.items() if stages and value not in constant}


def _backward(
    units: Sequence[_Unit], touched: Mapping[int, frozenset[int]], stages: int
) -> dict[int, int]:
    """at() of the units of the backward pass, by number."""
    # By value, and by unit.
    at: dict[int, int] = {}
    stages_by_unit = {}
    for number, unit in enumerate(units):
        if unit.kind != "backward":
            continue
        node = unit.node
        bound = place = min((at[v] for v in node.inputs if v in at), default=stages - 1)
        for value in node.inputs:
            if value not in at:
                before = [s for s in touched.get(value, ()) if s <= bound]
                place = min(place, max(before, default=place))
        stages_by_unit[number] = place
        at.update((v, place) for v in node.outputs)
    return stages_by_unit


def _wanted_at(
    numbers: Numbered, sweep: Sweep, touched: Mapping[int, frozenset[int]]
) -> dict[int, frozenset[int]]:
    """By value that ends in a sum or an output, the stages that read the parameter that it is the
    gradient of.
    """
    nowhere = frozenset[int]()
    wanted = {part: nowhere for _, part in sweep.joins}
    for total, term in sweep.sums:
        wanted[term] = nowhere.union(*(touched.get(v, nowhere) for v in numbers.beside[total]))
    return wanted


def _sinks(
    units: Sequence[_Unit],
    stage: Mapping[int, int],
    touched: Mapping[int, frozenset[int]],
    wanted: Mapping[int, frozenset[int]],
) -> dict[int, int]:
    """New stages of sinks, by number of the unit."""
    users: dict[int, list[int]] = defaultdict(list)
    for number, unit in enumerate(units):
        for value in unit.node.inputs:
            users[value].append(number)
    rest = [n for n, unit in enumerate(units) if unit.kind == "backward"]
    maker = {v: n for n in rest for v in units[n].node.outputs}
    at: dict[int, frozenset[int]] = {}
    plain = set[int]()
    for number in reversed(rest):
        node = units[number].node
        from_gradients = [v in maker for v in node.inputs]
        ends = [wanted[v] for v in node.outputs if v in wanted]
        after = [u for v in node.outputs for u in users[v]]
        # A sink is read by plain sinks alone. One that reads gradients and nothing else is plain: a
        # product with a forward value can be a sink itself, but what is multiplied in it cannot.
        if any(from_gradients) and all(u in plain for u in after):
            if all(from_gradients):
                plain.add(number)
            at[number] = frozenset[int]().union(*ends, *(at[u] for u in after))
    moved: dict[int, int] = {}
    # The plain ones last: they go where others have a gradient.
    for number in sorted(at, key=lambda n: (n in plain, n)):
        unsettled = plain if number in plain else at.keys()
        # For each gradient that it reads, the stages that have it: of its maker and of its users.
        arriving = [
            {moved.get(maker[v], stage[maker[v]])}.union(
                moved.get(u, stage[u]) for u in users[v] if u in stage and u not in unsettled
            )
            for v in units[number].node.inputs
            if v in maker
        ]
        forward = [touched[v] for v in units[number].node.inputs if v not in maker and v in touched]
        # Where the sum is wanted, the gradients come anyway, and the forward values are.
        places = at[number].intersection(*arriving, *forward)
        if places:
            moved[number] = max(places)
    return moved


def _weights(units: Sequence[_Unit], stage: Mapping[int, int]) -> frozenset[int]:
    """The units of weight passes, by number."""
    # From the last equation back: what another stage reads, and what that is made of here.
    read_by: dict[int, set[int]] = defaultdict(set)
    needed = set[int]()
    weights = set[int]()
    for number in reversed(range(len(units))):
        unit = units[number]
        if unit.kind == "copied":
            continue
        here, made = stage[number], unit.node.outputs
        goes_on = any(v in needed or read_by[v] - {here} for v in made)
        if unit.kind == "backward" and not goes_on:
            weights.add(number)
        elif unit.kind == "backward":
            needed.update(unit.node.inputs)
        for value in unit.node.inputs:
            read_by[value].add(here)
    return frozenset(weights)
