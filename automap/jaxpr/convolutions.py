"""Convolutions written out for each device: halos by ppermute, sums by psum, the convolution local.

XLA's partitioner cannot be trusted with a convolution whose image or groups are split: next to an
axis that does something else it sums a kernel's gradient over devices that hold copies, and with
groups it crashes (jaxlib 0.10 and 0.12). Where a plan splits those, the equation becomes a
`shard_map` over the plan's mesh.

A dimension of n elements on P devices, convolved to m results with stride s, padding p, window w
and dilations d (window) and b (image), is first extended by its neighbours' elements
(`hlo_tools.rules.window`). The first position that device i reads is i q - p, with q = (m / P) s,
or (w / P) d if the window is what is split; its extended part begins l elements before its own, at
b (i n / P - l). So the local convolution has the padding

    low    p - b l + i D / P,   D = n b - P q                            -> in: `_local_dimension`
    high   what is left to read

and where D is not 0, the part that a device reads is cut out first, as a padding cannot depend on
i.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec
import numpy as np

from automap.errors import PlanError
from automap.jax_compat import open_jaxpr
from hlo_tools.module import WindowDim
from hlo_tools.rules.window import halos, neighbours, result_halo, window_halo


Axes = tuple[str, ...]


@dataclass(frozen=True)
class Specs:
    """Axes of each dimension of image, kernel and result, as the convolution runs."""

    mesh: Mesh | AbstractMesh
    image: tuple[Axes, ...]
    kernel: tuple[Axes, ...]
    result: tuple[Axes, ...]


def dimension_axes(spec: PartitionSpec | None, rank: int) -> tuple[Axes, ...]:
    """A spec as a tuple of axes for each of `rank` dimensions; None splits nothing."""
    entries = [*(spec or ())]
    entries += [None] * (rank - len(entries))
    return tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in entries)


def free_axes(mesh: Mesh | AbstractMesh) -> set[str]:
    """The axes of a mesh that no `shard_map` around has taken."""
    types = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {name for name, kind in types if kind is not AxisType.Manual}


def is_convolution(eqn: Any) -> bool:
    """Whether an equation is a convolution."""
    return eqn.primitive.name == "conv_general_dilated"


def must_run_per_device(eqn: Any, specs: Specs) -> bool:
    """Whether the partitioner is not left to split this convolution."""
    numbers = eqn.params["dimension_numbers"]
    has_groups = eqn.params["feature_group_count"] > 1 or eqn.params["batch_group_count"] > 1
    kernel = eqn.invars[1].aval.shape
    image = any(
        specs.image[dim] and (kernel[window] > 1 or eqn.params["window_strides"][n] > 1)
        for n, (dim, window) in enumerate(zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:]))
    )
    return image or has_groups


def convolution_per_device(eqn: Any, specs: Specs) -> Any:
    """The `shard_map` equation in the place of a convolution's.

    Raises `PlanError` if image, kernel and result are not split alike.
    """
    specs = _in_one_order(specs)
    for left, right in _pairs(eqn, specs):
        if left != right:
            raise PlanError(
                f"a convolution {specs.image} * {specs.kernel} -> {specs.result} (axes of each "
                f"dimension): {left} on one and {right} on the other side of one index; allowed: "
                "the same. Was the plan edited? Plan again"
            )
    # Replication is not checked: what each device computes alike is known from the specs.
    per_device = jax.shard_map(
        _local(eqn, specs),
        mesh=specs.mesh,
        axis_names=free_axes(specs.mesh),
        in_specs=(PartitionSpec(*specs.image), PartitionSpec(*specs.kernel)),
        out_specs=PartitionSpec(*specs.result),
        check_vma=False,
    )
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    (mapped,) = open_jaxpr(jax.make_jaxpr(per_device)(*avals))[0].eqns
    return mapped.replace(invars=eqn.invars, outvars=eqn.outvars, source_info=eqn.source_info)


def _pairs(eqn: Any, specs: Specs) -> Iterator[tuple[Axes, Axes]]:
    """Axes of two dimensions that are one index of the convolution, or must not be split (the other
    is ()).
    """
    numbers = eqn.params["dimension_numbers"]
    (batch, feature, *space), (out, into, *taps) = numbers.lhs_spec, numbers.rhs_spec
    made_batch, made_feature, *made = numbers.out_spec
    image, kernel, result = specs.image, specs.kernel, specs.result
    yield kernel[out], result[made_feature]
    # Groups of the batch: the gradient of a kernel with groups. Each goes with its outputs.
    if eqn.params["batch_group_count"] > 1:
        yield image[batch], kernel[out]
        yield result[made_batch], ()
    else:
        yield image[batch], result[made_batch]
    if eqn.params["feature_group_count"] > 1:
        yield image[feature], kernel[out]
        yield kernel[into], ()
    else:
        yield image[feature], kernel[into]
    for dim, tap, target in zip(space, taps, made, strict=True):
        yield image[dim], kernel[tap] or result[target]
        yield (kernel[tap] if result[target] else ()), ()


def _in_one_order(specs: Specs) -> Specs:
    """The specs with equal sets of axes in the order in which the result has them, else the
    image.
    """
    order: dict[frozenset[str], Axes] = {}
    for axes in (*specs.result, *specs.image, *specs.kernel):
        order.setdefault(frozenset(axes), axes)
    image, kernel, result = (
        tuple(order[frozenset(axes)] for axes in dims)
        for dims in (specs.image, specs.kernel, specs.result)
    )
    return Specs(specs.mesh, image, kernel, result)


def _local(eqn: Any, specs: Specs) -> Callable[[jax.Array, jax.Array], jax.Array]:
    params = dict(eqn.params)
    params.pop("out_sharding", None)
    numbers = params["dimension_numbers"]
    (batch, feature, *space), (out, _, *taps) = numbers.lhs_spec, numbers.rhs_spec
    sizes = dict(specs.mesh.shape)
    shapes = [v.aval.shape for v in (*eqn.invars, *eqn.outvars)]
    grouped = {"feature_group_count": feature, "batch_group_count": batch}
    for name, dim in grouped.items():
        if params[name] > 1:
            common = set(specs.image[dim]) & set(specs.kernel[out])
            params[name] //= prod(sizes[a] for a in common)
    # Axes that split both operands and not the result: each device has a part of a sum.
    kept = {axis for axes in specs.result for axis in axes}
    summed = tuple(
        name
        for name in specs.mesh.axis_names
        if name not in kept
        and any(name in axes for axes in specs.kernel)
        and any(name in axes for axes in specs.image)
    )

    def convolve(image: jax.Array, kernel: jax.Array) -> jax.Array:
        padding = list(params["padding"])
        for n, (dim, tap, made) in enumerate(zip(space, taps, numbers.out_spec[2:])):
            window = WindowDim(
                size=shapes[1][tap],
                stride=params["window_strides"][n],
                padding_low=padding[n][0],
                padding_high=padding[n][1],
                window_dilation=params["rhs_dilation"][n],
                base_dilation=params["lhs_dilation"][n],
                reversal=False,
            )
            axes = specs.image[dim]
            if axes:
                is_window_split = bool(specs.kernel[tap])
                split = _Split(axes, specs.mesh, is_window=is_window_split)
                image, padding[n] = _local_dimension(
                    image, dim, window, split, shapes[0][dim], shapes[2][made]
                )
        local = {**params, "padding": padding}
        result = lax.conv_general_dilated(image, kernel, **local)
        return lax.psum(result, summed) if summed else result

    return convolve


@dataclass(frozen=True)
class _Split:
    """The axes of a dimension, major first, on a mesh; whether the window is split with it, or the
    result.
    """

    axes: Axes
    mesh: Mesh | AbstractMesh
    is_window: bool

    @property
    def parts(self) -> int:
        return prod(self.mesh.shape[axis] for axis in self.axes)

    def permuted(self, slab: jax.Array, pairs: Sequence[tuple[int, int]]) -> jax.Array:
        """What a device receives; `pairs` are (source, target) numbers of parts."""
        # `ppermute` numbers devices in the mesh's order of axes, whatever order it is given.
        in_order = tuple(axis for axis in self.mesh.axis_names if axis in self.axes)
        numbers = np.arange(self.parts).reshape([self.mesh.shape[axis] for axis in in_order])
        device = numbers.transpose([in_order.index(axis) for axis in self.axes]).ravel().tolist()
        return lax.ppermute(slab, in_order, [(device[i], device[j]) for i, j in pairs])


def _local_dimension(
    image: jax.Array, dim: int, window: WindowDim, split: _Split, read: int, made: int
) -> tuple[jax.Array, tuple[int, int]]:
    """The image with what this device reads along `dim`, and the padding that is left to do."""
    parts, base = split.parts, window.base_dilation
    around = (window_halo if split.is_window else result_halo)(window, read, made)
    # The same arithmetic as the rule's that the cost is computed with.
    low, high = (int(n[0]) for n in neighbours(halos([around]), np.array([parts])))
    image = _extended(image, dim, split, low, high)
    taps = window.size // parts if split.is_window else window.size
    results = made if split.is_window else made // parts
    needed = (taps - 1) * window.window_dilation + (results - 1) * window.stride + 1
    before = window.padding_low - base * low
    if around.drift == 0:
        return image, (before, needed - before - (image.shape[dim] - 1) * base - 1)
    # Positions are elements here: the rule splits no dilated image that drifts.
    step = around.drift // parts
    lowest, highest = min(0, step * (parts - 1)), max(0, step * (parts - 1))
    first = max(0, before + highest)
    last = max(0, needed - before - lowest - image.shape[dim])
    pads = [(first, last) if d == dim else (0, 0) for d in range(image.ndim)]
    start = first - before - step * lax.axis_index(split.axes)
    return lax.dynamic_slice_in_dim(jnp.pad(image, pads), start, needed, dim), (0, 0)


def _extended(image: jax.Array, dim: int, split: _Split, low: int, high: int) -> jax.Array:
    """The image between `low` elements of the devices before and `high` of those after; zeros at
    the ends.
    """
    share = image.shape[dim]

    def received(count: int, direction: int) -> list[jax.Array]:
        """Nearest device first."""
        slabs = []
        # A halo may reach over several devices, if their parts are smaller than it.
        for distance in range(1, -(-count // share) + 1):
            size = min(share, count - (distance - 1) * share)
            start = share - size if direction > 0 else 0
            slab = lax.slice_in_dim(image, start, start + size, axis=dim)
            pairs = [
                (i, i + direction * distance)
                for i in range(split.parts)
                if 0 <= i + direction * distance < split.parts
            ]
            slabs.append(split.permuted(slab, pairs))
        return slabs

    return jnp.concatenate([*received(low, 1)[::-1], image, *received(high, -1)], axis=dim)
