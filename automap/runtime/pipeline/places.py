"""The devices of a stage, and how values are split over them.

    whole        the same on every device
    a leaf       as the plan splits it inside the stage (tensors, ZeRO); whole on a stage of
                 replicas alone
    a sum        [parts, ..]: a replica's own terms apart from those of the others, until the last
                 microbatch
    shared out   a value of one microbatch, split along its samples: replica j has the j-th part

Some axes of a stage's mesh are those of its replicas, which take parts of each microbatch; they are
handled by hand (`jax.shard_map`), so that sums of gradients stay apart. All other axes are left to
the partitioner, with the plan's constraints.

A value whose samples are not one run of a dimension (outer x samples x inner with outer > 1)
travels with outer and samples apart, so that stages with other numbers of replicas can take it
                                                                    -> in: `pack`, `unpack`
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import math
from typing import Any, Final

import jax
from jax import lax, numpy as jnp
from jax.sharding import (
    AbstractDevice,
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
)
import numpy as np

from automap.errors import NotSeparableError, PlanError
from automap.jaxpr.microbatch import Operator, SampleDimension
from automap.plan.checks import Spec
from automap.plan.pipeline import InsideRecord, PipelineRecord, StageRecord


REPLICAS: Final = "replica"
"""The axis of replicas where the plan's own mesh has none."""

Axes = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class StagePlace:
    """One stage's devices; `replica_axes` are those of `mesh` along which they are replicas.

    `inside` is None for a stage of replicas alone, `specs` are its leaves' by path. `everyone` has
    the devices of all stages, and is empty where `mesh` is abstract: on a machine that is not
    there.
    """

    mesh: Mesh | AbstractMesh
    replica_axes: Axes
    inside: InsideRecord | None
    specs: Mapping[str, Spec]
    everyone: Sequence[Any]

    @property
    def replicas(self) -> int:
        """How many parts a microbatch is divided in."""
        return math.prod(self.mesh.shape[axis] for axis in self.replica_axes)

    @property
    def devices(self) -> Sequence[Any]:
        """Those of the mesh; none of an abstract one."""
        return [*self.mesh.devices.flat] if isinstance(self.mesh, Mesh) else []

    @property
    def whole(self) -> NamedSharding:
        """For all that is the same on every device."""
        return self.split(())

    def split(self, dims: Sequence[Axes]) -> NamedSharding:
        """For a value with these axes on its dimensions."""
        return NamedSharding(self.mesh, PartitionSpec(*(axes or None for axes in dims)))

    def leaf(self, path: str, shape: Sequence[int]) -> tuple[Axes, ...]:
        """The axes of each dimension of (a piece of) a leaf; none where its part of a cut loop
        cannot be divided so.
        """
        spec = self.specs.get(path, (None,) * len(shape))
        return tuple(
            axes if axes and size % self._parts(axes) == 0 else ()
            for axes, size in zip(spec, shape, strict=True)
        )

    def part(self, path: str, shape: Sequence[int]) -> NamedSharding:
        """For a microbatch's part of a batch input: samples over the replicas, and the rest as the
        plan has the input.
        """
        samples, *rest = self.without_replicas(self.leaf(path, shape))
        # Replicas major, as the loop program counts a microbatch's shares.
        samples = (*self.replica_axes, *samples)
        return self.split(
            (samples if shape[0] % self._parts(samples) == 0 else self.replica_axes, *rest)
        )

    def sent(self, form: "TransferForm") -> NamedSharding | None:
        """For a value that goes to other programs, None if that is left to the program that makes
        it.
        """
        return self.split(form.dims(self.replica_axes)) if self.inside is None else None

    def received(
        self, dims: Sequence[Axes], sent: jax.Array | jax.ShapeDtypeStruct
    ) -> NamedSharding:
        """For a value that comes from another stage, with `dims` of its form here.

        It keeps what both meshes can have of its parts: a sequence that is split on both need not
        be put together.
        """
        # An axis of the same name and size on both meshes stays where it splits the value already.
        dims = [*dims, *((),) * (sent.ndim - len(dims))]
        if isinstance(sent.sharding, NamedSharding) and self.inside is not None:
            theirs = sent.sharding.mesh.shape
            for dim, entry in enumerate(sent.sharding.spec):
                for axis in (entry,) if isinstance(entry, str) else entry or ():
                    is_ours = self.mesh.shape.get(axis) == theirs[axis]
                    both = (*dims[dim], axis)
                    if (
                        is_ours
                        and axis not in self.replica_axes
                        and sent.shape[dim] % self._parts(both) == 0
                    ):
                        dims[dim] = both
        return self.split(dims)

    def without_replicas(self, dims: Sequence[Axes]) -> tuple[Axes, ...]:
        """What is left of the axes of each dimension to a single replica."""
        return tuple(tuple(a for a in axes if a not in self.replica_axes) for axes in dims)

    def _parts(self, axes: Axes) -> int:
        return math.prod(self.mesh.shape[axis] for axis in axes)


def replica_count(stage: StageRecord) -> int:
    """How many parts of each microbatch a stage takes."""
    if stage.inside is None:
        return len(stage.devices)
    return math.prod(dict(stage.inside.mesh.axes)[axis] for axis in stage.inside.replica_axes)


def stage_places(devices: Sequence[Any], record: PipelineRecord) -> tuple[StagePlace, ...]:
    """The places of a plan's stages, whose devices are numbers of `devices`.

    Raises `PlanError` for an axis whose name is taken.
    """

    def on_devices(stage: StageRecord, sizes: tuple[int, ...], names: Axes) -> Mesh:
        own = np.array([devices[n] for n in stage.devices]).reshape(sizes)
        return Mesh(own, names, axis_types=(AxisType.Auto,) * len(names))

    return _places(record, on_devices, devices)


