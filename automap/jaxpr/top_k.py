"""top_k written out for each device: every device orders its own rows.

The partitioner gathers the whole operand of a top_k that is split by rows (XLA:CPU, jaxlib 0.10 and
0.12; the TPU's pipeline makes a sort of it first), though no row needs another.
"""

from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from automap.errors import PlanError
from automap.jax_compat import open_jaxpr
from automap.jaxpr.convolutions import Axes, free_axes


def is_top_k(eqn: Any) -> bool:
    """Whether an equation is a top_k."""
    return eqn.primitive.name == "top_k"


def written_out_top_k(eqn: Any, mesh: Mesh | AbstractMesh, axes: tuple[Axes, ...]) -> Any:
    """The `shard_map` equation in its place; `axes` split each dimension of operand and results.

    Raises `PlanError` if they split what is ordered.
    """
    ordered = eqn.params.get("axis", -1) % len(axes)
    if axes[ordered]:
        raise PlanError(
            f"a top_k along dimension {ordered} that is split over {axes[ordered]}; allowed: "
            "whole. "
            "Was the plan edited? Plan again"
        )
    spec = PartitionSpec(*axes)
    per_device = jax.shard_map(
        lambda operand: eqn.primitive.bind(operand, **eqn.params),
        mesh=mesh,
        axis_names=free_axes(mesh),
        in_specs=spec,
        out_specs=[spec, spec],
        check_vma=False,
    )
    aval = eqn.invars[0].aval
    traced = jax.make_jaxpr(per_device)(jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    (mapped,) = open_jaxpr(traced)[0].eqns
    return mapped.replace(invars=eqn.invars, outvars=eqn.outvars, source_info=eqn.source_info)
