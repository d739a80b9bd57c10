"""ColocRL's tables, simulated: groups (its table 1), the seconds of a step by baselines, searches
and policies (its table 2 and section 4.3), and Inception-v3 beside towers (its section 4.4).

    python -m scripts.reproduce_colocrl --table groups -o docs/reports/colocrl.md

Policies are trained anew for each row and seed, with a number of updates that is stated, by one
controller on one core. `learning off` is the same player without its learning: the best of as many
placements, drawn by the same policy before it has learnt anything. Rows are kept in the folder
`--kept`, and are not made again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
import time

from flax import nnx
import jax
from jax import numpy as jnp
import numpy as np

from automap.deadline import Deadline
from automap.placement import baselines, colocrl, policies
from automap.placement.dataflow import NOBODY, step_dataflow
from automap.placement.operators import Operators, step_operators
from automap.placement.search import Placed, Search
from automap.placement.simulation import Simulator, placed_machine
from automap.placement.splits import problem_splits
from automap.placement.strategies import auto, descended, exact, least_seconds
from automap.placement.tasks import PlacementProblem, placement_problem
from automap.program.trace import trace_step
from automap.topology import Graph, get_graph
from hlo_tools.analyses.phases import Phase
from models.inception import INCEPTION_V3, Inception, inception_v3, loss as inception_loss
from models.nmt import NMT, nmt, nmt_step
from models.rnnlm import RNNLM, rnnlm, rnnlm_step
from models.stepwise import nmt_stepwise, rnnlm_stepwise
from models.training import Batch, Target, train_step
from rl.sequences import ReinforceConfig
from scripts.tables import Table, kept, tables_command


COMMAND = "python -m scripts.reproduce_colocrl"
AUTO_SECONDS = 60.0
EXACT_SECONDS = 40.0
TOWERS, TOWER_BATCH = 4, 32
BASELINES = (
    baselines.mapping,
    baselines.mincut,
    baselines.expert,
    baselines.heft,
    baselines.m_sct,
    baselines.memory,
)


def large_rnnlm() -> Target:
    """Section 4.3's: LSTMs of 4096, batch 256."""
    return rnnlm_step(replace(RNNLM, hidden=4096), batch=256, seq=40).target


def large_nmt() -> Target:
    """Section 4.3's: LSTMs of 2048, batch 256."""
    return nmt_step(replace(NMT, hidden=2048), batch=256, seq=40).target


@dataclass(frozen=True)
class Published:
    """The paper's numbers of a model: operations and groups of its table 1, then by GPUs the
    seconds of its table 2: CPU, GPU, Scotch, MinCut, expert, RL; None where it has none.
    """

    target: Callable[[], Target]
    operations: int | None
    groups: int | None
    seconds: Mapping[int, Sequence[float | None]]


