"""Placement plans on eight CPU devices: three steps equal to one device, in the simulated order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import jax
from jax import numpy as jnp
import numpy as np
import pytest

import automap
from automap.errors import InputError, PlanError
from automap.placement import PLACEMENT_STRATEGIES, Placed, Search, Strategy
from models import inception, lenet, moe, nmt, rnnlm


def filled(tree: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)

    def fill(leaf: Any) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            return jnp.asarray(rng.integers(0, 4, leaf.shape), leaf.dtype)
        return jnp.asarray(np.abs(rng.normal(size=leaf.shape)) * 0.05, leaf.dtype)

    return jax.tree.map(fill, tree)


@contextmanager
def compiled_programs() -> Iterator[list[str]]:
    """The programs that are compiled inside of the block."""
    names: list[str] = []

    def hear(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event.endswith("backend_compile_duration"):
            names.append(str(kwargs))

    jax.monitoring.register_event_duration_secs_listener(hear)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(hear)


def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def drawn_choices(seed: int) -> Strategy:
    """Choices at random, most of them in parts."""

    def place(search: Search) -> Placed:
        rng, moves, chosen = np.random.default_rng(seed), search.moves, list[int]()
        for first, past in pairwise(moves.first.tolist()):
            options = moves.option[first:past]
            is_split = search.simulator.machine.choices.n_parts[options] > 1
            chance = np.where(is_split, 1.0, 0.3)
            chosen.append(int(rng.choice(options, p=chance / chance.sum())))
        return search.place(chosen)

    return place


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], str]:
    """A strategy that draws, by its seed."""

    def named(seed: int) -> str:
        monkeypatch.setitem(cast(Any, PLACEMENT_STRATEGIES), "expert", drawn_choices(seed))
        return "expert"

    return named


def _check_three_steps(target: Callable[[], Any], strategy: str) -> None:
    step, args = target()
    plan = automap.plan(step, args, topology="cpu:8", space="placement", strategy=strategy)
    # What runs is what the file says.
    plan = automap.Plan.from_json(plan.to_json())
    placement = plan.placement
    assert placement is not None
    assert len(placement.used) > 1
    run: Any = plan.jit(step)
    state, *rest = filled(args)
    here, alone = _copied(state), _copied(state)
    compiled = []
    for _ in range(3):
        with compiled_programs() as programs:
            here, made = run(here, *rest)
        compiled.append(len(programs))
        alone, expected = step(alone, *rest)
    # What comes back from a step is what the next takes.
    assert compiled[0] > 0
    assert compiled[1:] == [0, 0]
    for got, wanted in zip(
        jax.tree.leaves((here, made)), jax.tree.leaves((alone, expected)), strict=True
    ):
        exact = np.asarray(wanted)
        # Small numbers are differences of sums as large as the largest, which are rounded.
        least = max(1e-6, 5e-5 * float(np.abs(exact).max(initial=0.0)))
        np.testing.assert_allclose(np.asarray(got), exact, rtol=2e-5, atol=least)
    # Every task was run, on each device in the order of the simulation.
    assert sorted(run.order) == list(range(len(placement.tasks)))
    for number in placement.used:
        its = [
            task
            for task in run.order
            if number in placement.operators[placement.tasks[task].operator].devices
        ]
        assert its == sorted(its)
    # State is where the plan stores it.
    devices = jax.devices()
    operators = placement.input_operators or (None,) * len(placement.input_devices)
    leaves = zip(jax.tree.leaves(here), placement.input_devices, operators, strict=False)
    for leaf, place, operator in leaves:
        assert place is not None
        numbers = (place,) if operator is None else placement.operators[operator].devices
        assert leaf.devices() == {devices[number] for number in numbers}


@pytest.mark.parametrize(
    "target",
    [lambda: lenet.lenet_tiny(batch=8), lambda: rnnlm.rnnlm_tiny(batch=4, seq=3)],
    ids=["lenet", "rnnlm"],
)
def test_three_steps_are_those_of_one_device(target: Callable[[], Any]) -> None:
    _check_three_steps(target, "expert")


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        lambda: nmt.nmt_tiny(batch=8, seq=4),
        moe.moe_tiny,
        lambda: inception.inception_tiny(batch=8),
    ],
    ids=["nmt", "moe", "inception"],
)
def test_larger_models_are_those_of_one_device(target: Callable[[], Any]) -> None:
    _check_three_steps(target, "expert")


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        lambda: lenet.lenet_tiny(batch=8),
        lambda: nmt.nmt_tiny(batch=8, seq=4),
        moe.moe_tiny,
        lambda: inception.inception_tiny(batch=8),
    ],
    ids=["lenet", "nmt", "moe", "inception"],
)
def test_models_in_parts_are_those_of_one_device(
    target: Callable[[], Any], drawn: Callable[[int], str]
) -> None:
    _check_three_steps(target, drawn(7))


@pytest.mark.parametrize("seed", [0, 1])
def test_layers_in_parts_are_those_of_one_device(seed: int, drawn: Callable[[int], str]) -> None:
    args = filled(({"a": jnp.zeros((16, 32)), "b": jnp.zeros((32, 8))}, jnp.zeros((8, 16))))
    _check_three_steps(lambda: (_two_layers, args), drawn(seed))


def _two_layers(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    def loss(w: Any) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), value


def _plan() -> tuple[automap.Plan, Any]:
    args = filled(({"a": jnp.zeros((16, 32)), "b": jnp.zeros((32, 8))}, jnp.zeros((4, 16))))
    plan = automap.plan(_two_layers, args, topology="cpu:2", space="placement", strategy="expert")
    return plan, args


def test_the_decorator_runs_it_and_makes_state_where_it_is_stored() -> None:
    plan, (state, x) = _plan()
    assert plan.placement is not None
    step = automap.parallelize(
        topology="cpu:2", devices=jax.devices()[:2], space="placement", strategy="expert"
    )(_two_layers)
    step.plan_for(state, x)
    made = step.init(lambda: _copied(state))
    after, loss = step(made, x)
    wanted, expected = _two_layers(state, x)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    for name, device in (("a", 0), ("b", 1)):
        np.testing.assert_allclose(after[name], wanted[name], rtol=1e-6)
        assert made[name].devices() == after[name].devices() == {jax.devices()[device]}


def test_the_decorator_runs_operators_in_parts(drawn: Callable[[int], str]) -> None:
    args = filled(({"a": jnp.zeros((16, 32)), "b": jnp.zeros((32, 8))}, jnp.zeros((8, 16))))
    step = automap.parallelize(topology="cpu:8", space="placement", strategy=drawn(0))(_two_layers)
    plan = step.plan_for(*args)
    assert plan.placement is not None
    assert plan.placement.n_split > 0
    mine, theirs = step.init(lambda: _copied(args[0])), args[0]
    for _ in range(3):
        mine, loss = step(mine, args[1])
        theirs, expected = _two_layers(theirs, args[1])
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    operators = plan.placement.input_operators
    for name, operator in zip(("a", "b"), operators, strict=False):
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-5, atol=1e-7)
        assert operator is not None
        devices = plan.placement.operators[operator].devices
        assert mine[name].devices() == {jax.devices()[number] for number in devices}


def test_rewards_are_measured_on_the_devices_there_are() -> None:
    pytest.importorskip("torch")
    step, args = lenet.lenet_tiny()
    options: Any = {"space": "placement", "strategy": "colocrl-measured", "budget": 2.0}
    plan = automap.plan(step, args, topology="cpu:2", **options)
    assert any(text.startswith("measured: ") for text in plan.warnings)
    assert plan.placement is not None
    with pytest.raises(InputError, match="got 8 of cpu, the topology has 9"):
        automap.plan(step, args, topology="cpu:9", **options)


def test_programs_that_would_wait_in_a_circle_are_refused_with_the_operators() -> None:
    plan, (state, x) = _plan()
    data: Any = plan.to_json()
    tasks = data["placement"]["tasks"]
    tasks[0], tasks[1] = tasks[1], tasks[0]
    data["placement"]["transfers"] = []
    run = automap.Plan.from_json(data).jit(_two_layers, devices=jax.devices()[:2])
    with pytest.raises(PlanError, match=r"\['b'\].* reads what .*\['a'\].*in a circle"):
        run(state, x)
    with pytest.raises(PlanError, match="several programs"):
        run.lower(state, x)


def test_programs_that_need_each_other_are_refused_with_the_operators() -> None:
    """No order of these tasks can run: each of the two operators has the other's next equation."""
    plan, (state, x) = _plan()
    assert plan.placement is not None
    first, second, *others = plan.placement.tasks
    equations = [number for task in (first, second) for number in task.numbers]
    in_turn = [tuple((n, n) for n in equations[start::2]) for start in (0, 1)]
    assert min(map(len, in_turn)) > 1
    tasks = (replace(first, equations=in_turn[0]), replace(second, equations=in_turn[1]), *others)
    both = replace(plan, placement=replace(plan.placement, tasks=tasks, transfers=()))
    for bad in (both, automap.Plan.from_json(both.to_json())):
        with pytest.raises(PlanError, match=r"\['a'\].* reads what .*\['b'\].*in a circle"):
            bad.jit(_two_layers, devices=jax.devices()[:2])(state, x)


def test_equations_that_the_step_has_not_are_refused() -> None:
    plan, (state, x) = _plan()
    data: Any = plan.to_json()
    data["placement"]["tasks"][-1]["equations"].append([900, 901])
    run = automap.Plan.from_json(data).jit(_two_layers, devices=jax.devices()[:2])
    with pytest.raises(PlanError, match="got 900, of .*; the step has"):
        run(state, x)


def test_arrays_that_the_step_has_not_are_refused(drawn: Callable[[int], str]) -> None:
    args = filled(({"a": jnp.zeros((16, 32)), "b": jnp.zeros((32, 8))}, jnp.zeros((8, 16))))
    strategy = drawn(0)
    plan = automap.plan(_two_layers, args, topology="cpu:8", space="placement", strategy=strategy)
    data: Any = plan.to_json()
    data["placement"]["arrays"][0]["classes"].append(0)
    run = automap.Plan.from_json(data).jit(_two_layers)
    with pytest.raises(PlanError, match=r"placement.arrays\[0\]: got number .*; plan again"):
        run(*args)
