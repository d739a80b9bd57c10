"""Tables of the pipeline agent: beside each of its columns is the one without learning."""

import numpy as np
import pytest


pytest.importorskip("torch")

from automap.pipeline.agent.problems import Size, generate
from automap.pipeline.solvers.local import optimum
from scripts.pipeline_agent_cases import (
    BASELINES,
    METHOD_HEADER,
    METHODS,
    PAIRED,
    PAIRED_HEADER,
    PAIRED_NAMES,
    PLAYED,
    Gaps,
    beside_unlearned,
    compared,
    measured,
    method_rows,
    paired_cells,
    paired_seconds,
)


def test_better_equal_and_worse_are_counted_problem_by_problem():
    assert compared([0.0, 0.1, 0.2, 0.3], [0.1, 0.1 + 1e-9, 0.1, 0.1]) == ["1", "1", "2"]


def test_every_metric_of_the_agent_is_beside_that_without_learning():
    agent, unlearned = Gaps([0.0, 0.5], [1.0, 2.0]), Gaps([0.25, 0.5], [3.0, 4.0])
    cells = paired_cells([agent], unlearned)
    assert len(cells) == len(METHOD_HEADER) - 1
    assert cells[:4] == ["25.00%", "37.50%", "25.00%", "37.50%"]
    assert cells[-5:-3] == ["1500.0", "3500.0"]
    assert cells[-3:] == ["1", "1", "0"]
    assert paired_cells([agent], None)[1::2][:7] == ["-"] * 7


def test_runs_of_other_seeds_are_a_median_with_the_least_and_greatest():
    runs = [Gaps([0.0, gap]) for gap in (0.2, 0.4, 1.0)]
    cells = paired_cells(runs, Gaps([0.1, 0.4]))
    assert cells[0] == "20.00% (10.00% to 50.00%)" and cells[1] == "25.00%"
    # Nobody measured them.
    assert cells[-5:-3] == ["-", "-"]
    # Two problems of three runs.
    assert cells[-3:] == ["4", "1", "1"]


def test_rows_are_of_the_same_problems():
    problem = generate(3, Size(stages=3, points=24, servers=2, per_server=2))
    best = optimum(problem.arrays, problem.stages).best
    rows = {name: cells for name, *cells in method_rows([(problem, best.seconds)])}
    assert list(rows) == [*BASELINES, *PLAYED]
    for method in PLAYED:
        names = [f"{who}, {method}" for who in ("agent", "without learning")]
        own = measured([(problem, best.seconds)], {name: METHODS[name] for name in names})
        gaps = [f"{each.numbers()[0]:.2%}" for each in own.values()]
        assert rows[method][:2] == gaps


def test_where_nothing_is_proven_a_difference_has_its_standard_error():
    problem = generate(3, Size(stages=4, points=24, servers=2, per_server=4))
    made = paired_seconds(problem)
    assert set(made) == set(PAIRED_NAMES)
    # Another problem, on which the agent alone is twice as fast with every method.
    other = {n: (s / 2 if n.startswith("agent") else s, t) for n, (s, t) in made.items()}
    rows = beside_unlearned([dict.fromkeys(PAIRED_NAMES, (1.0, 0.1)), other])
    assert [row[0] for row in rows] == list(PAIRED)
    greedy = dict(zip(PAIRED_HEADER, rows[0]))
    mean = (np.log(other["agent, greedy"][0]) - np.log(made["without learning, greedy"][0])) / 2
    assert greedy["difference ± its standard error"] == f"{mean:+.2%} ± {abs(mean):.2%}"
    assert (greedy["agent better"], greedy["without learning better"]) == ("1", "0")
