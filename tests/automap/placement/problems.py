"""Small placement problems of tests: traced steps, and random tasks and tensors."""

from types import SimpleNamespace
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from automap.placement.dataflow import NOBODY, step_dataflow
from automap.placement.operators import Operators, step_operators
from automap.placement.tasks import PlacementProblem, Task, Tensor, placement_problem
from automap.program.trace import trace_step
from automap.topology import get_graph
from hlo_tools.analyses.phases import Phase


def layers_step(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    """Plain gradient descent on two layers without anything between them."""
    value, grads = jax.value_and_grad(lambda w: jnp.sum((x @ w["a"]) @ w["b"]))(state)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), value


def layers_arguments() -> tuple[Any, ...]:
    def floats(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    return {"a": floats(32, 64), "b": floats(64, 16)}, floats(8, 32)


def operators(step: Any, args: Any) -> Operators:
    return step_operators(step_dataflow(trace_step(step, args, platform="cuda")))


def traced(step: Any, args: Any, machine: str) -> PlacementProblem:
    graph = get_graph(machine)
    return placement_problem(operators(step, args), graph.platform, graph.kinds)


def random_problem(rng: np.random.Generator, count: int, kinds: int) -> PlacementProblem:
    """A chain of forward tasks, of backward tasks, and of tensors between any of them."""
    tasks = [Task(operator=o, phase=Phase.FORWARD, nodes=()) for o in range(count)]
    tasks += [Task(operator=o, phase=Phase.BACKWARD, nodes=()) for o in range(count)[::-1]]
    tensors = []
    for maker in range(len(tasks)):
        later = range(maker + 1, len(tasks))
        readers = tuple(t for t in later if rng.random() < 0.3 or t == maker + 1)
        receivers = tuple(t for t in readers if rng.random() < 0.8 or t == maker + 1)
        moved, kept = rng.integers(1, 1 << 24, 2).tolist()
        tensors.append(_tensor(maker, NOBODY, moved, kept, readers, receivers, maker % 3 == 0))
    for operator in range(count):
        readers = (operator, 2 * count - 1 - operator)
        moved, kept = rng.integers(1, 1 << 24, 2).tolist()
        tensors.append(_tensor(NOBODY, (operator + 1) % count, moved, kept, readers, readers))
    tensors.append(_tensor(NOBODY, NOBODY, 1000, 1000, (0, 1), (0, 1)))
    names: Any = SimpleNamespace(names=tuple(f"w{o // 2} #{o}" for o in range(count)))
    return PlacementProblem(
        operators=names,
        kinds=(),
        tasks=tuple(tasks),
        tensors=tuple(tensors),
        seconds=rng.uniform(1e-4, 1e-2, (kinds, len(tasks))),
        workspace_bytes=rng.integers(0, 1 << 20, len(tasks)).astype(float),
    )


def _tensor(
    maker: int,
    home: int,
    moved: int,
    kept: int,
    readers: tuple[int, ...],
    receivers: tuple[int, ...],
    is_result: bool = False,  # noqa: FBT001, FBT002
) -> Tensor:
    return Tensor(
        maker=maker,
        home=home,
        moved_bytes=moved,
        kept_bytes=kept,
        readers=readers,
        receivers=receivers,
        is_result=is_result,
    )
