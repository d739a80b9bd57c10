"""The devices of a stage, and how values lie on them.

    whole        the same on every device
    per replica  [replicas, ..]: each device has its own
    shared out   a value of one microbatch, split along its samples: replica j has the j-th part

The axis of replicas is `REPLICAS`; inside a stage's programs it is handled by hand (`jax.shard_map`), so that sums of
gradients stay apart on the replicas until the step's last microbatch. More axes of a stage's mesh would be left to the
partitioner.

A value whose samples are not one run of a dimension (outer x samples x inner with outer > 1) travels with
outer and samples apart, so that stages with other numbers of replicas can take it. -> in: `packed`, `unpacked`
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
from jax import lax, numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from automap.apply.microbatch.program import Layout
from automap.apply.microbatch.status import Operator
from automap.errors import NotSeparableError


REPLICAS: Final = "replica"


@dataclass(frozen=True)
class StagePlace:
    """One stage's devices, each a replica."""

    mesh: Mesh

    @property
    def replicas(self) -> int:
        """How many parts a microbatch is divided in."""
        return self.mesh.shape[REPLICAS]

    @property
    def whole(self) -> NamedSharding:
        """For parameters and all that does not depend on the samples."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def per_replica(self) -> NamedSharding:
        """For sums that are not finished."""
        return NamedSharding(self.mesh, PartitionSpec(REPLICAS))

    def of(self, form: "Form") -> NamedSharding:
        """For a value that goes from program to program."""
        return NamedSharding(self.mesh, form.spec)


def stage_places(devices: Sequence[Any], stages: Sequence[Sequence[int]]) -> tuple[StagePlace, ...]:
    """The places of stages, whose devices are numbers of `devices`."""
    return tuple(
        StagePlace(
            Mesh(np.array([devices[n] for n in numbers]), (REPLICAS,), axis_types=(AxisType.Auto,))
        )
        for numbers in stages
    )


@dataclass(frozen=True, slots=True)
class Form:
    """How a value of a microbatch travels: shared out by `layout`, as an unfinished sum of `operator`, or whole."""

    layout: Layout | None
    operator: Operator | None

    @property
    def spec(self) -> PartitionSpec:
        """Of the value on its way."""
        if self.layout is None:
            return PartitionSpec()
        return PartitionSpec(*(None,) * (self.layout.dim + self._is_apart), REPLICAS)

    @property
    def _is_apart(self) -> bool:
        return self.layout is not None and (self.layout.outer or 1) > 1

    def packed(self, x: jax.Array) -> jax.Array:
        """What a replica sends of its own value."""
        if self.layout is not None and self._is_apart:
            dim, outer = self.layout.dim, self.layout.outer or 1
            shape = x.shape
            return x.reshape(*shape[:dim], outer, shape[dim] // outer, *shape[dim + 1 :])
        if self.operator is None:
            return x
        if self.operator not in _OVER_REPLICAS:
            raise NotSeparableError(
                f"a {self.operator} over samples is not finished at the end of a stage; cut elsewhere"
            )
        return _OVER_REPLICAS[self.operator](x, REPLICAS)

    def unpacked(self, x: jax.Array) -> jax.Array:
        """A replica's own value of what it was sent."""
        if self.layout is not None and self._is_apart:
            dim = self.layout.dim
            shape = x.shape
            return x.reshape(*shape[:dim], -1, *shape[dim + 2 :])
        if self.operator == "add":
            # The sum so far continues on one replica.
            return jnp.where(lax.axis_index(REPLICAS) == 0, x, jnp.zeros_like(x))
        return x


_OVER_REPLICAS: Final = {"add": lax.psum, "max": lax.pmax, "min": lax.pmin}
WHOLE: Final = Form(None, None)