MODELS: Mapping[str, Published] = {
    "Inception-v3": Published(
        lambda: inception_v3(batch=32),
        31_180,
        83,
        {2: (26.21, 4.60, 25.24, 22.88, 11.22, 4.60), 4: (26.21, 4.60, 23.41, 24.52, 10.65, 3.85)},
    ),
    "RNNLM": Published(
        rnnlm,
        8_943,
        188,
        {2: (6.89, 1.57, 13.43, 11.94, 3.81, 1.57), 4: (6.89, 1.57, 11.52, 10.44, 4.46, 1.57)},
    ),
    "NMT": Published(
        nmt,
        22_097,
        280,
        {
            2: (10.72, None, 14.19, 11.54, 4.99, 4.04),
            4: (10.72, None, 11.23, 11.78, 4.73, 3.92),
        },
    ),
    "large RNNLM": Published(large_rnnlm, None, None, {4: (None, None, None, None, None, 33.46)}),
    "large NMT": Published(large_nmt, None, None, {4: (None, None, None, None, None, 35.84)}),
}
_CASES = [(name, gpus) for name, published in MODELS.items() for gpus in published.seconds]
# By the rule that makes the paper's groups of each, and what the paper has of it.
GROUPED: Mapping[
    str, tuple[Callable[[], Target], Callable[[PlacementProblem], np.ndarray], str]
] = {
    "Inception-v3": (MODELS["Inception-v3"].target, colocrl.branch_groups, "Inception-v3"),
    "RNNLM": (rnnlm, colocrl.step_groups, ""),
    "RNNLM, step by step": (rnnlm_stepwise, colocrl.step_groups, "RNNLM"),
    "NMT": (nmt, colocrl.step_groups, ""),
    "NMT, step by step": (nmt_stepwise, colocrl.step_groups, "NMT"),
}
GROUPS_HEADER = [
    "model",
    "equations",
    "operators",
    "groups by the paper's rule for the model",
    "groups: branches",
    "groups: one reader",
    "one reader, forward equations",
    "the paper's operations",
    "the paper's groups",
]
BASELINES_HEADER = [
    "model",
    "GPUs",
    "CPU",
    "one GPU",
    *(each.__name__.replace("_", "-") for each in BASELINES),
    "best of these",
    "auto",
    "exact",
    "the paper's CPU, GPU, Scotch, MinCut, expert",
]
POLICIES_HEADER = [
    "model",
    "GPUs",
    "colocrl, learning off",
    "colocrl",
    "colocrl-heft, learning off",
    "colocrl-heft",
    "a run of colocrl, s",
    "the paper's RL",
]
TOWERS_HEADER = [
    "Inception-v3, 128 images, 4 GPUs",
    "seconds of a step",
    "most on a GPU, GB",
    "above the towers, %",
    "learning off, seconds of a step",
]


def traced(target: Callable[[], Target]) -> Operators:
    """The operators of a step that is compiled for GPUs."""
    step, args = target()
    return step_operators(step_dataflow(trace_step(step, args, platform="cuda")))


def searched(operators: Operators, machine: str | Graph, *, has_splits: bool = False) -> Search:
    """A new search of the placements on a machine, of whole operators as the paper's if they have
    no splits.
    """
    graph = get_graph(machine) if isinstance(machine, str) else machine
    problem = placement_problem(operators, graph.platform, graph.kinds)
    if not has_splits:
        return Search(Simulator(problem, placed_machine(graph)))
    splits = problem_splits(problem, graph.platform, graph.device_count)
    return Search(Simulator(problem, placed_machine(graph, forms=splits.forms), splits))


def policy_cells(
    search: Search, config: ReinforceConfig, prior: Placed | None, seeds: int, updates: int
) -> tuple[list[str], float]:
    """The best without and with learning, and the seconds of a run that learns."""
    cells, seconds = [], 0.0
    for one in (replace(config, learning_rate=None), config):
        begin = time.monotonic()
        runs = list(_runs(search, one, prior, seeds, updates))
        seconds = (time.monotonic() - begin) / seeds
        cells.append(text([min(run, prior or run, key=lambda p: p.rank) for run in runs]))
    return cells, seconds


def _runs(
    search: Search, config: ReinforceConfig, prior: Placed | None, seeds: int, updates: int
) -> Iterator[Placed]:
    for seed in range(seeds):
        search.seed = seed
        yield policies.learnt(search, config, prior, updates)


def text(runs: Sequence[Placed]) -> str:
    """Median seconds, with the range where runs differ."""
    if not all(run.fits for run in runs):
        return "does not fit"
    seconds = sorted(run.seconds for run in runs)
    spread = f" ({seconds[0]:.3f} to {seconds[-1]:.3f})" if seconds[0] < seconds[-1] else ""
    return f"{median(seconds):.3f}{spread}"


