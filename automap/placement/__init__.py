"""Operators on devices: FlexFlow's and ColocRL's question, which operator runs where.

    flow = step_dataflow(workload)                        # equations, and the arrays between them
    operators = step_operators(flow)                      # of a person's graph
    graph = get_graph("haswell-4xk80")                    # or any topology: 4xk80, flexflow-k80
    problem = placement_problem(operators, graph.platform, graph.kinds)
    simulator = Simulator(problem, placed_machine(graph))           # of whole operators
    outcome = simulator.run(device_of_each_operator)      # step_seconds, peak_bytes, fits, ...
    seconds, fits = simulator.price_all(placements)       # int64 [n, operators], many at once
    placed = PLACEMENT_STRATEGIES["mcmc"](Search(simulator, seed=0))   # device, seconds, fits, gap

`automap.placement.dataflow`    a step as nodes with arrays between them
`automap.placement.operators`   which nodes belong to one operator
`automap.placement.tasks`       operators in tasks with their seconds on each kind of device, and
                                tensors with their bytes
`automap.placement.simulation`  placements of one problem on one machine, simulated
`automap.placement.splits`      what operators take in parts, for simulators that may split them
"""

from collections.abc import Mapping
from typing import Final

from automap.placement.baselines import (
    data_parallel,
    expert,
    heft,
    m_sct,
    mapping,
    memory,
    mincut,
    optcnn,
    single,
)
from automap.placement.search import Placed as Placed, Search as Search, Strategy as Strategy
from automap.placement.strategies import BASELINES as BASELINES, auto, exact, mcmc


def _agent(search: Search) -> Placed:
    from automap.placement.agent import agent  # reads weights

    return agent(search)


def _colocrl(search: Search) -> Placed:
    from automap.placement.policies import colocrl  # loads rl

    return colocrl(search)


def _colocrl_from_heft(search: Search) -> Placed:
    from automap.placement.policies import colocrl_from_heft  # loads rl

    return colocrl_from_heft(search)


def _colocrl_measured(search: Search) -> Placed:
    from automap.placement.measured import colocrl_measured  # loads rl

    return colocrl_measured(search)


PLACEMENT_STRATEGIES: Final[Mapping[str, Strategy]] = {
    "auto": auto,
    "exact": exact,
    "mcmc": mcmc,
    "agent": _agent,
    "colocrl": _colocrl,
    "colocrl-heft": _colocrl_from_heft,
    "colocrl-measured": _colocrl_measured,
    "heft": heft,
    "m-sct": m_sct,
    "memory": memory,
    "mincut": mincut,
    "mapping": mapping,
    "single": single,
    "data-parallel": data_parallel,
    "optcnn": optcnn,
    "expert": expert,
}
