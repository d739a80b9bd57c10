"""The mesh that shardings in a user's code are on: the names, and maybe sizes, that a plan's mesh
has to have.

A mesh of one device has names only: a step written with one runs on a laptop, and its axes may get
any size.
"""

from collections.abc import Iterable
from dataclasses import dataclass
import math

from automap.errors import InputError
from automap.step.user_constraints import UserSharding, imposed_spec
from automap.topology.mesh import Mesh


@dataclass(frozen=True, slots=True)
class UserMesh:
    """Axis names, with sizes unless those are free; `used` are the names that stand in a sharding.

    `where` is the first such sharding; `manual` the first `shard_map`, "" if there is none: its
    body has the shapes of this mesh, so that a plan's is the same, in the same order.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...] | None
    used: tuple[str, ...]
    where: str
    manual: str = ""

    def check_has_names(self, mesh: Mesh) -> None:
        """Raise `InputError` unless a mesh has every name that is used."""
        missing = [name for name in self.used if name not in mesh.names]
        if missing:
            raise InputError(
                f"the step's shardings (first: {self.where}) name the axis {missing[0]!r}; the "
                f"mesh has {', '.join(mesh.names)}; give a mesh with the axes "
                f"{', '.join(self.used)}, or --mesh auto"
            )


def user_mesh(
    shardings: Iterable[UserSharding], manual: Iterable[UserSharding] = ()
) -> UserMesh | None:
    """The mesh of all shardings that name an axis, None if there are none; `manual` are those of
    `shard_map`s.

    Raises `InputError` if they are on different meshes.
    """
    first: UserSharding | None = None
    used: dict[str, None] = {}
    manual_ones = tuple(manual)
    for given in (*manual_ones, *shardings):
        axes = [name for axes in imposed_spec(given.sharding, 0) for name in axes or ()]
        # A sharding that names no axis fits any mesh.
        if not axes and given not in manual_ones:
            continue
        used.update(dict.fromkeys(axes))
        first = first or given
        if dict(given.sharding.mesh.shape) != dict(first.sharding.mesh.shape):
            raise InputError(
                f"{given.where} is on the mesh {_text(given)}, {first.where} on {_text(first)}; a "
                "plan has one mesh: use one for all shardings of the step"
            )
    if first is None:
        return None
    sizes = dict(first.sharding.mesh.shape)
    # A mesh of one device is how a step is written for a laptop: its axes may have any size.
    has_sizes = math.prod(sizes.values()) > 1
    return UserMesh(
        names=tuple(sizes),
        sizes=tuple(sizes.values()) if has_sizes else None,
        # The body of a shard_map is traced with all axes of its mesh.
        used=tuple(sizes if manual_ones else used),
        where=first.where,
        manual=manual_ones[0].where if manual_ones else "",
    )


def _text(given: UserSharding) -> str:
    return ",".join(f"{name}={size}" for name, size in given.sharding.mesh.shape.items())
