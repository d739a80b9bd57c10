"""The shardings of a step's values on its stages: state as the plan stores it there, sums as what
they update.

    an input, new state    the leaf's axes in the stage                          -> in: `sharding`
    a sum of gradients     after the last microbatch as the most split leaf that it is combined
                           with: the optimizer's (ZeRO-1, ZeRO-2), or the parameter; until then
                           apart for each replica, but summed over replicas that the parameter
                           itself is stored split over (ZeRO-3)                  -> in: `sum_form`
    any other              on a stage of replicas whole; else as its program leaves it

The batch is whole where it is handed out from.

Which state a sum is combined with, and which of its dimensions are whose, is followed from the last
equation after the loops to the first, as a sum may be transposed or reshaped before it meets its
parameter or moments                                                       -> in: `combined_state`

    x op y, shapes equal     the dimensions are the same
    transpose                those of the operand
    reshape, squeeze, ..     those of the operand whose first elements stay the first of a dimension
    other sizes              nothing is known
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
import math
from typing import Any

from jax.sharding import NamedSharding

from automap.jaxpr.microbatch import Sum
from automap.jaxpr.microbatch.build import variables
from automap.runtime.pipeline.blueprint import Blueprint
from automap.runtime.pipeline.loops import CutJaxpr
from automap.runtime.pipeline.numbered import Numbered
from automap.runtime.pipeline.places import Axes, StagePlace, SumForm


Dims = tuple[int | None, ...]
"""By dimension of a sum the dimension of the state's leaf."""


