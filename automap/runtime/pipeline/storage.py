"""How the user's arrays are stored on the stages: a leaf is whole on the stage that owns it, or in
pieces on several.

A leaf that a loop over layers reads slice by slice is in pieces where stages end in the loop. The
user sees one array of the leaf's own shape:

    equal pieces, split alike on meshes of one shape
        the pieces themselves: the array's sharding has the stages along its first dimension,
        nothing moves
    other pieces
        no sharding of JAX says who has what, so the array is split evenly over (most of) the
        devices of these stages, and moved at both ends of every step
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
import math
from typing import Any

import jax
from jax import lax, numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from automap.runtime.initialization import even_shardings
from automap.runtime.pipeline.loops import Range
from automap.runtime.processes import is_own, where_held
from automap.runtime.transfer import send


_STAGES = "stage"


@dataclass(frozen=True)
class StoredLeaf:
    """One leaf: `numbers` of its pieces among the program's inputs or outputs, their `ranges`, and
    `parts`, their shardings on their stages; `sharding` is that of the user's array.
    """

    numbers: tuple[int, ...]
    ranges: tuple[Range | None, ...]
    parts: tuple[NamedSharding, ...]
    sharding: NamedSharding

    @property
    def _is_view(self) -> bool:
        return _STAGES in self.sharding.mesh.axis_names

    def split(self, leaf: Any) -> list[Any]:
        """The pieces of a user's array, each on its stage; the leaf itself if it is not in
        pieces.
        """
        if self.ranges[0] is None:
            return [leaf]
        is_placed = isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(
            self.sharding, leaf.ndim
        )
        # The result of an earlier step: its shards are the pieces, and become arrays of their own.
        if self._is_view and is_placed:
            shards = {s.device: s.data for s in leaf.addressable_shards}
            sizes = [b - a for a, b in filter(None, self.ranges)]
            return [
                _assembled(shards, part, (size, *leaf.shape[1:]), leaf.dtype)
                for part, size in zip(self.parts, sizes, strict=True)
            ]
        if not is_own(leaf):
            leaf = send(leaf, self.sharding)
        slices = [self._slice(leaf, a, b) for a, b in filter(None, self.ranges)]
        return [send(x, part) for x, part in zip(slices, self.parts, strict=True)]

    def _slice(self, leaf: Any, start: int, stop: int) -> Any:
        if is_own(leaf):
            return leaf[start:stop]
        aval = jax.ShapeDtypeStruct((stop - start, *leaf.shape[1:]), leaf.dtype)
        to = even_shardings(aval, list(self.sharding.mesh.devices.flat))  # pyright: ignore[reportOptionalMemberAccess]
        return _slice_function(to, start, stop)(leaf)

    def join(self, pieces: Sequence[jax.Array]) -> jax.Array:
        """The user's array of what the stages have."""
        if self.ranges[0] is None:
            return pieces[0]
        shape = (sum(x.shape[0] for x in pieces), *pieces[0].shape[1:])
        if self._is_view:
            shards = [s.data for x in pieces for s in x.addressable_shards]
            return jax.make_array_from_single_device_arrays(
                shape, self.sharding, shards, dtype=pieces[0].dtype
            )
        devices = list(self.sharding.mesh.devices.flat)  # pyright: ignore[reportOptionalMemberAccess]
        moved = [send(x, even_shardings(x, devices)) for x in pieces]
        return _join_function(self.sharding)(moved)


def store_leaf(
    numbers: Sequence[int],
    ranges: Sequence[Range | None],
    parts: Sequence[NamedSharding],
    aval: Any,
) -> StoredLeaf:
    """The storage of a leaf of type `aval`, whose pieces have shardings `parts` on their stages."""
    own = tuple(numbers), tuple(ranges), tuple(parts)
    if ranges[0] is None:
        return StoredLeaf(*own, parts[0])
    devices = list(dict.fromkeys(d for part in parts for d in _mesh(part).devices.flat))
    sizes = {b - a for a, b in filter(None, ranges)}
    kinds = {(tuple(_mesh(part).shape.items()), part.spec) for part in parts}
    names, mesh = _mesh(parts[0]).axis_names, _mesh(parts[0])
    if (
        len(sizes) == len(kinds) == 1
        and len(devices) == len(parts) * mesh.size
        and _STAGES not in names
    ):
        # The stages' meshes stacked along one more axis, which splits the first dimension before
        # all others: shard by shard this is what the pieces are.
        grid = np.array(devices).reshape(len(parts), *mesh.devices.shape)
        whole = Mesh(grid, (_STAGES, *names), axis_types=(AxisType.Auto,) * (len(names) + 1))
        first, *rest = (*parts[0].spec, None)
        axes = (first,) if isinstance(first, str) else first or ()
        return StoredLeaf(
            *own, NamedSharding(whole, PartitionSpec((_STAGES, *axes), *rest[: aval.ndim - 1]))
        )
    return StoredLeaf(*own, _evenly(aval, devices))


def _mesh(sharding: NamedSharding) -> Mesh:
    """On devices, as those of stages are."""
    assert isinstance(sharding.mesh, Mesh)  # noqa: S101
    return sharding.mesh


def _evenly(aval: Any, devices: Sequence[Any]) -> NamedSharding:
    """The leaf in equal parts on as many of the devices as that is possible for."""
    for count in range(len(devices), 1, -1):
        sharding = even_shardings(aval, devices[:count])
        if math.prod(sharding.shard_shape(aval.shape)) * count == aval.size:
            return sharding
    return even_shardings(aval, devices[:1])


def _assembled(
    shards: dict[Any, Any], sharding: NamedSharding, shape: tuple[int, ...], dtype: Any
) -> jax.Array:
    """One stage's piece of the shards that its devices hold."""
    mine = [shards[d] for d in _mesh(sharding).devices.flat if d in shards]
    return jax.make_array_from_single_device_arrays(shape, sharding, mine, dtype=dtype)


@cache
def _join_function(sharding: NamedSharding) -> Any:
    run = jax.jit(lambda pieces: jnp.concatenate(pieces), out_shardings=sharding)
    return where_held(run, sharding.device_set)


@cache
def _slice_function(to: NamedSharding, start: int, stop: int) -> Any:
    run = jax.jit(lambda x: lax.slice_in_dim(x, start, stop), out_shardings=to)
    return where_held(run, to.device_set)
