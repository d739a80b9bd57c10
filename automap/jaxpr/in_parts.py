"""Updates of state in the host's memory, part by part: a loop brings a part of each leaf to the
device, updates it, and takes it back.

    for each part i:   m, v <- host[i]        p[i], m', v' = update(p[i], g[i], m, v)
                       host[i] <- m', v'

A compiler that is free to may bring whole leaves in with the step's beginning, to hide their copies
behind it, and keeps all of them on the device until the update: XLA:TPU does, behind optimization
barriers too, and memory does not fall (docs/reports/levers.md). In a loop there is no more of a
leaf on the device than a part.

A leaf is updated in parts where all that depends on it is computed element by element, in its own
shape, and ends in the step's results. Leaves on which one result depends are updated together,
with what is computed for their update alone                               -> in: `hosted_updates`
Parts are of what a device has, within `jax.shard_map`, so that no dimension has to be whole
                                                                       -> in: `run_update`
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, Final

import jax
from jax import lax, memory
from jax.extend.core import Literal
from jax.extend.source_info_util import current_name_stack, set_name_stack
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from automap.jaxpr.microbatch.rules import ELEMENTWISE


PARTS: Final = 16
"""At most; a part has `_PART_BYTES` at least."""
_PART_BYTES: Final = 2**18
_ROWS, _LANES = 32, 1024
"""What parts are multiples of, of the last dimension but one and of the last: whole tiles of a
TPU's arrays, of types of one byte or more.
"""
_TILE: Final = 128
"""What a part of any dimension is a multiple of that such a compiler may lay as the last one."""
_CONSTRAINT: Final = "sharding_constraint"
_SPREAD: Final = "broadcast_in_dim"


@dataclass(frozen=True)
class Update:
    """Equations of a jaxpr that depend on hosted leaves, or are there for these alone.

    `arrays` and `scalars` are the variables that they read of others, `outputs` those that are
    results of the step; arrays and outputs have the shape of the leaves.
    """

    eqns: tuple[Any, ...]
    arrays: tuple[Any, ...]
    scalars: tuple[Any, ...]
    outputs: tuple[Any, ...]


@dataclass(frozen=True)
class Cut:
    """Parts of an array along a dimension, `size` each; the last one may be smaller."""

    axis: int
    size: int


def cut_leaf(shape: Sequence[int], itemsize: int) -> Cut | None:
    """How a device's part of a leaf is cut, None if it stays whole."""
    count = min(PARTS, prod(shape) * itemsize // _PART_BYTES)
    if count < 2:
        return None
    # Not along the last dimension, which would be strided most, unless there is no other.
    axes = range(max(len(shape) - 1, 1))
    sizes = [_part_size(shape, axis, count) for axis in axes]
    parts = [ceil(shape[axis] / size) for axis, size in zip(axes, sizes, strict=True)]
    axis = next((a for a in axes if parts[a] >= count), max(axes, key=parts.__getitem__))
    return Cut(axis, sizes[axis]) if parts[axis] > 1 else None


def _part_size(shape: Sequence[int], axis: int, count: int) -> int:
    """The size of whole tiles along a dimension that makes about so many parts."""
    step = {1: _LANES, 2: _ROWS}.get(len(shape) - axis, 1)
    # A compiler may lay another dimension as the last one, if the last does not fill tiles.
    if shape[-1] % _TILE and shape[axis] >= _TILE:
        step = max(step, _TILE)
    return ceil(ceil(shape[axis] / count) / step) * step


def hosted_updates(jaxpr: Any, leaves: Collection[int]) -> list[Update]:
    """The updates of those inputs of a jaxpr that can be updated in parts, by their numbers."""
    uses = _Uses(jaxpr)
    groups: list[tuple[set[int], tuple[int, ...]]] = []
    for leaf in sorted(leaves):
        var = jaxpr.invars[leaf]
        after = uses.dependents(var)
        if var in uses.results or not after:
            continue
        together = [group for group in groups if group[0] & after]
        groups = [group for group in groups if not group[0] & after]
        groups.append((after.union(*(eqns for eqns, _ in together)), var.aval.shape))
    return [
        _update(uses, eqns, shape)
        for eqns, shape in groups
        if shape and all(_is_by_element(jaxpr.eqns[number], shape) for number in eqns)
    ]


class _Uses:
    """Which equations of a jaxpr read a variable, and which one makes it; equations by their
    numbers.
    """

    def __init__(self, jaxpr: Any) -> None:
        self.jaxpr = jaxpr
        self.users: dict[Any, set[int]] = {}
        self.maker: dict[Any, int] = {}
        for number, eqn in enumerate(jaxpr.eqns):
            for var in _variables(eqn.invars):
                self.users.setdefault(var, set()).add(number)
            self.maker.update(dict.fromkeys(eqn.outvars, number))
        self.results = _variables(jaxpr.outvars)

    def read(self, eqns: Iterable[int]) -> set[Any]:
        """The variables that equations read."""
        return set().union(*(_variables(self.jaxpr.eqns[number].invars) for number in eqns))

    def dependents(self, var: Any) -> set[int]:
        """All equations that depend on a variable."""
        seen, waiting = set[int](), [var]
        while waiting:
            new = self.users.get(waiting.pop(), set()) - seen
            seen |= new
            waiting.extend(v for number in new for v in self.jaxpr.eqns[number].outvars)
        return seen

    def is_for(self, number: int, eqns: set[int]) -> bool:
        """Whether an equation is there for others alone, and no more arrays have to be in memory
        for them with it than without.
        """
        eqn = self.jaxpr.eqns[number]
        if any(v in self.results or not self.users.get(v, set()) <= eqns for v in eqn.outvars):
            return False
        new = {v for v in _variables(eqn.invars) if v.aval.shape} - self.read(eqns)
        return _item_bytes(new) <= _item_bytes(eqn.outvars)


def _is_by_element(eqn: Any, shape: tuple[int, ...]) -> bool:
    """Whether an equation makes arrays of a shape element by element, of such arrays and
    scalars.
    """
    name = eqn.primitive.name
    if any(v.aval.shape != shape for v in eqn.outvars):
        return False
    if name == _SPREAD:
        return not eqn.invars[0].aval.shape
    if name == _CONSTRAINT:
        return True
    # A result with a sharding of its own has it of the whole array.
    if name not in ELEMENTWISE or eqn.params.get("sharding") is not None:
        return False
    return all(v.aval.shape in (shape, ()) for v in eqn.invars)


def _update(uses: _Uses, eqns: set[int], shape: tuple[int, ...]) -> Update:
    """The update that has some equations, with those that are there for them alone."""
    chosen, jaxpr = set(eqns), uses.jaxpr
    # One after the other: what one brings in another one may read besides.
    while more := [
        number
        for number in {uses.maker[v] for v in uses.read(chosen) if v in uses.maker} - chosen
        if uses.is_for(number, chosen) and _is_by_element(jaxpr.eqns[number], shape)
    ]:
        chosen.add(max(more))
    ordered = [jaxpr.eqns[number] for number in sorted(chosen)]
    made = {v for eqn in ordered for v in eqn.outvars}
    # In the order in which they are read, which does not change from run to run.
    read = (v for eqn in ordered for v in eqn.invars if not _is_literal(v))
    outside = dict.fromkeys(v for v in read if v not in made)
    results = (v for v in jaxpr.outvars if not _is_literal(v))
    return Update(
        eqns=tuple(ordered),
        arrays=tuple(v for v in outside if v.aval.shape),
        scalars=tuple(v for v in outside if not v.aval.shape),
        outputs=tuple(dict.fromkeys(v for v in results if v in made)),
    )


def _item_bytes(arrays: Iterable[Any]) -> int:
    return sum(v.aval.dtype.itemsize for v in arrays)


def run_update(
    update: Update,
    values: Mapping[Any, Any],
    starts: Mapping[Any, Any],
    hosted: Collection[Any],
    place: NamedSharding,
    cut: Cut,
) -> list[Any]:
    """The outputs of an update, a part after the other.

    `values` are those of its arrays and scalars. `starts` says of an output which array it is the
    new version of, in whose place it is written; `hosted` arrays and outputs are in the host's
    memory. `place` is the sharding of all, `cut` that of a device's part.
    """

    def parts(arrays: Sequence[Any], scalars: Sequence[Any]) -> list[Any]:
        given = dict(zip(update.arrays, arrays, strict=True))
        fixed = dict(zip(update.scalars, scalars, strict=True))
        # An output that is no new version of anything has an array of its own.
        carried = [
            given[starts[v]] if v in starts else jnp.zeros(arrays[0].shape, v.aval.dtype)
            for v in update.outputs
        ]

        def part(start: Any, size: int, carried: list[Any]) -> list[Any]:
            now = given | {starts[v]: c for v, c in zip(update.outputs, carried) if v in starts}
            here = {v: lax.dynamic_slice_in_dim(x, start, size, cut.axis) for v, x in now.items()}
            here |= {v: jax.device_put(here[v], memory.Space.Device) for v in here if v in hosted}
            made = _evaluate(update.eqns, here | fixed)
            made |= {v: jax.device_put(made[v], memory.Space.Host) for v in hosted if v in made}
            return [
                lax.dynamic_update_slice_in_dim(whole, made[v], start, cut.axis)
                for v, whole in zip(update.outputs, carried, strict=True)
            ]

        count, rest = divmod(arrays[0].shape[cut.axis], cut.size)
        carried = lax.fori_loop(0, count, lambda i, c: part(i * cut.size, cut.size, c), carried)
        return part(count * cut.size, rest, carried) if rest else carried

    spec = PartitionSpec(*place.spec)
    mapped = jax.shard_map(
        parts,
        mesh=place.mesh,
        in_specs=([spec] * len(update.arrays), [PartitionSpec()] * len(update.scalars)),
        out_specs=[spec] * len(update.outputs),
        check_vma=False,
    )
    return mapped([values[v] for v in update.arrays], [values[v] for v in update.scalars])


def _evaluate(eqns: Sequence[Any], values: dict[Any, Any]) -> dict[Any, Any]:
    """The values of all variables of equations that are computed element by element, of parts."""
    shape = next(x.shape for x in values.values() if x.shape)
    for eqn in eqns:
        given = [v.val if _is_literal(v) else values[v] for v in eqn.invars]
        if eqn.primitive.name == _CONSTRAINT:
            made = given
        elif eqn.primitive.name == _SPREAD:
            made = [jnp.broadcast_to(given[0], shape)]
        else:
            # Under its own name, by which kernels are found again.
            with set_name_stack(current_name_stack() + eqn.source_info.name_stack):
                made = eqn.primitive.bind(*given, **eqn.params)
            made = made if eqn.primitive.multiple_results else [made]
        values.update(zip(eqn.outvars, made, strict=True))
    return values


def _variables(atoms: Iterable[Any]) -> set[Any]:
    return {v for v in atoms if not _is_literal(v)}


def _is_literal(var: Any) -> bool:
    return isinstance(var, Literal)