@dataclass(frozen=True, eq=False)
class ValueShardings:
    """`paths` are of the step's leaves, `state` maps outputs to the inputs that they replace."""

    blueprint: Blueprint
    places: Sequence[StagePlace]
    cut: CutJaxpr
    paths: Sequence[str]
    state: Mapping[int, int]
    _known: dict[tuple[int, int], NamedSharding | None] = field(default_factory=dict, repr=False)

    def sharding(self, value: int, stage: int) -> NamedSharding | None:
        """The sharding of a value on a stage, None if it is left to the program that makes it."""
        if (value, stage) not in self._known:
            self._known[value, stage] = self._derive(value, stage)
        return self._known[value, stage]

    def _derive(self, value: int, stage: int) -> NamedSharding | None:
        place = self.places[stage]
        if place.inside is None:
            return place.whole
        if value in self._path_of_input or value in self._path_of_result:
            return place.split(self._leaf(value, stage))
        if value in self._totals:
            return place.split(self._like_its_state(value, stage))
        return place.whole if value in self.blueprint.numbers.outputs else None

    def sum_form(self, total: int, each: Sum, stage: int) -> SumForm:
        """The sharding of a sum on a stage while it grows."""
        place, rank = self.places[stage], len(self._shape(total))
        nowhere: tuple[Axes, ...] = ((),) * rank
        if place.inside is None or each.operator != "add":
            return SumForm(place.replica_axes, nowhere)
        # Only leaves that the loops read count: by the optimizer's, which the update alone reads, a
        # sum would be scattered in every microbatch.
        read = self._read_by_loops[stage]
        likes = [
            self._like(total, v, stage) for v in self._combined_state.get(total, ()) if v in read
        ]
        dims = max(likes, key=_count_parts(place), default=nowhere)
        used = {axis for axes in dims for axis in axes}
        return SumForm(tuple(axis for axis in place.replica_axes if axis not in used), dims)

    def leaf(self, value: int | None, stage: int) -> NamedSharding:
        """The sharding of an input or result of the step, or its piece, on a stage; None is a
        constant.
        """
        sharding = None if value is None else self.sharding(value, stage)
        return sharding or self.places[stage].whole

    def part(self, value: int, stage: int, microbatches: int) -> NamedSharding:
        """The sharding of a microbatch's part of a batch input; `value` is the part."""
        numbers, place = self.blueprint.numbers, self.places[stage]
        whole = numbers.slices[value]
        samples, *rest = self._shape(whole)
        path = self.paths[self.cut.inputs[numbers.inputs.index(whole)].leaf]
        return place.part(path, (samples // microbatches, *rest))

    def _shape(self, value: int) -> tuple[int, ...]:
        return tuple(self.blueprint.numbers.variables[value].aval.shape)

    def _leaf(self, value: int, stage: int) -> tuple[Axes, ...]:
        path = self._path_of_input.get(value) or self._path_of_result[value]
        return self.places[stage].leaf(path, self._shape(value))

    def _like_its_state(self, total: int, stage: int) -> tuple[Axes, ...]:
        likes = [self._like(total, v, stage) for v in self._combined_state.get(total, ())]
        return max(likes, key=_count_parts(self.places[stage]), default=())

    def _like(self, total: int, leaf: int, stage: int) -> tuple[Axes, ...]:
        """The axes of a sum's dimensions where they are those of a leaf."""
        axes, sizes = self._leaf(leaf, stage), self.places[stage].mesh.shape
        dims = zip(self._combined_state[total][leaf], self._shape(total), strict=True)
        wanted = [(axes[dim] if dim is not None else (), size) for dim, size in dims]
        return tuple(
            own if size % math.prod(sizes[axis] for axis in own) == 0 else ()
            for own, size in wanted
        )

    @cached_property
    def _combined_state(self) -> Mapping[int, Mapping[int, Dims]]:
        """By value after the loops, the state that it is combined with."""
        combined = combined_state(self.blueprint.numbers)
        return {
            v: {leaf: dims for leaf, dims in met.items() if leaf in self._path_of_input}
            for v, met in combined.items()
        }

    @cached_property
    def _path_of_input(self) -> dict[int, str]:
        numbers = self.blueprint.numbers
        batch = set(numbers.slices.values())
        pairs = zip(numbers.inputs, self.cut.inputs, strict=True)
        return {v: self.paths[piece.leaf] for v, piece in pairs if v not in batch}

    @cached_property
    def _path_of_result(self) -> dict[int, str]:
        """Of values that replace state."""
        pairs = zip(self.blueprint.numbers.outputs, self.cut.outputs, strict=True)
        return {
            v: self.paths[self.state[piece.leaf]]
            for v, piece in pairs
            if v is not None and piece.leaf in self.state
        }

    @cached_property
    def _totals(self) -> frozenset[int]:
        sweeps = self.blueprint.numbers.sweeps
        return frozenset(total for sweep in sweeps for total, _ in sweep.sums)

    @cached_property
    def _read_by_loops(self) -> Sequence[set[int]]:
        """By stage, the inputs that its passes or what it computes before them read."""
        read = [set(program.inputs) for program in self.blueprint.pre]
        for programs, _ in self.blueprint.sweeps:
            for stage_pass, program in programs.by_pass.items():
                read[stage_pass.stage].update(program.fixed)
        return read


def _count_parts(place: StagePlace):  # noqa: ANN202 - a sort key
    sizes = place.mesh.shape
    return lambda dims: math.prod(sizes[axis] for axes in dims for axis in axes)


def combined_state(numbers: Numbered) -> dict[int, dict[int, Dims]]:
    """By value after the loops, the step's inputs that it is combined with, element by element."""
    # By variable; numbers are looked up at the end.
    combined: dict[Any, dict[Any, Dims]] = defaultdict(dict)
    given = set(numbers.program.inputs)
    eqns = [
        *(eqn for sweep in numbers.program.passes for eqn in sweep.middle),
        *numbers.program.after,
    ]
    for eqn in reversed(eqns):
        operands = variables(eqn.invars)
        for value in operands:
            shape = value.aval.shape
            same = tuple(range(len(shape)))
            met: dict[Any, Dims] = {
                v: same for v in operands if v in given and v.aval.shape == shape
            }
            for result in eqn.outvars:
                for leaf, dims in combined[result].items():
                    back = _back(eqn, shape, result.aval.shape, dims)
                    if back is not None:
                        met.setdefault(leaf, back)
            # What was met first, in an equation further on, stays.
            combined[value] = met | combined[value]
    number = numbers.number
    return {
        number[v]: {number[leaf]: dims for leaf, dims in met.items()}
        for v, met in combined.items()
        if v in number
    }


def _back(eqn: Any, shape: Sequence[int], result: Sequence[int], dims: Dims) -> Dims | None:
    """What is known of a result, of an operand of this shape."""
    if eqn.primitive.name == "transpose":
        # Dimension d of the operand is the result's at which the permutation has d.
        order = eqn.params["permutation"]
        return tuple(dims[order.index(dim)] for dim in range(len(order)))
    if tuple(shape) == tuple(result):
        return dims
    if math.prod(shape) != math.prod(result):
        return None
    firsts = dict(_firsts(shape, result))
    return tuple(dims[firsts[d]] if d in firsts else None for d in range(len(shape)))


def _firsts(shape: Sequence[int], other: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Pairs of dimensions of two shapes that begin at the same elements, those of one left out."""
    # For each dimension, how many elements the dimensions before it have; those of size 1 begin
    # nowhere of their own.
    starts: list[dict[int, int]] = []
    for sizes in (shape, other):
        done, begun = 1, {}
        for dim, size in enumerate(sizes):
            if size > 1:
                begun[done] = dim
            done *= size
        starts.append(begun)
    return ((dim, starts[1][done]) for done, dim in starts[0].items() if done in starts[1])
