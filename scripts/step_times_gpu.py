"""Steps of published models on one GPU beside their predictions: a part of
`scripts.compare_step_times`.
"""

from dataclasses import replace
from statistics import median

import jax
from rich.progress import track

from automap.config import Options
from automap.cost.profile import KernelProfile
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program import load_target, trace_step
from automap.topology.cpu import cpu_devices
from automap.topology.model import Topology
from scripts.step_time_cases import GPU_TARGETS
from scripts.step_time_runs import runner, timed
from scripts.tables import made_by, markdown


COMMAND = "python -m scripts.compare_step_times --gpu -o docs/reports/step_times.md"
DEVICES = 8
_DATA_PARALLEL = Options(preset="data-parallel")


def compare_on_gpu(topology: Topology, profile: KernelProfile) -> str:
    """Single-device steps of the published models, and the compute part of their data-parallel
    plans.
    """
    # Any links will do: only the compute part of the plan is looked at.
    eight = replace(topology, name="8 of it", levels=(cpu_devices(DEVICES).levels[0],))
    cells, errors = [], []
    for target in track(GPU_TARGETS, "models"):
        whole_batch = load_target(target, {})[1][1]
        batch = max(leaf.shape[0] for leaf in jax.tree.leaves(whole_batch) if leaf.shape)
        for share, on in ((1, topology), (DEVICES, eight)):
            step, args = load_target(target, {"batch": str(batch // share)})
            alone = trace_step(step, args, platform=topology.platform, target=target)
            plan = build_plan(find(alone, topology, _DATA_PARALLEL))
            seconds = median(timed(runner(plan, step, args)))
            whole = trace_step(*load_target(target, {}), platform=topology.platform)
            options = replace(_DATA_PARALLEL, profile=profile)
            predicted = find(whole, on, options).best.estimate.compute_seconds
            errors.append(abs(predicted / seconds - 1))
            what = "whole step" if share == 1 else f"compute of 1 of {share}"
            cells.append(
                [
                    target.partition(":")[2],
                    what,
                    f"{seconds * 1e3:.2f}",
                    f"{predicted * 1e3:.2f}",
                    f"{predicted / seconds - 1:+.0%}",
                ]
            )
    note = f"Median error {median(errors):.0%}; the target is 20 % for each whole step.\n\n"
    machine = f"jax {jax.__version__}, {profile.device_kind}"
    table = markdown(["model", "what", "measured ms", "predicted ms", "error"], cells)
    return made_by(COMMAND, machine) + note + table
