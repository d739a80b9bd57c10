"""How the values of a whole step lie on the stages: state as the plan stores it there, sums as what
they update.

    an input, new state    the leaf's axes in the stage                                  -> in: `of`
    a sum of gradients     after the last microbatch as the most split leaf that it is combined with: the optimizer's
                           (ZeRO-1, ZeRO-2), or the parameter
                           until then apart for each replica, but summed over replicas that the parameter
                           itself is stored split over (ZeRO-3)                          -> in: `sum_form`
    any other              on a stage of replicas whole; else as its program leaves it

The batch is whole where it is handed out from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
import math

from jax.sharding import NamedSharding

from automap.jaxpr.microbatch import Sum
from automap.runtime.pipeline.beside import Dims, state_beside
from automap.runtime.pipeline.blueprint import Blueprint
from automap.runtime.pipeline.loops import CutLevel
from automap.runtime.pipeline.places import Axes, StagePlace, SumForm


@dataclass(frozen=True, eq=False)
class Lying:
    """`paths` are of the step's leaves, `state` maps outputs to the inputs that they replace."""

    blueprint: Blueprint
    places: Sequence[StagePlace]
    cut: CutLevel
    paths: Sequence[str]
    state: Mapping[int, int]
    _known: dict[tuple[int, int], NamedSharding | None] = field(default_factory=dict, repr=False)

    def of(self, value: int, stage: int) -> NamedSharding | None:
        """The sharding of a value on a stage, None if it is left to the program that makes it."""
        if (value, stage) not in self._known:
            self._known[value, stage] = self._found(value, stage)
        return self._known[value, stage]

    def _found(self, value: int, stage: int) -> NamedSharding | None:
        place = self.places[stage]
        if place.inside is None:
            return place.whole
        if value in self._path_of_input or value in self._path_of_result:
            return place.split(self._leaf(value, stage))
        if value in self._totals:
            return place.split(self._like_its_state(value, stage))
        return place.whole if value in self.blueprint.numbers.outputs else None

    def sum_form(self, total: int, each: Sum, stage: int) -> SumForm:
        """How a sum lies on a stage while it grows."""
        place, rank = self.places[stage], len(self._shape(total))
        nowhere: tuple[Axes, ...] = ((),) * rank
        if place.inside is None or each.operator != "add":
            return SumForm(place.replica_axes, nowhere)
        read = self._read_by_loops[stage]
        found = [self._like(total, v, stage) for v in self._beside.get(total, ()) if v in read]
        dims = max(found, key=_parts_of(place), default=nowhere)
        used = {axis for axes in dims for axis in axes}
        return SumForm(tuple(axis for axis in place.replica_axes if axis not in used), dims)

    def leaf(self, value: int | None, stage: int) -> NamedSharding:
        """The sharding of an input or result of the step, or its piece, on a stage; None is a
        constant.
        """
        found = None if value is None else self.of(value, stage)
        return found or self.places[stage].whole

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
        found = [self._like(total, v, stage) for v in self._beside.get(total, ())]
        return max(found, key=_parts_of(self.places[stage]), default=())

    def _like(self, total: int, leaf: int, stage: int) -> tuple[Axes, ...]:
        """The axes of a sum's dimensions where they are those of a leaf."""
        axes, sizes = self._leaf(leaf, stage), self.places[stage].mesh.shape
        dims = zip(self._beside[total][leaf], self._shape(total), strict=True)
        wanted = [(axes[dim] if dim is not None else (), size) for dim, size in dims]
        return tuple(
            own if size % math.prod(sizes[axis] for axis in own) == 0 else ()
            for own, size in wanted
        )

    @cached_property
    def _beside(self) -> Mapping[int, Mapping[int, Dims]]:
        """By value after the loops, the state that it is combined with."""
        found = state_beside(self.blueprint.numbers)
        return {
            v: {leaf: dims for leaf, dims in met.items() if leaf in self._path_of_input}
            for v, met in found.items()
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
        turns = self.blueprint.numbers.turns
        return frozenset(total for turn in turns for total, _ in turn.sums)

    @cached_property
    def _read_by_loops(self) -> Sequence[set[int]]:
        """By stage, the inputs that its passes or what it computes before them read."""
        found = [set(program.inputs) for program in self.blueprint.pre]
        for programs, _ in self.blueprint.turns:
            for role, program in programs.of_role.items():
                found[role.stage].update(program.fixed)
        return found


def _parts_of(place: StagePlace):  # noqa: ANN202 - a sort key
    sizes = place.mesh.shape
    return lambda dims: math.prod(sizes[axis] for axes in dims for axis in axes)
