"""What of a traced step is in the host's memory."""

import jax
from jax import lax, memory
import jax.numpy as jnp

from automap.program.trace import trace_step
from hlo_tools.analyses.host_memory import HostMemory, host_memory, loads_of_loops
from hlo_tools.analyses.widths import narrow_values
from hlo_tools.opcodes import LOOP_EXIT


LAYERS, SHAPE = 5, (8, 4)


def _graph(step):
    args = (jnp.ones((LAYERS, 4, 4)), jnp.ones(SHAPE))
    return trace_step(jax.jit(step), args, platform="cuda").problem.graph


def _stored(w, x):
    def forward(x, w):
        y = jnp.tanh(x @ w)
        return y, (jax.device_put(x, memory.Space.Host), y)

    return lax.scan(forward, x, w)


def _step(w, x):
    y, (there, here) = _stored(w, x)

    def backward(g, given):
        w, there, here = given
        x = jax.device_put(there, memory.Space.Device)
        return (g * (1 - here**2)) @ w.T, x.T @ g

    return lax.scan(backward, y, (w, there, here), reverse=True)


def test_a_stack_of_one_loop_that_another_reads():
    graph = _graph(_step)
    found = host_memory(graph)
    dims = sorted(graph.values[v].dims for v in found.values if v not in graph.outputs)
    # What the trips put and read, with the stack at the ends of both loops; not the stack of what
    # stays, though both begin as the same zeros.
    assert {(LAYERS, *SHAPE), SHAPE, (1, *SHAPE)} == set(dims)
    stacks = [v for v in found.values if graph.values[v].dims == (LAYERS, *SHAPE)]
    others = [
        v
        for v, value in enumerate(graph.values)
        if value.dims == (LAYERS, *SHAPE) and v not in found.values and graph.varies[v]
    ]
    assert len(stacks) == len(others)
    (store,), (load,) = found.stores, found.loads
    assert graph.values[graph.ops[store].outputs[0]].dims == SHAPE
    assert graph.ops[load].outputs[0] not in found.values and store < load


def test_what_a_loop_loads_may_come_from_the_end_of_the_loop_that_stored_it():
    graph = _graph(_step)
    found = host_memory(graph)
    ((value, end),) = loads_of_loops(graph, found).items()
    assert value in graph.ops[found.loads[0]].outputs
    # The first of the two loops, which stores.
    assert end == next(n for n, op in enumerate(graph.ops) if op.opcode == LOOP_EXIT)


def test_what_no_loop_stored_is_loaded_where_it_is_read():
    def step(w, x):
        there = jax.device_put(jnp.tanh(x), memory.Space.Host)
        return (jax.device_put(there, memory.Space.Device) @ w[0]).sum()

    graph = _graph(step)
    found = host_memory(graph)
    assert found.loads and not loads_of_loops(graph, found)


def test_what_comes_from_the_host_is_as_wide_as_it_was_put_there():
    def step(w, x):
        there = jax.device_put(jnp.tanh(x), memory.Space.Host)
        return jax.device_put(there, memory.Space.Device) @ w[0], jnp.sin(x) @ w[0]

    graph = _graph(step)
    narrow = narrow_values(graph)
    moved = host_memory(graph)
    assert not any(narrow[v] for n in (*moved.stores, *moved.loads) for v in graph.ops[n].outputs)
    # The same where nothing is moved is kept as the product rounds it.
    assert [narrow[op.outputs[0]] for op in graph.ops if op.opcode == "sine"] == [True]


def test_a_step_without_is_all_on_the_device():
    assert host_memory(_graph(lambda w, x: (w @ x.T, x))) == HostMemory()


def test_what_is_put_on_the_device_is_there_already():
    def step(w, x):
        return jax.device_put(x, memory.Space.Device) @ w[0]

    assert host_memory(_graph(step)) == HostMemory()
