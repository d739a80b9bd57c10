"""A step in microbatches as numbers: the same for every size of a microbatch.

Programs of one step for different numbers of microbatches differ in shapes alone. Their values are
numbered in one order, so that what is decided for one holds for all: the stages of a pipeline may
have different numbers of replicas, whose shares of a microbatch differ in size
                                                                             -> in: `check_alike`
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jax.extend import core

from automap.errors import NotSeparableError
from automap.jaxpr.microbatch import MicrobatchProgram
from automap.jaxpr.microbatch.build import variables


@dataclass(frozen=True, slots=True)
class Node:
    """An equation: the numbers of what it reads, constants aside, and of what it makes.

    `names` is its name stack, `site` "" for what is computed outside of the loops.
    """

    primitive: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    names: str = ""
    site: str = ""


@dataclass(frozen=True)
class Sweep:
    """One loop over the microbatches in numbers: sums are (total, term), joins (whole, part)."""

    loop: tuple[Node, ...]
    sums: tuple[tuple[int, int], ...]
    joins: tuple[tuple[int, int], ...]
    middle: tuple[Node, ...]


@dataclass(frozen=True)
class Numbered:
    """A program with its values numbered: `variables[n]` is value n, `number` the other way."""

    program: MicrobatchProgram
    variables: Sequence[Any]
    number: dict[Any, int]

    @cached_property
    def index(self) -> int:
        """The microbatch's number."""
        return self.number[self.program.index]

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """The step's inputs."""
        return tuple(self.number[v] for v in self.program.inputs)

    @cached_property
    def constants(self) -> tuple[int, ...]:
        """The step's constants."""
        return tuple(self.number[v] for v in self.program.constants)

    @cached_property
    def slices(self) -> dict[int, int]:
        """By number of a part of the batch: of the whole."""
        return {self.number[s.part]: self.number[s.whole] for s in self.program.slices}

    @cached_property
    def before(self) -> tuple[Node, ...]:
        """What is computed once before the loops."""
        return tuple(self._nodes(self.program.before))

    @cached_property
    def sweeps(self) -> tuple[Sweep, ...]:
        """The loops."""
        sweeps = []
        for each in self.program.passes:
            number = self.number
            sweeps.append(
                Sweep(
                    tuple(self._nodes(each.loop, each.sites)),
                    tuple((number[s.total], number[s.term]) for s in each.sums),
                    tuple((number[j.whole], number[j.part]) for j in each.joins),
                    tuple(self._nodes(each.middle)),
                )
            )
        return tuple(sweeps)

    @cached_property
    def after(self) -> tuple[Node, ...]:
        """What is computed once after the loops."""
        return tuple(self._nodes(self.program.after))

    @cached_property
    def outputs(self) -> tuple[int | None, ...]:
        """The step's results, None for a constant."""
        return tuple(
            None if isinstance(a, core.Literal) else self.number[a] for a in self.program.outputs
        )

    @cached_property
    def beside(self) -> dict[int, set[int]]:
        """By value after the loops, the inputs of its size that it is combined with: of a gradient,
        its parameter.
        """
        # From the last equation back: what a value's results are combined with, so is the value, as
        # long as the size stays the same (a gradient through casts, scaling and moments).
        beside: dict[int, set[int]] = defaultdict(set)
        given = set(self.inputs)
        size = lambda v: self.variables[v].aval.size  # noqa: E731
        nodes = [*(node for sweep in self.sweeps for node in sweep.middle), *self.after]
        for node in reversed(nodes):
            for value in node.inputs:
                like = [v for v in (*node.inputs, *node.outputs) if size(v) == size(value)]
                beside[value] |= given.intersection(like).union(
                    *(beside[v] for v in node.outputs if v in like)
                )
        return beside

    def n_bytes(self, value: int) -> int:
        """Of a value of this program."""
        aval = self.variables[value].aval
        # A key's type has no item size: two 32-bit words, as of threefry.
        return aval.size * getattr(aval.dtype, "itemsize", 8)

    def _nodes(self, eqns: Sequence[Any], sites: Sequence[str] = ()) -> Iterator[Node]:
        for place, eqn in enumerate(eqns):
            yield Node(
                eqn.primitive.name,
                tuple(self.number[a] for a in variables(eqn.invars)),
                tuple(self.number[v] for v in eqn.outvars),
                str(eqn.source_info.name_stack) if sites else "",
                sites[place] if sites else "",
            )


def number_values(program: MicrobatchProgram) -> Numbered:
    """A program with its values numbered in order of appearance."""
    # An ordered set: a dictionary keeps the order of first insertion.
    values: dict[Any, None] = {}

    def add(atoms: Sequence[Any]) -> None:
        values.update((a, None) for a in variables(atoms))

    def add_all(eqns: Sequence[Any]) -> None:
        for eqn in eqns:
            add(eqn.invars)
            add(eqn.outvars)

    add([*program.inputs, *program.constants, program.index])
    add([x for s in program.slices for x in (s.whole, s.part)])
    add_all(program.before)
    for each in program.passes:
        add_all(each.loop)
        add([x for s in each.sums for x in (s.total, s.term)])
        add([x for j in each.joins for x in (j.whole, j.part)])
        add_all(each.middle)
    add_all(program.after)
    add(program.outputs)
    return Numbered(program, list(values), {v: n for n, v in enumerate(values)})


def check_alike(one: Numbered, other: Numbered) -> None:
    """Refuse programs of one step that differ in more than shapes. Raises `NotSeparableError`."""
    parts = ("inputs", "slices", "before", "sweeps", "after", "outputs")
    if any(getattr(one, part) != getattr(other, part) for part in parts):
        counts = one.program.microbatches, other.program.microbatches
        raise NotSeparableError(
            f"the step computes something else in {counts[0]} parts of its batch than in "
            f"{counts[1]}; give all stages "
            "as many devices, or plan with --space sharding"
        )
