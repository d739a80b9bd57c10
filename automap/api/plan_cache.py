"""Plans kept on disk: a folder of plan files, named by everything a plan depends on.

    key = SHA-256 of (equations of the step, shardings in its code, platform it is lowered for,
                      topology, options, versions of automap and JAX)
                                                                      -> in: `cache_key`

The equations, the platform and JAX's version determine the HLO; a plan that is found is checked
with one lowering. A file that cannot be read, or is of another step, is a miss: it is planned again
and written over, and a link in its place is replaced.
"""

from dataclasses import asdict
from functools import cache
import hashlib
from importlib.metadata import version
import json
from pathlib import Path
import warnings

import jax

from automap.api.plan import Plan
from automap.atomic_file import reason, write_atomically
from automap.errors import CacheWarning, PlanError
from automap.jaxpr.reemit import Reemitter
from automap.plan.file import layout
from automap.plan.record import PlanRecord
from automap.planner.sharding import Options
from automap.program.check import check_is_planned, check_program
from automap.step.call import TracedCall
from automap.step.own_shardings import ImposedEnds
from automap.step.user_mesh import UserMesh
from automap.topology.model import Topology


def cache_key(
    jaxpr_sha256: str,
    topology: Topology,
    options: Options,
    mesh: UserMesh | None = None,
    ends: ImposedEnds | None = None,
) -> str:
    """The name under which a plan is kept, without ending; `mesh` and `ends` are those of the
    step's own shardings.
    """
    parts = {
        "jaxpr": jaxpr_sha256,
        "shardings": repr((mesh, ends)),
        "platform": topology.platform,
        "topology": topology.to_dict(),
        "options": asdict(options),
        "versions": [_own_version(), jax.__version__],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def _own_version() -> str:
    return version("jax-automap")


def load_cached(folder: Path, key: str, call: TracedCall, reemitter: Reemitter) -> Plan | None:
    """The plan of a call kept under `key`, None if there is none that can be used for it."""
    path = folder / f"{key}.json"
    if not path.is_file():
        return None
    try:
        plan = Plan.load(path)
        check_is_planned(plan, call, reemitter)
        check_program(plan, call)
    except PlanError:
        return None
    return plan


def save_cached(folder: Path, key: str, plan: PlanRecord) -> None:
    """Keep a plan under `key`, or warn that it is not kept: a `CacheWarning`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{key}.json", layout(plan.to_json()), links="replace")
    except (PlanError, OSError) as error:
        warnings.warn(
            f"the plan is not kept in the cache {str(folder)!r}: {reason(error)}; give a cache_dir "
            "that can be written to",
            CacheWarning,
            stacklevel=2,
        )
