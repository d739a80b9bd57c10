"""Roll-outs of weights on the page's held-out cells, paired with the shipped ones."""
import sys, time, json, glob
from pathlib import Path
import jax; jax.config.update("jax_platforms", "cpu")
import numpy as np
from automap.action_network import load_weights
from automap.errors import AutomapError
from automap.search.agent.play import *
from automap.search.agent.play import MESHES_FORMAT, MESHES_SHIPPED, MOVES_FORMAT, MOVES_SHIPPED
from automap.topology import get_topology
from scripts.compare_sharding_agent import Cells, MACHINES, STEPS, traced
FIRST_HALF = ("models.gpt:gpt_124m", "models.mlp:mlp", "models.nmt:nmt", "models.rnnlm:rnnlm", "models.alexnet:alexnet", "models.lenet:lenet")
t0 = time.monotonic()
MOVES, MESHES = load_weights(MOVES_SHIPPED, MOVES_FORMAT), load_weights(MESHES_SHIPPED, MESHES_FORMAT)
which = sys.argv[1]
from scripts.plan_matrix import MODELS
from scripts.halves import is_held_out
if which == "held":
    steps, machines = STEPS, MACHINES
else:
    steps = [t for t in MODELS if not is_held_out(t) and not any(x in t for x in ("t5_11b", "6b", "7b", "13b", "1_3b"))]
    machines = ("2x8xa100", "v5e:4x4", "4x8xv100", "2x8xh100")
cells, done, workloads = [], {}, {}
OUT = Path(sys.argv[3])
def judged(name, weights):
    for key, c in cells:
        if (name, key) in done: continue
        context = c.fresh(None)
        before = context.evaluations
        r = first_roll_out(context, Player(weights, MESHES))
        done[name, key] = (float(context.objective.cost(r.estimate)), context.evaluations - before)
        with OUT.open("a") as f: f.write(json.dumps([name, key, *done[name, key]]) + "\n")
def weights_now():
    named = {"imitation": MOVES, "off": None}
    for f in sorted(glob.glob(sys.argv[2])): named[Path(f).stem] = dict(np.load(f))
    return named
def summary():
    keys = [k for k, _ in cells]
    for name in weights_now():
        if not all((name, k) in done for k in keys): continue
        d = np.array([done[name, k][0] - done["imitation", k][0] for k in keys]); n = np.mean([done[name, k][1] for k in keys])
        print(f"{name}: {len(d)} cells, {d.mean():+.4f} +- {d.std()/len(d)**.5:.4f}, better {np.sum(d < -1e-3)}, worse {np.sum(d > 1e-3)}, plans {n:.0f}, {time.monotonic()-t0:.0f} s", flush=True)
for step in steps:
    for machine in machines:
        try:
            platform = get_topology(machine).platform
            if (step, platform) not in workloads: workloads = {k: w for k, w in workloads.items() if k[0] == step}; workloads[step, platform] = traced(step, platform)
            cells.append((f"{step} {machine}", Cells(workloads[step, platform], machine)))
        except (AutomapError, Exception) as e:
            print(step, machine, "left out", str(e)[:80], flush=True); continue
        for name, w in weights_now().items(): judged(name, w)
    summary()
until = time.monotonic() + 1500
while time.monotonic() < until:
    time.sleep(20)
    before = len(done)
    for name, w in weights_now().items(): judged(name, w)
    if len(done) > before: summary()