def forward_groups(operators: Operators) -> int:
    """Groups of the paper's general rule on the equations of the forward pass and its inputs,
    with which gradients go: what one other alone reads goes to that, until nothing changes.
    """
    flow, count = operators.dataflow, len(operators.dataflow.names)
    is_forward = [p is Phase.FORWARD and v for p, v in zip(operators.phase, flow.varies)]
    readers: dict[int, set[int]] = {}
    for array, maker in enumerate(flow.maker):
        # Numbers of inputs come behind those of equations.
        node = maker if maker != NOBODY else count + array
        is_node = is_forward[node] if node < count else array in flow.inputs
        if is_node:
            its = readers.setdefault(node, set())
            its.update(r for r in flow.readers[array] if is_forward[r] and r != node)
    readers = {node: its for node, its in readers.items() if its or node < count}
    goes_to = {node: node for node in readers}

    def group(node: int) -> int:
        while goes_to[node] != node:
            node = goes_to[node]
        return node

    while True:
        read_by: dict[int, set[int]] = {}
        for node, its in readers.items():
            read_by.setdefault(group(node), set()).update(map(group, its))
        joined = {one: its - {one} for one, its in read_by.items() if len(its - {one}) == 1}
        # Each of these is read in one direction only, as a pass has no circle.
        for one, its in joined.items():
            goes_to[one] = its.pop()
        if not joined:
            return len(read_by)


def group_row(name: str) -> list[str]:
    """A row of the first table."""
    target, rule, papers = GROUPED[name]
    operators = traced(target)
    problem = searched(operators, "haswell-2xk80").simulator.problem
    published = MODELS.get(papers)
    counts = (
        len(operators.dataflow.names),
        problem.n_operators,
        *(
            int(made(problem).max()) + 1
            for made in (rule, colocrl.branch_groups, colocrl.merged_groups)
        ),
        forward_groups(operators),
    )
    theirs = (published.operations, published.groups) if published else (None, None)
    return [name, *(f"{n:,}" for n in counts), *("" if n is None else f"{n:,}" for n in theirs)]


def baseline_row(name: str, gpus: int) -> list[str]:
    """A row of baselines and searches."""
    search = searched(traced(MODELS[name].target), f"haswell-{gpus}xk80")
    count = search.simulator.problem.n_operators
    placed = {
        "CPU": search.place([0] * count),
        "one GPU": search.place([1] * count),
        **{each.__name__.replace("_", "-"): each(search) for each in BASELINES},
    }
    best = min(placed, key=lambda one: placed[one].rank)
    found = auto(search)
    search.deadline = Deadline.after(EXACT_SECONDS)
    proven = exact(search)
    bound = least_seconds(search)
    reached = (
        f"{proven.seconds:.3f}, proven"
        if proven.gap == 0.0
        else f"not proven; at least {bound:.3f}, auto is {found.seconds / bound - 1:.0%} above"
    )
    return [
        name,
        str(gpus),
        *(text([one]) for one in placed.values()),
        f"{best} {placed[best].seconds:.3f}",
        text([found]),
        reached,
        _papers(MODELS[name].seconds[gpus][:5]),
    ]


def policy_row(name: str, gpus: int, seeds: int, updates: int) -> list[str]:
    """A row of trained policies."""
    search = searched(traced(MODELS[name].target), f"haswell-{gpus}xk80")
    cells, seconds = policy_cells(search, colocrl.PAPERS, None, seeds, updates)
    start = policies.start(search)
    cells += policy_cells(search, colocrl.FROM_HEFT, start, seeds, updates)[0]
    return [name, str(gpus), *cells, f"{seconds:.0f}", _papers(MODELS[name].seconds[gpus][5:])]


def _papers(seconds: Sequence[float | None]) -> str:
    return ", ".join("–" if value is None else f"{value:.2f}" for value in seconds)


def towers() -> Target:
    """Inception-v3 as towers of 32 images each and one update: a loss for each quarter of the
    batch, of which the mean's gradient is taken.
    """

    def loss(model: Inception, batch: Batch) -> jax.Array:
        parts = [jax.tree.map(lambda x, n=n: x[n::TOWERS], batch) for n in range(TOWERS)]
        # A copy's running means are dropped: towers that pass them on would wait for each other.
        models = [model, *(nnx.clone(model) for _ in parts[1:])]
        losses = [inception_loss(one, part) for one, part in zip(models, parts, strict=True)]
        return jnp.stack(losses).mean()

    images = (TOWERS * TOWER_BATCH, INCEPTION_V3.image, INCEPTION_V3.image, 3)
    shapes = {"images": (images, "float32"), "labels": (images[:1], "int32")}
    return train_step(lambda rngs: Inception(INCEPTION_V3, rngs=rngs), loss, shapes).target


