"""The plan of a traced call: made, or taken from a folder of plan files.

A plan is made by the planner of the space that the options name, or is the best that a compiler
confirms, or the fastest of those that it was given                   -> in: `plan_call`

In a folder plans are named by everything that they depend on:

    key = SHA-256 of (equations of the step, shardings in its code, platform it is lowered for,
                      topology, options, versions of automap and JAX)
                                                                      -> in: `cache_key`

The equations, the platform and JAX's version determine the HLO; a plan that is there is checked
with one lowering. A file that cannot be read, or is of another step, is a miss: it is planned again
and written over, and a link in its place is replaced.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cache, partial
import hashlib
from importlib.metadata import version
import json
from pathlib import Path
from typing import Any
import warnings

import jax

from automap.api.plan import Plan
from automap.atomic_file import reason, write_atomically
from automap.backends import backend_for
from automap.config import Options
from automap.errors import CacheWarning, PlanError, TopologyError
from automap.interrupts import note_interrupts
from automap.jaxpr.reemit import Reemitter
from automap.jaxpr.rematerialize import levered_call
from automap.plan.file import layout
from automap.plan.record import PlanRecord
from automap.planner.levers import find_with_levers
from automap.planner.spaces import plan_workload
from automap.program.check import check_is_planned, check_program
from automap.program.trace import lower_call
from automap.refine.loop import refined_plan
from automap.refine.refinement import Refinement, check_can_refine
from automap.report.progress import SearchProgress
from automap.runtime.meshes import as_many_devices
from automap.step.call import TracedCall
from automap.step.own_shardings import ImposedEnds
from automap.step.rules import user_rules
from automap.step.user_mesh import UserMesh
from automap.topology import Graph, Topology, get_machine, regular, topology_from_devices
from automap.verify.confirm import (
    CONFIRMED_BY_STAGES,
    Confirmation,
    confirmed_pipeline,
    confirmed_plan,
)
from automap.verify.near_limit import settled


def as_machine(given: str | Topology | Graph, options: Options) -> Topology | Graph:
    """A machine, or the one of a name or TOML file, which is regular unless operators are placed.
    Raises `TopologyError` for an unknown one.
    """
    checked = checked_machine(given)
    machine = get_machine(checked) if isinstance(checked, str) else checked
    return machine if options.space == "placement" else regular(machine)


def machine_with_devices(
    given: str | Topology | Graph, options: Options, devices: Sequence[Any] | None
) -> Topology | Graph:
    """A machine as `as_machine`, of the devices to run on (default: all of JAX's); "local" is these
    devices.

    Raises `MeshMismatchError` for one that has another number of them.
    """
    if given == "local" and devices is not None:
        given = topology_from_devices(devices)
    machine = as_machine(given, options)
    # A search takes its time, and its plan could not run.
    what = f"the topology {machine.name} has {machine.device_count} devices"
    as_many_devices(what, machine.device_count, devices)
    return machine


def checked_machine(given: Any) -> str | Topology | Graph:
    """A machine or a name, of whatever a caller gave. Raises `TopologyError` for another type."""
    if isinstance(given, str | Topology | Graph):
        return given
    raise TopologyError(
        f"topology: got {given!r:.80} of type {type(given).__name__}; allowed: a name, as "
        '"cpu:8", "8xh100", "v5e:4x4" or "local", the path of a .toml file as a text, or a '
        "Topology; `automap topologies` lists the names"
    )


def plan_call(
    call: TracedCall,
    topology: Topology | Graph,
    options: Options,
    name: str,
    confirmation: Confirmation | None = None,
    refinement: Refinement | None = None,
    *,
    settles_memory: bool = False,
) -> Plan:
    """The best plan of a call, called `name` in it; the best that a compiler confirms to fit if it
    is to be asked, or the fastest that it was given if the search is to be refined. With
    `settles_memory` a plan near the limit of memory is compiled too (`automap.verify.near_limit`).

    Raises `InfeasiblePlanError` if no plan fits or none is confirmed, `InputError` or
    `TopologyError` for options that do not suit the step, `CompilerError` for a compiler that is
    missing or fails.
    """
    if refinement is not None:
        check_can_refine(regular(topology))
    with ExitStack() as until_the_end:
        # Lowering and reading the program takes seconds for a large model, before there is a
        # search.
        with SearchProgress(options.budget_seconds) as progress:
            workload = lower_call(
                call,
                platform=topology.platform,
                target=name,
                rules=user_rules(options.rules),
                layers=options.layers,
            )

            plan_within = partial(
                plan_workload,
                workload,
                topology,
                on_progress=progress.update,
                on_stages=progress.update_stages,
            )

            if confirmation is None and refinement is None:
                planned = plan_within(options)
                if settles_memory:
                    planned = settled(planned, call, options, plan_within)
                return _of_step(planned)
            if refinement is not None:
                # Ctrl-C that is noted in the search ends its refinement too.
                until_the_end.enter_context(note_interrupts())
            elif options.space in CONFIRMED_BY_STAGES:
                how = confirmation or Confirmation()
                planned = confirmed_pipeline(plan_within, call, topology.platform, options, how)
                return _of_step(planned)
            # All that was priced, and not the best plan alone: a compiler may refuse the best.
            outcome = find_with_levers(
                workload, regular(topology), options, on_progress=progress.update
            )
        if refinement is not None:
            planned = refined_plan(workload, outcome, call, options, refinement)
        else:
            planned = confirmed_plan(
                outcome,
                call,
                options,
                confirmation or Confirmation(),
                search_again=lambda less: find_with_levers(workload, regular(topology), less),
            )
        return _of_step(planned)


def _of_step(planned: PlanRecord) -> Plan:
    """A plan that says that its target is the step itself, of which no command makes it again."""
    workload = replace(planned.workload, made_from="step")
    return Plan.from_record(replace(planned, workload=workload))


def cache_key(
    jaxpr_sha256: str,
    topology: Topology | Graph,
    options: Options,
    mesh: UserMesh | None = None,
    ends: ImposedEnds | None = None,
) -> str:
    """The name under which a plan is kept, without ending; `mesh` and `ends` are those of the
    step's own shardings.
    """
    # Whatever the plan depends on, or a changed option would load the old plan.
    parts = {
        "jaxpr": jaxpr_sha256,
        "shardings": repr((mesh, ends)),
        "platform": topology.platform,
        "topology": topology.to_dict(),
        "options": asdict(options),
        "versions": [own_version(), jax.__version__],
    }
    # Hexadecimal, so that it is a file's name on every system.
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def own_version() -> str:
    """The version of this package that is installed."""
    return version("jax-automap")


def load_cached(folder: Path, key: str, call: TracedCall, reemitter: Reemitter) -> Plan | None:
    """The plan of a call kept under `key`, None if there is none that can be used for it."""
    path = folder / f"{key}.json"
    if not path.is_file():
        return None
    try:
        # The folder is anyone's: the file is held against the step as one from elsewhere would be.
        plan = Plan.load(path)
        if plan.levers is not None:
            rules = user_rules(plan.workload.rules)
            backend = backend_for(plan.topology["platform"])
            call = levered_call(call, plan.levers, rules, backend.host_stacks)
            reemitter = Reemitter(call.jaxpr, rules)
        check_is_planned(plan, call, reemitter)
        check_program(plan, call)
    except PlanError:
        return None
    return plan


def save_cached(folder: Path, key: str, plan: PlanRecord) -> None:
    """Keep a plan under `key`, or warn that it is not kept: a `CacheWarning`."""
    try:
        # A plan that cannot be kept is worth a warning and no more: the step runs.
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{key}.json", layout(plan.to_json()), links="replace")
    except (PlanError, OSError) as error:
        warnings.warn(
            f"the plan is not kept in the cache {str(folder)!r}: {reason(error)}; give a cache_dir "
            "that can be written to",
            CacheWarning,
            stacklevel=2,
        )