def abstract_places(
    record: PipelineRecord, device: AbstractDevice | None
) -> tuple[StagePlace, ...]:
    """The places of a plan's stages on a machine that is not there; `device` is what kernels are
    told of it when they are lowered.

    Raises `PlanError` for an axis whose name is taken.
    """

    def abstract(stage: StageRecord, sizes: tuple[int, ...], names: Axes) -> AbstractMesh:
        types = (AxisType.Auto,) * len(names)
        return AbstractMesh(sizes, names, axis_types=types, abstract_device=device)

    return _places(record, abstract, ())


def _places(
    record: PipelineRecord,
    make_mesh: Callable[[StageRecord, tuple[int, ...], Axes], Mesh | AbstractMesh],
    everyone: Sequence[Any],
) -> tuple[StagePlace, ...]:
    places = []
    for stage in record.stages:
        axes = stage.inside.mesh.axes if stage.inside else ()
        replica_axes = stage.inside.replica_axes if stage.inside else ()
        if not replica_axes:
            if REPLICAS in dict(axes):
                raise PlanError(
                    f"a stage has an axis {REPLICAS!r} that splits more than the batch; call it "
                    "otherwise"
                )
            # Replicas alone need one axis; a stage that is sharded without any gets one of size 1,
            # so that both kinds run by the same programs.
            axes = ((REPLICAS, len(stage.devices) if stage.inside is None else 1), *axes)
            replica_axes = (REPLICAS,)
        names, sizes = tuple(name for name, _ in axes), tuple(size for _, size in axes)
        specs = {leaf.path: leaf.spec for leaf in stage.inside.inputs} if stage.inside else {}
        mesh = make_mesh(stage, sizes, names)
        places.append(StagePlace(mesh, replica_axes, stage.inside, specs, everyone))
    return tuple(places)


@dataclass(frozen=True, slots=True)
class SumForm:
    """The sharding of a sum over microbatches while it grows, as [parts, ..]: replicas along
    `apart` have terms of their own.

    Over other axes of replicas a term is summed in every microbatch, since the parameter is stored
    split along them (ZeRO-3). `dims` are the axes of each dimension of the sum.
    """

    apart: Axes
    dims: tuple[Axes, ...]

    def sharding(self, place: StagePlace) -> NamedSharding:
        """All of it."""
        return place.split((self.apart, *self.dims))

    def term(self, x: jax.Array, place: StagePlace) -> jax.Array:
        """A term, [parts, ..], of [replicas, ..]."""
        if self.apart == place.replica_axes:
            return x
        # [replicas, ..] as one dimension for each axis; those that are not apart are summed.
        sizes = [place.mesh.shape[axis] for axis in place.replica_axes]
        gone = tuple(n for n, axis in enumerate(place.replica_axes) if axis not in self.apart)
        return x.reshape(*sizes, *x.shape[1:]).sum(gone).reshape(self.parts(place), *x.shape[1:])

    def parts(self, place: StagePlace) -> int:
        """How many terms are apart."""
        return math.prod(place.mesh.shape[axis] for axis in self.apart)


@dataclass(frozen=True, slots=True)
class TransferForm:
    """How a value of a microbatch travels: shared out by `layout`, as an unfinished sum of
    `operator`, or whole.
    """

    layout: SampleDimension | None
    operator: Operator | None

    def dims(self, replica_axes: Axes) -> tuple[Axes, ...]:
        """The axes of the dimensions of the value on its way, up to the last that has some."""
        if self.layout is None:
            return ()
        return (*((),) * (self.layout.dim + self._is_apart), replica_axes)

    def spec(self, replica_axes: Axes) -> PartitionSpec:
        """Of the value on its way."""
        return PartitionSpec(*(axes or None for axes in self.dims(replica_axes)))

    @property
    def _is_apart(self) -> bool:
        return self.layout is not None and (self.layout.outer or 1) > 1

    def pack(self, x: jax.Array, replica_axes: Axes) -> jax.Array:
        """What a replica sends of its own value."""
        if self.layout is not None and self._is_apart:
            dim, outer = self.layout.dim, self.layout.outer or 1
            shape = x.shape
            return x.reshape(*shape[:dim], outer, shape[dim] // outer, *shape[dim + 1 :])
        if self.operator is None:
            return x
        if self.operator not in _OVER_REPLICAS:
            raise NotSeparableError(
                f"a {self.operator} over samples is not finished at the end of a stage; cut "
                "elsewhere"
            )
        return _OVER_REPLICAS[self.operator](x, replica_axes)

    def unpack(self, x: jax.Array) -> jax.Array:
        """A replica's own value of what it was sent, where that is no sum."""
        if self.layout is None or not self._is_apart:
            return x
        dim, shape = self.layout.dim, x.shape
        return x.reshape(*shape[:dim], -1, *shape[dim + 2 :])

    def resume(self, x: jax.Array, replica_axes: Axes) -> jax.Array:
        """As `unpack`, and of a sum what each replica goes on with."""
        # One replica goes on with the sum and the others with 0, or it would be added r times.
        if self.operator == "add":
            return jnp.where(lax.axis_index(replica_axes) == 0, x, jnp.zeros_like(x))
        return self.unpack(x)


# Collectives over replicas by operator: a product or a logical sum has none of JAX's.
_OVER_REPLICAS: Final = {"add": lax.psum, "max": lax.pmax, "min": lax.pmin}
WHOLE: Final = TransferForm(None, None)