def tower_rows(seeds: int, updates: int) -> list[list[str]]:
    """Towers, and ways to place the network with all images in one batch."""
    machine, batch = f"haswell-{TOWERS}xk80", TOWERS * TOWER_BATCH
    apart = searched(traced(towers), machine)
    count = apart.simulator.problem.n_operators
    # Operators are numbered tower by tower.
    each = [1 + operator * TOWERS // count for operator in range(count)]
    base = apart.place(each)
    rows = [_tower_row("synchronous towers, parameters on the first GPU", apart, base, base)]
    operators = traced(lambda: inception_v3(batch=batch))
    search = searched(operators, machine)
    one_gpu = search.place([1] * search.simulator.problem.n_operators)
    rows.append(_tower_row("one GPU", search, one_gpu, base))
    for baseline in (baselines.expert, baselines.heft, baselines.m_sct):
        name = baseline.__name__.replace("_", "-")
        rows.append(_tower_row(name, search, baseline(search), base))
    search.deadline = Deadline.after(AUTO_SECONDS)
    rows.append(_tower_row("auto", search, auto(search), base))
    search.deadline = Deadline.never()
    parts = searched(operators, machine, has_splits=True)
    parts.deadline = Deadline.after(AUTO_SECONDS)
    rows.append(_tower_row("auto, operators in parts too", parts, auto(parts), base))
    unlearnt, learnt = (
        min(_runs(search, config, None, seeds, updates), key=lambda p: p.rank)
        for config in (replace(colocrl.PAPERS, learning_rate=None), colocrl.PAPERS)
    )
    own = _tower_row(f"colocrl, the best of {seeds} seeds", search, learnt, base)
    rows.append([*own, text([unlearnt])])
    # Beside them what the towers' own graph allows: each operator of each tower anywhere.
    apart.deadline = Deadline.after(AUTO_SECONDS)
    freed = descended(apart, base)
    rows.append(_tower_row("towers, and a descent from there", apart, freed, base))
    # What learns nothing has no learning to be turned off.
    return [[*row, ""][: len(TOWERS_HEADER)] for row in rows]


def _tower_row(name: str, search: Search, placed: Placed, base: Placed) -> list[str]:
    outcome = search.simulator.run(placed.device)
    most = outcome.peak_bytes[1:].max() / 1e9
    above = f"{placed.seconds / base.seconds - 1:+.0%}" if placed is not base else ""
    return [name, text([placed]), f"{most:.1f}", above]


def _groups(folder: Path, seeds: int, updates: int) -> list[list[str]]:
    return [kept(folder, f"groups {name}", lambda name=name: group_row(name)) for name in GROUPED]


def _baselines(folder: Path, seeds: int, updates: int) -> list[list[str]]:
    return [
        kept(folder, f"baselines {name} {gpus}", partial(baseline_row, name, gpus))
        for name, gpus in _CASES
    ]


def _policies(folder: Path, seeds: int, updates: int) -> list[list[str]]:
    return [
        kept(
            folder,
            f"policies {name} {gpus} {seeds} {updates}",
            partial(policy_row, name, gpus, seeds, updates),
        )
        for name, gpus in _CASES
    ]


def _towers(folder: Path, seeds: int, updates: int) -> list[list[str]]:
    return kept(folder, f"towers {seeds} {updates}", lambda: tower_rows(seeds, updates))


TABLES: Mapping[str, Table] = {
    "groups": Table(GROUPS_HEADER, _groups),
    "baselines": Table(BASELINES_HEADER, _baselines),
    "policies": Table(POLICIES_HEADER, _policies),
    "towers": Table(TOWERS_HEADER, _towers),
}


main = tables_command(TABLES, COMMAND, __doc__)


if __name__ == "__main__":
    main()
