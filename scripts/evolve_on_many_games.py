"""Policy search on many games (part of scripts.reinforce_after_imitation)."""
import sys, time, json, glob
from pathlib import Path

import jax; jax.config.update("jax_platforms", "cpu")
from scripts.reinforce_after_imitation import *

N_PLAYED, N_JUDGED, SEEDS = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
OUT = Path(sys.argv[4]); OUT.mkdir(exist_ok=True)
t0 = time.monotonic()
def say(*a): print(*a, f"{time.monotonic()-t0:.0f} s", flush=True)
judge = Judge(N_JUDGED)
imitation, unlearned = judge.costs(MOVES), judge.costs(None)
judge.find_best(); base = imitation - judge.best
say(len(judge.games), show("imitation", base, base)); say(show("learning off", unlearned - judge.best, base))
games = [KeptGame(c, s).again(KeptGame) for s in range(9_000_000, 9_000_000 + N_PLAYED) for c in problem_contexts(s)]
say(len(games), "games")
starts = [Player(None, MESHES).ranked(g.context, g.seen, g.starts)[0] for g in games]
def costs(weights, places):
    player, out = Player(weights), []
    for p in places:
        g = games[p]; context = g.is_reset()
        out.append(context.objective.cost(roll_out(context, g.seen, player, starts[p]).estimate))
    return np.array(out)
every = range(len(games))
first = costs(MOVES, every); say("imitation on games")
off = costs(None, every); say("off on games")
ref = np.minimum(first, off)
def regret(weights, places): return float(np.clip(costs(weights, places) - ref[list(places)], -0.3, 0.3).mean())
say("regret imitation", np.clip(first-ref,-.3,.3).mean(), "off", np.clip(off-ref,-.3,.3).mean())
for scale in (0.7, 1.4):
    w = {n: a * np.float32(scale) if n.startswith(("advantage","value")) else a for n, a in MOVES.items()}
    say("scale", scale, regret(w, every), show("", judge.costs(w) - judge.best, base))
def search(seed, names, sigma=0.1, pairs=3, steps=20, batch=40, rate=0.3):
    source = np.random.default_rng(seed)
    units = {n: sigma * max(float(MOVES[n].std()), 1e-3) for n in names}
    now = dict(MOVES); path = [now]
    for step in range(steps):
        places = sorted(source.choice(len(games), min(batch, len(games)), replace=False).tolist())
        slope = {n: np.zeros_like(MOVES[n]) for n in names}
        for _ in range(pairs):
            noise = {n: source.standard_normal(MOVES[n].shape).astype(np.float32) for n in names}
            both = [regret(now | {n: now[n] + np.float32(s * units[n]) * noise[n] for n in names}, places) for s in (1, -1)]
            for n in names: slope[n] -= (both[0] - both[1]) * noise[n]
        size = np.sqrt(sum(float((slope[n]**2).sum()) for n in names)); count = np.sqrt(sum(v.size for v in slope.values()))
        if size > 0: now = now | {n: now[n] + np.float32(rate * units[n] * count / size) * slope[n] for n in names}
        path.append(now)
    mean = {n: np.mean([w[n] for w in path[len(path)//2:]], 0).astype(np.float32) for n in MOVES}
    tried = {"mean of the second half": mean, "last": now, "tenth": path[len(path)//2]}
    regrets = {k: regret(w, every) for k, w in tried.items()}
    say("   regrets", regrets)
    best = min(regrets, key=regrets.get)
    return tried[best], regrets[best]
for seed in range(SEEDS):
    w, r = search(seed, ("advantage.weight",))
    gaps = judge.costs(w) - judge.best
    say("many games, output layer, seed", seed, r, show("", gaps, base))
    np.savez(OUT / f"output-{seed}.npz", **w)
for f in sorted(glob.glob(sys.argv[5])):
    w = dict(np.load(f)); gaps = judge.costs(w) - judge.best
    say(Path(f).stem, show("", gaps, base))
