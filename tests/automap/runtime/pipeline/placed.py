"""Placements over two processes, as cases of `several.py`."""

from collections.abc import Callable
from typing import Any, cast

import jax
from jax import numpy as jnp
import numpy as np

import automap
from automap.errors import PlanError
from automap.placement import PLACEMENT_STRATEGIES, Strategy
from models import nmt, rnnlm
from tests.automap.runtime.pipeline.running import mlp
from tests.automap.runtime.test_placement import drawn_choices, filled


ThreeSteps = Callable[[Any, Any, Any, list[Any]], Any]


def _plan(step: Any, args: Any, strategy: Strategy | None) -> automap.Plan:
    """By the expert's strategy, or one that is put in its place."""
    registered = cast(dict[str, Strategy], PLACEMENT_STRATEGIES)
    own = registered["expert"]
    registered["expert"] = strategy or own
    try:
        plan = automap.plan(step, args, topology="local", space="placement", strategy="expert")
    finally:
        registered["expert"] = own
    # What runs is what the file says.
    return automap.Plan.from_json(plan.to_json())


def placed_cases(three_steps: ThreeSteps) -> dict[str, Callable[[], None]]:
    """Cases by name; `three_steps` compares those of a plan with one device's."""

    def case(
        target: Callable[[], Any], strategy: Strategy | None = None, *, crosses: bool = False
    ) -> Callable[[], None]:
        def run() -> None:
            step, args = target()
            plan = _plan(step, args, strategy)
            placement = plan.placement
            assert placement is not None
            processes = [{d // 4 for d in each.devices} for each in placement.operators]
            assert set.union(*processes) == {0, 1}
            assert any(len(its) == 2 for its in processes) == crosses
            state, *rest = filled(args)
            running: Any = plan.jit(step)
            new = three_steps(
                lambda *given: running(*given, *rest[1:]),
                lambda *given: step(*given, *rest[1:]),
                state,
                rest[:1] * 3,
            )
            assert sorted(running.order) == list(range(len(placement.tasks)))
            # State is where the plan stores it.
            places = {device: number for number, device in enumerate(jax.devices())}
            operators = placement.input_operators or (None,) * len(placement.input_devices)
            for leaf, place, operator in zip(
                jax.tree.leaves(new), placement.input_devices, operators, strict=False
            ):
                numbers = (place,) if operator is None else placement.operators[operator].devices
                assert {places[d] for d in leaf.sharding.device_set} == set(numbers)

        return run

    def decorated() -> None:
        step, (state, batch) = mlp(batch=48)
        run = automap.parallelize(step, space="placement", strategy="expert", donate_argnums=0)
        plan = run.plan_for(state, batch)
        assert plan.placement is not None
        assert {number // 4 for number in plan.placement.used} == {0, 1}
        theirs, mine = state, run.init(lambda x: jax.tree.map(jnp.copy, x), state)
        for _ in range(3):
            mine, results = run(mine, batch)
            theirs, wanted = jax.jit(step)(theirs, batch)
            np.testing.assert_allclose(float(results["loss"]), float(wanted["loss"]), rtol=1e-5)
        for got, value in zip(jax.tree.leaves(automap.fetch(mine)), jax.tree.leaves(theirs)):
            np.testing.assert_allclose(got, value, rtol=1e-5, atol=3e-6)

    def other_placements() -> None:
        step, args = mlp(batch=48)
        plan = _plan(step, args, drawn_choices(3 + jax.process_index()))
        try:
            plan.jit(step)(*args)
        except PlanError as error:
            assert "the plan (equal in [0] and [1])" in str(error), error
        else:
            raise AssertionError("no PlanError")

    return {
        "a placement": case(lambda: mlp(batch=48)),
        "a placement in parts": case(lambda: mlp(batch=48), drawn_choices(3), crosses=True),
        "a placed RNNLM": case(lambda: rnnlm.rnnlm_tiny(batch=4, seq=3)),
        "a placed NMT in parts": case(
            lambda: nmt.nmt_tiny(batch=8, seq=2), drawn_choices(7), crosses=True
        ),
        "a decorated placement": decorated,
        "other placements": other_placements,
    }
