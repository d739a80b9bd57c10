"""Searches of FlexFlow's page that stand beside plans of smaller spaces."""

from automap.search.soap import descend
from automap.simulate.operators.configuration import data_parallel
from scripts.flexflow_cases import case, expert
from scripts.reproduce_flexflow import beside


def test_what_is_found_is_never_worse_than_the_plan_that_it_stands_beside() -> None:
    it = case("alexnet", "flexflow-p100", 2)
    simulator = it.simulator(data_parallel(it.graph, it.n_devices))
    its = descend(simulator, it.layers, 2_000)
    others = [data_parallel(it.graph, it.n_devices), expert(it)]
    # So it is not the start that the search would have without it.
    assert its.step_seconds < min(it.simulator(x).makespan_seconds for x in others)
    # With so few proposals nothing is found from the other starts.
    row = beside(it, its.configurations, 8)
    assert row["step"] == its.step_seconds
    assert row["found"] <= its.step_seconds
