"""Programs whose results lie as XLA chooses: processes that hold none of their devices are told at
the first call.

Told are numbers, for each dimension of a result and each axis of its stage's mesh:

    0      the axis does not split the dimension
    n      it is the n-th of those that do
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from automap.runtime.processes import absent, gathered, process_numbers, where_held


class Told:
    """A jitted function on `mesh`, which the processes of all `devices` call alike; `mesh` may be
    in some of them.
    """

    def __init__(self, run: Any, mesh: Mesh, devices: Sequence[Any]) -> None:
        holders = process_numbers(mesh.devices.flat)
        self._shapes = run
        is_here = jax.process_index() in holders
        self._run = where_held(run, mesh.devices.flat) if is_here else None
        self._settle = where_held(
            jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec())),
            mesh.devices.flat,
        )
        self._mesh, self._devices = mesh, devices
        self._teller = process_numbers(devices).index(holders[0])
        self._shardings: list[NamedSharding] | None = None

    def __call__(self, *args: Any) -> Any:
        """The results; absent arrays, with their shardings, in processes that hold nothing of them."""
        made = self._shapes.eval_shape(*args) if self._run is None else self._run(*args)
        leaves, tree = jax.tree.flatten(made)
        if self._run is not None:
            leaves = [self._settled(x) for x in leaves]
        if self._shardings is None:
            self._shardings = self._exchanged(leaves)
        if self._run is None:
            pairs = zip(leaves, self._shardings, strict=True)
            leaves = [absent(aval, sharding) for aval, sharding in pairs]
        return tree.unflatten(leaves)

    def _settled(self, x: jax.Array) -> jax.Array:
        """Whole, if what XLA chose cannot be said in axes of the mesh."""
        return x if isinstance(x.sharding, NamedSharding) else self._settle(x)

    def _exchanged(self, leaves: Sequence[Any]) -> list[NamedSharding]:
        axes = self._mesh.axis_names
        numbers = np.zeros((sum(x.ndim for x in leaves), len(axes)), np.int32)
        if self._run is not None:
            dims = [dim for x in leaves for dim in _axes_of_dims(x)]
            for row, of_dim in zip(numbers, dims, strict=True):
                for n, axis in enumerate(of_dim):
                    row[axes.index(axis)] = n + 1
        rows = iter(gathered(self._devices, numbers)[self._teller])
        return [
            NamedSharding(self._mesh, PartitionSpec(*(_entry(next(rows), axes) for _ in x.shape)))
            for x in leaves
        ]


def _axes_of_dims(x: jax.Array) -> list[tuple[str, ...]]:
    assert isinstance(x.sharding, NamedSharding)  # noqa: S101 - they are settled
    entries = (*x.sharding.spec, *(None,) * (x.ndim - len(x.sharding.spec)))
    return [(e,) if isinstance(e, str) else tuple(e or ()) for e in entries]


def _entry(row: np.ndarray, axes: Sequence[str]) -> tuple[str, ...] | None:
    order = sorted((n, axis) for n, axis in zip(row.tolist(), axes, strict=True) if n)
    return tuple(axis for _, axis in order) or None
